"""Encoded records of released windows, for studies whose clients send their sums again.

Raw data: it stays in the client's own file, where only studies without privacy put it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence

import numpy as np

from pipeline.errors import LocalStoreError
from pipeline.records.encode import Arrays
from producers.database import Database
from producers.whole import damaged

_CRC = 4


class Kept:
    """Windows in a client's database; writers hold the transaction."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def add(self, study: str, windows: Sequence[tuple[int, Arrays | None]]) -> None:
        """Keep windows with the numbers of their releases; None: it stands for those before it."""
        self._db.write_many(
            "INSERT INTO kept VALUES (?, ?, ?, ?)",
            [(study, seq, *(_packed(w) if w is not None else (0, b""))) for seq, w in windows],
        )

    def counted(self, study: str) -> tuple[int, int]:
        """Return how many releases of a study have kept their records, and how many these are."""
        [(releases, records)] = self._db.rows(
            "SELECT count(*), coalesce(sum(records), 0) FROM kept WHERE study = ?", study
        )
        return int(releases), int(records)

    def windows(self, study: str) -> Iterator[Arrays]:
        """Yield all windows that hold a record, in their order.

        Raises LocalStoreError if the bytes are not those that were stored.
        """
        for (seq,) in self._db.rows(
            "SELECT seq FROM kept WHERE study = ? AND records > 0 ORDER BY seq", study
        ):
            [(records, data)] = self._db.rows(
                "SELECT records, window FROM kept WHERE study = ? AND seq = ?", study, seq
            )
            if zlib.crc32(data[_CRC:]).to_bytes(_CRC, "big") != data[:_CRC]:
                raise LocalStoreError(damaged(f"study {study!r}: kept window {seq} is not whole"))
            columns = np.frombuffer(data, "<f8", offset=_CRC).reshape(-1, records)
            yield Arrays(np.ascontiguousarray(columns[:-1].T), columns[-1].copy())


def _packed(window: Arrays) -> tuple[int, bytes]:
    data = np.vstack([window.features.T, window.responses]).astype("<f8").tobytes()
    return len(window.responses), zlib.crc32(data).to_bytes(_CRC, "big") + data
