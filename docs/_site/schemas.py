"""The reference of the study file and of messages, from the types that read and write them."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import msgspec

from pipeline.messages.schemas import TYPES
from pipeline.messages.schemas import schema as schema_of
from pipeline.methods import METHODS, OFFLINE
from pipeline.study.model import Study

Json = dict[str, Any]
#: The class of a method that reads its own table, and where that table stands.
TABLES = (("Spec", "estimator.method"), ("Path", "estimator.path"))


def study() -> str:
    """Return the tables of a study file, but for that of these tables."""
    lines = list(_tables(msgspec.json.schema(Study), level=2))
    return "\n".join(lines[[line[:3] for line in lines].index("## ") :])


def methods() -> str:
    """Return the keys that methods of estimation add, those that add any."""
    lines: list[str] = []
    for kind, place in METHODS.items():
        package = place.rpartition(".")[0]
        module = import_module(f"{package}.{'spec' if find_spec(f'{package}.spec') else 'client'}")
        for name, table in TABLES:
            if hasattr(module, name):
                lines += [f"## `[{table}]` of {kind}", ""]
                lines += _tables(msgspec.json.schema(getattr(module, name)), level=3)
    for kind, place in OFFLINE.items():
        module_name, _, name = place.partition(":")
        keys = getattr(import_module(module_name), name).keys
        lines += [f"## `[estimator.method]` of {kind}", ""]
        lines += _tables(msgspec.json.schema(keys), level=3)
    return "\n".join(lines)


def messages() -> str:
    """Return the fields of every message that is JSON."""
    lines: list[str] = []
    for name in TYPES:
        lines += [f"## `{name}`", ""]
        lines += [f"[JSON Schema](../../pipeline/messages/schemas/{name}.json)", ""]
        lines += _tables(schema_of(name), level=3)
    return "\n".join(lines)


def _tables(schema: Json, level: int) -> Iterator[str]:
    """Yield a table of fields for every object of a schema, the outermost first."""
    found = schema.get("$defs", {})
    first = schema.get("$ref", "").rpartition("/")[2]
    names = [first, *(name for name in found if name != first)] if first else list(found)
    told = {name: _told(found[name].get("description", "")) for name in names}
    places = {f"`{name}`": f"`{_place(name, summary)}`" for name, (summary, _) in told.items()}
    for name in names:
        table, (summary, about) = found[name], told[name]
        if name != first:
            place = _place(name, summary)
            # the heading says it, so the sentence begins behind it
            summary = summary.removeprefix(f"`{place}`: ")
            yield from (f"{'#' * level} `{place}`", "")
            summary = summary[:1].upper() + summary[1:]
        yield from (_plain(summary), "")
        fields = table.get("properties", {})
        if not fields:
            yield from ("No keys.", "")
            continue
        yield from ("| key | allowed | default | meaning |", "|---|---|---|---|")
        for key, field in fields.items():
            needed = key in table.get("required", ()) or "default" not in field
            default = "**needed**" if needed else _code(_default(field["default"]))
            meaning = field.get("description") or about.get(key, "")
            shown = field.get("examples", [None])[0]
            if shown not in (None, "...") and "enum" not in field and str(shown)[0] != "[":
                meaning += f"; such as {_code(shown)}"
            kind = re.sub(
                "`[A-Z][A-Za-z]+`", lambda said: places.get(said[0], said[0]), _kind(field)
            )
            yield f"| `{key}` | {kind} | {default} | {_plain(meaning)} |"
        yield ""


def _place(name: str, summary: str) -> str:
    """Return where a table stands, if its docstring begins with it, else what it is called."""
    found = re.match("`([^`]+)`: ", summary)
    return found[1] if found else name


def _told(description: str) -> tuple[str, dict[str, str]]:
    """Return the first sentence of a docstring, and what it says of each attribute."""
    head, _, rest = inspect.cleandoc(description).partition("\n\n")
    about: dict[str, str] = {}
    last = ""
    for line in rest.splitlines():
        name, colon, words = line.partition(":")
        if colon and not line.startswith(" ") and " " not in name:
            last = name
            about[last] = words.strip()
        elif last:
            about[last] += " " + line.strip()
    return " ".join(head.split()), about


def _kind(field: Json) -> str:
    """Return what a field may be, in words."""
    if "$ref" in field:
        return f"table `{field['$ref'].rpartition('/')[2]}`"
    if "enum" in field:
        return ", ".join(_code(value) for value in field["enum"])
    if "anyOf" in field:
        kinds = [_kind(one) for one in field["anyOf"] if one.get("type") != "null"]
        return " or ".join(kinds)
    kind = field.get("type")
    if kind == "array":
        return f"list of {_kind(field.get('items') or {})}"
    if kind == "object":
        inner = field.get("additionalProperties")
        return f"table of {_kind(inner)}" if isinstance(inner, dict) else "table"
    word = {"integer": "whole number", "string": "text", "boolean": "true or false"}
    return word.get(str(kind), str(kind or "anything")) + _limits(field)


def _limits(field: Json) -> str:
    signs = {
        "minimum": "\u2265", "exclusiveMinimum": ">", "maximum": "\u2264", "exclusiveMaximum": "<",
    }  # fmt: skip
    said = [f"{sign} {field[name]:g}" for name, sign in signs.items() if name in field]
    return " " + ", ".join(said) if said else ""


def _default(value: Any) -> str:
    if isinstance(value, dict):
        return "its own"
    return "none" if value is None else json.dumps(value)


def _code(value: Any) -> str:
    return "`" + str(value).replace("|", "\\|") + "`"


def _plain(words: str) -> str:
    """Return words without what ends a cell or begins a mark; what is in backticks stays."""
    parts = " ".join(words.split()).split("`")
    for number in range(0, len(parts), 2):
        for mark in "*_<>[]|":
            parts[number] = parts[number].replace(mark, "\\" + mark)
    return "`".join(parts)
