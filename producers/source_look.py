"""The first records of a source beside a study, for local eyes; nothing is spent."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

from pipeline.errors import DataError
from pipeline.records.encode import Encoder
from pipeline.release.task import Task
from pipeline.release.usable import worded
from pipeline.settings import Settings
from producers.intake import GOOD, encoded
from producers.sources import kind_of, open_source

#: Record slots that are looked at, and seconds that they may take to come.
SLOTS, PATIENCE = 200, 5.0


def look_at_source(task: Task, settings: Settings, spec: str) -> str:
    """Return how many of the first records of a source a study can use, and what ails the others.

    spec: As `producers.sources.open_source` takes it.

    Raises DataError if it cannot be opened, or none of them can be used; BrokerError, ConfigError
    as its kind of source does.
    """
    if kind_of(spec) == "input" or spec.startswith("mqtt"):
        return "not looked at: what is read of it is taken from it"
    encoder, faults, usable, slots = Encoder(task.study), Counter[str](), 0, 0
    source = open_source(spec, None, folder=Path(), settings=settings)
    try:
        if source.columns is not None:
            encoder.check_columns(source.columns)
        until = time.monotonic() + PATIENCE
        while slots < SLOTS and not source.ended and time.monotonic() < until:
            block, reasons = encoded(encoder, None, source.read(SLOTS - slots, 0.2))
            slots, usable = slots + len(reasons), usable + block.usable
            faults.update(reasons)
    finally:
        source.close()
    del faults[GOOD]
    if slots and not usable:
        raise DataError(
            f"none of its first {slots} records can be used: {worded(faults)}; the data owner must "
            "mend the source, or the operator the study's [data]"
        )
    others = f"; of the others: {worded(faults)}" if faults else ""
    return f"{usable} of its first {slots} records can be used{others}"
