"""Recipes: YAML into a Config, every key checked, every key overridable."""

import types
import typing
from dataclasses import asdict, fields, is_dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import yaml

from taser._names import hint
from taser.attacks import fraction

from ._config import Config

FOLDER = Path(str(files("taser") / "recipes"))


def shipped_recipes() -> dict[str, str]:
    """The name of each recipe, and the comment in the first line of its file."""
    found = {}
    for path in sorted(FOLDER.rglob("*.yaml")):
        name = path.relative_to(FOLDER).with_suffix("").as_posix()
        summary = path.read_text().splitlines()[0].lstrip("# ")
        methods = {} if name.startswith("compare/") else _content(name).get("methods", {})
        found |= {f"{name}/{method}": summary for method in methods} or {name: summary}
    return found


def find_recipe(name: Path | str) -> Path:
    """The file of a recipe, given by its path or its name."""
    path = _path(name)
    if path is None:
        raise _unknown(name)
    return path


def read_recipe(name: Path | str, overrides: typing.Sequence[str] = ()) -> Config:
    """The Config of a YAML file or a shipped recipe, with overrides "regulariser.weight=0.3".

    A recipe may begin with `extends:` and another recipe, whose keys it then changes. A file with
    `methods:` holds a recipe for each, called FILE/METHOD: the method's keys change the file's.
    """
    content = _content(name)
    if methods := content.get("methods"):
        names = ", ".join(f"{name}/{method}" for method in methods)
        raise ValueError(f"{name} holds several recipes; take one of {names}")
    return override(config_from(content, str(name)), overrides)


def _path(name: Path | str, beside: Path | None = None) -> Path | None:
    path = Path(name).expanduser()
    shipped = FOLDER / f"{str(name).removesuffix('.yaml')}.yaml"
    places = [path, shipped] if beside is None else [beside / path, path, shipped]
    return next((place for place in places if place.is_file()), None)


def _unknown(name: Path | str) -> ValueError:
    return ValueError(
        f"there is no file and no recipe {str(name)!r}{hint(name, shipped_recipes())}; "
        "`taser recipes` lists them"
    )


def _content(
    name: Path | str, beside: Path | None = None, above: tuple[Path, ...] = ()
) -> dict[str, Any]:
    """The keys of a recipe, and of those that it extends."""
    path, method = _path(name, beside), ""
    if path is None:
        family, _, method = str(name).rpartition("/")
        path = _path(family, beside)
    if path is None:
        raise _unknown(name)
    if path in above:
        raise ValueError(f"{path.name} extends itself, by way of {above[-1].name}")
    try:
        content = yaml.safe_load(path.read_text()) or {}
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not YAML: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} should hold keys such as data: and loop:; got {content!r}")
    if "variants" in content or isinstance(content.get("methods"), list):
        raise ValueError(f"{name} is a comparison: `taser compare {name}`")
    if "extends" in content:
        base = _content(str(content.pop("extends")), path.parent, (*above, path))
        content = _merged(base, content)
    if not method:
        return content
    methods = content.pop("methods", {})
    if method not in methods:
        raise _unknown(name)
    return _merged(content, methods[method])


def _merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """The keys of `base`, changed by those of `changes`; sections are joined key by key."""
    both = [s for s in changes if isinstance(base.get(s), dict) and isinstance(changes[s], dict)]
    return {**base, **changes, **{s: {**base[s], **changes[s]} for s in both}}


def config_from(content: object, source: str = "the configuration") -> Config:
    """A Config from nested dictionaries; unknown keys and wrong types are refused."""
    config: Config = _build(Config, content, "", source)
    return config


def override(config: Config, assignments: typing.Sequence[str]) -> Config:
    """The config with "section.key=value" applied, the value read as YAML.

    >>> override(Config(), ["loop.epochs=3", "objective.epsilon=4/255"]).loop.epochs
    3
    """
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals:
            raise ValueError(f"an override is section.key=value; got {assignment!r}")
        section, dot, key = name.strip().partition(".")
        if not dot:
            raise ValueError(f"an override is section.key=value; got {assignment!r}{_where(name)}")
        part = getattr(config, _known(section, Config, "", "the command line"))
        key, _, inner = key.partition(".")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ValueError(f"the value in {assignment} is not YAML: {error}") from None
        if inner:  # a free option: model.options.depth=28
            options = getattr(part, _known(key, type(part), section, "the command line"))
            if not isinstance(options, dict):
                raise ValueError(f"{section}.{key} has no keys of its own; got {assignment!r}")
            value = {**options, inner: value}
        changed = _build(type(part), {key: value}, section, "the command line", base=part)
        config = replace(config, **{section: changed})
    return config


def to_yaml(config: Config) -> str:
    """The whole configuration, as a recipe that gives it again."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(entry) for key, entry in value.items()}
        return list(value) if isinstance(value, tuple) else value

    return yaml.safe_dump(plain(asdict(config)), sort_keys=False, allow_unicode=True)


def _build(kind: type, content: object, where: str, source: str, base: Any = None) -> Any:
    if not isinstance(content, dict):
        raise ValueError(f"{source}: {where or 'a recipe'} should hold keys; got {content!r}")
    hints = typing.get_type_hints(kind)
    values = {}
    for key, value in content.items():
        name = _known(str(key), kind, where, source)
        place = f"{where}.{name}" if where else name
        if is_dataclass(hints[name]):
            values[name] = _build(hints[name], value or {}, place, source)
        else:
            values[name] = _typed(value, hints[name], place, source)
    return kind(**values) if base is None else replace(base, **values)


def _known(key: str, kind: Any, where: str, source: str) -> str:
    names = [field.name for field in fields(kind)]
    if key in names:
        return key
    raise ValueError(
        f"{source}: there is no {f'{where}.' if where else ''}{key}"
        f"{_where(key) or hint(key, names)}; the keys are {', '.join(names)}"
    )


def _where(key: str) -> str:
    """Which sections have a key of that name, for those who forgot the section."""
    homes = [
        section.name
        for section in fields(Config)
        if key in {field.name for field in fields(typing.get_type_hints(Config)[section.name])}
    ]
    return f" ({' or '.join(f'{home}.{key}' for home in homes)}?)" if homes else ""


def _typed(value: object, kind: Any, where: str, source: str) -> Any:
    """The value as the annotated type, or an error that says what is wanted."""
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        choices = get_args(kind)
        if value is None and type(None) in choices:
            return None
        inner = next(choice for choice in choices if choice is not type(None))
        return _typed(value, inner, where, source)
    if origin is Literal:
        if value in get_args(kind):
            return value
        raise ValueError(
            f"{source}: {where} should be one of {', '.join(map(str, get_args(kind)))}; "
            f"got {value!r}{hint(value, get_args(kind))}"
        )
    if origin is tuple and isinstance(value, list | tuple):
        if get_args(kind)[-1] is not Ellipsis and len(value) != len(get_args(kind)):
            raise ValueError(f"{source}: {where} should be {len(get_args(kind))} numbers")
        return tuple(_typed(entry, get_args(kind)[0], where, source) for entry in value)
    if kind is float and isinstance(value, int | float | str) and not isinstance(value, bool):
        try:
            return fraction(value)
        except ValueError as error:
            raise ValueError(f"{source}: {where}: {error}") from None
    if kind is int and isinstance(value, int) and not isinstance(value, bool):
        return value
    if kind in (bool, str) and isinstance(value, kind):
        return value
    if origin is dict:
        if not isinstance(value, dict):
            raise ValueError(f"{source}: {where} should hold keys; got {value!r}")
        return value
    wanted = {float: "a number", int: "a whole number", bool: "true or false", str: "text"}
    raise ValueError(f"{source}: {where} should be {wanted.get(kind, 'a list')}; got {value!r}")
