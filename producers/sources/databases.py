"""Databases that a table is read from: SQLite, DuckDB, and PostgreSQL through ADBC."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pipeline.errors import DataError
from pipeline.records.batch import Column, Columns
from pipeline.settings import extra
from producers.sources.arrow import columns_of, values_of

#: Who writes tables now; those with numbers below 16384 are PostgreSQL's own.
_WRITERS = (
    "SELECT DISTINCT virtualtransaction FROM pg_locks "
    "WHERE mode = 'RowExclusiveLock' AND pid <> pg_backend_pid() "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) "
    "AND relation >= 16384"
)


@dataclass(frozen=True, slots=True)
class TableSpec:
    """A table that records are read from.

    scheme: "sqlite", "duckdb" or "postgresql".
    place: The file, or the URL of the database without what is ours.
    table: Its name, perhaps behind that of a schema and a dot.
    key: The column of whole numbers that only grows.
    skip_late: Whether rows that came behind the key are left out, and not counted.
    skip_changed: Whether to go on although rows that were read are not what they were.
    skip_again: Whether rows that begin as the table did are new ones.
    """

    scheme: str
    place: str
    table: str
    key: str
    skip_late: bool = False
    skip_changed: bool = False
    skip_again: bool = False

    def statement(self, what: str, rest: str = "") -> str:
        """Return a query of the table; {key} in it stands for the key."""
        table = ".".join(map(quoted, self.table.split(".")))
        # names are quoted, and all else is ours or a whole number
        query = f"SELECT {what} FROM {{table}} {rest}"  # noqa: S608
        return query.format(table=table, key=quoted(self.key))


def quoted(name: str) -> str:
    """Return a name as SQL has it."""
    return '"' + name.replace('"', '""') + '"'


class Connection:
    """A database that is only read; its own errors pass through.

    still: Whether nobody can write it while it is open.
    """

    _db: Any
    still = False

    def rows(self, statement: str) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Return the columns of a query, and all its rows."""
        with closing(self._db.cursor()) as cursor:
            cursor.execute(statement)
            return [each[0] for each in cursor.description], cursor.fetchall()

    def ahead(self, spec: TableSpec, what: str, low: int | None, high: int, most: int) -> Columns:
        """Return the next rows in the order of their keys, of which none lacks among them.

        what: Their columns.
        low, high: The smallest key, None for the first one, and the largest.
        most: So many rows are enough.
        """
        begin = "" if low is None else f"{{key}} >= {low} AND"
        rest = f"WHERE {begin} {{key}} <= {high} ORDER BY {{key}} LIMIT {most}"
        return self._batch(spec.statement(what, rest))

    def _batch(self, statement: str) -> Columns:
        names, rows = self.rows(statement)
        found = zip(names, zip(*rows, strict=True), strict=True) if rows else ()
        return Columns({name: Column(list(values)) for name, values in found}, len(rows))

    def settled(self, highest: int) -> int | None:
        """Return up to which key no row can come any more; None if that is not known yet.

        highest: The largest key that is there: of a file, which nobody writes beside another, it.
        """
        return highest

    def close(self) -> None:
        """Close it."""
        self._db.close()


class Sqlite(Connection):
    """A file of SQLite: whoever writes it commits alone."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True)
        # one text that is no UTF-8 must not take a thousand rows with it
        self._db.text_factory = lambda text: text.decode(errors="replace")


class Columnar(Connection):
    """A database that answers in Arrow's types: what Python has no value for costs no other row."""

    def rows(self, statement: str) -> tuple[list[str], list[tuple[Any, ...]]]:
        table = self._table(statement)
        return list(table.schema.names), list(zip(*map(values_of, table.columns), strict=True))

    def _batch(self, statement: str) -> Columns:
        [*found] = self._table(statement).combine_chunks().to_batches()
        return columns_of(found[0]) if found else Columns({}, 0)

    def _table(self, statement: str) -> Any:
        with closing(self._db.cursor()) as cursor:
            cursor.execute(statement)
            return cursor.fetch_arrow_table()


class DuckDb(Columnar):
    """A file of DuckDB: no other process writes it while it is open."""

    still = True

    def __init__(self, path: Path) -> None:
        duckdb = extra("duckdb", "duckdb://", "sql")
        extra("pyarrow", "duckdb://", "sql")
        self._db = duckdb.connect(str(path), read_only=True)
        self._db.execute("SET threads = 1")
        #: Rows of a key, as far as is known.
        self._dense = 1.0

    def ahead(self, spec: TableSpec, what: str, low: int | None, high: int, most: int) -> Columns:
        """As `Connection.ahead`: a range of keys; the first rows of an order are looked for in all.

        No range has more rows than are asked for, unless one key has.
        """
        if low is None:
            low = int(self.rows(spec.statement("min({key})"))[1][0][0])
        if low > high:
            # the newest rows were removed since they were read
            return self._batch(spec.statement(what, "LIMIT 0"))
        start, width = low, int(most / self._dense) - 1
        while True:
            top = min(high, start + max(1, width))
            rest = f"WHERE {{key}} BETWEEN {low} AND {top}"
            found = self._batch(spec.statement(what, f"{rest} LIMIT {most + 1}"))
            if len(found) > most and width > 1:
                width //= 2
            elif len(found) < 2 and top < high:
                # from the next key on the width can only fall
                [(start,)] = self.rows(spec.statement("min({key})", f"WHERE {{key}} > {top}"))[1]
            else:
                break
        self._dense = max(1, len(found)) / (top - start + 1)
        # most tables are in the order of their keys
        if grow(keys_of(found, spec.key)):
            return found
        return self._batch(spec.statement(what, f"{rest} ORDER BY {{key}}"))

    def _table(self, statement: str) -> Any:
        return self._db.sql(statement).to_arrow_table()


class PostgreSql(Columnar):
    """A database of PostgreSQL, where a smaller key can be committed after a larger one.

    A key is drawn while its transaction holds a lock on the table that it writes. Those that hold
    one when the largest key has been read are waited for: no other can have a smaller key.
    """

    def __init__(self, url: str) -> None:
        driver = extra("adbc_driver_postgresql.dbapi", "postgresql://", "sql")
        extra("pyarrow", "postgresql://", "sql")
        self._db = driver.connect(url, autocommit=True)
        self._waiting: tuple[int, set[str]] | None = None

    def settled(self, highest: int) -> int | None:
        writers = {row[0] for row in self.rows(_WRITERS)[1]}
        key, before = self._waiting or (highest, writers)
        if before & writers:
            self._waiting = (key, before & writers)
            return None
        self._waiting = None
        return key


def connection_of(spec: TableSpec, *, follow: bool) -> Connection:
    """Open the database of a table; its own errors pass through.

    Raises DataError if it is no file, or cannot be followed; ConfigError if a package is missing.
    """
    if spec.scheme == "postgresql":
        return PostgreSql(spec.place)
    path = Path(spec.place)
    if not path.is_file():
        raise DataError(
            f"{path.name}: no such file; the data owner must name a database that this process "
            "may read"
        )
    if spec.scheme == "sqlite":
        return Sqlite(path)
    if follow:
        raise DataError(
            f"{path.name}: nobody can write a DuckDB file while it is read; the data owner must "
            "start again without --follow, after each change"
        )
    return DuckDb(path)


def keys_of(batch: Columns, key: str) -> Any:
    """Return the keys of rows: an array of whole numbers, or a list of what there is."""
    column = batch.columns([key])[key]
    return column.values if column.typed else column.objects()


def grow(keys: Any) -> bool:
    """Whether each key is larger than the one before it."""
    if isinstance(keys, list):
        return all(one < other for one, other in pairwise(keys))
    return bool((keys[1:] > keys[:-1]).all())
