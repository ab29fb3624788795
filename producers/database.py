"""The client's database file: one owner at a time, durable transactions, an identity for ever."""

from __future__ import annotations

import secrets
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.resources import files
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError, LocalStoreError
from producers.memory import Memory, Remembered, same
from producers.whole import Whole, check_intact

SCHEMA = 8


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
        """Refuse a damaged file or one of another version before anything in it is touched."""
        check_intact(self._db)
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
