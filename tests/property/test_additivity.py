"""One record's part of a window's sums does not depend on which others are there.

The sensitivity is about a window with and without one record. If leaving a record out moved the
computed terms of the others, by as little as a rounding, its effect would be larger than stated.
"""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.errors import PrivacyError
from pipeline.methods.renewable.client import RenewableTask, summarise_bounded
from pipeline.records.blocks import predictors
from pipeline.release.model import Model
from pipeline.release.query import Exact
from tests.builders import task_of

#: Window sizes about the blocks in which matrix products round rows alike.
SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 33)


def difference(one: Exact, other: Exact) -> np.ndarray:
    assert np.array_equal(one.exponents, other.exponents)
    return one.integers - other.integers


def parts(
    task: RenewableTask, features: np.ndarray, responses: np.ndarray, model: Model
) -> list[Exact]:
    sums = summarise_bounded(task, features, responses, model)
    found = [sums.gradient, sums.counts]
    return found if sums.curvature is None else [*found, sums.curvature]


@pytest.mark.parametrize("p", [1, 7, 8, 9, 30])
@pytest.mark.parametrize("version", [0, 5])
@pytest.mark.parametrize("norm_bound", [None, 1.3])
def test_leaving_a_record_out_takes_away_its_own_terms_and_nothing_else(
    p: int, version: int, norm_bound: float | None
) -> None:
    task = task_of(p=p, records=64, norm_bound=norm_bound, maximum=4.0)
    rng = np.random.default_rng([p, version])
    lattice = rng.integers(-4096, 4096, task.size) if version else np.zeros(task.size, np.int64)
    model = Model(version, lattice, (700, 3000) if version else (1024, 1024))
    for size in SIZES:
        features = rng.uniform(-1, 1, (size, p))
        responses = rng.choice([-1.0, 1.0], size)
        whole = parts(task, features, responses, model)
        for left_out in range(size):
            keep = np.arange(size) != left_out
            rest = parts(task, features[keep], responses[keep], model)
            alone = parts(task, features[~keep], responses[~keep], model)
            for all_of_it, without, own in zip(whole, rest, alone, strict=True):
                assert np.array_equal(difference(all_of_it, without), own.integers)


@pytest.mark.parametrize("p", [1, 7, 8, 9, 30, 200])
def test_a_predictor_has_the_same_bits_wherever_its_row_stands(p: int) -> None:
    """A difference in the last bit is enough to cross a boundary of truncation, some day."""
    rng = np.random.default_rng(p)
    for size in SIZES:
        design = np.column_stack([np.ones(size), rng.uniform(-1, 1, (size, p))])
        coefficients = rng.normal(size=p + 1)
        whole = predictors(design, coefficients)
        for left_out in range(size):
            keep = np.arange(size) != left_out
            assert np.array_equal(whole[keep], predictors(design[keep], coefficients))
            assert np.array_equal(whole[~keep], predictors(design[~keep], coefficients))


def test_what_is_no_number_stays_within_the_stated_bounds() -> None:
    """Neither can come over the wire; the bound must not rest on that."""
    task = task_of(p=3, records=4, maximum=4.0)
    features, responses = np.full((1, 3), 0.5), np.ones(1)
    strange = features.copy()
    strange[0, 1] = np.nan
    model = Model(5, np.zeros(4, np.int64), (700, 3000))

    class Hostile(Model):
        @property
        def class_weights(self) -> tuple[float, float]:
            return float("nan"), float("nan")

    hostile = Hostile(5, np.zeros(4, np.int64), (700, 3000))
    for sums in (
        summarise_bounded(task, strange, responses, model),
        summarise_bounded(task, features, responses, hostile),
    ):
        gradient = np.ldexp(sums.gradient.integers.astype(float), sums.gradient.exponents)
        assert np.linalg.norm(gradient) <= task.largest_weight * task.norm_bound
        assert sums.curvature is not None
        curvature = np.ldexp(sums.curvature.integers.astype(float), sums.curvature.exponents)
        assert np.abs(curvature).max() <= task.largest_weight * task.loss.curvature_bound


def test_the_least_integer_does_not_fit_a_lattice() -> None:
    part = task_of(p=3).update_channels.gradient
    least = np.array([np.iinfo(np.int64).min])
    for exponent in (part.exponent, part.exponent - 10, part.exponent + 3):
        with pytest.raises(PrivacyError, match="does not fit"):
            part.round(least, np.array([exponent]))
