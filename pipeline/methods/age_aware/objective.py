"""The expected loss of a schedule: what each client's slot costs, and what couples clients.

The aggregate is a weighted mean of noised client means; its loss is the squared distance from the
mean of the same records at the end of the round. In closed form, without a bound or a simulation,
it is the square of the total drift plus one cost for each client, so that a schedule is looked for
in two tables (equation (3a) of Lin et al. 2024, expanded).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from pipeline.errors import ConfigError
from pipeline.methods.age_aware.markov import Chain, Moments, Start, laws, moments
from pipeline.types import Integers, Matrix, Vector

#: What the server makes of an upload.
#:
#: "plain": it takes it as it is (the paper);
#: "debiased": it adds the drift of the public model;
#: "wiener": it weighs upload and public model so that the loss is least;
#: "model": it uses the public model alone, and no upload.
Estimator = Literal["plain", "debiased", "wiener", "model"]


@dataclass(frozen=True)
class Reporter:
    """A client as the scheduler knows it: public numbers alone.

    chain, law: How its records change, and what is known of them; see `chains.Start`.
    records: How many it has, at least 1.
    weight: Its share of the aggregate, above 0; the shares of all clients sum to 1.
    """

    chain: Chain
    law: Vector
    records: int
    weight: float


class Costs(NamedTuple):
    """What a schedule is looked for in, both of shape (m, K), m clients and K slots.

    The loss of a schedule k is the sum of cost[i, k_i] plus the square of the sum of
    drift[i, k_i]. An infinite cost forbids a slot.
    """

    cost: Matrix
    drift: Matrix


def costs(
    reporters: Sequence[Reporter],
    ages: Integers,
    scales: Matrix,
    *,
    start: Start = "round",
    estimator: Estimator = "plain",
    horizon: int | None = None,
) -> Costs:
    """Return the tables of all clients.

    ages: Of the slots: how long before the end of the round each is, shape (K,).
    scales: Scale of the Laplace noise of each client's mean in each slot, shape (m, K), >= 0.
    horizon: Slots from the beginning of the round to its end; the largest age unless given.
    """
    horizon = int(ages.max(initial=0)) if horizon is None else horizon
    if scales.shape != (len(reporters), len(ages)):
        raise ConfigError("scales: give one for each client and slot")
    rows = []
    for reporter, scale in zip(reporters, scales, strict=True):
        chain = reporter.chain
        then = laws(chain, reporter.law, ages, start, horizon)
        found = moments(chain.states, then, chain.powers(ages))
        rows.append(_row(reporter, found, scale, estimator))
    return Costs(np.array([row[0] for row in rows]), np.array([row[1] for row in rows]))


def _row(
    reporter: Reporter, found: Moments, scale: Vector, estimator: Estimator
) -> tuple[Vector, Vector]:
    now = found.variance_now / reporter.records
    then = found.variance_then / reporter.records
    noise = 2 * scale**2
    both = found.covariance / reporter.records
    if estimator == "model":
        loss = now
    elif estimator == "wiener":
        heard = then + noise
        gain = np.divide(both, heard, out=np.zeros_like(both), where=heard > 0)
        loss = now - gain * both
    else:
        loss = then + now - 2 * both + noise
    drift = found.mean_then - found.mean_now if estimator == "plain" else np.zeros_like(loss)
    # rounding alone can make a loss of nothing negative
    return reporter.weight**2 * np.maximum(loss, 0.0), reporter.weight * drift
