"""The records of several partitions in one order, the same at every replay."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping

from pipeline.reducer import LogRecord

#: Time in milliseconds, partition, offset, and the record.
Ordered = tuple[int, int, int, LogRecord]


def in_order(
    streams: Mapping[int, Iterable[LogRecord]], clocks: Mapping[int, int]
) -> Iterator[Ordered]:
    """Merge partitions by time, then partition, then offset.

    A partition's own order stays: a record that says an earlier time than one before it counts as
    of that one's time. Only one record of each partition is held.

    streams: The records of each partition, in the order of their offsets.
    clocks: The latest time of each partition before its first record here; 0 where it is not named.
    """
    timed = [_timed(n, streams[n], clocks.get(n, 0)) for n in sorted(streams)]
    return heapq.merge(*timed)


def _timed(number: int, records: Iterable[LogRecord], clock: int) -> Iterator[Ordered]:
    for record in records:
        clock = max(clock, record.timestamp)
        yield clock, number, record.offset, record
