# The two commands of the README, and their parts. Everything happens inside .venv.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo test lint experiments bench docs clean

demo: $(READY)  ## run the main job on data that needs no download, and write a report
	$(BIN)/taser demo --out out/demo

# Small networks run faster on one thread, and two files at a time use two cores.
test: lint  ## lint, type check and all tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

experiments: $(READY)  ## the paper's Table 1 and Figure 1 (three minutes)
	for name in toy_regression manifold; do $(BIN)/python experiments/$$name.py || exit 1; done

bench: $(READY)  ## measure again what benchmarks/results/ holds (about an hour)
	$(BIN)/python benchmarks/estimators.py --out benchmarks/results
	$(BIN)/python benchmarks/two_lines.py --threads 1
	$(BIN)/python benchmarks/growth.py
	$(BIN)/python benchmarks/evaluation.py --examples 100 --batch 50 --out benchmarks/results

# MkDocs Material would print a note about a future MkDocs at each build.
docs: .venv/.docs  ## the documentation as pages, in site/; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "open site/index.html, or, to search as well: python3 -m http.server -d site"

.venv/.docs: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	touch $@

# The constraints pin torch, without which pip would take a CUDA build of several gigabytes.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf .venv out site .pytest_cache .mypy_cache .ruff_cache
