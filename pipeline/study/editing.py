"""Keys set in the text of a study file, whose other lines stay as they are."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from typing import Any

from pipeline.errors import ConfigError
from pipeline.study.load import parse_study
from pipeline.study.variants import with_keys

#: How a comment begins that says why a key is set, and how it goes on: both are replaced when the
#: key is set again.
WHY, ON = "# proposed: ", "#   "
#: Longest line of such a comment.
WIDTH = 100


def edited(text: str, changes: Mapping[str, Any], reasons: Mapping[str, str] | None = None) -> str:
    """Return the text of a study file with some keys set.

    A comment behind a value that names the old value goes with it, as it would be false.

    changes: Keys of a table, as in "window.records", with numbers, texts, or tables of these.
    reasons: What a comment above a key says, by key.

    Raises ConfigError if a table is not written as `[table]` with one key a line, so that it cannot
    be edited.
    """
    lines = text.splitlines()
    for key, value in changes.items():
        table, _, name = key.rpartition(".")
        _set(lines, table, name, f"{name} = {_toml(value)}", (reasons or {}).get(key, ""))
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


def _set(lines: list[str], table: str, name: str, line: str, why: str) -> None:
    """Replace the line of a key, or add one: behind a comment on it, else at its table's head."""
    heads = [i for i, old in enumerate(lines) if re.match(rf"\s*\[{re.escape(table)}\]", old)]
    if not heads:
        lines += ["", f"[{table}]", *_because(why), line]
        return
    place = start = heads[0] + 1
    for i in range(start, len(lines)):
        if re.match(r"\s*\[", lines[i]):
            break
        if re.match(rf"# {re.escape(name)}:", lines[i]):
            place = i + 1
        if re.match(rf"\s*{re.escape(name)}\s*=", lines[i]):
            first = i
            while why and lines[first - 1].startswith((WHY, ON)):
                first -= 1
            lines[first : i + 1] = [*_because(why), _with_comment(line, lines[i])]
            return
    lines[place:place] = [*_because(why), line]


def _with_comment(line: str, old: str) -> str:
    """Return a line with the comment of an old one, unless that names the old value."""
    said, mark, comment = old.partition("#")
    value = said.partition("=")[2].strip()
    if not mark or re.search(rf"(?<![\w.]){re.escape(value)}(?![\w.])", comment):
        return line
    return f"{line:<29} #{comment}"


def _because(why: str) -> list[str]:
    return textwrap.wrap(WHY + why, WIDTH, subsequent_indent=ON) if why else []


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(inner)}" for key, inner in value.items()) + " }"
    return f'"{value}"' if isinstance(value, str) else repr(value)
