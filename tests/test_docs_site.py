"""The documentation site: every page can be reached, every link leads somewhere."""

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

import taser
from taser.cli import app

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
LINK = re.compile(r"\]\((?![a-z]+:)([^)#\s]*)(?:#([^)\s]*))?\)")
SUBMODULES = [
    "attacks", "compare", "data", "evaluation", "models", "objectives", "probes", "regularisers",
    "report", "scores", "stein.identities", "training",
]  # fmt: skip
FENCE = re.compile(r"^(`{3,}).*?^\1", re.MULTILINE | re.DOTALL)


class Tolerant(yaml.SafeLoader):
    """YAML in which a tag of MkDocs, such as !ENV or !!python/name, is no error."""


Tolerant.add_multi_constructor("", lambda *_: None)


def nav_entries(nav: Any) -> list[str]:
    """The files that a nav names, however deep."""
    if isinstance(nav, str):
        return [nav]
    return [entry for part in (nav.values() if isinstance(nav, dict) else nav)
            for entry in nav_entries(part)]  # fmt: skip


def links(page: Path) -> list[tuple[str, str]]:
    """(file, anchor) of each relative link of a page, outside code."""
    return LINK.findall(FENCE.sub("", page.read_text()))


def anchors(page: Path) -> set[str]:
    """The anchors that a reader makes of headings."""
    heads = re.findall(r"^#+ +(.*)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", h).strip().lower()) for h in heads}


def test_nav_and_pages_are_the_same() -> None:
    entries = nav_entries(yaml.load((ROOT / "mkdocs.yml").read_text(), Tolerant)["nav"])
    assert len(entries) == len(set(entries))
    pages = {page.relative_to(DOCS).as_posix() for page in PAGES}
    assert pages - set(entries) == set(), "put these into the nav of mkdocs.yml"
    assert set(entries) - pages == set(), "these are in the nav of mkdocs.yml but do not exist"


def test_a_tag_of_mkdocs_is_tolerated() -> None:
    text = "nav: [{A: [a.md, {B: b.md}]}]\nx: !ENV [Y]\nz: !!python/name:a.b\n"
    assert nav_entries(yaml.load(text, Tolerant)["nav"]) == ["a.md", "b.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    for file, anchor in links(page):
        target = (page.parent / file) if file else page
        assert target.exists(), f"there is no {file}"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{file or page.name} has no heading #{anchor}"


@pytest.mark.parametrize("name", SUBMODULES)
def test_every_exported_name_is_in_the_reference(name: str) -> None:
    text = (DOCS / "reference" / f"{name.split('.')[-1]}.md").read_text()
    shown = set(re.findall(rf"^::: taser\.{name}\.(\w+)", text, re.MULTILINE))
    missing = {*import_module(f"taser.{name}").__all__} - shown
    assert not missing, "show these in the reference: ::: taser.<module>.<name>"


def test_the_top_level_is_in_the_reference() -> None:
    text = (DOCS / "reference" / "taser.md").read_text()
    shown = set(re.findall(r"^::: taser\.(\w+)$", text, re.MULTILINE))
    submodules = {name for name in taser.__all__ if f"`{name}`" in text}
    assert shown | submodules == {*taser.__all__}
    stein = set(re.findall(r"^::: taser\.stein\.(\w+)$", text, re.MULTILINE))
    at_home = {"Regulariser", "identities"}  # on pages of their own
    assert stein | shown | at_home >= {*taser.stein.__all__}


def test_every_command_is_in_the_reference() -> None:
    text = (DOCS / "reference" / "command-line.md").read_text()

    def names(group: Any, before: str) -> list[str]:
        found = []
        for name, command in group.commands.items():
            inside = hasattr(command, "commands")
            found += names(command, f"{before} {name}") if inside else [f"{before} {name}"]
        return found

    missing = [n for n in names(typer.main.get_command(app), "taser") if f"`{n}`" not in text]
    assert not missing, "describe these in docs/reference/command-line.md"
