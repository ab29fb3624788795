"""Whose records are known in a clients' folder: one budget for them, under whatever name.

Every ledger belongs to one client and knows its sources by name. This file belongs to the folder:
it knows who has released which records, by content (`heads`), by file, and packaged rows by
arithmetic. A source enters it just before its first release, in the transaction that finds nobody
else there; so of two producers that start at once, the second to release is refused. Of two that
are both in it (from before there was this file), the first goes on.

It holds paths and hashes, no records. Whoever can read it can test a guess about first records: it
lies beside the clients' databases, with their permissions.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import ConfigError, LocalStoreError
from producers.heads import Marks, compare
from producers.sources import share_rows

#: No client's database has this name: theirs end in .db.
NAME = ".sources.sqlite"
#: How long another producer may hold the file, in seconds; it takes milliseconds.
PATIENCE = 60.0

TABLES = (
    """CREATE TABLE known (
      id INTEGER PRIMARY KEY, client TEXT NOT NULL, source TEXT NOT NULL, kind TEXT NOT NULL,
      place TEXT NOT NULL, device INTEGER, inode INTEGER, marks TEXT NOT NULL
    )""",
    """CREATE TABLE other_data (
      client TEXT, source TEXT, other_client TEXT, other_source TEXT,
      PRIMARY KEY (client, source, other_client, other_source)
    )""",
)


@dataclass(frozen=True, slots=True)
class Looks:
    """What a source can be known by.

    kind: "file", "table", "packaged", "topic" or "input".
    location: The path of the file, the specification of what is none, or "".
    device, inode: Of a file, as the system numbers them.
    marks: Of its first records, see `heads`.
    """

    kind: str
    location: str
    device: int | None
    inode: int | None
    marks: Marks

    def same_file(self, other: Looks) -> bool:
        """Whether both are one file by its path or number, which may have been given anew."""
        if self.kind not in ("file", "table") or other.kind != self.kind:
            return False
        mine, its = (self.device, self.inode), (other.device, other.inode)
        return self.location == other.location or (None not in mine and mine == its)


@dataclass(frozen=True, slots=True)
class Entry:
    """A row: who has released what."""

    number: int
    client: str
    source: str
    looks: Looks


#: Returns what was released before there was this file, as client, source and looks.
Earlier = Callable[[], list[tuple[str, str, Looks]]]


class KnownSources:
    """The file of one clients' folder; every use of it is one short transaction.

    folder: Where the clients' databases are.
    earlier: Asked once, when the file is made.

    Raises LocalStoreError: by every method, if the file cannot be used.
    """

    def __init__(self, folder: Path, earlier: Earlier) -> None:
        self._path = folder / NAME
        self._earlier = earlier

    def check(
        self, client: str, source: str, looks: Looks, *, releases: bool, other_data: bool
    ) -> bool:
        """Refuse records that are known under another client or name.

        Returns whether the client has released other records under this name, and not these.

        releases: Whether they are being released: then they are known from now on.
        other_data: Whether the data owner says that they are others than those which begin alike.
            That is remembered.

        Raises ConfigError, naming who has them.
        """
        with self._transaction() as database:
            entries = [_entry(row) for row in database.execute("SELECT * FROM known ORDER BY id")]
            mine = [e for e in entries if (e.client, e.source) == (client, source)]
            own = next((e for e in mine if goes_on(e.looks, looks)), None)
            for entry in entries:
                if entry in mine or (own is not None and entry.number > own.number):
                    continue
                how, certain = _shared(looks, entry.looks)
                pair = (client, source, entry.client, entry.source)
                if not how or (not certain and _others(database, pair)):
                    continue
                if certain or not other_data:
                    raise _refusal(client, entry, source, how, certain=certain)
                database.execute("INSERT INTO other_data VALUES (?, ?, ?, ?)", pair)
            if releases and own is None:
                _insert(database, client, source, looks)
            elif releases and own is not None:
                _extend(database, own, looks)
            return bool(mine) and own is None

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        try:
            # before there is anything in it that others could read
            self._path.touch(mode=0o600)
            database = sqlite3.connect(self._path, timeout=PATIENCE, isolation_level=None)
        except (OSError, sqlite3.Error) as error:
            raise _unusable(error) from error
        try:
            database.execute("PRAGMA synchronous = FULL")
            database.execute("BEGIN IMMEDIATE")
            # closing without a commit takes everything back
            if not database.execute("SELECT 1 FROM sqlite_master").fetchone():
                for table in TABLES:
                    database.execute(table)
                for client, source, looks in self._earlier():
                    _insert(database, client, source, looks)
            yield database
            database.execute("COMMIT")
        except sqlite3.Error as error:
            raise _unusable(error) from error
        finally:
            database.close()


def goes_on(known: Looks, now: Looks) -> bool:
    """Whether a source is what it was, perhaps longer."""
    if known.kind != now.kind:
        return False
    if now.kind in ("packaged", "topic"):
        return known.location == now.location
    if now.kind == "table" and known.location == now.location:
        # its columns may be others by now; whether its rows are, its position tells
        return True
    shared = compare(known.marks, now.marks)
    return bool(shared) or (shared is None and (now.kind == "input" or known.same_file(now)))


def _shared(one: Looks, other: Looks) -> tuple[str, bool]:
    """Return what two sources have in common, if anything, and whether no flag can deny it."""
    if "packaged" in (one.kind, other.kind):
        both = one.kind == other.kind and share_rows(one.location, other.location)
        return ("they share rows", True) if both else ("", False)
    if "topic" in (one.kind, other.kind):
        # topics of one name can be on two clusters
        both = one.kind == other.kind and one.location == other.location
        return "the same topic" if both else "", False
    shared, file = compare(one.marks, other.marks), one.same_file(other)
    if shared:
        return ("the same file", True) if file else (f"the same first {shared} records", False)
    if file and one.kind == "table":
        # its rows may have been written anew
        return "the same table", False
    # without a record there is nothing that could be released twice
    if shared is None and file and one.marks:
        return "the same file, as far as its name or number tells", False
    return "", False


def _refusal(client: str, entry: Entry, source: str, how: str, *, certain: bool) -> ConfigError:
    named = "" if entry.source == source else f" --source-name {entry.source!r}"
    if entry.client == client:
        who, way = "this client", named.lstrip()
    else:
        who, way = f"client {entry.client!r}", f"--client {entry.client!r}{named}"
    flag = "" if certain else (
        "; if they are other records, which only begin alike, say so once with --other-data"
    )  # fmt: skip
    if source.startswith(("http", "mqtt:", "stdin:")) and not entry.source.startswith(source[:4]):
        way = (
            f"the source that {who} had; if nothing of this one has been released, stop and remove "
            "this study's folder in the client's .input folder, where its records are kept"
        )
    return ConfigError(
        f"--source: {who} has released these records as source {entry.source!r} ({how}), and "
        f"a record has one budget: go on with {way}{flag}"
    )


def _entry(row: tuple[object, ...]) -> Entry:
    number, client, source, kind, location, device, inode, marks = row
    found = {int(count): mark for count, mark in json.loads(str(marks)).items()}
    looks = Looks(str(kind), str(location), device, inode, found)  # type: ignore[arg-type]
    return Entry(int(str(number)), str(client), str(source), looks)


def _insert(database: sqlite3.Connection, client: str, source: str, looks: Looks) -> None:
    database.execute(
        "INSERT INTO known (client, source, kind, place, device, inode, marks) "
        "VALUES (?, ?, ?, ?, ?, ?, ?)",
        (client, source, looks.kind, looks.location, looks.device, looks.inode,
         json.dumps(looks.marks)),
    )  # fmt: skip


def _extend(database: sqlite3.Connection, entry: Entry, looks: Looks) -> None:
    """Take over marks of more records; a file that was cut short keeps those that it had."""
    both = (entry.looks.marks, looks.marks)
    # too short to share a mark with what it was: the longer of the two is what was released
    longer = max(both, key=lambda marks: max(marks, default=0))
    marks = {**both[0], **both[1]} if compare(*both) else longer
    database.execute(
        "UPDATE known SET place = ?, device = ?, inode = ?, marks = ? WHERE id = ?",
        (looks.location, looks.device, looks.inode, json.dumps(marks), entry.number),
    )


def _others(database: sqlite3.Connection, pair: tuple[str, str, str, str]) -> bool:
    """Whether the data owner has said that two sources hold other records."""
    query = (
        "SELECT 1 FROM other_data WHERE (client, source, other_client, other_source) "
        "IN (VALUES (?, ?, ?, ?), (?, ?, ?, ?))"
    )
    return database.execute(query, (*pair, *pair[2:], *pair[:2])).fetchone() is not None


def _unusable(error: BaseException) -> LocalStoreError:
    return LocalStoreError(
        f"the register of sources, {NAME} beside the clients' databases, cannot be used ({error}); "
        "nothing was spent: free some disk space or put the file back. If it is gone, it is made "
        "anew from the databases"
    )
