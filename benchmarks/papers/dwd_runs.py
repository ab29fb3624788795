"""One run of a row: draw a stream, fit every method on it, return its accuracies."""

from __future__ import annotations

import math

import numpy as np

from benchmarks.papers.cells import PAPER_TEST
from benchmarks.papers.dwd_rows import (
    EPSILONS,
    METHODS,
    PRIVATE_ROWS,
    RATIOS,
    RECORDS,
    ROWS,
    PrivateRow,
    Row,
)
from benchmarks.papers.given_noise import GivenNoise
from benchmarks.papers.populations import Population
from pipeline.losses import GeneralisedDWD
from pipeline.methods.published.fits import (
    Records,
    Ridge,
    majorised_fit,
    pooled_fit,
    undamped_iterates,
)
from pipeline.methods.published.noise import MessageNoise
from pipeline.methods.published.online import (
    ClassBalance,
    OnlineFit,
    PrivateOnlineFit,
    TrustedOnlineFit,
)
from pipeline.types import Vector

SEED = 20250
#: Offline fits see at most so many records: more change nothing that is printed.
OFFLINE_RECORDS = 100_000
EPSILON, DELTA = 0.8, 1e-5
#: Public maximum of a class weight in the private columns; four to one needs 2.5.
LARGEST_WEIGHT = 3.0
#: Exact and tested accuracy, in [0, 1].
Outcome = dict[str, tuple[float, float]]
Streams = dict[str, OnlineFit | PrivateOnlineFit]


def run_row(index: int, run: int, *, ours: bool) -> Outcome:
    """Return the accuracies in one run of row `index` of Tables 1 to 3.

    The paper's methods come first in every run and share a generator apart from that of `ours`, so
    that their figures do not depend on whether ours are computed too.
    """
    row = ROWS[index]
    rng = np.random.default_rng([SEED, 1, index, run])
    population = row.population(rng)
    streams = _published(row, rng)
    if ours:
        streams |= _ours(row, np.random.default_rng([SEED, 3, index, run]))
    kept: list[Records] = []
    for _ in range(row.batches):
        batch = population.batch(rng, RECORDS, RATIOS[row.ratio])
        if sum(map(len, kept)) < OFFLINE_RECORDS:
            kept.append(batch)
        for stream in streams.values():
            stream.update([batch])
    fits = {name: stream.coefficients for name, stream in streams.items()}
    fits |= _offline(joined(kept), ours=ours)
    names = dict.fromkeys([*METHODS, *fits])
    return {name: _accuracies(population, fits[name], rng) for name in names}


def run_private_row(index: int, run: int) -> Outcome:
    """Return the accuracies of noised messages in one run of a private row, by budget."""
    row = PRIVATE_ROWS[index]
    rng = np.random.default_rng([SEED, 2, index, run])
    population, loss, size = row.population(), GeneralisedDWD(1.0), row.features + 1
    ridge = Ridge(0.01)
    streams: Streams = {"no privacy": OnlineFit(loss, ridge, size)}
    for placement in ("local", "distributed"):
        for epsilon in EPSILONS:
            noise = _noise(row, epsilon, distributed=placement == "distributed")
            streams[f"{placement} {epsilon:g}"] = PrivateOnlineFit(loss, ridge, size, noise, rng)
    for _ in range(row.batches):
        batch = population.batch(rng, row.records, 0.5)
        for stream in streams.values():
            stream.update([batch])
    return {name: _accuracies(population, s.coefficients, rng) for name, s in streams.items()}


def _offline(pooled: Records, *, ours: bool) -> dict[str, Vector]:
    loss, identity = _loss(), Ridge(0.1, "identity")
    fits = {
        "OffNP": majorised_fit(loss, pooled, 0.1).coefficients,
        "OffWP": undamped_iterates(loss, [pooled], identity, rounds=1)[-1],
    }
    if ours:
        fits["OffNP converged"] = pooled_fit(loss, pooled, Ridge(0.2)).coefficients
    return fits


def _published(row: Row, rng: np.random.Generator) -> Streams:
    loss, size, identity = _loss(), row.features + 1, Ridge(0.1, "identity")
    return {
        "OnWP": OnlineFit(loss, identity, size, first="one-step"),
        "OnWDP": TrustedOnlineFit(loss, identity, size, GivenNoise(121.0), rng),
    }


def _ours(row: Row, rng: np.random.Generator) -> Streams:
    loss, size, identity = _loss(), row.features + 1, Ridge(0.1, "identity")
    wide = GeneralisedDWD(1.0)
    counts = MessageNoise(
        EPSILON, DELTA, 2.0, row.clients, tolerated=row.clients - 1, counts_share=0.5
    )
    noised = ClassBalance(
        LARGEST_WEIGHT, deviation=counts.counts_deviation() * counts.total_factor(), rng=rng
    )
    return {
        "OnWP as printed": OnlineFit(loss, Ridge.as_printed(0.1), size, first="one-step"),
        "weighted": OnlineFit(loss, identity, size, balance=ClassBalance()),
        "noised counts": OnlineFit(loss, identity, size, balance=noised),
        "distributed": PrivateOnlineFit(
            wide, identity, size, _weighted_noise(row, "distributed"), rng, balanced=True
        ),
        "local": PrivateOnlineFit(
            wide, identity, size, _weighted_noise(row, "local"), rng, balanced=True
        ),
    }


def _loss() -> GeneralisedDWD:
    """Return the loss with the paper's ramp; its width does not show in any figure."""
    return GeneralisedDWD(1.0, 0.01, ramp="symmetric")


def _weighted_noise(row: Row, placement: str) -> MessageNoise:
    return MessageNoise(
        EPSILON,
        DELTA,
        math.sqrt(1 + row.features),
        row.clients,
        tolerated=0 if placement == "distributed" else row.clients - 1,
        counts_share=0.05,
        largest_weight=LARGEST_WEIGHT,
    )


def _noise(row: PrivateRow, epsilon: float, *, distributed: bool) -> MessageNoise:
    return MessageNoise(
        epsilon,
        DELTA,
        math.sqrt(1 + row.features),
        row.clients,
        # where all others may collude, each client adds the whole noise
        tolerated=0 if distributed else row.clients - 1,
    )


def joined(batches: list[Records]) -> Records:
    """Return the records of all batches, in their order."""
    return Records(
        np.concatenate([batch.design for batch in batches]),
        np.concatenate([batch.responses for batch in batches]),
    )


def _accuracies(
    population: Population, coefficients: Vector, rng: np.random.Generator
) -> tuple[float, float]:
    """Return the exact accuracy and that on a test set of 10,000, which is a binomial draw."""
    exact = population.accuracy(coefficients)
    return exact, float(rng.binomial(PAPER_TEST, exact)) / PAPER_TEST
