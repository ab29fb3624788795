"""The client's database file: one owner at a time, durable transactions, one state, an identity.

A copy of the files of a client that runs, or a hasty restore, has pages of several states: each is
sound, and so may be their tree; the log, which has counts alone, may agree with it. Releases are
numbered without gaps and their rows never change, so order and counts show all of these. Every
other row is in one sum, which each transaction brings up to date: a page of another state is found
by it.

A lock file beside the database holds the ledger's id and how many releases each study has. It is
written after the database, so it never knows more than was stored; an old copy in the database's
place knows less than it. The log knows the same, unless it is another Kafka's, or made anew.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import sqlite3
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import msgspec

from pipeline.errors import AlreadyRunning, ConfigError, LocalStoreError
from pipeline.study.tables import RULE, is_plain

#: So many clients of a folder are named where another is meant.
NAMED = 8


def check_id(client: str) -> None:
    """Refuse an id that is not plain; ConfigError, saying what an id is."""
    if not is_plain(client):
        raise ConfigError(f"--client: {RULE}; the operator must give this client such an id")


def shown(client: str) -> str:
    """Return an id as lines for people may hold it: nothing in it that a terminal would obey."""
    return client if is_plain(client) else ascii(client)


def vault_path(folder: Path, client: str) -> Path:
    """Return where a client's database is."""
    return folder / "clients" / f"{quote(client, safe='')}.db"


def known_vault(folder: Path, client: str) -> Path:
    """Return where a client's database is; ConfigError if there is none."""
    path = vault_path(folder, client)
    if not path.exists():
        known = ", ".join(map(shown, clients_of(folder)[:NAMED])) or "none"
        raise ConfigError(
            f"no client {client!r} has run from this folder; see VEILSTREAM_FOLDER. Clients that "
            f"have: {known}"
        )
    return path


def clients_of(folder: Path) -> list[str]:
    """Return the ids of all clients that have a database in a folder."""
    return sorted(unquote(path.stem) for path in (folder / "clients").glob("*.db"))


#: Tables that hold a row for each release, and that with the sum.
APART = ("ledger", "outbox", "spends", "identity", "secrets")
#: What a study costs where that is one row; else the first of its rows, which never change.
SPENDS = """
    SELECT 'spends', * FROM spends WHERE (study, seq) IN
    (SELECT study, (SELECT min(seq) FROM spends WHERE spends.study = charged.study) FROM charged)"""


class Whole:
    """The rows of a database against each other; callers hold the transaction.

    database: With all tables of this version.
    """

    def __init__(self, database: sqlite3.Connection) -> None:
        self._db = database
        tables = self._rows("SELECT name FROM sqlite_master WHERE type = 'table'")
        self._short = [SPENDS] + [
            f"SELECT '{name}', * FROM {name}"  # noqa: S608  our own tables
            for (name,) in tables
            if name not in APART
        ]

    def settle(self) -> None:
        """Write the sum of what is about to be committed."""
        self._db.execute("UPDATE identity SET tables_sum = ?", (self._sum(),))

    def is_empty(self) -> bool:
        """Whether there is no row but the database's identity."""
        # every row of a table that stands apart belongs to one of a short table
        return not any(self._rows(table) for table in self._short)

    def check(self) -> None:
        """Refuse rows that do not agree with each other; LocalStoreError."""
        ledger = self._by_study("SELECT study, count(*), max(seq) FROM ledger GROUP BY study")
        outbox = self._by_study("SELECT study, count(*), min(seq) FROM outbox GROUP BY study")
        spends = self._by_study(
            "SELECT study, count(*), scope = 'record' FROM spends GROUP BY study, scope"
        )
        stands = self._by_study("SELECT study, next_seq, waiting FROM streams")
        for study in {*ledger, *outbox, *spends, *stands}:
            released, waiting = stands.get(study, [0, 0])
            # each release is paid, or the first one for all
            paid = [[1, 1], [released, 0]] if released else [[]]
            if study not in stands:
                # no study: what one has cost before its first release
                paid = [[1, 0], [1, 1]]
            kept = self._kept(study, *outbox.get(study, []))
            for table, whole in (
                ("ledger", ledger.get(study, [0, -1]) == [released, released - 1]),
                ("outbox", kept == {waiting}),
                ("spends", spends.get(study, []) in paid),
            ):
                if not whole:
                    raise LocalStoreError(damaged(f"study {study!r}: the {table} has gaps"))
        sums = [found for (found,) in self._rows("SELECT tables_sum FROM identity")]
        if sums != [self._sum()] and (sums or self._sum()):
            raise LocalStoreError(damaged("its tables are not of one state"))

    def _sum(self) -> int:
        """Return the sum of the rows of all short tables; 0 of none."""
        rows = [row for table in self._short for row in self._rows(table)]
        return zlib.crc32(b"".join(sorted(map(msgspec.msgpack.encode, rows))))

    def _kept(self, study: str, count: int = 0, first: int = 0) -> set[int]:
        """Return how many releases the outbox has from its first one on, by each way to count."""
        if not count:
            return {0}
        [both] = self._rows(
            "SELECT count(*), count(outbox.seq) FROM ledger LEFT JOIN outbox USING (study, seq) "
            "WHERE study = ? AND seq >= ? AND lost = 0",
            study, first,
        )  # fmt: skip
        return {count, *both}

    def _by_study(self, query: str) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for study, *numbers in self._rows(query):
            found.setdefault(study, []).extend(numbers)
        return found

    def _rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        return self._db.execute(query, values).fetchall()


def damaged(what: str) -> str:
    """Say that a file is not what this program has written."""
    return (
        f"the client database is damaged ({what}): put a whole copy of it back, without the -wal "
        "and -shm files of another; a copy of a client that runs must be made with SQLite's .backup"
    )


@dataclass(frozen=True, slots=True)
class Remembered:
    """What a lock file says.

    ledger: The ledger's id; empty if none was ever made here.
    studies: How many releases each study has, at least.
    """

    ledger: str = ""
    studies: Mapping[str, int] = field(default_factory=dict)


class Memory:
    """The lock file of a client, held by one process at a time.

    path: The file; it is made if it does not exist.

    says: What is in it.

    Raises AlreadyRunning if another process holds it; OSError if it cannot be made or read.
    """

    def __init__(self, path: Path, client: str) -> None:
        self._path = path
        self._file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise AlreadyRunning(
                f"another producer runs as client {client!r} from this folder; stop it, or wait "
                "until it has ended"
            ) from None
        self.says = parsed(self._file.read())

    def note(self, says: Remembered) -> None:
        """Write what is to be remembered."""
        self.says = says
        # numbers of one width, and studies in one order: a later text covers an earlier one
        text = f"{says.ledger}\n" + "".join(
            f"{count:020d} {quote(study, safe='')}\n" for study, count in says.studies.items()
        )
        os.pwrite(self._file.fileno(), text.encode(), 0)

    def forget(self) -> None:
        """Remember nothing any more."""
        self.says = Remembered()
        os.ftruncate(self._file.fileno(), 0)

    def remove(self) -> None:
        """Remove the file, which is in place."""
        self._path.unlink()

    def in_place(self) -> bool:
        """Whether the path still leads to the file that this process holds."""
        return same(self._path, os.fstat(self._file.fileno()))

    def close(self) -> None:
        """Give up the lock."""
        self._file.close()


def same(path: Path, held: os.stat_result) -> bool:
    """Whether a path leads to a file that is held open."""
    try:
        return os.path.samestat(path.stat(), held)
    except OSError:
        return False


def parsed(content: bytes) -> Remembered:
    """Return what a lock file says, as far as it can be read."""
    first, *rest = (content.decode(errors="replace") or "\n").splitlines()
    studies = {}
    for line in rest:
        number, _, study = line.partition(" ")
        if number.isdecimal() and study:
            studies[unquote(study)] = int(number)
    return Remembered(next(iter(first.split()), ""), studies)


SCHEMA = 9


class Database:
    """An SQLite file that one process holds.

    path: The file; it is made if it does not exist.
    client: The client id; a file belongs to one client for ever.

    ledger: The ledger's id.
    memory: What the folder remembers of the ledger.

    Raises AlreadyRunning if another process has it open; ConfigError if the file belongs to another
    client or was written by another version; LocalStoreError if it cannot be read or written.
    """

    def __init__(self, path: Path, client: str) -> None:
        self.client = client
        with _file_faults():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.memory = Memory(path.with_suffix(".lock"), client)
        try:
            with _file_faults():
                # before there is anything in it that others could read
                path.touch(mode=0o600)
                path.chmod(0o600)
                self._path, self._file = path, path.stat()
            with faults():
                self._db = sqlite3.connect(path, isolation_level=None)
        except BaseException:
            self.memory.close()
            raise
        try:
            with faults():
                self._db.execute("PRAGMA journal_mode = WAL")
                self._db.execute("PRAGMA synchronous = FULL")
                # what noise remembered, and bytes that were sent, leave no trace in the file
                self._db.execute("PRAGMA secure_delete = ON")
                self._check_version()
                # in one transaction, which takes far less of a disk that may be nearly full
                schema = (files("producers") / "schema.sql").read_text()
                self._db.executescript(f"BEGIN;\n{schema}\nCOMMIT;")
                self._whole = Whole(self._db)
            self.ledger = self._identify()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file and give up the lock."""
        self._db.close()
        self.memory.close()

    def leave_nothing(self) -> None:
        """Remove a file that was made here, if nothing was ever written into it, and its lock.

        Whoever comes in between finds at its first transaction that the files are not in place.
        """
        # what cannot be removed is as good as new: the folder has forgotten it
        with suppress(OSError, sqlite3.Error, LocalStoreError):
            if not self._made or not self._whole.is_empty():
                return
            self._check_place()
            self._db.close()
            self.memory.forget()
            for end in ("", "-wal", "-shm"):
                self._path.with_name(self._path.name + end).unlink(missing_ok=True)
            self.memory.remove()

    def rows(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Return all rows of a query."""
        with faults():
            return self._db.execute(statement, values).fetchall()

    def row(self, statement: str, *values: object) -> tuple[Any, ...] | None:
        """Return the first row of a query."""
        found = self.rows(statement, *values)
        return found[0] if found else None

    def write(self, statement: str, *values: object) -> None:
        """Change something, inside a transaction."""
        with faults():
            self._db.execute(statement, values)

    def write_many(self, statement: str, values: list[tuple[object, ...]]) -> int:
        """Change something for each row of values, inside a transaction; return how many rows."""
        with faults():
            return self._db.executemany(statement, values).rowcount

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Do all of it durably, or nothing."""
        with faults():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                self._check_place()
                before = self._db.total_changes
                yield
                if self._db.total_changes != before:
                    self._whole.settle()
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def remember(self, says: Remembered) -> None:
        """Note beside the file how many releases it has: an older copy of it is found out."""
        with _file_faults():
            self.memory.note(says)

    def _check_place(self) -> None:
        """Refuse to go on with files in whose place others were put: their owner may run too."""
        if not (same(self._path, self._file) and self.memory.in_place()):
            raise LocalStoreError(
                "the client database or its .lock file was moved, removed or replaced while this "
                "producer ran; nothing was spent: stop it before its files are touched, then start "
                "it again"
            )

    def _check_version(self) -> None:
        """Refuse a damaged file or one of another version before anything in it is touched.

        SQLite applies a log that lies beside a file without asking whether the two belong together.
        Its quick check leaves out the order of the numbers, without which their count says little.
        """
        [(found,)] = self.rows("PRAGMA integrity_check(1)")
        if found != "ok":
            raise LocalStoreError(damaged(str(found).rpartition("\n")[2]))
        if self.row("SELECT 1 FROM sqlite_master WHERE name = 'identity'") and (
            row := self.row("SELECT schema FROM identity")
        ):
            check_schema(row[0])

    def _identify(self) -> str:
        """Return the ledger's id, making one for a new file.

        The lock file remembers it: a database that was emptied or removed must not pass for that
        of a new client, which would release every record again.
        """
        remembered = self.memory.says.ledger
        with self.transaction():
            row = self.row("SELECT schema, client, ledger, created_at FROM identity")
            if row is None and remembered:
                raise LocalStoreError(
                    f"the client database has lost ledger {remembered}: put the file back, "
                    "because a fresh ledger would release records again. If it is gone for good, "
                    "remove the file beside it that ends in .lock: studies that the lost ledger "
                    "had begun are then over, and new ones count what the ledger topic or "
                    "`veilstream privacy ledger --import` says was spent"
                )
            self._whole.check()
            self._made = row is None
            if row is None:
                row = (SCHEMA, self.client, secrets.token_hex(8), time.time())
                self.write("INSERT INTO identity VALUES (1, ?, ?, ?, ?, 0)", *row)
            if not self.row("SELECT 1 FROM secrets"):
                self.write("INSERT INTO secrets VALUES (?)", secrets.token_bytes(32))
        if row[1] != self.client:
            raise ConfigError(
                f"the client database belongs to client {row[1]!r}, not {self.client!r}; a ledger "
                "belongs to one client for ever"
            )
        if remembered not in ("", row[2]):
            raise LocalStoreError(
                f"the client database holds ledger {row[2]}, and this folder remembers "
                f"{remembered}: put the file back that was here before"
            )
        self.ledger = str(row[2])
        if not remembered:
            self.remember(Remembered(self.ledger))
        return self.ledger


#: Newest runs of a study that a database knows: a claim of one that was ended can still be on its
#: way when the next one has claimed something.
RUNS = 9


class Runs:
    """Whose claims are this database's own, and not a copy's; each change is a transaction."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def own(self, run: str) -> bool:
        """Whether a run is known to be this database's own."""
        return self._db.row("SELECT 1 FROM runs WHERE run = ? AND own", run) is not None

    def know(self, study: str, run: str) -> bool:
        """Whether a run is this database's own, or its releases of a study count as lost here."""
        query = "SELECT 1 FROM runs WHERE run = ? AND (own OR (study = ? AND settled))"
        return self._db.row(query, run, study) is not None

    def begin(self, study: str, run: str) -> None:
        """Take a run of a study for this database's own, before it claims anything."""
        with self._db.transaction():
            self._db.write("INSERT INTO runs (run, study, own) VALUES (?, ?, 1)", run, study)

    def claimed(self, study: str) -> None:
        """Forget older runs of a study, as the newest one has claimed something.

        Of each study apart: its newest claim stays on the log for ever.
        """
        with self._db.transaction():
            self._db.write(
                "DELETE FROM runs WHERE own AND study = ?1 AND number NOT IN "
                "(SELECT number FROM runs WHERE own AND study = ?1 ORDER BY number DESC LIMIT ?2)",
                study, RUNS,
            )  # fmt: skip

    def note(self, study: str, run: str) -> None:
        """Note that another copy has released a study, until its releases count as lost here."""
        if not self._db.row("SELECT 1 FROM runs WHERE run = ? AND study = ?", run, study):
            with self._db.transaction():
                self._db.write("INSERT INTO runs (run, study, own) VALUES (?, ?, 0)", run, study)

    def copied(self) -> set[tuple[str, str]]:
        """Return studies that other copies have released, with their runs, that are not settled."""
        return set(self._db.rows("SELECT study, run FROM runs WHERE NOT own AND NOT settled"))

    def settle(self, study: str) -> None:
        """Count what other copies have released of a study as lost here, in a transaction."""
        self._db.write("UPDATE runs SET settled = 1 WHERE study = ?", study)


def check_schema(schema: int) -> None:
    """Refuse the database of another version; ConfigError."""
    if schema != SCHEMA:
        raise ConfigError(
            f"the client database has schema {schema}, this version uses {SCHEMA}, and nothing was "
            "changed; use the version that wrote it. To begin new studies with this version, write "
            "what was spent with that one (`veilstream privacy ledger CLIENT --export FILE`), give "
            "VEILSTREAM_FOLDER a new folder, and take it over there (`--import FILE`)"
        )


@contextmanager
def faults() -> Iterator[None]:
    """Turn the database's faults into ours."""
    try:
        yield
    except sqlite3.Error as error:
        raise LocalStoreError(
            f"the client database cannot be used ({error}); nothing was spent and nothing is "
            "lost: free some disk space or repair the file, then start again"
        ) from error


@contextmanager
def _file_faults() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LocalStoreError(
            f"the client database cannot be kept in this folder ({error.strerror}); see "
            "VEILSTREAM_FOLDER"
        ) from error


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """Yield a client's database, to be read alone; LocalStoreError if it cannot be."""
    try:
        database = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        database.row_factory = sqlite3.Row
        try:
            yield database
        finally:
            database.close()
    except sqlite3.Error as error:
        raise LocalStoreError(f"the client database cannot be read ({error})") from error
