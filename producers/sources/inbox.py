"""What was pushed to a client, on its disk: stored before it is acknowledged, and each push once.

Raw data at rest (mode 0600), in a folder of one study. A push has a key; one that says it may be a
repetition is stored only if the same content was not stored under that key before. Records and keys
are in one transaction, so no crash can come between them.
"""

from __future__ import annotations

import hashlib
import secrets
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from pipeline.errors import DataError, LocalStoreError

#: Bytes that may wait unread before nothing more is taken.
ROOM = 64 << 20
#: Released records that stay, at most, and keys that are remembered, about.
FORGET, KEYS = 1000, 100_000

_TABLES = """
CREATE TABLE IF NOT EXISTS records (at INTEGER PRIMARY KEY AUTOINCREMENT, line BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS pushes (
  id INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL, digest BLOB NOT NULL,
  UNIQUE (key, digest)
);
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""


class Push(NamedTuple):
    """Records that came together.

    lines: Their bytes, a record each.
    key: What the sender calls them.
    again: Whether it may have sent them before.
    reused: Whether the key is given to other content later: then only the last one counts.
    """

    lines: Sequence[bytes]
    key: str
    again: bool
    reused: bool = False


class Inbox:
    """The records of one study that wait for their release; any thread may use it.

    folder: Where it lies; the caller must hold this folder for itself.

    Raises LocalStoreError, by every method, if it cannot be read or written.
    """

    def __init__(self, folder: Path) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        path = folder / "inbox.db"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            # before there is anything in it that others could read
            path.touch(mode=0o600)
        except OSError as error:
            raise _unusable(error.strerror) from error
        with _faults():
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.execute("PRAGMA secure_delete = ON")
            self._db.executescript(_TABLES)
            self._highest = self._number(
                "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'records'"
            )
            query = f"SELECT coalesce(min(at) - 1, {self._highest}) FROM records"  # noqa: S608
            self._forgotten = self._number(query)
        self._unread = 0

    def begin(self, at: int | None, *, skip_lost: bool = False) -> None:
        """Check that all that came behind a record is here; None: behind none.

        skip_lost: Whether to go on behind that record though the inbox is older than it.

        DataError if some was forgotten, or is lost.
        """
        if (at or 0) > self._highest:
            if not skip_lost:
                raise DataError(
                    f"the inbox: this client has read record {at} of it, and it has only ever held "
                    f"{self._highest}: it is gone, or an old copy. What was acknowledged behind "
                    f"record {at} is lost; the data owner must bring the newest inbox back, or "
                    "start once with --skip-lost to go on without that"
                )
            with self._lock, _faults():
                # a number that was read must not be given again
                self._db.execute("INSERT INTO records (at, line) VALUES (?, x'')", (at,))
                self._db.execute("DELETE FROM records WHERE at <= ?", (at,))
            self._highest = self._forgotten = at or 0
        if self._forgotten > (at or 0):
            raise DataError(
                "the inbox: its first records were released from and forgotten, but this client "
                "has no position behind them; the data owner must bring the client's own database "
                "back; if it is gone, remove the inbox as well, with what was not released"
            )
        with self._lock, _faults():
            query = f"SELECT coalesce(sum(length(line)), 0) FROM records WHERE at > {at or 0}"  # noqa: S608
            self._unread = self._number(query)

    @property
    def has_room(self) -> bool:
        """Whether more may be put into it now."""
        return self._unread < ROOM

    def put(self, pushes: Sequence[Push]) -> list[bool]:
        """Store pushes durably; return of each whether it is new."""
        with self._changed, _faults():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                found = [self._put(push) for push in pushes]
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
            for new, push in zip(found, pushes, strict=True):
                self._unread += sum(map(len, push.lines)) if new else 0
            self._changed.notify_all()
        return found

    def read(self, after: int, limit: int, timeout: float) -> list[tuple[int, bytes]]:
        """Return records behind a number, each with its own, none if none came in `timeout` s."""
        with self._changed, _faults():
            if not (found := self._rows(after, limit)):
                self._changed.wait(timeout)
                found = self._rows(after, limit)
            self._unread -= sum(len(line) for _, line in found)
            return found

    def forget(self, at: int) -> None:
        """Remove the records up to a number, once that is worth it."""
        if at - self._forgotten < FORGET:
            return
        with self._lock, _faults():
            self._db.execute("DELETE FROM records WHERE at <= ?", (at,))
            self._db.execute(
                "DELETE FROM pushes WHERE id <= (SELECT max(id) FROM pushes) - ?", (KEYS,)
            )
            self._forgotten = at

    def name(self) -> str:
        """Return a name that only this inbox has, and keeps."""
        self.know("name", f"veilstream-{secrets.token_hex(8)}")
        return str(self.known("name"))

    def know(self, name: str, value: str = "yes") -> None:
        """Keep a fact under its name, unless there is one."""
        with self._lock, _faults():
            self._db.execute("INSERT OR IGNORE INTO facts VALUES (?, ?)", (name, value))

    def known(self, name: str) -> str | None:
        """Return the fact of a name."""
        with self._lock, _faults():
            found = self._db.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
            return None if found is None else str(found[0])

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()

    def _put(self, push: Push) -> bool:
        digest = hashlib.blake2b(b"\n".join(push.lines), digest_size=16).digest()
        pair = (push.key, digest)
        query = "SELECT 1 FROM pushes WHERE key = ? AND digest = ?"
        if push.again and self._db.execute(query, pair).fetchone():
            return False
        if push.reused:
            self._db.execute("DELETE FROM pushes WHERE key = ?", (push.key,))
        self._db.executemany(
            "INSERT INTO records (line) VALUES (?)", [(line,) for line in push.lines]
        )
        self._db.execute("INSERT OR REPLACE INTO pushes (key, digest) VALUES (?, ?)", pair)
        return True

    def _rows(self, after: int, limit: int) -> list[tuple[int, bytes]]:
        query = "SELECT at, line FROM records WHERE at > ? ORDER BY at LIMIT ?"
        return self._db.execute(query, (after, limit)).fetchall()

    def _number(self, query: str) -> int:
        row = self._db.execute(query).fetchone()
        return int(row[0]) if row else 0


@contextmanager
def _faults() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise _unusable(str(error)) from error


def _unusable(why: str | None) -> LocalStoreError:
    return LocalStoreError(
        f"the inbox of what was pushed cannot be kept ({why}); the operator must give the client's "
        "folder space and write permission"
    )
