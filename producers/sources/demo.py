"""The demonstration's data: the Shuttle sensors that come with river."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import msgspec

from pipeline.errors import DataError
from producers.sources.base import Place, Slot, decode_position

#: The rows that clients stream; those behind them are held out for scoring.
STREAMED = 40_000
COLUMNS = [*(f"sensor_{i}" for i in range(1, 10)), "anomaly"]


class ShuttleRows:
    """Every N-th of the streamed rows: client K has rows K, K + N, K + 2N, ...

    Parameters
    ----------
    client
        K, from 0.
    clients
        N.
    position
        Behind which slot to resume; None is the start.
    """

    def __init__(self, client: int, clients: int, position: bytes | None) -> None:
        if not 0 <= client < clients:
            raise DataError(
                "shuttle:K/N: K must be from 0 to N - 1; the data owner must correct the source"
            )
        self._identity = f"shuttle:{client}/{clients}"
        self._mine = range(client, STREAMED, clients)
        self._done = 0
        if position is not None:
            self._done = decode_position(position, self._identity, self._identity).at
        if self._done > len(self._mine):
            raise DataError(
                f"{self._identity}: the data is shorter than what was already released from; the "
                "data owner must name the source this client has read from before"
            )
        start = client + self._done * clients
        self._rows = islice(_rows(), start, max(start, STREAMED), clients)

    @property
    def identity(self) -> str:
        """The specification itself."""
        return self._identity

    @property
    def columns(self) -> list[str]:
        """The sensors and the class."""
        return list(COLUMNS)

    @property
    def ended(self) -> bool:
        """Whether everything was handed out."""
        return self._done == self.total

    @property
    def total(self) -> int:
        """How many rows are this client's."""
        return len(self._mine)

    @property
    def progress(self) -> float:
        """The share of the rows handed out."""
        return self._done / self.total if self.total else 1.0

    def read(self, limit: int, timeout: float) -> list[Slot]:
        """Return up to `limit` slots; nobody ever waits."""
        del timeout
        return [self._slot(row) for row in islice(self._rows, limit)]

    def anchored(self, position: bytes) -> bytes:
        """Return the position: nobody rewrites river's rows."""
        return position

    def forget(self, position: bytes) -> None:
        """Do nothing: the rows are river's."""

    def close(self) -> None:
        """Let go of river's file."""
        self._rows = islice(iter(()), 0)

    def _slot(self, row: dict[str, object]) -> Slot:
        self._done += 1
        place = Place(self._identity, self._done, self._done)
        return Slot(row, None, msgspec.json.encode(place), self._done)


def heldout() -> Iterator[dict[str, object]]:
    """Yield the rows that no client streams."""
    return islice(_rows(), STREAMED, None)


def _rows() -> Iterator[dict[str, object]]:
    try:
        from river.datasets import Shuttle  # noqa: PLC0415  river is an extra, and slow to import
    except ImportError:
        raise DataError(
            "the Shuttle data comes with river, which is not installed; the data owner must run "
            "pip install 'veilstream[demo]'"
        ) from None
    return (_record(features, target) for features, target in Shuttle())


def _record(features: dict[str, int], target: int) -> dict[str, object]:
    record: dict[str, object] = {f"sensor_{i}": features[f"f{i}"] for i in range(1, 10)}
    record["anomaly"] = str(int(target))
    return record
