"""Keys of a study file set to other values, with everything else, comments too, as it was."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pipeline.errors import ConfigError
from pipeline.study.load import parse_study
from pipeline.study.variants import with_keys


def edited(text: str, changes: Mapping[str, Any]) -> str:
    """Return the text of a study file with some keys set.

    changes: Keys of a table, as in "window.records", with numbers, texts, or tables of these.

    Raises ConfigError if a table is not written as `[table]` with one key a line, so that it cannot
    be edited.
    """
    lines = text.splitlines()
    for key, value in changes.items():
        table, _, name = key.rpartition(".")
        _set(lines, table, name, f"{name} = {_toml(value)}")
    found = "\n".join(lines) + "\n"
    wanted = with_keys(parse_study(text), changes, name="the design")
    try:
        if parse_study(found) == wanted:
            return found
    except ConfigError:
        pass
    raise ConfigError(
        f"the study file cannot be edited: write the tables of {', '.join(changes)} as [table] "
        "with one key a line, or set these keys by hand"
    )


def _set(lines: list[str], table: str, name: str, line: str) -> None:
    """Replace the line of a key, but for its comment, or add one below the head of its table."""
    heads = [i for i, old in enumerate(lines) if re.match(rf"\s*\[{re.escape(table)}\]", old)]
    if not heads:
        lines += ["", f"[{table}]", line]
        return
    start = heads[0] + 1
    for i in range(start, len(lines)):
        if re.match(r"\s*\[", lines[i]):
            break
        if re.match(rf"\s*{re.escape(name)}\s*=", lines[i]):
            _, mark, comment = lines[i].partition("#")
            lines[i] = f"{line:<29} {mark}{comment}" if mark else line
            return
    lines.insert(start, line)


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(inner)}" for key, inner in value.items()) + " }"
    return f'"{value}"' if isinstance(value, str) else repr(value)
