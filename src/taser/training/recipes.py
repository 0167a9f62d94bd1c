"""The recipes that ship with the package."""

from importlib.resources import files
from pathlib import Path

from taser.nearest import hint

FOLDER = Path(str(files("taser") / "recipes"))


def shipped_recipes() -> dict[str, str]:
    """The name of each recipe, and the comment in its first line."""
    found = {}
    for path in sorted(FOLDER.rglob("*.yaml")):
        first = path.read_text().splitlines()[0]
        found[path.relative_to(FOLDER).with_suffix("").as_posix()] = first.lstrip("# ")
    return found


def find_recipe(name: Path | str) -> Path:
    """The path of a recipe, given as a file or by its name."""
    path = Path(name).expanduser()
    if path.is_file():
        return path
    known = FOLDER / f"{str(name).removesuffix('.yaml')}.yaml"
    if known.is_file():
        return known
    raise ValueError(
        f"there is no file and no recipe {str(name)!r}{hint(name, shipped_recipes())}; "
        "`taser recipes` lists them"
    )
