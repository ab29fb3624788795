"""A regression that learns in this process: the windows, releases and estimates of the stream."""

from __future__ import annotations

from pipeline.learning.conventions import Regressor, tell_river
from pipeline.learning.learner import StreamLearner
from pipeline.messages.model_file import ModelFile
from pipeline.prediction import LinearRegressor
from pipeline.records.columns import Table
from pipeline.records.values import Record
from pipeline.study import StudySource
from pipeline.types import Vector


class StreamRegressor(StreamLearner[LinearRegressor], Regressor):
    """A linear or Poisson regression over windows of records, private if its study is.

    Windows, the guarantee and what it does not cover are those of `StreamLearner`.
    Nothing is charged to any ledger: every `fit` on the same records is one more release of them.

    Responses are numbers or counts in their own unit, and so are predictions; while learning,
    responses beyond the public range of the study are clipped to it.

    Parameters
    ----------
    study
        A study, the path of a study file, or its text (a string with a line break).
    """

    explains = frozenset({"number", "count"})
    other = "StreamClassifier"
    _supervised = True

    def __init__(self, study: StudySource) -> None:
        super().__init__(study)
        tell_river(type(self), "Regressor")

    def predict(self, X: Table) -> Vector:
        """Return the expected responses in the response's own unit, shape (n,).

        Raises
        ------
        NumericError
            If no window has been released yet, or no estimate can be formed.
        DataError
            If X cannot be used.
        """
        return self._ready_rule().predict(X)

    def predict_one(self, x: Record) -> float | None:
        """Return the expected response of one record; None before the first release."""
        if not self.__sklearn_is_fitted__():
            return None
        [value] = self.predict([x]).tolist()
        return float(value)

    def _make(self, file: ModelFile) -> LinearRegressor:
        return LinearRegressor(file)
