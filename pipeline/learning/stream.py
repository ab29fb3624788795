"""Calls of a learner as a stream: windows that fill, releases, and values out of range.

Values outside the public ranges that a learner has met, and the warnings that follow.

All of it is computed from raw records, and stays in this process: a warning names features and
never counts or values.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import DataWarning, NotReadyWarning, RangeWarning
from pipeline.messages.estimate import EstimateMessage
from pipeline.messages.model_file import ModelFile, compose_model_file
from pipeline.methods import task_of
from pipeline.records.columns import Table, by_row, labels_of, values_of
from pipeline.records.encoder import Encoder, Row
from pipeline.records.features import ClassResponse, Features, Label
from pipeline.records.values import Record, is_missing
from pipeline.stream.in_process import OfflineRun
from pipeline.study.model import Study, require_no_level_column
from pipeline.types import Matrix


class Stream:
    """What has been learnt since a start.

    run: What became of the records, released or in windows that fill.
    watch: Counts values outside the public ranges.
    labels: Labels of the negative and the positive class as the caller writes them; None before the
        first, and where there are no classes.
    """

    def __init__(self, study: Study) -> None:
        require_no_level_column(study.privacy, "a learner")
        self.task = task_of(study)
        self.run = OfflineRun(self.task)
        self.labels: tuple[Label, Label] | None = None
        self._encoder = Encoder(study)
        self._response = self._encoder.response
        self.watch = Watch(self._encoder.features, self._response.name)
        self._estimate: EstimateMessage | None = None
        self._file: ModelFile | None = None

    @property
    def released(self) -> bool:
        """Whether there has been a release."""
        return self.run.releases > 0

    def check_labels(self, classes: Sequence[Label]) -> None:
        """Refuse labels that the study does not name; DataError names the first one."""
        labels = list(classes)
        by_row(self._response.of_label, labels)
        self._name_labels(labels)

    def take(self, X: Table, y: Any, client: str) -> None:
        """Take records, all or none, and release the windows that they fill.

        The slot of a record that lacks a response, or a value without another in its place, stays
        empty, as a client leaves it.

        Raises DataError if X or y has the wrong shape, or holds a value or response that cannot be
        used.
        """
        values = values_of(X, self._encoder.features, keep=True)
        labels = labels_of(y, len(values))
        self._take(client, values, labels, by_row(self._response_of, labels))

    def take_one(self, x: Record, y: Any, client: str) -> None:
        """Take one record, as `take` does.

        Raises RecordError if a value is no finite number, or the response cannot be used.
        """
        values = self._encoder.features.values(x, keep=True)
        self._take(client, values[None], [y], [self._response_of(y)])

    def _response_of(self, label: object) -> tuple[float, bool]:
        return (np.nan, False) if is_missing(label) else self._response.of_label(label)

    def _take(
        self, client: str, values: Matrix, labels: Sequence[object],
        responses: Sequence[tuple[float, bool]],
    ) -> None:  # fmt: skip
        known = np.array([encoded for encoded, _ in responses]).reshape(len(labels), 1)
        gone = np.isnan(np.hstack([values, known]))
        self.watch.lacking(gone.any(axis=0))
        usable = ~gone.any(axis=1)
        places = np.flatnonzero(usable).tolist()
        told = [responses[place] for place in places]
        self._name_labels([labels[place] for place in places])
        self.watch.see(values[usable], sum(beyond for _, beyond in told))
        rows = iter(self._encoder.rows(values[usable], told))
        self._fill(client, [next(rows) if sound else None for sound in usable.tolist()])

    def close_windows(self) -> None:
        """Release what waits in windows that are not full."""
        if self.run.waits:
            self._estimate = self._file = None
            self.run.close()

    def estimate(self) -> EstimateMessage:
        """Return the estimate of all releases; made once for each state."""
        if self._estimate is None:
            _, self._estimate = self.run.estimate(time.time())
        return self._estimate

    def file(self) -> ModelFile:
        """Return the estimate as a model file; the same one until there is a new release.

        Raises NumericError if there has been no release, or no estimate can be formed.
        """
        if self._file is None:
            self._file = compose_model_file(self.task, self.estimate())
        return self._file

    def _name_labels(self, labels: Sequence[object]) -> None:
        if self.labels is None and labels and isinstance(self._response, ClassResponse):
            self.labels = self._response.labels(like=labels[0])

    def _fill(self, client: str, rows: Iterable[Row | None]) -> None:
        before = self.run.releases
        try:
            self.run.take(client, rows)
        finally:
            if self.run.releases != before:
                self._estimate = self._file = None


#: Fewer records say nothing of how much of a range is used.
ENOUGH = 30
#: A smaller share of a range is a sliver: noise is in proportion to the range.
SLIVER = 0.05


class Watch:
    """Values of one learner since its start.

    features: With the public ranges.
    response: Name of the response.

    records: How many have been seen.
    outside: How many values lay outside their range, by column: not private.
    """

    def __init__(self, features: Features, response: str) -> None:
        self._features, self._response = features, response
        count = len(features.names)
        self._least, self._most = np.full(count, np.inf), np.full(count, -np.inf)
        self.records = 0
        self.outside: Counter[str] = Counter()
        self._told: set[tuple[str, str]] = set()

    def see(self, values: Matrix, responses_beyond: int) -> None:
        """Take finite values as `Features` reads them, (n, k), and count clipped responses."""
        if not len(values):
            return
        self.outside += self._features.outside(values)
        if responses_beyond:
            self.outside[self._response] += responses_beyond
        scaled = self._features.encoding.scale(self._features.clip(values))
        self._least = np.minimum(self._least, scaled.min(axis=0))
        self._most = np.maximum(self._most, scaled.max(axis=0))
        self.records += len(values)

    def lacking(self, columns: NDArray[np.bool_]) -> None:
        """Warn of columns that lack values, shape (k + 1,), the response last; once of each."""
        names = zip((*self._features.names, self._response), columns.tolist(), strict=True)
        if gone := self._new("missing", [name for name, lacks in names if lacks]):
            _warn(
                f"{gone}: records without a value were left out, and their slots stay empty; "
                "`missing` of a feature declares a public value to be read in its place",
                DataWarning,
            )

    def tell(self) -> None:
        """Warn of columns that do not fit their ranges, once of each.

        Warns RangeWarning, naming the columns.
        """
        if far := self._new("outside", sorted(self.outside)):
            _warn(
                f"values of {far} lie outside the public range and were cut to it: declare the "
                "range in the unit that the learner is given; a scaler in front changes the unit",
                RangeWarning,
            )
        if narrow := self._new("sliver", self._slivers()):
            _warn(
                f"values of {narrow} use less than {SLIVER:.0%} of the public range, and noise is "
                "in proportion to it: declare the range in the unit that the learner is given; a "
                "scaler in front changes the unit",
                RangeWarning,
            )

    def tell_unready(self, estimate: EstimateMessage) -> None:
        """Warn once if predictions come from an estimate that is not ready.

        Warns NotReadyWarning, with its status and the reason.
        """
        if estimate.status != "ready" and self._new("status", [estimate.status]):
            _warn(
                f"the estimate that predicts is {estimate.status}: {estimate.reason}. Names with a "
                "dot are keys of a study: `ridge` and `epsilon` are parameters of a learner, and "
                "vs.fit and the Stream learners take a whole study",
                NotReadyWarning,
            )

    def _slivers(self) -> list[str]:
        if self.records < ENOUGH:
            return []
        low, high = self._features.encoding.scaled_ends
        # halves first, as the width of two ends may overflow
        used = (self._most / 2 - self._least / 2) < SLIVER * (high / 2 - low / 2)
        names = zip(self._features.names, used.tolist(), strict=True)
        # of a column that leaves its range that has been said, and a level has no width
        said = {*self.outside, *self._features.texts}
        return [name for name, few in names if few and name not in said]

    def _new(self, what: str, names: list[str]) -> str:
        """Return the names that have not been told of yet, in words."""
        new = [name for name in names if (what, name) not in self._told]
        self._told |= {(what, name) for name in new}
        return ", ".join(map(repr, new))


def _warn(text: str, kind: type[Warning]) -> None:
    # the first line outside these learners, as one may be inside another
    frame, level = sys._getframe(), 1
    while frame.f_back and frame.f_globals["__name__"].startswith("pipeline.learning."):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, kind, stacklevel=level)
