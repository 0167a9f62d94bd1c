"""What pages link to outside docs/ becomes part of the site: tables, figures, examples."""

import re
from pathlib import Path
from posixpath import dirname, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

DOCS = Path(__file__).parent.resolve()
ROOT, REST = DOCS.parent, "repository/"
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#|/)([^)#\s]+)")


def uri_of(path: Path) -> str:
    """The URI of a file or folder of the repository among the site's sources."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    name = (path / "README.md" if path.is_dir() else path).relative_to(ROOT).as_posix()
    return REST + (name if name.endswith((".md", ".png", ".svg")) else f"{name}.md")


def page_of(path: Path) -> str:
    """A page: Markdown as it is, code as a block, a folder as a list of its files."""
    title = f"# {path.relative_to(ROOT)}\n\n"
    if path.is_dir():
        return title + "".join(f"- `{entry.name}`\n" for entry in sorted(path.glob("[!._]*")))
    text = path.read_text()
    return text if path.suffix == ".md" else f"{title}````{path.suffix[1:]}\n{text}````\n"


def targets(uri: str, text: str) -> list[Path]:
    """What a source of the site links to, inside the repository."""
    home = ROOT / uri.removeprefix(REST) if uri.startswith(REST) else DOCS / uri
    found = ((home.parent / link).resolve() for link in LINK.findall(text))
    read = (path / "README.md" if (path / "README.md").exists() else path for path in found)
    return [path for path in read if path.exists() and path.is_relative_to(ROOT)]


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add what pages link to, what that links to, and so on."""
    left = [t for f in files.documentation_pages() for t in targets(f.src_uri, f.content_string)]
    for path in left:  # which grows as it goes
        if (uri := uri_of(path)) not in files.src_uris:
            page = uri.endswith(".md")
            given = {"content": page_of(path)} if page else {"abs_src_path": str(path)}
            files.append(File.generated(config, uri, inclusion=InclusionLevel.NOT_IN_NAV, **given))
            left += targets(uri, given.get("content", ""))


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Write links as links between the site's sources."""

    def rewritten(link: re.Match[str]) -> str:
        found = targets(page.file.src_uri, f"]({link[1]})")
        return relpath(uri_of(found[0]), dirname(page.file.src_uri)) if found else link[1]

    return LINK.sub(rewritten, markdown)
