"""The first records of a source beside a study, for local eyes; nothing is spent."""

from __future__ import annotations

import time
from pathlib import Path

from pipeline.errors import DataError
from pipeline.records.encode import Encoder
from pipeline.release.task import Task
from pipeline.release.usable import worded
from pipeline.settings import Settings
from producers.source_test import Held, look
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
    source = open_source(spec, None, folder=Path(), settings=settings)
    try:
        if source.columns is not None:
            Encoder(task.study).check_columns(source.columns)
        until = time.monotonic() + PATIENCE
        found = look(task, source, Held(), None, SLOTS, lambda: time.monotonic() >= until)
    finally:
        source.close()
    if found.slots and not found.usable:
        raise DataError(
            f"none of its first {found.slots} records can be used: {worded(found.faults)}; the "
            "data owner must correct the source, or the operator the study's [data]"
        )
    others = f"; of the others: {worded(found.faults)}" if found.faults else ""
    return f"{found.usable} of its first {found.slots} records can be used{others}"
