"""The test of a source before anything is spent on it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.errors import DataError
from pipeline.privacy.discrete_laplace import DiscreteLaplace
from pipeline.privacy.randomness import SecureStream
from pipeline.records.encode import Encoder
from pipeline.release.task import Task
from pipeline.release.usable import Trial, worded
from producers.database import Database
from producers.event_time import EventTimes
from producers.intake import GOOD, encoded
from producers.sources import Slot, Source


@dataclass(slots=True)
class Held:
    """The first slots of a source, read before anything is released of it.

    opened: When the first of them came, in monotonic seconds; None if none has.
    """

    slots: list[Slot] = field(default_factory=list)
    opened: float | None = None

    def take(self, limit: int) -> list[Slot]:
        """Hand out up to `limit` of them, once."""
        found, self.slots = self.slots[:limit], self.slots[limit:]
        return found


#: Noised tests of one study at one client: together they cost its epsilon once.
MOST_TESTS = 4
STEP = 1000


class Trials:
    """What a client's database remembers of the tests of its studies' sources."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def passed(self, study: str) -> bool:
        """Whether the study need not be tested: it was, or it has released."""
        row = self._db.row("SELECT tested, next_seq FROM streams WHERE study = ?", study)
        return row is not None and (row[0] > 0 or row[1] > 0)

    def counts(self, study: str) -> tuple[int, int]:
        """Return how many slots of a study have been released, and how many were unusable."""
        row = self._db.row(
            "SELECT records + rejected, rejected FROM streams WHERE study = ?", study
        )
        return (0, 0) if row is None else (int(row[0]), int(row[1]))

    def begin(self, study: str, stamp: str) -> int:
        """Count a test before its noise is drawn; return which one it is, from 1 on.

        It is 0 if the last one has refused the very same file, and more than `MOST_TESTS` if
        there were enough: then there is none, and the refusal stands.
        """
        row = self._db.row("SELECT tries, stamp FROM source_tests WHERE study = ?", study)
        tries, before = (0, "") if row is None else row
        if stamp and stamp == before:
            return 0
        if tries < MOST_TESTS:
            with self._db.transaction():
                self._db.write(
                    "INSERT OR REPLACE INTO source_tests VALUES (?, ?, ?)", study, tries + 1, stamp
                )
        return int(tries) + 1

    def note(self, study: str, slots: int) -> None:
        """Remember that a study's source has passed, by so many slots."""
        with self._db.transaction():
            self._db.write("UPDATE streams SET tested = ? WHERE study = ?", max(1, slots), study)


def stamp_of(source: str, revision: str) -> str:
    """Return what tells whether a file was written since, or the study changed; "" of no file."""
    try:
        found = Path(source).stat()
    except (OSError, ValueError):
        return ""
    return f"{revision}:{found.st_dev}:{found.st_ino}:{found.st_size}:{found.st_mtime_ns}"


def look(
    task: Task, source: Source, held: Held, times: EventTimes | None, slots: int,
    stopped: Callable[[], bool], report: Callable[[int], None],
) -> tuple[int, Counter[str]] | None:  # fmt: skip
    """Read the first slots of a source, or what there is before a window falls due.

    report: Told again and again how many are still awaited.

    Returns: How many can be used, and the faults of the others; None if it was to stop before.
    """
    note = None if times is None else times.time_of
    encoder, faults = Encoder(task.study), Counter[str]()
    if source.columns is not None:
        encoder.check_columns(source.columns)
        if times is not None:
            times.check_columns(source.columns)
    seconds, usable = task.study.window.seconds, 0
    while len(held.slots) < slots and not source.ended:
        if stopped():
            return None
        if held.opened is not None and seconds and time.monotonic() - held.opened >= seconds:
            break
        for slot in source.read(min(STEP, slots - len(held.slots)), 0.2):
            held.opened = held.opened or time.monotonic()
            held.slots.append(slot)
            row, reason = encoded(encoder, note, slot)
            usable += row is not None
            faults[reason] += 1
        report(slots - len(held.slots))
    del faults[GOOD]
    return usable, faults


def passed(
    task: Task, source: Source, tests: Trials, *, name: str, stamp: str, accept: bool,
    times: EventTimes | None, stopped: Callable[[], bool], say: Callable[[str], None],
    report: Callable[[int], None],
) -> Held | None:  # fmt: skip
    """Test a source at the first start of a study; return what was read of it.

    name, stamp: Of the source: for people, and as `stamp_of` gives it.
    accept: Whether the source is to be taken as it is.

    Returns: None if it was to stop before.

    Raises DataError if it is refused; nothing was spent.
    """
    held, study, trial = Held(), task.study.name, Trial.of(task)
    if tests.passed(study):
        return held
    if accept:
        tests.note(study, 1)
        return held
    found = look(task, source, held, times, trial.slots, stopped, report)
    if found is None:
        return None
    (usable, faults), tested = found, len(held.slots)
    if trial.threshold(tested) > 0:
        number = tests.begin(study, stamp) if trial.scale else 1
        drawn = 0 < number <= MOST_TESTS
        if not drawn or trial.refuses(usable, tested, _noise(trial)):
            raise _refusal(name, usable, tested, faults, number if trial.scale else None)
    elif 4 * usable < tested:
        say(
            f"WARNING: {usable} of the first {tested} record slots can be used: {worded(faults)}. "
            "They are too few for a test: the source is taken as it is"
        )
    if tested:
        tests.note(study, tested)
    return held


def _noise(trial: Trial) -> int:
    if not trial.scale:
        return 0
    return int(DiscreteLaplace(trial.scale).draw(1, SecureStream())[0])


def _refusal(
    name: str, usable: int, tested: int, faults: Counter[str], number: int | None
) -> DataError:
    """Return the error; `number` as `Trials.begin` gives it, None where tests have no noise."""
    if number is not None and number > MOST_TESTS:
        return DataError(
            f"source {name!r}: it was refused {MOST_TESTS} times and is not tested again, as each "
            f"test tells a little of its records; nothing was spent. {usable} of the first "
            f"{tested} record slots can be used now. Faults: {worded(faults) or 'none'}. Once the "
            "data owner is content with that, start once with --accept-unusable"
        )
    tries = ""
    if number == 0:
        tries = ". The file has not been written since it was refused"
    elif number is not None:
        tries = f". This was test {number} of {MOST_TESTS}"
    kept = ""
    if name.startswith(("stdin:", "http", "mqtt:")):
        kept = " (what was read or sent is kept in the client's .input folder: remove it)"
    return DataError(
        f"source {name!r}: {usable} of the first {tested} record slots can be used, too few to "
        f"begin with; nothing was spent. Faults: {worded(faults) or 'none'}{tries}. The data owner "
        f"must mend the source{kept}, or the operator the study's [data]; if the source really is "
        "so, start once with --accept-unusable"
    )
