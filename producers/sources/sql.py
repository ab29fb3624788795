"""A table as a source: its rows by a key of whole numbers that only grows.

Its database is named by a URL; see `databases`. A position is the key of the last
row. Rows that come behind it later cannot be found by it: they are counted at each start, and told.
A table that was filled anew would be released twice: rows that changed or went after they were read
end the reading.
"""

from __future__ import annotations

import hashlib
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import msgspec

from pipeline.errors import ConfigError, DataError, VeilstreamError
from pipeline.records.batch import Columns
from producers.sources.base import (
    CELLS,
    Known,
    Natural,
    Opening,
    Slot,
    Slots,
    Source,
    behind,
    read_position,
    wait_for,
)
from producers.sources.databases import TableSpec, connection_of, grow, keys_of, quoted

KIND = "table"
FORM = (
    "sqlite://FILE, duckdb://FILE or postgresql://USER@HOST/DATABASE, then ?table=TABLE&key=COLUMN "
    "and, if rows that come behind the key shall be left out, &late=skip; if rows that were read "
    "may change or go, &changed=skip; if new rows begin as the table did, &again=skip"
)
#: What may be passed over, as far as a source says so.
_SKIPPED = ("late", "changed", "again")


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
    return SqlTable(table_spec(spec), asked)


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
    records: Natural
    behind: Natural
    last: str = ""
    mark: str = ""
    columns: tuple[str, ...] = ()
    first: str = ""


class SqlTable(Source):
    """The rows of a table, or of a view, with the columns that are asked for and the key.

    Raises DataError if it cannot be read, its key is none, or rows came, changed or went behind the
    position; ConfigError if a package is missing.
    """

    columns: list[str]

    def __init__(self, spec: TableSpec, asked: Opening) -> None:
        self._spec, self._follow, self._wanted = spec, asked.follow, asked.columns
        self.identity = f"sql:{spec.table}"
        self._at = None if asked.position is None else self._read_position(asked.position)
        self._waiting: Sequence[Slot] = []
        self._fetched = FETCH
        self._looked = -LOOK
        with self._asking():
            self._db = connection_of(spec, follow=asked.follow)
        try:
            with self._asking():
                self._begin(asked.say)
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
        """As `Source.ended`, of the rows that were there at the start."""
        return self._done and not self._waiting

    @property
    def progress(self) -> float | None:
        """As `Source.progress`, of keys."""
        if self._follow:
            return None
        if self.ended:
            return 1.0
        if self._at is None or self._at.key < self._first:
            return 0.0
        share: float = (self._at.key - self._first) / max(self._end - self._first, 1)
        return min(1.0, share)

    def read(self, limit: int, timeout: float) -> Sequence[Slot]:
        deadline = time.monotonic() + timeout
        while not self._waiting and not self._done:
            if not wait_for(self._looked + LOOK, deadline):
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
        keys = keys_of(batch, self._spec.key)
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
        if not grow(keys):
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
            end = bisect_right(keys_of(batch, self._spec.key), key)
            rows += reversed(self._rows(batch, max(0, end - MARKED + len(rows)), end))
            if len(rows) == MARKED:
                return rows
        return []

    def _rows(self, batch: Columns, first: int, last: int) -> list[tuple[Any, ...]]:
        """Return some rows of a batch, as far as it goes."""
        found = batch.part(slice(first, last)).columns(self._names)
        return list(zip(*(column.objects() for column in found.values()), strict=True))

    def _slots(self, batch: Columns) -> Slots:
        keys = keys_of(batch, self._spec.key)
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
        return self._db.rows(self._spec.statement(what, rest))

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


def _listed(columns: Collection[str]) -> str:
    return ", ".join(map(quoted, columns)).replace("{", "{{").replace("}", "}}") or "*"


def _mark(rows: list[tuple[Any, ...]]) -> str:
    return hashlib.blake2b(repr(rows).encode(), digest_size=16).hexdigest()
