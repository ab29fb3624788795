"""As `infra.header_names`, for aiokafka, whose compiled reader takes a batch apart."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from aiokafka.consumer import fetcher
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import _DefaultRecordBatchPy
from aiokafka.record.memory_records import MemoryRecords, _MemoryRecordsPy

from infra.header_names import Lenient


class AnyNames:
    """What was fetched of a partition: batches that can be read whatever names headers have."""

    def __init__(self, fetched: Any) -> None:
        self._fetched, self._begun = bytes(fetched), 0
        self._compiled = MemoryRecords(self._fetched)
        self.has_next = self._compiled.has_next
        self.size_in_bytes = self._compiled.size_in_bytes

    def next_batch(self) -> Any:
        """Return the next batch; None behind the last one."""
        begin = self._begun
        length = self._fetched[begin + 8 : begin + 12]
        self._begun += _MemoryRecordsPy.LOG_OVERHEAD + int.from_bytes(length, signed=True)
        batch = self._compiled.next_batch()
        return batch and _Batch(batch, memoryview(self._fetched)[begin : self._begun])


class _Batch:
    """A compiled batch, which is read in Python if it has a name that is no text."""

    def __init__(self, compiled: Any, raw: memoryview) -> None:
        self._compiled, self._raw = compiled, raw

    def __getattr__(self, name: str) -> Any:
        return getattr(self._compiled, name)

    def __next__(self) -> Any:
        return next(self._compiled)

    def __iter__(self) -> Iterator[Any]:
        try:
            return iter(list(self._compiled))
        except (UnicodeDecodeError, CorruptRecordException):
            return lenient(self._raw)


def lenient(raw: bytes | memoryview) -> Iterator[Any]:
    """Return the records of a batch; CorruptRecordException where they cannot be read."""
    batch = _DefaultRecordBatchPy(raw)
    batch._maybe_uncompress()
    # indexing it is slow, but one such record must not cost a copy of the others
    batch._buffer = Lenient(batch._buffer)
    return iter(batch)


def read_any_name() -> None:
    """Have all consumers of aiokafka read any name of a header."""
    fetcher.MemoryRecords = AnyNames
