"""Whether a client's database is one state, and not parts of two.

A copy of the files of a client that runs, or a hasty restore, has pages of several states: each is
sound, and so may be their tree. Releases are numbered without gaps and their rows never change, so
order and counts show all of these. Every other row is in one sum, which each transaction brings up
to date: a page of another state is found by it.
"""

from __future__ import annotations

import sqlite3
import zlib
from typing import Any

import msgspec

from pipeline.errors import LocalStoreError

#: Tables that hold a row for each release, and that with the sum.
APART = ("ledger", "outbox", "spends", "identity")
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


def check_intact(database: sqlite3.Connection) -> None:
    """Refuse a damaged file; LocalStoreError.

    SQLite applies a log that lies beside a file without asking whether the two belong together. Its
    quick check leaves out the order of the numbers, without which their count says little.
    """
    [(found,)] = database.execute("PRAGMA integrity_check(1)").fetchall()
    if found != "ok":
        raise LocalStoreError(damaged(str(found).rpartition("\n")[2]))


def damaged(what: str) -> str:
    """Say that a file is not what this program has written."""
    return (
        f"the client database is damaged ({what}): put a whole copy of it back, without the -wal "
        "and -shm files of another; a copy of a client that runs must be made with SQLite's .backup"
    )
