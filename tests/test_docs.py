"""Every Python block of README and docs runs, in order, one namespace a page."""

import json
import re
import runpy
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


OTHERS = pytest.mark.filterwarnings("ignore")  # the trainers of others give advice as warnings


@pytest.mark.parametrize(
    "page", [pytest.param(p, id=p.name, marks=[OTHERS] * (p.name == "trainers.md")) for p in PAGES]
)
def test_python_blocks_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict = {}
    for number, block in enumerate(BLOCK.findall(page.read_text()), 1):
        exec(compile(block, f"{page.name}, block {number}", "exec"), namespace)
    assert "Traceback" not in capsys.readouterr().err


def test_pages_have_links_that_lead_somewhere() -> None:
    broken = [
        f"{page.name}: {target}"
        for page in PAGES
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text())
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert not broken


def test_the_notebook_is_the_tutorial_whose_code_runs() -> None:
    """`python docs/notebook.py` writes it anew; its code is that of the page, which runs above."""
    script = runpy.run_path(str(ROOT / "docs" / "notebook.py"))
    page, written = script["PAGE"].read_text(), script["NOTEBOOK"].read_text()
    assert written == script["notebook"](page)
    cells = [cell for cell in json.loads(written)["cells"] if cell["cell_type"] == "code"]
    assert ["".join(cell["source"]) + "\n" for cell in cells] == BLOCK.findall(page)


def test_readme_has_code_that_is_tested() -> None:
    assert len(BLOCK.findall((ROOT / "README.md").read_text())) >= 1


def test_the_citation_file_and_the_readme_agree() -> None:
    paper = yaml.safe_load((ROOT / "CITATION.cff").read_text())["preferred-citation"]
    readme = (ROOT / "README.md").read_text().replace("{", "").replace("}", "")
    assert paper["title"] in readme
    assert paper["journal"] in readme
    assert f"year    = {paper['year']}" in readme
    assert all(author["family-names"] in readme for author in paper["authors"])


def test_people_finish_the_readme() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.split()) <= 1300
    assert len(text.splitlines()) <= 130
