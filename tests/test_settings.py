"""Settings from mappings: what is taken, and errors that say where and what was wanted."""

from contextlib import suppress
from dataclasses import field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from pydantic.dataclasses import dataclass

from taser._settings import SETTINGS, Count, Number, Positive, from_mapping
from taser.training import read_recipe
from taser.training._run_folder import read_data_config, read_threat_config


@dataclass(frozen=True, config=SETTINGS)
class Part:
    size: Count
    pair: tuple[Number, Number] = (0.0, 1.0)
    kind: Literal["one", "two"] | None = None
    limit: Positive | None = None
    free: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, config=SETTINGS)
class Whole:
    part: Part | None = None
    names: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if len(self.names) > 2:
            raise ValueError("names should be two at most")


def test_what_is_taken() -> None:
    content = {"size": 3, "pair": [1, "8/255"], "limit": "1e-3", "free": {"any": [1, None]}}
    found = from_mapping(Whole, {"part": content, "names": ["a"]}, "here")
    assert found == Whole(Part(3, (1.0, 8 / 255), None, 1e-3, {"any": [1, None]}), ["a"])
    assert from_mapping(Whole, {"part": None}, "here") == Whole()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"part": {}}, "here: part.size is missing"),
        ({"part": {"size": 0}}, "here: part.size should be at least 1; got 0"),
        ({"part": {"size": "1"}}, "here: part.size should be a whole number; got '1'"),
        ({"part": {"size": 1, "pair": [1]}}, "here: part.pair should be 2 numbers"),
        ({"part": {"size": 1, "pair": [1, 2, 3]}}, "here: part.pair should be 2 numbers"),
        ({"part": {"size": 1, "pair": [1, True]}}, "here: part.pair should be a number; got True"),
        ({"part": {"size": 1, "limit": 0}}, "part.limit should be positive, or null for none"),
        ({"part": {"size": 1, "kind": "tow"}}, r"one of one, two; got 'tow' \(did you mean 'two'"),
        ({"part": {"seize": 1}}, r"no part.seize \(did you mean 'size'\?\); the keys are size, "),
        ({"size": 1}, r"there is no size \(part.size\?\); the keys are part, names"),
        ({"part": 3}, "here: part should hold keys; got 3"),
        ({"names": "a"}, "here: names should be a list; got 'a'"),
        ({"names": ["a", "b", "c"]}, "^here: names should be two at most$"),
    ],
)
def test_what_is_refused(content: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_mapping(Whole, content, "here")


@pytest.mark.parametrize("text", ["size: &a [*a]", "? [1, 2]\n: 3", "size: " + "[" * 400])
def test_what_is_no_json_is_refused(text: str) -> None:
    text += "]" * text.count("[[") * 400
    with pytest.raises((ValueError, yaml.YAMLError)):
        from_mapping(Part, yaml.safe_load(text), "here")


def test_settings_built_in_python_are_checked_as_well() -> None:
    with pytest.raises(ValueError, match="should be at least 1; got 0"):
        Part(0)


BOMB = "a: &a [x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in pairwise("abcdefghij")
)


@pytest.mark.parametrize(
    "content",
    ["[1]", "3", "? [a]\n: 1", "2020-01-01: 3", "data: {2020-01-01: 3}", "data: &a {options: *a}",
     "model: {options: " + 500 * "[" + 500 * "]" + "}", "methods: 3", "extends: [1]", "loop: {: ",
     "!!python/object/apply:os.system ['true']", "loop: {seed: " + 5000 * "9" + "}", BOMB,
     b"\x80\x81", b"\x00"],
)  # fmt: skip
def test_damaged_yaml_ends_in_one_sentence(tmp_path: Path, content: str | bytes) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError):
        read_recipe(path)
    with suppress(ValueError):  # a run's other sections are not read
        read_data_config(tmp_path)
    with suppress(ValueError):
        read_threat_config(tmp_path)
