"""One slot of a source to a row, in a time that does not tell whether its record could be used.

Everybody sees when releases come. While a file is read at full speed, the gaps between them are the
time that their records took.
"""

from __future__ import annotations

from collections.abc import Callable

from pipeline.errors import RecordError
from pipeline.records.encode import Encoder, Row
from pipeline.records.values import Record
from producers.sources import Slot

#: Stands for the reason of a record that could be used.
GOOD = ""


def encoded(
    encoder: Encoder, note: Callable[[Record], object] | None, slot: Slot
) -> tuple[Row | None, str]:
    """Return the row of a slot and `GOOD`, or None and the reason why there is none.

    Whatever is wrong, one record is encoded: in place of one that is not there, a public one.

    note: Told of a record before anything else is looked at, for the time that it states: that is
        public, so no other column may decide whether it counts. It may refuse the record.
    """
    # the reason without its line: a count for each line would grow without bound
    reason = (slot.fault or "unreadable").split(": ", maxsplit=1)[-1]
    record = slot.record
    if note is not None and record is not None:
        try:
            note(record)
        except RecordError as error:
            record, reason = None, str(error)
    row, fault = encoder.attempt(encoder.dummy if record is None else record)
    if fault is not None:
        return None, str(fault)
    return (None, reason) if record is None else (row, GOOD)
