"""The paper's own objective, for comparison: equation (12) corrected, and as it is printed.

A schedule should be made by `objective`: the bound rewards old data even where they do not help.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipeline.methods.age_aware.chains import Start, laws, moments
from pipeline.methods.age_aware.objective import Costs, Reporter
from pipeline.types import Integers, Matrix, Vector


def information(then: Matrix, kernels: Matrix) -> Vector:
    """Return the mutual information of a record at collection and at the end, in nats, shape (K,).

    then: Laws at collection, shape (K, S).
    kernels: Steps from collection to the end, shape (K, S, S).
    """
    joint = then[:, :, None] * kernels
    apart = then[:, :, None] * joint.sum(axis=1)[:, None, :]
    ratio = np.divide(joint, apart, out=np.ones_like(joint), where=joint > 0)
    return np.asarray((joint * np.log(ratio)).sum(axis=(1, 2)), dtype=np.float64)


def sub_exponential(nats: Vector, scale: Vector) -> Vector:
    """Return the least of I / l + l nu^2 / 2 over 0 < l <= 1 / alpha, with nu = alpha = 2 eta.

    The lemma before equation (10), corrected; it ranks schedules and is no bound: the loss holds
    squared Laplace noise, which has no such nu and alpha.
    """
    nu = 2 * scale
    return np.where(nats <= 0.5, nu * np.sqrt(2 * nats), nu * nats + nu / 2)


def printed_sub_exponential(nats: Vector, scale: Vector) -> Vector:
    """Return the same as the paper prints it: nu = alpha = 2 eta^2, and a jump where cases meet."""
    nu = 2 * scale**2
    return np.where(nats <= 0.5, np.sqrt(4 * nu * nats), 0.5 + nu * nats)


def bound(
    reporters: Sequence[Reporter],
    ages: Integers,
    scales: Matrix,
    *,
    start: Start,
    horizon: int,
    printed: bool = False,
) -> Costs:
    """Return equation (12) as tables to look for a schedule in; parameters as `objective.costs`.

    printed: With the paper's slips: noise weighed by the share of a client and not by its square,
        the jump above, and a drift that is not squared. What is constant is left out.
    """
    cost, drift = [], []
    for reporter, scale in zip(reporters, scales, strict=True):
        kernels = reporter.chain.powers(ages)
        then = laws(reporter.chain, reporter.law, ages, start, horizon)
        found = moments(reporter.chain.states, then, kernels)
        nats, share, noise = information(then, kernels), reporter.weight, 2 * scale**2
        spread = (found.variance_then + found.variance_now) / reporter.records
        if printed:
            row = share * (printed_sub_exponential(nats, scale) + noise) + share**2 * spread
        else:
            row = share * sub_exponential(nats, scale) + share**2 * (spread + noise)
        cost.append(row)
        drift.append(share * (found.mean_then - found.mean_now))
    return Costs(np.array(cost), np.array(drift))
