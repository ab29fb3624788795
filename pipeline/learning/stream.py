"""Records that come in calls to windows that fill, and the run that their releases make."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from pipeline.learning.watching import Watch
from pipeline.messages.estimate import EstimateMessage
from pipeline.messages.model_file import ModelFile, compose_model_file
from pipeline.methods import task_of
from pipeline.offline import OfflineRun
from pipeline.records.columns import Table, by_row, labels_of, values_of
from pipeline.records.encode import Encoder, Row
from pipeline.records.response import ClassResponse, Label
from pipeline.records.values import Record
from pipeline.study.model import Study
from pipeline.study.release_tables import require_no_level_column


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

        Raises DataError if X or y has the wrong shape, or holds a value or response that cannot be
        used.
        """
        response = self._response
        values = values_of(X, self._encoder.features)
        labels = labels_of(y, len(values))
        responses = by_row(response.of_label, labels)
        self._name_labels(labels)
        self.watch.see(values, sum(beyond for _, beyond in responses))
        self._fill(client, self._encoder.rows(values, responses))

    def take_one(self, x: Record, y: Any, client: str) -> None:
        """Take one record.

        Raises RecordError if a feature is missing or no finite number, or the response cannot be
        used.
        """
        values = self._encoder.features.values(x)
        response = self._response.of_label(y)
        self._name_labels([y])
        self.watch.see(values[None], response[1])
        self._fill(client, self._encoder.rows(values[None], [response]))

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

    def _fill(self, client: str, rows: Iterable[Row]) -> None:
        before = self.run.releases
        try:
            self.run.take(client, rows)
        finally:
            if self.run.releases != before:
                self._estimate = self._file = None
