"""Every Python block of README and docs runs, in order, one namespace a page."""

import json
import re
import runpy
from pathlib import Path

import pytest
import yaml

from taser.compare._comparison_config import METHODS

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


def test_the_table_of_the_readme_is_that_of_the_results() -> None:
    """Accuracies, gains, what is bold over the examples and what has a star over seeds."""
    table = re.search(r"^\| \| digits .*?\n\n", (ROOT / "README.md").read_text(), re.M | re.S)
    assert table
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table[0].splitlines()]
    expected: dict[str, list[str]] = {}
    for study in ("digits", "fashion-mnist", "cifar10"):
        rows = json.loads((ROOT / "results" / study / "figures.json").read_text())["rows"]
        found = {(METHODS[row["method"]], row["variant"]): row for row in rows}
        for method in METHODS.values():
            cells = expected.setdefault(method, [method])
            cells.append(f"{100 * found[method, 'off']['accuracy']['autoattack']['value']:.1f}")
            for variant in ("taser", "gradient"):
                gain = found[method, variant]["gain"]["autoattack"]
                text = f"{100 * gain['value']:+.1f}".replace("-", "−")
                retrained = (found[method, variant]["gain_retrained"] or {}).get("autoattack")
                bold = f"**{text}**" if gain["low"] > 0 or gain["high"] < 0 else text
                stars = retrained and (retrained["low"] > 0 or retrained["high"] < 0)
                cells.append(bold + "\\*" * bool(stars))
    assert [line for line in lines[2:] if line] == list(expected.values())
