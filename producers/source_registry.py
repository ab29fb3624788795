"""Whose records are known in a clients' folder: one budget for them, under whatever name.

Every ledger belongs to one client and knows its sources by name, as does the log. The registry
belongs to the folder: it knows who has released which records, by content, by file, and packaged
rows by arithmetic. A source enters it just before its first release, in the transaction that finds
nobody else there; so of two producers that start at once, the second to release is refused. Of two
that are both in it (from before there was this file), the first goes on.

It holds paths and hashes, no records. Whoever can read it can test a guess about first records: it
lies beside the clients' databases, with their permissions.

A mark is a hash of the first n records that can be read, n = 4, 8, 16, ... 1024. Files grow at
their end, so one is what it was where the largest n that both have agrees; two sources have records
in common where any n agrees, if so many are no chance: streams often begin with the same few
values. Values are hashed, not bytes, so that neither the form of the file nor its quotes, line
ends, way to leave a value out or order of columns make other data. A header makes no mark. Fewer
than four records are no sign of anything: one binary column agrees in three records by chance once
in eight. So a source that is shorter has one mark, of all that it holds, which only another one of
the same length can equal.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import ConfigError, DataError, LocalStoreError
from pipeline.records.values import WORDS, is_missing, milliseconds_of
from producers.database import reading
from producers.sources import kind_of, known_as, open_source
from producers.sources.base import Slot, Source
from producers.sources.samples import packaged, share_rows

#: Fewest records that tell one source from another, and the most that are looked at.
FEWEST = 4
MOST = 1024
#: First records that two sources share are no chance where so many of them differ from each other,
#: or where there are so many in all: sensors begin with zeros.
DIFFERENT, MANY = 16, 256

#: Marks by the number of records that they are of.
Marks = Mapping[int, str]


class Head:
    """The first records of a source, as they come; none of them is kept.

    key: As `Known.key`. Marks are of the records without it, and behind a "/" of all of them.
    """

    def __init__(self, key: str = "") -> None:
        self._key = key
        self._digests = [hashlib.blake2b(digest_size=16) for _ in range(2 if key else 1)]
        self._count = 0
        self._marks: dict[int, str] = {}
        self._different = set[bytes]()
        #: From how many records on a shared mark is no chance.
        self.telling = MANY

    @property
    def full(self) -> bool:
        """Whether more records would change nothing."""
        return self._count >= MOST

    @property
    def marks(self) -> Marks:
        """The marks of what has come; none if no record has."""
        if 0 < self._count < FEWEST:
            return {self._count: self._mark()}
        return dict(self._marks)

    def take(self, record: Mapping[str, object] | None) -> None:
        """Take the next record; one that cannot be read marks nothing."""
        if record is None or self.full:
            return
        values = sorted((n, _plain(v)) for n, v in record.items() if not is_missing(v))
        line = json.dumps(values, default=str).encode() + b"\n"
        self._digests[-1].update(line)
        if self._key:
            bare = [pair for pair in values if pair[0] != self._key]
            self._digests[0].update(json.dumps(bare, default=str).encode() + b"\n")
        self._count += 1
        if len(self._different) < DIFFERENT:
            self._different.add(hashlib.blake2b(line, digest_size=16).digest())
            if len(self._different) == DIFFERENT:
                self.telling = min(self._count, MANY)
        if self._count >= FEWEST and self._count & (self._count - 1) == 0:
            self._marks[self._count] = self._mark()

    def _mark(self) -> str:
        return "/".join(digest.hexdigest() for digest in self._digests)


def head_of(source: Source, key: str = "") -> Head:
    """Read the head of a source that was opened at its start, as far as it is there already.

    key: As `Known.key`: the same records may have been written anew under other ones.
    """
    head = Head(key)
    while not head.full and (slots := source.read(MOST, 0.0)):
        for slot in slots:
            head.take(slot.record)
    return head


def compare(one: Marks, other: Marks) -> int | None:
    """Return how many first records two sources share: 0 for none; None if nobody can tell.

    A source may have more than that in common; and 0 may mean fewer than the marks are of.
    """
    if not (both := one.keys() & other.keys()):
        return None
    return max((n for n in both if {*one[n].split("/")} & {*other[n].split("/")}), default=0)


def agree(one: Marks, other: Marks) -> bool:
    """Whether two sources share the most first records that both are known by."""
    return bool(shared := compare(one, other)) and shared == max(one.keys() & other.keys())


def _plain(value: object) -> str:
    """Return a value in one form, whether it came as text, a number, a truth value or a time."""
    if isinstance(value, str):
        value = value.strip()
        value = WORDS.get(value.lower(), value)
    with suppress(TypeError, ValueError, OverflowError):
        return repr(float(value))  # type: ignore[arg-type]
    at = milliseconds_of(value)
    return str(value) if at is None else str(at)


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
    "CREATE TABLE tests (study TEXT NOT NULL, marks TEXT NOT NULL)",
)


@dataclass(frozen=True, slots=True)
class Looks:
    """What a source can be known by.

    kind: "file", "table", "packaged", "topic" or "input".
    location: The path of the file, the specification of what is none, or "".
    device, inode: Of a file, as the system numbers them.
    marks: Of its first records; see `Head`.
    telling: As `Head.telling`; what is in the register does not say.
    """

    kind: str
    location: str
    device: int | None
    inode: int | None
    marks: Marks
    telling: int = MANY

    def shares(self, marks: Marks) -> int | None:
        """Return how many first records are shared, as `compare`, where that is no chance."""
        shared = compare(self.marks, marks)
        if not shared or shared >= self.telling or agree(self.marks, marks):
            return shared
        return 0

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


class KnownSources:
    """The file of one clients' folder; every use of it is one short transaction.

    folder: Where the clients' databases are, which are asked once, when the file is made.

    Raises LocalStoreError: by every method, if the file cannot be used.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._path = folder, folder / NAME

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

    def tested(self, study: str, looks: Looks) -> int:
        """Return how often records that begin as these were refused for a study, by any client."""
        with self._transaction() as database:
            rows = database.execute("SELECT marks FROM tests WHERE study = ?", (study,)).fetchall()
        return sum(bool(looks.shares(_marks(marks))) for (marks,) in rows)

    def refused(self, study: str, looks: Looks) -> None:
        """Note that a test of these records has refused them."""
        with self._transaction() as database:
            database.execute("INSERT INTO tests VALUES (?, ?)", (study, json.dumps(looks.marks)))

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
            made = database.execute("SELECT 1 FROM sqlite_master").fetchone()
            for table in TABLES:
                database.execute(table.replace("TABLE", "TABLE IF NOT EXISTS", 1))
            if not made:
                for client, source, looks in earlier(self._folder):
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
    if compare(known.marks, now.marks) is None:
        return now.kind == "input" or known.same_file(now)
    return agree(known.marks, now.marks)


def _shared(one: Looks, other: Looks) -> tuple[str, bool]:
    """Return what two sources have in common, if anything, and whether no flag can deny it."""
    if "packaged" in (one.kind, other.kind):
        both = one.kind == other.kind and share_rows(one.location, other.location)
        return ("they share rows", True) if both else ("", False)
    if "topic" in (one.kind, other.kind):
        # topics of one name can be on two clusters
        both = one.kind == other.kind and one.location == other.location
        return "the same topic" if both else "", False
    shared, file = one.shares(other.marks), one.same_file(other)
    certain, how = False, f"the same first {shared} records" if shared else ""
    if shared and file and one.marks[shared][-32:] == other.marks[shared][-32:]:
        certain, how = True, "the same file"
    elif file and one.kind == "table":
        # its rows may have been written anew
        how = "the same table"
    elif shared is None and file and one.marks:
        # without a record there is nothing that could be released twice
        how = "the same file, as far as its name or number tells"
    return how, certain


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
    looks = Looks(str(kind), str(location), device, inode, _marks(marks))  # type: ignore[arg-type]
    return Entry(int(str(number)), str(client), str(source), looks)


def _marks(text: object) -> Marks:
    return {int(count): mark for count, mark in json.loads(str(text)).items()}


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
    marks = {**both[0], **both[1]} if agree(*both) else longer
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


#: Told of a source's columns, where it has the same in all of its records.
Check = Callable[[Sequence[str]], None]
#: What has been seen of a source whose head cannot grow any more.
WHOLE = "whole"


class Admission:
    """The source of one run, as the folder's register knows it.

    folder: Where the clients' databases are.
    client, name: Client id, and the source's name in its ledger.
    spec: As `producers.sources.open_source` takes it.
    other_data: See `KnownSources.check`.
    """

    def __init__(
        self, folder: Path, client: str, name: str, spec: str, *, follow: bool, other_data: bool
    ) -> None:
        self._folder, self._client, self._name = folder, client, name
        self._spec, self._follow, self._other_data = spec, follow, other_data
        self._known = KnownSources(folder)
        self._input: Head | None = None
        self._seen: object = None

    def enter(
        self, *, check: Check = lambda _: None, say: Callable[[str], None] = lambda _: None
    ) -> None:
        """Refuse a source that another client or name has released; see `KnownSources.check`.

        Nothing is noted: what is refused later, for its budget say, has not been released.

        check: Refuses columns that the study cannot use, before anything is said of other sources.
        say: Told where the name was one of other records until now.

        Raises ConfigError, naming who has it; DataError if it cannot be opened, or as `check`;
        LocalStoreError if the register cannot be used.
        """
        # nothing of what comes once has been read yet
        if kind_of(self._spec) == "input":
            return
        if self._check(looks_of(self._spec, self._follow, check), releases=False):
            say(
                f"{self._name}: this client has released other records under this name, and one "
                "budget holds for all of them. If these records are none of those, the data owner "
                "may have them in another file or table, with a name and a budget of their own: "
                "--source-name NAME"
            )

    def tries(self, study: str, first: Sequence[Slot]) -> int:
        """Return how often a study has refused such first records, of any client and source."""
        return self._known.tested(study, self._looks_of(first))

    def refuse(self, study: str, first: Sequence[Slot]) -> None:
        """Note that a test of these first records has refused them."""
        self._known.refused(study, self._looks_of(first))

    def _looks_of(self, first: Sequence[Slot]) -> Looks:
        head = Head(known_as(self._spec).key)
        for slot in first:
            head.take(slot.record)
        return looks_of_input(head)

    def begins(self, position: bytes | None) -> None:
        """Say where this run reads on: the head of what comes once is only seen from its start."""
        if kind_of(self._spec) == "input" and position is None:
            self._input = Head()

    def take(self, slots: Sequence[Slot]) -> None:
        """See the next slots of the source."""
        if self._input is not None and not self._input.full:
            for slot in slots:
                self._input.take(slot.record)

    def before_release(self) -> None:
        """Enter the register, or refuse as `enter`; until there are enough records to be known by.

        A file that was empty at the start has a head by now.
        """
        if kind_of(self._spec) == "input":
            marks: Marks = {} if self._input is None else self._input.marks
            if self._input is not None and marks and marks != self._seen:
                self._check(looks_of_input(self._input), releases=True)
                self._seen = marks
            return
        if self._seen == WHOLE:
            return
        path = Path(self._spec)
        # of what is no file, nobody knows whether it has grown but who reads it
        size = path.stat().st_size if path.is_file() else None
        if self._seen == size is not None:
            return
        looks = looks_of(self._spec, self._follow)
        self._check(looks, releases=True)
        whole = looks.kind in ("packaged", "topic") or MOST in looks.marks
        self._seen = WHOLE if whole else size

    def _check(self, looks: Looks, *, releases: bool) -> bool:
        return self._known.check(
            self._client, self._name, looks, releases=releases, other_data=self._other_data
        )


def looks_of_input(head: Head) -> Looks:
    """Return what a source that comes once can be known by."""
    return Looks("input", "", None, None, head.marks, head.telling)


def looks_of(spec: str, follow: bool, check: Check = lambda _: None) -> Looks:
    """Return what a source can be known by; not of what comes once.

    DataError if it cannot be opened, or as `check` raises it for the columns of the source.
    """
    known = known_as(spec)
    location = known.location or ""
    if kind_of(spec) == "topic":
        # its records are not looked at: another topic with a copy of them is not found out
        return Looks("topic", location, None, None, {})
    source = open_source(spec, None, folder=Path(), follow=follow)
    try:
        if source.columns is not None:
            check(source.columns)
        if packaged(spec):
            return Looks("packaged", location, None, None, {})
        path = Path(spec)
        # a row of a table, or a file of another store, has no number here
        found = path.stat() if path.exists() else None
        device, inode = (found.st_dev, found.st_ino) if found else (None, None)
        head = head_of(source, known.key)
        return Looks(kind_of(spec), location, device, inode, head.marks, head.telling)
    except OSError as error:
        raise DataError(
            f"{Path(spec).name}: cannot be read ({error.strerror}); the data owner must name a "
            "file that this process may read"
        ) from None
    finally:
        source.close()


def earlier(folder: Path) -> list[tuple[str, str, Looks]]:
    """Return what clients of a folder released before it had a register, the oldest client first.

    Files that are gone by now, and standard input, cannot be looked at; they enter with nothing but
    their path or not at all.
    """
    found = []
    for path in folder.glob("*.db"):
        # a damaged database is its own client's matter
        with suppress(LocalStoreError), reading(path) as database:
            found += database.execute(
                "SELECT created_at, client, source, location FROM identity, locations "
                "WHERE source IN (SELECT source FROM streams WHERE next_seq > 0)"
            ).fetchall()
    return [
        (client, source, _looks_now(location))
        for _, client, source, location in sorted(found, key=lambda row: tuple(map(str, row)))
    ]


def _looks_now(location: str) -> Looks:
    try:
        return looks_of(location, follow=True)
    except DataError:
        return Looks(kind_of(location), location, None, None, {})
