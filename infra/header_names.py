"""Records whose headers have names that are no text: Kafka takes them from whoever may write.

Libraries of Kafka expect UTF-8 there, and end at one record of any topic that has something else.
Here such a name is read as its bytes, written out in hexadecimal digits.
"""

from __future__ import annotations

from typing import Any

from kafka.record import memory_records
from kafka.record.default_records import DefaultRecordBatch


class Lenient(bytearray):
    """Bytes of which every part can be decoded."""

    def __getitem__(self, at: Any) -> Any:
        """Return a byte, or a part that can be decoded, too."""
        found = super().__getitem__(at)
        return Lenient(found) if isinstance(at, slice) else found

    def decode(self, encoding: str = "utf-8", errors: str = "backslashreplace") -> str:
        """Return text; what is none is written out."""
        return super().decode(encoding, errors)


class AnyNames(DefaultRecordBatch):  # type: ignore[misc]
    """A batch of kafka-python."""

    __slots__ = ()

    def _read_msg(self, *_: Any) -> Any:
        try:
            return super()._read_msg()
        except UnicodeDecodeError:
            self._buffer = Lenient(self._buffer)  # type: ignore[misc, has-type]
            return super()._read_msg()


def read_any_name() -> None:
    """Have all consumers of kafka-python read any name of a header."""
    memory_records.DefaultRecordBatch = AnyNames
