"""The recipes that ship with the package."""

from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path

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
    names = shipped_recipes()
    near = get_close_matches(str(name), names, n=1, cutoff=0.4)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ValueError(
        f"there is no file and no recipe {str(name)!r}{hint} (`taser recipes` lists them)"
    )
