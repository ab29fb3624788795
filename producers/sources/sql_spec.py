"""What a table is called as a source: its database as a URL, with its name and its key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from pipeline.errors import ConfigError, DataError
from producers.sources.base import Known, Opening, Source

KIND = "table"
FORM = (
    "sqlite://FILE, duckdb://FILE or postgresql://USER@HOST/DATABASE, then ?table=TABLE&key=COLUMN "
    "and, if rows that come behind the key shall be left out, &late=skip; if rows that were read "
    "may change or go, &changed=skip"
)
#: What may be passed over, as far as a source says so.
_SKIPPED = ("late", "changed")


@dataclass(frozen=True, slots=True)
class TableSpec:
    """A table that records are read from.

    scheme: "sqlite", "duckdb" or "postgresql".
    place: The file, or the URL of the database without what is ours.
    table: Its name, perhaps behind that of a schema and a dot.
    key: The column of whole numbers that only grows.
    skip_late: Whether rows that came behind the key are left out, and not counted.
    skip_changed: Whether to go on although rows that were read are not what they were.
    """

    scheme: str
    place: str
    table: str
    key: str
    skip_late: bool = False
    skip_changed: bool = False

    @property
    def names(self) -> Mapping[str, str]:
        """The table and the key as SQL has them."""
        return {"table": ".".join(map(quoted, self.table.split("."))), "key": quoted(self.key)}


def table_spec(spec: str) -> TableSpec:
    """Read a specification; DataError, naming what is wrong; ConfigError if it has a password."""
    parts = urlsplit(spec)
    _, _, _, options, _ = parts
    given = parse_qsl(options, keep_blank_values=True)
    if parts.password or any("password" in name.lower() for name, _ in given):
        # what is typed here is seen in the list of processes
        raise ConfigError(
            "--source: a password has no place in it; the data owner must give it as PGPASSWORD "
            "or in ~/.pgpass"
        )
    own = {name: value for name, value in given if name in ("table", "key", *_SKIPPED)}
    others = [(name, value) for name, value in given if name not in own]
    is_file = parts.scheme != "postgresql"
    place = parts.netloc + parts.path
    if not is_file:
        place = urlunsplit((parts.scheme, parts.netloc, parts.path, urlencode(others), ""))
    wrong = (
        not (parts.netloc + parts.path).strip("/")
        or not all(own.get("table", "").split("."))
        or not own.get("key")
        or any(own.get(name, "skip") != "skip" for name in _SKIPPED)
        or (is_file and others)
        or parts.fragment
        or len(given) != len(own) + len(others)
    )
    if wrong:
        raise DataError(
            f"the source {parts.scheme}:// names no table, or not as it should; the data owner "
            f"must write {FORM}"
        )
    skipped = (name in own for name in _SKIPPED)
    return TableSpec(parts.scheme, place, own["table"], own["key"], *skipped)


def known_as(spec: str) -> Known:
    """Return the table's name, and its database without who reads it."""
    found = table_spec(spec)
    if found.scheme == "postgresql":
        parts = urlsplit(found.place)
        _, _, _, options, _ = parts
        host = dict(parse_qsl(options)).get("host", parts.netloc.rpartition("@")[2])
        place = f"{host}{parts.path}"
    else:
        place = str(Path(found.place).resolve())
    return Known(f"sql:{found.table}", f"{found.scheme}://{place}?table={found.table}")


def opened(spec: str, asked: Opening) -> Source:
    """Open the table; raises as `SqlTable`."""
    # it needs what is known here
    from producers.sources.sql_table import SqlTable  # noqa: PLC0415

    return SqlTable(
        table_spec(spec), asked.position, follow=asked.follow, say=asked.say, columns=asked.columns
    )


def quoted(name: str) -> str:
    """Return a name as SQL has it."""
    doubled = name.replace('"', '""')
    return f'"{doubled}"'
