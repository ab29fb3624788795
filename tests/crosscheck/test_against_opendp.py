"""Scales, costs and samplers against OpenDP, which measures and draws on its own.

OpenDP rounds every step of its maps upwards, so they lie above the truth by some last digits.
"""

from __future__ import annotations

import math

import numpy as np
import opendp.prelude as dp
import pytest
from scipy import stats

from pipeline.privacy import mechanism as channel
from pipeline.privacy.accounting import total_epsilon
from pipeline.privacy.events import Pure
from pipeline.privacy.mechanism import GaussianMechanism
from pipeline.privacy.samplers import DiscreteGaussian, DiscreteLaplace
from pipeline.privacy.sensitivity import rounding_of_vector
from tests.builders import SeededStream
from tests.laws import gaussian_masses, laplace_masses, misfit

dp.enable_features("contrib")
#: Integer vectors, and the norms of Gaussian and of Laplace noise.
VECTORS = dp.vector_domain(dp.atom_domain(T=int))
L2, L1 = dp.l2_distance(T=float), dp.l1_distance(T=float)
#: OpenDP's noise comes from the operating system: these tests fail this often by chance.
ALARM = 1e-9


def gaussian(sigma: float) -> dp.Measurement:
    return dp.m.make_gaussian(VECTORS, L2, scale=sigma)


def laplace(scale: float) -> dp.Measurement:
    return dp.m.make_laplace(VECTORS, L1, scale=scale)


@pytest.mark.parametrize("sensitivity", [1e-3, 1.0, 40.0])
@pytest.mark.parametrize("epsilon", [1e-4, 0.3, 1.0, 20.0])
def test_a_laplace_channel_keeps_its_budget_under_opendp_s_map(
    sensitivity: float, epsilon: float
) -> None:
    """In lattice units, rounding included: its map may not exceed the budget by a last digit."""
    for rounding in (0.0, 2.0, 55.0):
        part = channel.laplace(sensitivity, rounding, epsilon)
        assert isinstance(part.noise, DiscreteLaplace)
        distance = part.sensitivity / part.unit
        found = laplace(part.noise.scale).map(distance)
        assert found <= epsilon
        assert found == pytest.approx(epsilon, rel=1e-12)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.3, 1e-9), (1.0, 1e-6), (4.0, 1e-3)])
def test_gaussian_vectors_need_less_noise_than_opendp_gives(epsilon: float, delta: float) -> None:
    def fixed(sigma: float) -> dp.Measurement:
        return dp.c.make_fix_delta(dp.c.make_zCDP_to_approxDP(gaussian(sigma)), delta)

    theirs = dp.binary_search_param(fixed, d_in=3.0, d_out=(epsilon, delta), bounds=(0.1, 1e4))
    mu = GaussianMechanism(epsilon, delta).budget(5)
    ours = channel.gaussian(3.0, rounding_of_vector(5, 2), mu).standard_deviation
    # the exact duality of the Gaussian mechanism, which OpenDP does not use, needs less
    assert 0.75 * theirs < ours < theirs


def test_pure_releases_compose_to_the_same_epsilon() -> None:
    both = dp.c.make_composition([laplace(4.0), laplace(10.0)])
    costs = [Pure(1 / 4), Pure(1 / 10)]
    assert both.map(1.0) == pytest.approx(total_epsilon(costs, 0.0), rel=1e-12)


@pytest.mark.parametrize(
    "scale", [0.7, *(pytest.param(s, marks=pytest.mark.slow) for s in (3.0, 40.0, 900.0))]
)
def test_both_samplers_draw_from_the_same_laws(scale: float) -> None:
    """Theirs against the exact masses, by the test that ours pass; and both against each other."""
    n = 20_000
    zeros = [0] * n
    pairs = (
        (gaussian(scale), DiscreteGaussian(scale), gaussian_masses(scale)),
        (laplace(scale), DiscreteLaplace(scale), laplace_masses(scale)),
    )
    for theirs, ours, law in pairs:
        foreign = np.array(theirs(zeros))
        own = ours.draw(n, SeededStream(round(scale)))
        assert misfit(foreign, law) > ALARM
        assert misfit(own, law) > ALARM
        edges = np.unique(np.quantile(np.concatenate([foreign, own]), np.linspace(0, 1, 40)))
        counts = [np.histogram(x, [*edges[:-1], math.inf])[0] for x in (foreign, own)]
        kept = np.array(counts)[:, np.sum(counts, axis=0) > 10]
        assert stats.chi2_contingency(kept).pvalue > ALARM
