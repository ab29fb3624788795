"""The databases that tables are read from: SQLite, DuckDB, and PostgreSQL through ADBC."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pipeline.errors import DataError
from pipeline.settings import extra
from producers.sources.arrow_parts import values_of
from producers.sources.sql_spec import TableSpec

#: Who writes tables now; those with numbers below 16384 are PostgreSQL's own.
_WRITERS = (
    "SELECT DISTINCT virtualtransaction FROM pg_locks "
    "WHERE mode = 'RowExclusiveLock' AND pid <> pg_backend_pid() "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) "
    "AND relation >= 16384"
)


class Connection:
    """A database that is only read; its own errors pass through."""

    _db: Any

    def rows(self, statement: str) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Return the columns of a query, and all its rows."""
        with closing(self._db.cursor()) as cursor:
            cursor.execute(statement)
            return [each[0] for each in cursor.description], cursor.fetchall()

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
        """As `Connection.rows`."""
        table = self._table(statement)
        return list(table.schema.names), list(zip(*map(values_of, table.columns), strict=True))

    def _table(self, statement: str) -> Any:
        with closing(self._db.cursor()) as cursor:
            cursor.execute(statement)
            return cursor.fetch_arrow_table()


class DuckDb(Columnar):
    """A file of DuckDB: no other process writes it while it is open."""

    def __init__(self, path: Path) -> None:
        duckdb = extra("duckdb", "duckdb://", "sql")
        extra("pyarrow", "duckdb://", "sql")
        self._db = duckdb.connect(str(path), read_only=True)

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
        """As `Connection.settled`."""
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
