"""Streams that drift, and streams that do not: how fast forgetting follows, and what it costs."""

from __future__ import annotations

import numpy as np
import pytest

from tests.builders import population, population_target, stream_of, task_of

FLIP, AFTER, CLIENTS, SLOTS = 40, 12, 8, 200
#: Five rounds.
HALF_LIFE = f'half_life = {5 * CLIENTS * SLOTS}, of = "records"'


FEATURES, RESPONSES, CHANCE = population(3)


def accuracy(coefficients: np.ndarray) -> float:
    """Return the accuracy on the population with its classes exchanged."""
    positive = coefficients[0] + FEATURES @ coefficients[1:] >= 0
    return float(CHANCE[positive == (RESPONSES < 0)].sum())


def after_the_flip(**settings: object) -> tuple[float, list[float]]:
    """Return the best accuracy that there is, and those of the rounds after a sudden drift."""
    task = task_of(p=3, records=SLOTS, **settings)
    best = accuracy(-population_target(3, q=1.0, ridge=0.01))
    stream = stream_of(task, seed=0, rounds=FLIP + AFTER, clients=CLIENTS, flip=FLIP)
    found = [accuracy(estimate.coefficients) for _, estimate in stream]
    assert max(found[10:FLIP]) < 0.3
    return best, found[FLIP:]


@pytest.mark.parametrize("kind", [{"epsilon": 2.0}, {"private": False}], ids=["private", "open"])
def test_forgetting_follows_a_sudden_drift_within_two_half_lives(kind: dict[str, object]) -> None:
    best, kept = after_the_flip(**kind)
    _, faded = after_the_flip(**kind, forgetting=HALF_LIFE)
    assert min(faded[9:]) > best - 0.02
    # five of six releases are still from before: without forgetting nothing has moved
    assert max(kept[:10]) < 0.4


# --- coverage --------------------------------------------------------------------------------
