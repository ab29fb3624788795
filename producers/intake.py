"""Slots of a source to rows, in a time that does not tell whether their records could be used.

Everybody sees when releases come. While a file is read at full speed, the gaps between them are the
time that their records took.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pipeline.errors import RecordError
from pipeline.records.encoder import Block, Encoder
from pipeline.records.values import Record
from producers.sources import Slot

#: Stands for the reason of a record that could be used.
GOOD = ""


def encoded(
    encoder: Encoder, note: Callable[[Record], object] | None, slots: Sequence[Slot]
) -> tuple[Block, list[str]]:
    """Return slots as rows, and for each of them `GOOD`, or the reason why it is empty.

    Whatever is wrong, one record is encoded: in place of one that is not there, a public one.

    note: Told of each record before anything else is looked at, for the time that it states: that
        is public, so no other column may decide whether it counts. It may refuse the record.
    """
    records = [encoder.dummy if slot.record is None else slot.record for slot in slots]
    lost = {at: slot.kind for at, slot in enumerate(slots) if slot.record is None}
    if note is not None:
        for at, slot in enumerate(slots):
            try:
                if slot.record is not None:
                    note(slot.record)
            except RecordError as error:
                lost[at], records[at] = str(error), encoder.dummy
    block = encoder.block(records, lost)
    reasons = [GOOD] * len(slots)
    for at, fault in block.faults.items():
        reasons[at] = str(fault)
    for at, reason in lost.items():
        reasons[at] = reason
    return block, reasons
