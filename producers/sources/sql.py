"""A table as a source: its rows by a key of whole numbers that only grows.

SQLite, DuckDB, and PostgreSQL through ADBC, each named by a URL. A position is the key of the last
row. Rows that come behind it later cannot be found by it: they are counted at each start, and told.
A table that was filled anew would be released twice: rows that changed or went after they were read
end the reading.
"""

from __future__ import annotations

import hashlib
import sqlite3
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import msgspec
import numpy as np
from numpy.typing import NDArray

from pipeline.errors import ConfigError, DataError, VeilstreamError
from pipeline.records.batch import Column, Columns
from pipeline.settings import extra
from producers.sources.arrow import columns_of, values_of
from producers.sources.base import (
    CELLS,
    Elsewhere,
    Known,
    Opening,
    Slot,
    Slots,
    Source,
    behind,
    read_position,
)

#: Who writes tables now; those with numbers below 16384 are PostgreSQL's own.
_WRITERS = (
    "SELECT DISTINCT virtualtransaction FROM pg_locks "
    "WHERE mode = 'RowExclusiveLock' AND pid <> pg_backend_pid() "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) "
    "AND relation >= 16384"
)


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
        return self._batch(spec.query(what, rest))

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
        """As `Connection.rows`."""
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
            low = int(self.rows(spec.query("min({key})"))[1][0][0])
        width = int(most / self._dense) - 1
        while True:
            top = min(high, low + max(1, width))
            rest = f"WHERE {{key}} BETWEEN {low} AND {top}"
            count = int(self.rows(spec.query("count(*)", rest))[1][0][0])
            if count > most and width > 1:
                width //= 2
            elif count < 2 and top < high:
                width = 8 * max(1, width)
            else:
                break
        self._dense = max(1, count) / (top - low + 1)
        # most tables are in the order of their keys
        found = self._batch(spec.query(what, rest))
        if _grow(_keys_of(found, spec.key)):
            return found
        return self._batch(spec.query(what, f"{rest} ORDER BY {{key}}"))

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


KIND = "table"
FORM = (
    "sqlite://FILE, duckdb://FILE or postgresql://USER@HOST/DATABASE, then ?table=TABLE&key=COLUMN "
    "and, if rows that come behind the key shall be left out, &late=skip; if rows that were read "
    "may change or go, &changed=skip; if new rows begin as the table did, &again=skip"
)
#: What may be passed over, as far as a source says so.
_SKIPPED = ("late", "changed", "again")


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

    @property
    def names(self) -> Mapping[str, str]:
        """The table and the key as SQL has them."""
        return {"table": ".".join(map(quoted, self.table.split("."))), "key": quoted(self.key)}

    def query(self, what: str, rest: str = "") -> str:
        """Return a query of the table; {key} in it stands for the key."""
        # names are quoted, and all else is ours or a whole number
        return f"SELECT {what} FROM {{table}} {rest}".format(**self.names)  # noqa: S608


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
    location = f"{found.scheme}://{place}?table={found.table}"
    return Known(f"sql:{found.table}", location, found.key)


def opened(spec: str, asked: Opening) -> Source:
    """Open the table; raises as `SqlTable`."""
    # it needs what is known here

    return SqlTable(
        table_spec(spec), asked.position, follow=asked.follow, say=asked.say, columns=asked.columns
    )


def quoted(name: str) -> str:
    """Return a name as SQL has it."""
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


#: Rows of one query, and rows before a position that tell whether they are what they were.
FETCH, MARKED = 1024, 64
#: Each time more of them, up to so many times as many: a database sorts anew for each query.
MORE, MOST = 4, 64
#: So many of the first rows must differ, to be known again.
DISTINCT = 48
#: So many queries are remembered: a position lies in one of the last.
RECENT = 4
#: Seconds between two looks at a table that may grow.
LOOK = 0.5


class _At(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="sql", tag_field="kind"):
    """Where reading goes on.

    name: Of the source.
    key: Of the last row.
    records: Those that were handed out.
    behind: Rows up to that key, as far as they are known.
    last, mark: Of the row of that key, and of the last ones up to it; empty if nobody looked.
    columns: Those that the marks are of; none: all, as the table has them.
    first: Mark of the rows that the table began with, without their keys; empty if they are too
        few, or too alike, to be known again.
    """

    name: str
    key: int
    records: Annotated[int, msgspec.Meta(ge=0)]
    behind: Annotated[int, msgspec.Meta(ge=0)]
    last: str = ""
    mark: str = ""
    columns: tuple[str, ...] = ()
    first: str = ""


class SqlTable(Elsewhere):
    """The rows of a table, or of a view.

    spec: Which, and its key.
    position: Behind which slot to resume; None is the first row.
    follow: Whether to wait for more when the rows that were there at the start have been read.
    say: Told of rows that changed after they were read.
    columns: Those that are read, beside the key; None: all.

    Raises DataError if it cannot be read, its key is none, or rows came, changed or went behind the
    position;
    ConfigError if a package is missing.
    """

    repeats = True

    def __init__(
        self, spec: TableSpec, position: bytes | None, *, follow: bool, say: Callable[[str], None],
        columns: Collection[str] | None = None,
    ) -> None:  # fmt: skip
        self._spec, self._follow, self._wanted = spec, follow, columns
        self.identity = f"sql:{spec.table}"
        self._at = None if position is None else self._read_position(position)
        self._waiting: Sequence[Slot] = []
        self._fetched = FETCH
        self._looked = -LOOK
        with self._asking():
            self._db = connection_of(spec, follow=follow)
        try:
            with self._asking():
                self._begin(say)
        except BaseException:
            self._db.close()
            raise

    def _begin(self, say: Callable[[str], None]) -> None:
        self.columns, _ = self._select("*", "LIMIT 0")
        if self._spec.key not in self.columns:
            raise DataError(
                f"{self.identity} has no column {self._spec.key!r}; the data owner must name its "
                "key as the table does"
            )
        # by their names: a column that somebody adds changes no row that was read
        wanted = self.columns if self._wanted is None else {*self._wanted, self._spec.key}
        self._names = tuple(name for name in self.columns if name in wanted)
        self._where = self._names.index(self._spec.key)
        if self._select("1", "WHERE {key} IS NULL LIMIT 1")[1]:
            raise self._no_key("is missing in a row")
        self._first, self._end = self._select("min({key}), max({key})")[1][0]
        if self._end is not None and not all(type(key) is int for key in (self._first, self._end)):
            raise self._no_key("is no whole number")
        self._done = not self._follow and self._end is None
        #: Of the last row that was fetched.
        self._key = None if self._at is None else self._at.key
        self._last = ""
        #: What was fetched last: where nobody writes, the rows before a position are among it.
        self._recent = deque[Columns](maxlen=RECENT if self._db.still else 0)
        #: Mark of the rows that the table began with; None as long as nobody has looked.
        self._began: str | None = None
        if self._at is not None:
            self._at = self._checked(self._at, say)

    @property
    def ended(self) -> bool:
        """Whether all rows that were there at the start were handed out; never while it follows."""
        return self._done and not self._waiting

    @property
    def progress(self) -> float | None:
        """The share of the keys passed, unknown while it follows."""
        if self._follow:
            return None
        if self.ended:
            return 1.0
        if self._at is None or self._at.key < self._first:
            return 0.0
        share: float = (self._at.key - self._first) / max(self._end - self._first, 1)
        return min(1.0, share)

    def read(self, limit: int, timeout: float) -> Sequence[Slot]:
        """Return up to `limit` slots, none if nothing came within `timeout` seconds.

        DataError if the database fails, or the key does not grow.
        """
        deadline = time.monotonic() + timeout
        while not self._waiting and not self._done:
            wait = self._looked + LOOK - time.monotonic()
            if wait > 0:
                time.sleep(max(0.0, min(wait, deadline - time.monotonic())))
            if time.monotonic() < self._looked + LOOK:
                return []
            with self._asking():
                self._fetch()
            if not self._waiting:
                self._looked = time.monotonic()
        found, self._waiting = self._waiting[:limit], self._waiting[limit:]
        if found:
            self._at = self._read_position(behind(found))
        return found

    def anchored(self, position: bytes) -> bytes:
        """Return a position with a mark of the rows before it."""
        found = self._read_position(position)
        with self._asking():
            rows = self._kept(found.key) or self._before(found.key, self._names)
            if self._began is None:
                begun = self._before(found.key, self._names, "ASC")
                self._began = self._values_of(begun) if len(begun) == MARKED else None
        marks = {
            "last": _mark(rows[:1]), "mark": _mark(rows), "columns": self._names,
            "first": self._began or "",
        }  # fmt: skip
        return msgspec.json.encode(msgspec.structs.replace(found, **marks))

    def close(self) -> None:
        """Close the database."""
        self._db.close()

    def _fetch(self) -> None:
        """Read the next rows, as far as none can come between them any more."""
        highest = self._select("max({key})")[1][0][0] if self._follow else self._end
        bound = None if highest is None else self._db.settled(highest)
        if bound is None:
            return
        what = _listed(self._names)
        batch = self._db.ahead(self._spec, what, self._key, bound, self._fetched + 2)
        keys = _keys_of(batch, self._spec.key)
        first = int(len(keys) > 0 and keys[0] == self._key)
        if self._last and not (first and self._last == _mark(self._rows(batch, 0, 1))):
            raise self._changed()
        if self._began and not self._spec.skip_again:
            begun = self._values_of(self._rows(batch, first, first + MARKED))
            if begun == self._began:
                raise DataError(
                    f"{self.identity}: the rows behind the last key are those that the table began "
                    "with: it was filled anew under new keys, and would be released twice. The "
                    "data owner must take them out, or, if they are new records that begin alike, "
                    "say again=skip in the source"
                )
        if isinstance(keys, list) and not {*map(type, keys)} <= {int}:
            raise self._no_key("is no whole number")
        if not _grow(keys):
            raise self._no_key("is there twice")
        # one more than is taken: that says whether the last one's key comes again
        last = min(len(keys), first + self._fetched)
        if first < last:
            taken = batch.part(slice(first, last))
            self._key, self._waiting = int(keys[last - 1]), self._slots(taken)
            self._recent.append(taken)
            if not self._spec.skip_changed:
                self._last = _mark(self._rows(batch, last - 1, last))
        self._done = not self._follow and (first == last or self._key == self._end)
        most = min(FETCH * MOST, max(FETCH, CELLS // len(self._names)))
        self._fetched = min(self._fetched * MORE, most)

    def _kept(self, key: int) -> list[tuple[Any, ...]]:
        """Return what `_before` does if it was fetched a moment ago, else nothing."""
        rows = list[tuple[Any, ...]]()
        for batch in reversed(self._recent):
            end = bisect_right(_keys_of(batch, self._spec.key), key)
            rows += reversed(self._rows(batch, max(0, end - MARKED + len(rows)), end))
            if len(rows) == MARKED:
                return rows
        return []

    def _rows(self, batch: Columns, first: int, last: int) -> list[tuple[Any, ...]]:
        """Return some rows of a batch, as far as it goes."""
        found = batch.part(slice(first, last)).columns(self._names)
        return list(zip(*(column.objects() for column in found.values()), strict=True))

    def _slots(self, batch: Columns) -> Slots:
        keys = _keys_of(batch, self._spec.key)
        records, behind = (self._at.records, self._at.behind) if self._at else (0, 0)

        def place(number: int) -> tuple[bytes, int]:
            done = records + number + 1
            at = _At(self.identity, int(keys[number]), done, behind + number + 1)
            return msgspec.json.encode(at), done

        return Slots(batch, place)

    def _checked(self, at: _At, say: Callable[[str], None]) -> _At:
        """Look for rows that changed behind a position; return it as it stands now."""
        if at.columns == self._names:
            self._began = at.first or None
        # a study that follows may read others: what is compared are the columns of the marks
        gone = not set(at.columns) <= set(self.columns)
        rows = [] if gone else self._before(at.key, at.columns)
        behind = int(self._select("count(*)", f"WHERE {{key}} <= {at.key}")[1][0][0])
        changed = (
            behind < at.behind
            or not self._select("1", f"WHERE {{key}} = {at.key}")[1]
            or bool(at.last and at.last != _mark(rows[:1]))
            # rows that may come behind the key stand among the last ones
            or bool(at.mark and not self._spec.skip_late and at.mark != _mark(rows))
        )
        if self._spec.skip_changed:
            if changed:
                say(
                    f"WARNING: rows of {self.identity} were changed or removed after they had been "
                    "read: what was released stays as it was. Were they written again under new "
                    f"keys, in another order or without the first {MARKED}, they are released a "
                    "second time, as changed=skip allows"
                )
        else:
            self._last = _mark(self._before(at.key, self._names)[:1])
        if behind > at.behind and not self._spec.skip_late:
            raise DataError(
                f"{self.identity}: {behind - at.behind} rows have come behind the last key that "
                "was read, and would be passed over; the data owner must give new rows keys above "
                "all others, or say late=skip in the source to go on without those"
            )
        if changed and not self._spec.skip_changed:
            raise self._changed()
        return msgspec.structs.replace(at, behind=behind)

    def _before(
        self, key: int, columns: Collection[str], order: str = "DESC"
    ) -> list[tuple[Any, ...]]:
        """Return the last rows up to a key, the last one first; no columns: all.

        order: "ASC": the first ones, the first one first.
        """
        query = f"WHERE {{key}} <= {key} ORDER BY {{key}} {order} LIMIT {MARKED}"
        return self._select(_listed(columns), query)[1]

    def _values_of(self, rows: list[tuple[Any, ...]]) -> str:
        """Return a mark of the first rows without their keys; empty of few, or of many alike."""
        at = self._where
        found = [row[:at] + row[at + 1 :] for row in rows[:MARKED]]
        # what comes again by chance, or in turn, is no sign
        return _mark(found) if len({*map(repr, found)}) >= DISTINCT else ""

    def _select(self, what: str, rest: str = "") -> tuple[list[str], list[tuple[Any, ...]]]:
        return self._db.rows(self._spec.query(what, rest))

    def _read_position(self, position: bytes) -> _At:
        return read_position(
            position, _At, lambda at: at.name == self.identity, self.identity, "this table"
        )

    def _changed(self) -> DataError:
        return DataError(
            f"{self.identity}: rows that were read have been changed or removed since; a table "
            "filled anew would be released twice. The data owner must put them back, or, if all "
            "rows above the last key are new records, say changed=skip in the source"
        )

    def _no_key(self, why: str) -> DataError:
        return DataError(
            f"{self.identity}: its key {self._spec.key!r} {why}; the data owner must name a column "
            "of whole numbers, each there once, which only grow"
        )

    @contextmanager
    def _asking(self) -> Iterator[None]:
        try:
            yield
        except VeilstreamError:
            raise
        except Exception as error:  # every driver has errors of its own
            # what a driver says of a query may be data
            why = "" if hasattr(self, "_db") else f": {str(error).splitlines()[0]}"
            raise DataError(
                f"{self.identity}: the database cannot be read ({type(error).__name__}{why}); the "
                "data owner must see that it is there, has a table of this name, and that this "
                "process may read that"
            ) from error


def _keys_of(batch: Columns, key: str) -> Sequence[Any] | NDArray[Any]:
    column = batch.columns([key])[key]
    whole = column.typed and np.asarray(column.values).dtype.kind in "iu"
    return np.asarray(column.values) if whole and not np.any(column.gone) else column.objects()


def _grow(keys: Any) -> bool:
    """Whether each key is larger than the one before it."""
    if isinstance(keys, np.ndarray):
        return bool((keys[1:] > keys[:-1]).all())
    return all(one < other for one, other in pairwise(keys))


def _listed(columns: Collection[str]) -> str:
    return ", ".join(map(quoted, columns)).replace("{", "{{").replace("}", "}}") or "*"


def _mark(rows: list[tuple[Any, ...]]) -> str:
    return hashlib.blake2b(repr(rows).encode(), digest_size=16).hexdigest()
