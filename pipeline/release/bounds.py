"""The public bounds of a study's records, in the numbers that estimators work with."""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np

from pipeline import losses
from pipeline.linalg import pack_upper
from pipeline.losses import Loss
from pipeline.privacy.sensitivity import Bounds
from pipeline.release.model import Model, start_model
from pipeline.study.model import Study
from pipeline.study.reference import typical_norm_bound
from pipeline.study.steps import steps_of
from pipeline.types import Integers, Vector


class RecordBounds:
    """What is declared of encoded records (1, x), and of the responses beside them.

    encoding: The columns of the features.
    size: Number of coefficients d, the intercept included.
    slots: Record slots of one window.
    largest_weight: The most that a class may weigh; 1 without class weights.
    """

    def __init__(self, study: Study) -> None:
        self.study = study
        self.loss: Loss = losses.build(study.estimator.loss, _terms(study))
        self.encoding = study.encoding
        self.size = len(self.encoding.columns) + 1
        self.slots = study.window.records
        weights = study.estimator.class_weights
        self.largest_weight = weights.maximum if weights else 1.0

    @property
    def classes(self) -> bool:
        """Whether the response is one of two classes."""
        return self.loss.responses == "class"

    @cached_property
    def steps(self) -> tuple[str, ...]:
        """What a step of 1 is for each coefficient, in words; empty where the scaling says it."""
        return steps_of(self.encoding)

    @cached_property
    def response_scale(self) -> tuple[float, float]:
        """Centre and unit: a response is centre + unit times its encoded form."""
        return _response_scale(self.study)

    def in_units(self, coefficients: Vector) -> Vector:
        """Return coefficients, or ends of intervals, in the unit of the response, shape (d,)."""
        centre, unit = self.response_scale
        found: Vector = np.append(centre, np.zeros(self.size - 1)) + unit * coefficients
        return found

    @cached_property
    def first_model(self) -> Model:
        """The public point at which clients start."""
        return start_model(self.size, self.loss.start_intercept)

    @property
    def penalty(self) -> Vector:
        """Ridge penalty of each coefficient, shape (d,)."""
        return self.study.estimator.ridge * np.append(0.0, np.ones(self.size - 1))

    @property
    def ends(self) -> tuple[Vector, Vector]:
        """Lower and upper ends of the encoded columns, each of shape (p,)."""
        return self.encoding.ends

    @property
    def magnitudes(self) -> Vector:
        """Largest absolute value of each encoded column, shape (p,)."""
        return self.encoding.magnitudes

    @cached_property
    def column_exponents(self) -> Integers:
        """Exponents of powers of two that bound the entries of (1, features), shape (d,)."""
        exponents: Integers = np.ceil(np.log2(np.append(1.0, self.magnitudes))).astype(np.int64)
        return exponents

    @cached_property
    def product_exponents(self) -> Integers:
        """Sums of two of `column_exponents`, packed as an upper triangle."""
        return pack_upper(np.add.outer(self.column_exponents, self.column_exponents))

    @cached_property
    def longest(self) -> float:
        """Largest norm of (1, features) that ranges and levels allow."""
        return math.sqrt(1.0 + float(np.sum(self.encoding.reach**2)))

    @cached_property
    def farthest(self) -> float:
        """Largest L1 norm of (1, features) that ranges and levels allow."""
        return 1.0 + float(np.sum(self.encoding.reach))

    @cached_property
    def norm_bound(self) -> float:
        """Public bound of the norm of (1, features)."""
        declared = self.study.estimator.norm_bound or self.longest
        if declared == "typical":
            declared = typical_norm_bound(self.encoding)
        return min(declared, self.longest)

    @cached_property
    def bounds(self) -> Bounds:
        """Public bounds of a record (1, features)."""
        # so many columns are not zero at once, at most: of a category one
        p = len(self.encoding.reach)
        within = 1.0 + math.sqrt(p) * math.sqrt(max(self.norm_bound**2 - 1.0, 0.0))
        return Bounds(min(self.farthest, within), self.norm_bound)


def _terms(study: Study) -> losses.Terms:
    estimator = study.estimator
    unit, bound = _response_scale(study)[1], estimator.residual_bound
    return losses.Terms(
        q=estimator.q,
        smoothing=estimator.smoothing,
        noised=study.noised,
        residual_bound=None if bound is None else bound / unit,
        largest=study.data.response.ends[1],
        tau=0.5 if estimator.tau is None else estimator.tau,
    )


def _response_scale(study: Study) -> tuple[float, float]:
    if study.data.response.kind != "number":
        return 0.0, 1.0
    low, high = study.data.response.ends
    return low / 2 + high / 2, high / 2 - low / 2
