"""Accuracy and processor time of every method where one setting is swept (Figures 3 to 9 of dwd).

M = 20 clients, p = 50 features, b = 100 batches of 100 records of each client, mu = 0.2, as many of
each class,
q = 1, ridge 0.1 with R = I, epsilon 0.8 and delta 1e-5, unless swept. As in the tables, the records
of a batch, the ridge and OnWDP's noise are not stated in the paper and were inferred from it:
deviation 2 C2 (root(2 L) + root(2 L + epsilon)) / epsilon with C2 = 5 and L = log(1 / delta).
"local" and "distributed" are ours, with noise in every message and a guarantee over the stream.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.papers.dwd_runs import joined
from benchmarks.papers.given_noise import GivenNoise
from benchmarks.papers.populations import same_sites
from pipeline.losses import GeneralisedDWD
from pipeline.methods.published.fits import Records, Ridge, majorised_fit, undamped_iterates
from pipeline.methods.published.noise import MessageNoise
from pipeline.methods.published.online import OnlineFit, PrivateOnlineFit, TrustedOnlineFit

RECORDS = 100
SEED = 20251
METHODS = ("OffNP", "OffWP", "OnWP", "OnWDP", "distributed", "local")
#: Those that change with the budget, and what they are measured against.
NOISED = ("OnWP", "OnWDP", "distributed", "local")
#: Accuracy in percent on equally frequent classes, exact, and processor seconds of the whole fit.
Point = dict[str, tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Setting:
    """Everything that a figure may sweep; `positive` is the share of class +1 in training."""

    batches: int = 100
    clients: int = 20
    shift: float = 0.2
    features: int = 50
    positive: float = 0.5
    ridge: float = 0.1
    q: float = 1.0
    epsilon: float = 0.8
    delta: float = 1e-5


@dataclass(frozen=True, slots=True)
class Sweep:
    """One figure's axis: the setting that is swept, its values and how they are shown."""

    figure: int
    field: str
    label: str
    values: tuple[float, ...]
    more: tuple[float, ...] = ()
    logarithmic: bool = False

    def points(self, *, full: bool) -> tuple[float, ...]:
        """Return the values, with more of them in full mode."""
        return tuple(sorted({*self.values, *(self.more if full else ())}))

    def setting(self, value: float) -> Setting:
        """Return the setting at one value."""
        whole = self.field in ("batches", "clients", "features")
        return replace(Setting(), **{self.field: int(value) if whole else value})

    @property
    def methods(self) -> tuple[str, ...]:
        """Methods that are shown."""
        return NOISED if self.field in ("epsilon", "delta") else METHODS


SWEEPS = (
    Sweep(3, "batches", "batches b", (10, 30, 100), (20, 50, 200, 500, 1000), logarithmic=True),
    Sweep(4, "clients", "clients M", (5, 20, 40), (10, 60, 80, 100)),
    Sweep(5, "shift", "shift of the class means mu", (0.1, 0.2, 0.3), (0.05, 0.15, 0.25, 0.4)),
    Sweep(6, "features", "features p", (10, 50, 100), (20, 30, 70, 150)),
    Sweep(7, "positive", "share of class +1 in training", (0.5, 0.7, 0.9), (0.6, 0.8)),
    Sweep(8, "ridge", "ridge lambda", (0.01, 0.1, 1.0), (0.03, 0.3, 3.0), logarithmic=True),
    Sweep(8, "q", "exponent q of the loss", (0.1, 1.0, 10.0), (0.3, 3.0, 100.0), logarithmic=True),
    Sweep(9, "epsilon", "epsilon", (0.2, 0.8, 3.0), (0.1, 0.4, 1.6, 6.0), logarithmic=True),
    Sweep(9, "delta", "delta", (1e-7, 1e-5, 1e-3), (1e-6, 1e-4), logarithmic=True),
)


def one_point(number: int, value: float, run: int) -> Point:
    """Draw one stream and fit every method of a sweep on it."""
    sweep = SWEEPS[number]
    at = sweep.setting(value)
    population = same_sites(at.clients, at.features, at.shift)
    rng = np.random.default_rng([SEED, number, run])
    streams = _streams(at, rng)
    seconds = dict.fromkeys(sweep.methods, 0.0)
    kept: list[Records] = []
    for _ in range(at.batches):
        batch = population.batch(rng, RECORDS, at.positive)
        kept.append(batch)
        for name, stream in streams.items():
            begun = time.process_time()
            stream.update([batch])
            seconds[name] += time.process_time() - begun
    fits = {name: stream.coefficients for name, stream in streams.items()}
    if "OffNP" in sweep.methods:
        loss, pooled = _loss(at), joined(kept)
        begun = time.process_time()
        fits["OffNP"] = majorised_fit(loss, pooled, at.ridge).coefficients
        between = time.process_time()
        ridge = Ridge(at.ridge, "identity")
        fits["OffWP"] = undamped_iterates(loss, [pooled], ridge, rounds=1)[-1]
        seconds["OffNP"], seconds["OffWP"] = between - begun, time.process_time() - between
    return {name: (100 * population.accuracy(fits[name]), seconds[name]) for name in sweep.methods}


def _streams(at: Setting, rng: np.random.Generator) -> dict[str, OnlineFit | PrivateOnlineFit]:
    loss, size, identity = _loss(at), at.features + 1, Ridge(at.ridge, "identity")
    twice = 2 * math.log(1 / at.delta)
    deviation = 10 * (math.sqrt(twice) + math.sqrt(twice + at.epsilon)) / at.epsilon
    found: dict[str, OnlineFit | PrivateOnlineFit] = {
        "OnWP": OnlineFit(loss, identity, size, first="one-step"),
        "OnWDP": TrustedOnlineFit(loss, identity, size, GivenNoise(deviation), rng),
    }
    bound, wide = math.sqrt(size), GeneralisedDWD(at.q)
    noises = {
        "distributed": MessageNoise(at.epsilon, at.delta, bound, at.clients),
        "local": MessageNoise(at.epsilon, at.delta, bound, at.clients, at.clients - 1),
    }
    for name, noise in noises.items():
        found[name] = PrivateOnlineFit(wide, identity, size, noise, rng)
    return found


def _loss(at: Setting) -> GeneralisedDWD:
    loss = GeneralisedDWD(at.q)
    return GeneralisedDWD(at.q, loss.smoothing / 25, ramp="symmetric")
