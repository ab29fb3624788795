"""Values outside the public ranges that a learner has met, and the warnings that follow.

All of it is computed from raw records, and stays in this process: a warning names features and
never counts or values.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter

import numpy as np

from pipeline.errors import NotReadyWarning, RangeWarning
from pipeline.messages.estimate import EstimateMessage
from pipeline.records.features import Features
from pipeline.types import Matrix

#: Fewer records say nothing of how much of a range is used.
ENOUGH = 30
#: A smaller share of a range is a sliver: noise is in proportion to the range.
SLIVER = 0.05


class Watch:
    """Values of one learner since its start.

    features: With the public ranges.
    response: Name of the response.

    outside: How many values lay outside their range, by column: not private.
    """

    def __init__(self, features: Features, response: str) -> None:
        self._features, self._response = features, response
        count = len(features.names)
        self._least, self._most = np.full(count, np.inf), np.full(count, -np.inf)
        self._records = 0
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
        self._records += len(values)

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
        if self._records < ENOUGH:
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
