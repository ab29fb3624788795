"""The test of a source: of its first records before anything is spent, and of what comes later.

A stream that turns to rubbish is stopped. `study check` and the doctor show the same first records
beside a study, for local eyes; nothing is spent.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

from pipeline.errors import DataError
from pipeline.privacy.randomness import SecureStream
from pipeline.privacy.samplers import DiscreteLaplace
from pipeline.records.encoder import Encoder
from pipeline.release.quality import JUMP, Trial, refusal_of, worded
from pipeline.release.task import Task
from pipeline.settings import Settings
from producers.intake import EventTimes, check_columns, columns_of, encoded, event_times_of
from producers.source_registry import Admission, looks_of
from producers.sources import kind_of, open_source
from producers.sources.base import Slot, Source, batch_of
from producers.store import Trials


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


@dataclass(frozen=True, slots=True)
class Looked:
    """What the first slots of a source hold.

    slots, usable: How many there are, and how many of them hold a record that can be used.
    undeclared: How many hold a class or level that the study does not declare, or a number in a
        form that is not read.
    faults: Of all that cannot be used, by kind.
    outside: How many values of the usable ones lie outside their range, by column.
    """

    slots: int
    usable: int
    undeclared: int
    faults: Counter[str]
    outside: Counter[str]

    def told(self, when: str = "") -> str:
        """Return what people are told, with the kinds of faults and never a value."""
        return (
            f"{self.usable} of the first {self.slots} record slots can be used{when}. Faults: "
            f"{worded(self.faults) or 'none'}"
        )


#: Noised tests of one study at one client: together they cost its epsilon once.
MOST_TESTS = 4
STEP = 1000


def stamp_of(source: str, revision: str, event_time: str | None = None) -> str:
    """Return what tells whether a file was written since, or is read otherwise; "" of no file."""
    try:
        found = Path(source).stat()
    except (OSError, ValueError):
        return ""
    stamp = f"{revision}:{found.st_dev}:{found.st_ino}:{found.st_size}:{found.st_mtime_ns}"
    return stamp if event_time is None else f"{stamp}:{event_time}"


def look(
    task: Task, source: Source, held: Held, times: EventTimes | None, slots: int,
    stopped: Callable[[], bool], report: Callable[[int], None] = lambda _: None,
) -> Looked:  # fmt: skip
    """Read the first slots of a source, or what there is before a window falls due.

    held: What was read of them before; it takes the others.

    report: Told again and again how many are still awaited.
    """
    encoder, seconds = Encoder(task.study), task.study.window.seconds
    while len(held.slots) < slots and not source.ended and not stopped():
        if held.opened is not None and seconds and time.monotonic() - held.opened >= seconds:
            break
        if new := source.read(min(STEP, slots - len(held.slots)), 0.2):
            held.opened = held.opened or time.monotonic()
            held.slots += new
        report(slots - len(held.slots))
    usable, faults = 0, Counter[str]()
    for start in range(0, len(held.slots), STEP):
        block = encoded(encoder, times, held.slots[start : start + STEP], take=False)
        usable += block.usable
        faults += block.reasons.count()
    del faults[""]
    undeclared = sum(faults[refusal] for refusal in encoder.refusals)
    return Looked(len(held.slots), usable, undeclared, faults, encoder.clipped)


def passed(
    task: Task, source: Source, tests: Trials, *, name: str, stamp: str, accept: bool,
    times: EventTimes | None, stopped: Callable[[], bool], say: Callable[[str], None],
    report: Callable[[int], None],
    admission: Admission | None = None,
) -> Held | None:  # fmt: skip
    """Test a source at the first start of a study; return what was read of it.

    name, stamp: Of the source: for people, and as `stamp_of` gives it.
    accept: Whether the source is to be taken as it is.
    admission: Knows the tests of its records by other clients of the folder.

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
    if stopped():
        return None
    tested = found.slots
    if trial.threshold(tested) > 0:
        number = tests.number(study, stamp) if trial.scale else 1
        folder = admission if trial.scale else None
        if number and folder is not None:
            number = max(number, folder.tries(study, held.slots) + 1)
        standing = not 0 < number <= MOST_TESTS
        if standing or _refuses(trial, found):
            if trial.scale and not standing:
                tests.refuse(study, number, stamp)
                if folder is not None:
                    folder.refuse(study, held.slots)
            raise _refusal(name, found, number if trial.scale else None)
    elif 4 * found.usable < tested:
        say(
            f"WARNING: {found.told()}. They are too few for a test: the source is accepted as it "
            "is, and budget for slots that cannot be used is spent on noise alone"
        )
    if tested:
        tests.note(study, tested)
    return held


def _refuses(trial: Trial, found: Looked) -> bool:
    """Draw the noise of both counts, and return whether the source is refused."""
    noise = (0, 0)
    if trial.scale:
        drawn = DiscreteLaplace(trial.scale).draw(2, SecureStream())
        noise = int(drawn[0]), int(drawn[1])
    few = trial.refuses(found.usable, found.slots, noise[0])
    return few or trial.mistakes(found.undeclared, found.slots, noise[1])


def _refusal(name: str, found: Looked, number: int | None) -> DataError:
    """Return the error; `number` as `Trials.number` gives it, None where tests have no noise."""
    if number is not None and number > MOST_TESTS:
        return DataError(
            f"source {name!r}: it was refused {MOST_TESTS} times and is not tested again, "
            "because each test reveals a little about its records; nothing was spent. "
            f"{found.told(' now')}. Once the data owner is content with that, start once with "
            "--accept-unusable"
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
        f"source {name!r}: it is refused, and nothing was spent. {found.told()}{tries}. The data "
        f"owner must correct the source{kept}, or the operator the study's [data]: classes and "
        "levels are compared letter by letter, and numbers have a decimal point and nothing else. "
        "If the source really is like this, start once with --accept-unusable"
    )


#: What helps, whichever window it was.
MEND = (
    "The data owner must correct the source, or the operator the study's [data]: classes and "
    "levels are compared letter by letter. To go on through these records, start once with "
    "--accept-unusable"
)


class LaterTest:
    """Takes each window before it is released, and refuses to go on where hardly any slot is used.

    Each slot is in one test that passes, and none was in the test of the source's first slots.

    tests: What the client's database remembers.
    name: Of the source, for people.
    accept: Whether this run takes whatever comes.

    Raises DataError if the stream was stopped too often in succession to be tested again.
    """

    def __init__(self, task: Task, tests: Trials, *, name: str, accept: bool) -> None:
        self._trial, self._tests, self._study = Trial.later(task), tests, task.study.name
        self._name, self._off = name, accept
        self._law = DiscreteLaplace(self._trial.scale) if self._trial.scale else None
        self._untested, self._stops = tests.untested(self._study), tests.stops(self._study)
        self._slots, self._usable, self._faults = 0, 0, Counter[str]()
        if accept and self._stops:
            self._stopped(0)
        if self._stops >= MOST_TESTS:
            raise DataError(
                f"source {name!r}: its stream was stopped {MOST_TESTS} times in succession and "
                "is not tested again, because each test reveals a little about its records. "
                f"{MEND}"
            )

    def take(self, slots: int, usable: int, faults: Counter[str]) -> None:
        """Take the next window; DataError if it must not be released."""
        if self._off:
            return
        if self._untested > 0:
            self._untested -= slots
            return
        self._slots, self._usable = self._slots + slots, self._usable + usable
        self._faults += faults
        if self._slots < self._trial.slots:
            return
        if self._trial.stops(self._usable, self._slots, self._noise()):
            if self._trial.scale:
                self._stopped(self._stops + 1)
            raise DataError(
                f"source {self._name!r}: {self._usable} of the last {self._slots} record slots can "
                "be used, too few to go on with: the client has stopped before this window was "
                f"spent. Faults: {worded(self._faults)}. {MEND}"
            )
        if self._stops:
            self._stopped(0)
        self._slots, self._usable, self._faults = 0, 0, Counter()

    def _stopped(self, times: int) -> None:
        self._tests.refuse(self._study, times)
        self._stops = times

    def _noise(self) -> int:
        return 0 if self._law is None else int(self._law.draw(1, SecureStream())[0])


def refusal(
    task: Task, source: Source, held: Held, stopped: Callable[[], bool] = lambda: False,
    times: EventTimes | None = None,
) -> tuple[str, Looked]:  # fmt: skip
    """Return why a client would refuse a source at its start, and what its test finds.

    held: What was read of it; the very slots of the test are added.

    Returns: An empty text if it would not.

    DataError if the source lacks a column.
    """
    if source.columns is not None:
        Encoder(task.study).check_columns(source.columns)
    found = look(task, source, held, times, Trial.of(task).slots, stopped)
    return refusal_of(task, found.usable, found.undeclared, found.slots), found


#: Record slots that are looked at, if a client's own test takes no more; seconds they may take.
SLOTS, PATIENCE = 200, 5.0


class Seen(NamedTuple):
    """What is to be said of a source, and whether somebody should act although it can be used."""

    said: str
    warning: bool = False


def look_at_source(
    task: Task, settings: Settings, spec: str, event_time: str | None = None
) -> Seen:
    """Return how many of the first records of a source a study can use, and what ails the others.

    spec: As `producers.sources.open_source` takes it.
    event_time: The column with the times of the records, for histories.

    Raises DataError if it cannot be opened, or if a client would refuse it at its start;
    BrokerError, ConfigError as its kind of source does, and if the releases topic would not keep
    the first window of a history.
    """
    if kind_of(spec) == "input" or spec.startswith("mqtt"):
        return Seen("not looked at: what is read of it is taken from it")
    times = event_times_of(task.study, settings, event_time, None)
    # what a client asks first, which reads more than its test does
    looks_of(spec, follow=False, check=partial(check_columns, task.study, event_time))
    source = open_source(
        spec, None, folder=Path(), settings=settings, columns=columns_of(task.study, event_time)
    )
    try:
        held, until = Held(), time.monotonic() + PATIENCE
        refused, first = refusal(task, source, held, lambda: time.monotonic() >= until, times)
        whole = look(task, source, held, times, SLOTS, lambda: time.monotonic() >= until)
    finally:
        source.close()
    if times is not None and held.slots:
        times.read(batch_of(held.slots[: task.slots], Encoder(task.study).dummy))
        times.at_close()
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
