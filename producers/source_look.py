"""The first records of a source beside a study, for local eyes; nothing is spent."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

from pipeline.errors import DataError
from pipeline.records.encoder import Encoder
from pipeline.release.quality import JUMP, Trial, refusal_of, worded
from pipeline.release.task import Task
from pipeline.settings import Settings
from producers.admission import looks_of
from producers.source_test import Held, Looked, look
from producers.sources import kind_of, open_source

#: Record slots that are looked at, if a client's own test takes no more; seconds they may take.
SLOTS, PATIENCE = 200, 5.0


class Seen(NamedTuple):
    """What is to be said of a source, and whether somebody should act although it can be used."""

    said: str
    warning: bool = False


def look_at_source(task: Task, settings: Settings, spec: str) -> Seen:
    """Return how many of the first records of a source a study can use, and what ails the others.

    spec: As `producers.sources.open_source` takes it.

    Raises DataError if it cannot be opened, or if a client would refuse it at its start;
    BrokerError, ConfigError as its kind of source does.
    """
    if kind_of(spec) == "input" or spec.startswith("mqtt"):
        return Seen("not looked at: what is read of it is taken from it")
    encoder = Encoder(task.study)
    # what a client asks first, which reads more than its test does
    looks_of(spec, follow=False, check=encoder.check_columns)
    source = open_source(spec, None, folder=Path(), settings=settings, columns=encoder.columns)
    try:
        held, until = Held(), time.monotonic() + PATIENCE
        # the very slots of the client's own test, so that both come to the same end
        first, whole = (
            look(task, source, held, None, slots, lambda: time.monotonic() >= until)
            for slots in (Trial.of(task).slots, SLOTS)
        )
    finally:
        source.close()
    refused = refusal_of(task, first.usable, first.undeclared, first.slots)
    return _judged(refused, first if refused else whole)


def _judged(refused: str, found: Looked) -> Seen:
    """Return what is to be said of what was found; DataError if a client would refuse it."""
    if found.slots and not found.usable:
        raise DataError(
            f"none of its first {found.slots} records can be used: {worded(found.faults)}; the "
            "data owner must correct the source, or the operator the study's [data]"
        )
    said = f"{found.usable} of its first {found.slots} records can be used"
    if refused:
        raise DataError(
            f"{said}, and `veilstream produce` will refuse it: {refused}. Faults: "
            f"{worded(found.faults)}. The data owner must correct the source, or the operator the "
            "study's [data]"
        )
    if found.faults:
        said += f"; of the others: {worded(found.faults)}"
    cut = {name: count / found.usable for name, count in found.outside.items()}
    wide = {name: share for name, share in cut.items() if share >= JUMP}
    if wide:
        named = ", ".join(f"{name} {share:.0%}" for name, share in wide.items())
        said += (
            f". So many values are outside their range: {named}. A client cuts them to the range "
            "and spends their budget all the same. The operator must check `min` and `max` in the "
            "study's [data], or the data owner the unit of the source"
        )
    many = found.slots - found.usable >= JUMP * found.slots
    if many:
        said += (
            ". Records that cannot be used are spent like others, on noise alone: the data owner "
            "must correct the source"
        )
    return Seen(said, bool(wide) or (many and found.slots > 0))
