"""An attack on worst-case neighbours: what it learns must stay below what the study promises.

The adversary sees one release and knows everything but whether a record was in it. Its best test
against Gaussian noise is linear: the released numbers, weighed by the difference of the two
windows over the variance. Errors of the two kinds give a lower bound of mu, and so of epsilon,
under the form of guarantee that is claimed. Noise comes from a seeded stand-in.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from pipeline.local import privatise as privatise_module
from pipeline.local import summarise as summarise_module
from pipeline.local.model import Model, start_model
from pipeline.local.plan import Plan
from pipeline.local.privatise import NoisedSums, privatise
from pipeline.local.summarise import summarise_bounded
from pipeline.privacy import gdp
from pipeline.privacy.channel import Channel
from pipeline.privacy.randomness import SecureStream
from pipeline.types import Integers
from tests.builders import SeededStream, plan_of

#: A right release fails with at most this probability, over fresh noise.
ALARM = 1e-6
Record = tuple[np.ndarray, float]


def flattened(plan: Plan, noised: NoisedSums) -> np.ndarray:
    parts = [noised.gradient, noised.counts]
    return np.concatenate(parts if noised.curvature is None else [*parts, noised.curvature])


def window_of(plan: Plan, record: Record | None) -> tuple[np.ndarray, np.ndarray]:
    if record is None:
        return np.zeros((0, plan.size - 1)), np.zeros(0)
    return record[0][None], np.array([record[1]])


def released(
    plan: Plan, record: Record | None, model: Model, draws: int, stream: SecureStream
) -> np.ndarray:
    """Release one window many times, by the code that clients run."""
    sums = summarise_bounded(plan, *window_of(plan, record), model)
    return np.array([flattened(plan, privatise(plan, sums, stream)) for _ in range(draws)])


def lower_epsilon(
    plan: Plan, one: Record, two: Record | None, model: Model, draws: int, seed: int = 0
) -> float:
    """Return a lower bound, at confidence 1 - ALARM, of the epsilon that one release keeps.

    A third of the draws learns direction and threshold, the rest tests them.
    """
    stream = SeededStream(seed)
    left = released(plan, one, model, draws, stream).astype(float)
    right = released(plan, two, model, draws, stream).astype(float)
    learn = draws // 3
    # the difference is known to the adversary exactly; the variance is what it sees
    difference = _difference(plan, one, two, model)
    variance = (left[:learn].var(axis=0) + right[:learn].var(axis=0)) / 2
    direction = difference / variance
    threshold = (left[:learn] @ direction).mean() / 2 + (right[:learn] @ direction).mean() / 2
    tested = draws - learn
    misses = int(np.count_nonzero(left[learn:] @ direction <= threshold))
    alarms = int(np.count_nonzero(right[learn:] @ direction > threshold))

    def upper(count: int) -> float:
        return float(stats.beta.isf(ALARM / 2, count + 1, tested - count))

    mu = float(stats.norm.isf(upper(alarms)) - stats.norm.ppf(upper(misses)))
    assert plan.study.privacy.delta is not None
    return gdp.epsilon_of(max(mu, 0.0), plan.study.privacy.delta)


def _difference(plan: Plan, one: Record, two: Record | None, model: Model) -> np.ndarray:
    channels = plan.channels(model.version)
    sums = [summarise_bounded(plan, *window_of(plan, record), model) for record in (one, two)]

    def rounded(part: Channel, name: str) -> Integers:
        left, right = (
            part.round(getattr(s, name).integers, getattr(s, name).exponents) for s in sums
        )
        return left - right

    parts = [rounded(channels.gradient, "gradient"), rounded(channels.counts, "counts")]
    if channels.curvature is not None:
        parts.append(rounded(channels.curvature, "curvature"))
    return np.concatenate(parts).astype(float)


def steep(plan: Plan) -> Model:
    """A model at which a record with y = 1 has its full curvature and about a quarter slope."""
    lattice = np.zeros(plan.size, dtype=np.int64)
    lattice[0] = round((plan.loss.knee + plan.loss.smoothing) * 4096)  # type: ignore[attr-defined]
    return Model(1, lattice, (1024, 1024))


def knee(plan: Plan) -> Model:
    """A model at which a record with y = 1 has its full slope and half of its curvature."""
    lattice = np.zeros(plan.size, dtype=np.int64)
    lattice[0] = math.floor(plan.loss.knee * 4096)  # type: ignore[attr-defined]
    return Model(1, lattice, (1024, 1024))


CURVED = "gradient = 0.02, curvature = 0.96, counts = 0.02"

CASES: dict[str, tuple[Callable[[Plan], Model], dict[str, object]]] = {
    "start": (lambda plan: start_model(plan.size), {}),
    "step-gradient": (knee, {}),
    "step-curvature": (steep, {"split": CURVED}),
    "start-clipped": (lambda plan: start_model(plan.size), {"norm_bound": 1.2}),
    "step-clipped": (knee, {"norm_bound": 1.2}),
}
P, EPSILON, DRAWS = 5, 4.0, 2000


def attack(name: str, draws: int, *, two: bool = False, **settings: object) -> tuple[float, Plan]:
    model_of, extra = CASES[name]
    plan = plan_of(p=P, epsilon=EPSILON, **{**extra, **settings})
    other = (np.ones(P), -1.0) if two else None
    return lower_epsilon(plan, (np.ones(P), 1.0), other, model_of(plan), draws), plan


@pytest.mark.parametrize("name", CASES)
def test_the_attack_learns_no_more_than_was_promised(name: str) -> None:
    found, _ = attack(name, DRAWS)
    assert found <= EPSILON
    # and it is a strong attack: an idle one would learn nothing
    assert found > 0.3 * EPSILON


def test_the_attack_learns_no_more_where_a_record_is_replaced() -> None:
    found, _ = attack("step-gradient", DRAWS, two=True, neighbours="replace-one")
    assert 0.3 * EPSILON < found <= EPSILON


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_attack_with_twenty_thousand_draws_learns_no_more_than_was_promised(name: str) -> None:
    found, _ = attack(name, 20_000)
    assert 0.5 * EPSILON < found <= EPSILON


@pytest.mark.parametrize("name", ["start", "step-gradient", "step-curvature"])
def test_the_attack_finds_noise_of_half_the_scale(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Channel.noise

    def halved(self: Channel, count: int, stream: SecureStream) -> Integers:
        half = Channel(self.exponent, self.sensitivity, self.mu, self.sigma / 2)
        return original(half, count, stream)

    monkeypatch.setattr(Channel, "noise", halved)
    assert attack(name, DRAWS)[0] > EPSILON


@pytest.mark.parametrize("name", ["start-clipped", "step-clipped"])
def test_the_attack_finds_a_clip_that_was_skipped(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unclipped(features: np.ndarray, plan: Plan) -> np.ndarray:
        return np.column_stack([np.ones(len(features)), features])

    monkeypatch.setattr(summarise_module, "_with_intercept", unclipped)
    assert attack(name, DRAWS)[0] > EPSILON


def test_the_attack_finds_too_little_noise_beside_the_diagonal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The factor 1 / sqrt 2 of off-diagonal noise applied twice; most of the budget is there."""
    original = Channel.noise

    def twice(self: Channel, count: int, stream: SecureStream) -> Integers:
        if count == (P + 1) * P // 2:
            less = Channel(self.exponent, self.sensitivity, self.mu, self.sigma / math.sqrt(2))
            return original(less, count, stream)
        return original(self, count, stream)

    assert attack("step-curvature", 5000)[0] <= EPSILON
    monkeypatch.setattr(Channel, "noise", twice)
    assert attack("step-curvature", 5000)[0] > EPSILON


def test_the_attack_finds_counts_without_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    original = privatise_module._noised

    def bare(part: Channel, sums: object, stream: SecureStream) -> Integers:
        noised = original(part, sums, stream)  # type: ignore[arg-type]
        if len(noised) == 2:
            return part.round(sums.integers, sums.exponents) + part.noise(2, stream) // 50  # type: ignore[attr-defined]
        return noised

    monkeypatch.setattr(privatise_module, "_noised", bare)
    assert attack("step-gradient", DRAWS)[0] > EPSILON
