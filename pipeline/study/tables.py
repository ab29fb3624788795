"""Strict tables, and what a client may be called.

What is wrong with a table names the key, what is allowed and an example. The id of a client is the
key of its releases, part of a header and of a file name, and stands in the lines that people read:
it holds nothing that one of these would cut, quote or obey.
"""

from __future__ import annotations

import difflib
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from pipeline.errors import ConfigError

Found = TypeVar("Found")
_UNKNOWN = re.compile(r"unknown field `([^`]*)`")
_MISSING = re.compile(r"missing required field `([^`]*)`")
_CHOICE = re.compile(r"Invalid enum value '([^']*)'")
_PATH = re.compile(r" - at `\$\.?([^`]*)`$")
_KINDS = re.compile(r"Expected `([^`]*)`, got `([^`]*)`")
_LIMIT = re.compile(r"Expected `(\w+)`( of length)? ([<>]=?) ([^ ]+)")
_PATTERN = re.compile(r"Expected `str` matching regex .*")
_SIDES = {">=": "at least", ">": "more than", "<=": "at most", "<": "less than"}
#: What the types of a TOML file are called; no key can be null in one.
_WORDS = {
    "str": "a text in quotes", "int": "a whole number", "float": "a number",
    "bool": "true or false", "array": "a list", "object": "a table", "null": "",
}  # fmt: skip
#: Keys that older study files have, and where what they said is now.
_MOVED = {
    "estimator.reproduction": "the keys of a published method are in [estimator.method] now; "
    "rename the table",
    "stream.lead": "it is called stream.max_in_flight_windows now; rename the key",
    "estimator.path.radius": "it is called estimator.path.clipping_norm now; rename the key",
}


def strict(
    tables: Mapping[str, Any],
    kind: type[Found],
    *,
    at: str = "",
    hidden: Callable[[], str] = lambda: "*",
) -> Found:
    """Read tables as a struct that allows no other keys.

    at: Key of the table itself, as in `estimator.method`.
    hidden: What to call a key of a table whose keys are free, where its value is wrong.

    Raises ConfigError, naming the key, what is wrong, what is allowed and an example.
    """
    try:
        return msgspec.convert(tables, kind, strict=True)
    except msgspec.ValidationError as error:
        message = str(error)
        if "[...]" in message:
            message = message.replace("[...]", f".{hidden()}")
        raise ConfigError(_explain(message, kind, at)) from error


def check_known(key: str, kind: type) -> None:
    """Refuse a key, such as `estimator.level`, that no tables of this kind can have.

    Raises ConfigError, naming what is allowed in its place.
    """
    current: Any = kind
    steps = key.split(".")
    for place, step in enumerate(steps):
        known = _fields(current)
        if known and step not in known:
            raise ConfigError(_unknown(".".join(steps[:place]), step, known))
        current = _child(current, step)[0]


def near(name: str, known: Sequence[str]) -> str:
    """Return a question for the name that was meant; empty if none of the known is near."""
    found = difflib.get_close_matches(name, known, n=1)
    return f" (did you mean {found[0]!r}?)" if found else ""


def _unknown(path: str, name: str, known: list[str]) -> str:
    key = ".".join(filter(None, [path, name]))
    if key in _MOVED:
        return f"{key}: {_MOVED[key]}"
    return f"{key}: unknown key{near(name, known)}. Allowed here: {', '.join(known) or 'no key'}"


def _explain(message: str, kind: type, at: str) -> str:
    """Turn a validation message into: key, what is wrong, what is allowed, an example."""
    found = _PATH.search(message)
    # what is wrong with one item is wrong with its list, and with the list of that list
    path = re.sub(r"(\[\d+\])+$", "", found.group(1)) if found else ""
    what = message[: found.start()] if found else message
    if unknown := _UNKNOWN.search(what):
        return _unknown(_joined(at, path), unknown.group(1), _fields(_child_at(path, kind)[0]))
    if missing := _MISSING.search(what):
        path = _joined(path, missing.group(1))
        what = "is required"
    allowed, example = _help_for(path, kind)
    if given := _CHOICE.search(what):
        known = re.findall(r'"([^"]+)"', allowed)
        what = f"unknown value {given.group(1)!r}{near(given.group(1), known)}"
    what = re.sub(r"^Invalid enum value (\S+)", r"unknown value \1", what)
    what = _KINDS.sub(lambda said: f"it must be {_words(said[1])}, not {_words(said[2])}", what)
    what = _PATTERN.sub("it is not written as it must be", _LIMIT.sub(_limit, what))
    parts = [f"{_joined(at, path) or 'study'}: {what}"]
    if allowed:
        parts.append(f"allowed: {allowed}")
    if example:
        # that of a whole table is its heading
        name = "" if example == f"[{path}]" else f"{path.rsplit('.', maxsplit=1)[-1]} = "
        parts.append(f"example: {name}{example}")
    return "; ".join(parts)


def _words(kinds: str) -> str:
    """Return in plain words what types a library has named, such as `float | null`."""
    return " or ".join(filter(None, (_WORDS.get(kind, kind) for kind in kinds.split(" | "))))


def _limit(said: re.Match[str]) -> str:
    """Return in plain words which limit a number, or the length of a text or list, has passed."""
    kind, length, sign, number = said.groups()
    thing = f"its length must be {_SIDES[sign]}" if length else f"it must be {_words(kind)},"
    return f"{thing} {number}" if length else f"{thing} {_SIDES[sign]} {float(number):g}"


def _joined(*keys: str) -> str:
    return ".".join(filter(None, keys))


def _child_at(path: str, kind: type) -> tuple[Any, msgspec.Meta | None]:
    """Return the type at the end of a path, and what is said of it."""
    found: tuple[Any, msgspec.Meta | None] = kind, None
    for step in re.split(r"[.\[]", path):
        found = _child(found[0], step) if step else found
    return found


def _help_for(path: str, kind: type) -> tuple[str, str]:
    meta = _child_at(path, kind)[1]
    if meta is None:
        return "", ""
    example = meta.examples[0] if meta.examples else ""
    quoted = isinstance(example, str) and example and example[0] not in "{["
    return meta.description or "", f'"{example}"' if quoted else str(example)


def _child(kind: Any, step: str) -> tuple[Any, msgspec.Meta | None]:
    """Follow one step of a path: into a struct's field, or into the values of a table."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = typing.get_type_hints(kind, include_extras=True)
        if step in hints:
            return _unwrap(hints[step])
    if typing.get_origin(kind) is dict:
        return _unwrap(typing.get_args(kind)[1])
    return None, None


def _unwrap(hint: Any) -> tuple[Any, msgspec.Meta | None]:
    meta = _described(hint)
    bare = typing.get_args(hint)[0] if hasattr(hint, "__metadata__") else hint
    options = () if typing.get_origin(bare) is dict else typing.get_args(bare)
    for option in options:
        if hasattr(option, "__metadata__"):
            return typing.get_args(option)[0], meta or _described(option)
        if isinstance(option, type) and issubclass(option, msgspec.Struct):
            return option, meta
    return bare, meta


def _described(hint: Any) -> msgspec.Meta | None:
    # a shared type of numbers has a Meta of its own for its range, and none for people
    metas = (m for m in getattr(hint, "__metadata__", ()) if isinstance(m, msgspec.Meta))
    return next((m for m in metas if m.description), None)


def _fields(kind: Any) -> list[str]:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return list(kind.__struct_fields__)
    return []


#: What a release can carry, and a file name can hold.
LONGEST = 200
#: For errors.
RULE = (
    f"an id has 1 to {LONGEST} characters, letters from a to z, digits, '.', '_' and '-', and "
    "begins with a letter or digit"
)
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def is_plain(client: str) -> bool:
    """Whether a client may have this id."""
    return len(client) <= LONGEST and _ID.fullmatch(client) is not None
