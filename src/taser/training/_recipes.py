"""Recipes: read YAML into a Config, check every key, and apply overrides."""

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from taser._names import hint, refuse_code
from taser._settings import from_mapping, read_yaml

from ._config import Config

FOLDER = Path(str(files("taser") / "recipes"))


def shipped_recipes() -> dict[str, str]:
    """The name of each recipe, and the comment in the first line of its file."""
    found: dict[str, str] = {}
    for path in sorted(FOLDER.rglob("*.yaml")):
        name = path.relative_to(FOLDER).with_suffix("").as_posix()
        summary = path.read_text().splitlines()[0].lstrip("# ")
        methods = {} if name.startswith("compare/") else _content(name).get("methods", {})
        found |= {f"{name}/{method}": summary for method in methods} or {name: summary}
    return found


def find_recipe(name: Path | str) -> Path:
    """The file of a recipe, given by its path or its name."""
    if path := _path(name):
        return path
    raise _unknown(name)


def read_recipe(
    name: Path | str, overrides: Sequence[str] = (), *, trust_code: bool = False
) -> Config:
    """The Config in a YAML file or shipped recipe, with overrides "regulariser.weight=0.3".

    Code that the file names (`model.name`, `regulariser.score`) is refused unless `trust_code`;
    code named by an override is accepted. A recipe may begin with `extends:` and another recipe,
    whose keys it changes. A file with `methods:` holds one recipe per method, FILE/METHOD.
    """
    content = _content(name)
    if isinstance(methods := content.get("methods"), dict):
        names = ", ".join(f"{name}/{method}" for method in methods)
        raise ValueError(f"{name} holds several recipes; take one of {names}")
    config = override(from_mapping(Config, content, str(name)), overrides)
    given = [assignment.partition("=")[0].strip() for assignment in overrides]
    check_code(config, str(name), trust_code=trust_code, given=given)
    return config


def check_code(
    config: Config, source: str, *, trust_code: bool, given: Collection[str] = ()
) -> None:
    """Refuse code that a file, `source`, names. given: keys or sections that the caller set."""
    score = config.regulariser.score.removeprefix("diffusers:")  # which is no code
    named = {"model.name": config.model.name, "regulariser.score": score}
    for key, spec in named.items():
        if not key.startswith(tuple(given)):
            refuse_code(spec, f"{key} in {source}", trust_code=trust_code)


def _path(name: Path | str, beside: Path | None = None) -> Path | None:
    path = Path(name).expanduser()
    shipped = FOLDER / f"{str(name).removesuffix('.yaml')}.yaml"
    places = [path, shipped] if beside is None else [beside / path, path, shipped]
    return next((place for place in places if place.is_file()), None)


def _unknown(name: Path | str) -> ValueError:
    near = hint(name, shipped_recipes())
    return ValueError(f"there is no file and no recipe {str(name)!r}{near}; see `taser recipes`")


def _content(
    name: Path | str, beside: Path | None = None, above: Sequence[Path] = ()
) -> dict[str, Any]:
    """The keys of a recipe, with the keys of recipes that it extends."""
    path, method = _path(name, beside), ""
    if path is None:
        family, _, method = str(name).rpartition("/")
        path = _path(family, beside)
    if path is None:
        raise _unknown(name)
    if path in above:
        raise ValueError(f"{path.name} extends itself, by way of {above[-1].name}")
    content = {key: {} if keys is None else keys for key, keys in read_yaml(path).items()}
    if "variants" in content or isinstance(content.get("methods"), list):
        raise ValueError(f"{name} is a comparison: `taser compare {name}`")
    if "extends" in content:
        base = _content(str(content.pop("extends")), path.parent, (*above, path))
        content = _merged(base, content)
    if not method:
        return content
    methods = content.pop("methods", {})
    if not isinstance(methods, dict) or method not in methods:
        raise _unknown(name)
    return _merged(content, methods[method] or {})


def _merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`base` updated by `changes`; sections are merged key by key."""
    both = [s for s in changes if isinstance(base.get(s), dict) and isinstance(changes[s], dict)]
    return {**base, **changes, **{s: {**base[s], **changes[s]} for s in both}}


def override(config: Config, assignments: Sequence[str]) -> Config:
    """The config with "section.key=value" applied, the value read as YAML.

    >>> override(Config(), ["loop.epochs=3", "objective.epsilon=4/255"]).loop.epochs
    3
    """
    content = asdict(config)
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        *above, key = name.strip().split(".")
        if not equals or not key:
            raise ValueError(f"an override is section.key=value; got {assignment!r}")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ValueError(f"the value in {assignment} is not YAML: {error}") from None
        part, path = content, ""
        for section in above:
            part, path = part.setdefault(section, {}), f"{path}.{section}".lstrip(".")
            if not isinstance(part, dict):
                raise ValueError(f"{path} is no section with keys; got {assignment!r}")
        part[key] = value
    return from_mapping(Config, content, "the command line")


def to_yaml(config: Config) -> str:
    """The whole configuration as a recipe."""
    lists = json.loads(json.dumps(asdict(config)))  # for tuples
    return yaml.safe_dump(lists, sort_keys=False, allow_unicode=True)
