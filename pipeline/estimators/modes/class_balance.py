"""Class weights n / (2 n_class) from running counts, exact or noised. Source: dwd, extensions.

The paper has no class weights; with them the classifier aims at balanced accuracy whatever the
share of the classes, and costs two more numbers in each message.
"""

from __future__ import annotations

import math

import numpy as np

from pipeline.errors import ConfigError
from pipeline.estimators.estimate import class_weights


class ClassBalance:
    """Counts of both classes over the batches so far, and the weights they give to the next.

    Parameters
    ----------
    largest
        Public maximum of a weight, > 1: with privacy it enters the sensitivity.
    deviation
        Standard deviation of the noise in each of the two counts of one message, >= 0.
    rng
        Source of that noise; needed where there is any.

    Raises
    ------
    ConfigError
        If a parameter is outside its range, or noise has no generator.
    """

    def __init__(
        self,
        largest: float = 8.0,
        *,
        deviation: float = 0.0,
        rng: np.random.Generator | None = None,
    ) -> None:
        if not (math.isfinite(largest) and largest > 1):
            raise ConfigError("largest must be a finite number > 1, for example 8.0")
        if not (math.isfinite(deviation) and deviation >= 0):
            raise ConfigError("deviation must be a finite number >= 0")
        if deviation > 0 and rng is None:
            raise ConfigError("rng must be given where counts are noised")
        self.largest, self.deviation, self._rng = largest, deviation, rng
        self._counts = np.zeros(2)

    @property
    def weights(self) -> tuple[float, float]:
        """Weights of the negative and the positive class; (1, 1) before the first count."""
        negative, positive = self._counts.tolist()
        return class_weights(negative, positive, self.largest)

    def add(self, negative: int, positive: int) -> None:
        """Add the counts of one message, with its own noise."""
        self._counts += (negative, positive)
        if self._rng is not None and self.deviation > 0:
            self._counts += self._rng.normal(0.0, self.deviation, size=2)
