"""The test of what a source goes on with: a stream that turns to rubbish is stopped."""

from __future__ import annotations

from collections import Counter

from pipeline.errors import DataError
from pipeline.privacy.randomness import SecureStream
from pipeline.privacy.samplers import DiscreteLaplace
from pipeline.release.quality import Trial, worded
from pipeline.release.task import Task
from producers.source_test import MOST_TESTS, Trials

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
        self._tests.note_stop(self._study, times)
        self._stops = times

    def _noise(self) -> int:
        return 0 if self._law is None else int(self._law.draw(1, SecureStream())[0])
