"""Axes of a grid: keys of a study file with the values that each is to take."""

from __future__ import annotations

import itertools
import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.errors import ConfigError
from pipeline.study.model import Study
from pipeline.study_file.edit import with_keys

#: More settings than this are a slip of the keyboard.
LARGEST = 1000


@dataclass(frozen=True, slots=True)
class Axis:
    """A key of the study file, as `privacy.epsilon`, and its values; None unsets it."""

    key: str
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Setting:
    """One cell of a grid: the keys that it sets, and the study that this gives."""

    changes: Mapping[str, Any]
    study: Study

    @property
    def label(self) -> str:
        """The changes in words; "as it is" without any."""
        said = [f"{key} = {text_of(value)}" for key, value in self.changes.items()]
        return ", ".join(said) or "as it is"


def parse_axis(text: str) -> Axis:
    """Return the axis that a text such as `privacy.epsilon=0.5,1,2` means.

    Values are written as in the study file; quotes may be left out, and `none` unsets a key.

    ConfigError if it means none.
    """
    key, equals, values = (part.strip() for part in text.partition("="))
    if not (key and equals and values):
        raise ConfigError(
            f"--grid: {text!r} is not a key with values; for example 'privacy.epsilon=0.5,1,2,4'"
        )
    found = tuple(_values(values))
    if len({_same(value) for value in found}) < len(found):
        raise ConfigError(f"--grid: {key} has the same value twice; name each once")
    return Axis(key, found)


def settings_of(study: Study, axes: Iterable[Axis]) -> list[Setting]:
    """Return all combinations of the values of some axes, the last one running fastest.

    ConfigError if a key is named twice, a study has no such key, or a value is not allowed.
    """
    axes = list(axes)
    keys = [axis.key for axis in axes]
    if len(set(keys)) < len(keys):
        raise ConfigError("--grid: a key is named twice; give all its values in one --grid")
    combinations = list(itertools.islice(itertools.product(*(a.values for a in axes)), LARGEST + 1))
    if len(combinations) > LARGEST:
        raise ConfigError(f"--grid: at most {LARGEST} settings; leave values out")
    found = []
    for values in combinations:
        changes = dict(zip(keys, values, strict=True))
        found.append(Setting(changes, with_keys(study, changes, name="--grid")))
    return found


def text_of(value: Any) -> str:
    """Return a value as a person would write it."""
    if isinstance(value, str) or value is None:
        return value or "none"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {text_of(one)}" for key, one in value.items()) + " }"
    return f"{value:g}" if isinstance(value, float) else json.dumps(value)


def _same(value: Any) -> str:
    """Return a text that equal values share: 1 and 1.0 are the same."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return repr(float(value)) if number else json.dumps(value, sort_keys=True)


def _values(text: str) -> list[Any]:
    try:
        return list(tomllib.loads(f"values = [{text}]")["values"])
    except tomllib.TOMLDecodeError:
        return [_value(one.strip()) for one in text.split(",")]


def _value(text: str) -> Any:
    if text == "none":
        return None
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
