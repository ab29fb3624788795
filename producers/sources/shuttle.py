"""The data of the first demonstration: the Shuttle sensors that come with river."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice

from pipeline.errors import DataError
from producers.sources.counted import CountedRows

#: The rows that clients stream; those behind them are held out for scoring.
STREAMED = 40_000
COLUMNS = [*(f"sensor_{i}" for i in range(1, 10)), "anomaly"]


class ShuttleRows(CountedRows):
    """Every N-th of the streamed rows: client K has rows K, K + N, K + 2N, ...

    client: K, from 0.
    clients: N.
    position: Behind which slot to resume; None is the start.

    Raises DataError if there is no such client, or the position is not one of this source.
    """

    def __init__(self, client: int, clients: int, position: bytes | None) -> None:
        if not 0 <= client < clients:
            raise DataError(
                "shuttle:K/N: K must be from 0 to N - 1; the data owner must correct the source"
            )
        self._client, self._clients = client, clients
        super().__init__(f"shuttle:{client}/{clients}", position)

    @property
    def total(self) -> int:
        """How many rows are this client's."""
        return len(range(self._client, STREAMED, self._clients))

    @property
    def columns(self) -> list[str]:
        """The sensors and the class."""
        return list(COLUMNS)

    def rows(self, start: int) -> Iterator[dict[str, object]]:
        """Return this client's rows from number `start` on."""
        first = self._client + start * self._clients
        return islice(_rows(), first, max(first, STREAMED), self._clients)


def shared(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Whether two shares K/N of the streamed rows have a row in common."""
    (k, n), (j, m) = one, other
    step = math.gcd(n, m)
    if (k - j) % step:
        return False
    # the Chinese remainder theorem gives the first row that is in both
    first = k + n * ((j - k) // step * pow(n // step, -1, m // step) % (m // step))
    return first < STREAMED


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
