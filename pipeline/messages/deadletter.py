"""Dead letters: the original bytes, with the reason and the origin in headers."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.errors import PayloadError


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record of the log that could not be folded.

    offset: Where it stands in its partition.
    key, value, headers: As they came.
    fault: Why; free of payload contents.
    """

    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    fault: PayloadError

    def annotated(self, topic: str, partition: int) -> list[tuple[str, bytes | None]]:
        """Return the original headers with the reason and the origin behind them."""
        return [
            *self.headers,
            ("veil_dlq_reason", self.fault.reason.encode()),
            ("veil_dlq_detail", self.fault.detail.encode()),
            ("veil_dlq_topic", topic.encode()),
            ("veil_dlq_partition", str(partition).encode()),
            ("veil_dlq_offset", str(self.offset).encode()),
        ]
