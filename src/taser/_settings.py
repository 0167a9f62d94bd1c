"""Dataclasses of settings, checked by pydantic, with errors that name the key and what it takes."""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import yaml
from pydantic import AfterValidator, BeforeValidator, ConfigDict, TypeAdapter, ValidationError

from taser._names import hint
from taser.attacks import fraction

T = TypeVar("T")
SETTINGS = ConfigDict(strict=True, extra="forbid")
"""For each dataclass: `@pydantic.dataclasses.dataclass(frozen=True, config=SETTINGS)`."""


def _check(holds: Callable[[Any], bool], wanted: str) -> AfterValidator:
    def check(value: Any) -> Any:
        if not holds(value):
            raise ValueError(f"{wanted}; got {value:g}")
        return value

    return AfterValidator(check)


def _number(value: object) -> object:
    try:
        return fraction(value) if isinstance(value, str) else value
    except ValueError:
        raise ValueError(f"should be a number or a fraction such as 8/255; got {value!r}") from None


Number = Annotated[float, BeforeValidator(_number)]
NotNegative = Annotated[Number, _check(lambda v: 0 <= v < math.inf, "should be zero or more")]
Positive = Annotated[Number, _check(lambda v: v > 0, "should be positive, or null for none")]
Share = Annotated[Number, _check(lambda v: 0 <= v <= 1, "is a share, from 0 to 1")]
Count = Annotated[int, _check(lambda v: v >= 1, "should be at least 1")]
Whole = Annotated[int, _check(lambda v: v >= 0, "should be zero or more")]

MOST_ALIASES, DEEPEST = 20, 50  # in a YAML file
ENDS = yaml.BlockEndToken, yaml.FlowSequenceEndToken, yaml.FlowMappingEndToken
UNKNOWN = "unexpected_keyword_argument"
WANTED = {
    "int_type": "a whole number", "int_from_float": "a whole number", "float_type": "a number",
    "bool_type": "true or false", "string_type": "text", "tuple_type": "a list",
    "list_type": "a list",
}  # fmt: skip


def read_yaml(path: Path) -> dict[str, Any]:
    """The keys in a YAML file; the error names the file."""
    try:
        text = path.read_text()
        # Aliases of aliases multiply, so that a few lines could fill the memory; and the time grows
        # with the square of the depth.
        aliases = depth = 0
        for token in yaml.scan(text):
            aliases += isinstance(token, yaml.AliasToken)
            depth += type(token).__name__.endswith("StartToken")
            depth -= isinstance(token, ENDS)
            if aliases > MOST_ALIASES or depth > DEEPEST:
                raise ValueError(f"it has over {MOST_ALIASES} aliases or {DEEPEST} levels")
        content = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read as YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict | None):
        raise ValueError(f"{path} should hold keys and their values; got {content!r:.60}")
    return content or {}


def from_mapping(kind: type[T], content: Mapping[str, Any], source: str) -> T:
    """A dataclass of settings from nested dictionaries; `source` is named in the error."""
    try:  # pydantic's strict rules for JSON take lists as tuples
        text = json.dumps(content, default=str)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{source} cannot be read: {error}") from None
    try:
        return TypeAdapter(kind).validate_json(text)
    except ValidationError as error:
        # An unknown key first: it may be a wrong name for one that is missing.
        first = min(error.errors(), key=lambda found: found["type"] != UNKNOWN)
        raise ValueError(f"{source}: {_message(kind, first)}") from None


def _message(root: type, error: Any) -> str:
    kind, given, context = error["type"], error["input"], error.get("ctx", {})
    path = [name for name in error["loc"] if isinstance(name, str)]  # and no places in a list
    where = ".".join(path)
    if kind == "value_error":  # a check of a whole section names the key itself
        problem = str(context["error"])
        return problem if isinstance(given, dict) else f"{where} {problem}"
    if kind == UNKNOWN:
        names, key = _types(root, path[:-1]), path[-1]
        homes = [f"{section}.{key}" for section in _types(root) if key in _types(root, [section])]
        near = f" ({' or '.join(homes)}?)" if homes else hint(key, names)
        return f"there is no {where}{near}; the keys are {', '.join(names)}"
    if kind == "literal_error":
        choices = re.findall("'(.+?)'", context["expected"])
        near = hint(given, choices)
        return f"{where} should be one of {', '.join(choices)}; got {given!r}{near}"
    if kind == "missing" and error["loc"][-1] == path[-1]:
        return f"{where} is missing"
    if kind in ("missing", "too_long"):  # in a tuple
        return f"{where} should be {len(get_args(_types(root, path[:-1])[path[-1]]))} numbers"
    if kind in ("dict_type", "dataclass_type"):
        return f"{where} should hold keys; got {given!r}"
    return f"{where} should be {WANTED.get(kind, error['msg'])}; got {given!r}"


def _types(root: type, path: Sequence[str] = ()) -> dict[str, Any]:
    """The fields of the dataclass at `path` and their types; none if there is no dataclass."""
    found: Any = root
    for name in path:
        hinted = get_type_hints(found)[name]
        found = next(filter(is_dataclass, (hinted, *get_args(hinted))), None)
    return get_type_hints(found) if found else {}
