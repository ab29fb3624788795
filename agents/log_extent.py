"""Whether a log still holds what follows a watermark."""

from __future__ import annotations

from pipeline.errors import OffsetGap, StateError
from state.stored import RECOVER


def check_log(topic: str, partition: int, watermark: int, first: int, after: int) -> None:
    """Refuse to continue where the log does not.

    Raises OffsetGap if retention has passed the watermark; StateError as `check_end`.
    """
    if watermark < first:
        raise OffsetGap(
            f"{topic}[{partition}]: offsets {watermark} to {first - 1} were removed from the log "
            "before they were folded; `veilstream state rebuild --accept-loss` starts from what "
            "is left"
        )
    check_end(topic, partition, watermark, after)


def check_end(topic: str, partition: int, watermark: int, after: int) -> None:
    """Refuse a log that ends before what was folded: StateError, which says how to go on."""
    if watermark > after:
        raise StateError(
            f"{topic}[{partition}]: the state stands at {watermark} and the log ends at {after}; "
            f"the topic was made anew: {RECOVER}"
        )
