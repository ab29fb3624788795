"""Records for the table of intervals: real streams, and populations that make intervals hard.

Each stream says what somebody would declare who has not seen it: ranges, and the norm that few
records pass. A draw of a real stream is an order of its records, of a population new records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import product
from pathlib import Path

import numpy as np
from scipy.special import expit

from benchmarks.papers.six_figures import electricity
from pipeline.losses import Loss
from pipeline.records.encoder import Encoder, stack
from pipeline.study_file.load import load_study
from pipeline.types import Integers, Matrix, Vector
from producers.sources.base import Opening
from producers.sources.samples import AIRLINES, STREAMED, flights, opened

#: Records of one draw of a population.
RECORDS = 40_000
#: Features (n, p) in [-1, 1], classes (n,), and the client of each record; None where all clients
#: have records of one law.
Drawn = tuple[Matrix, Vector, Integers | None]


@dataclass(frozen=True)
class Stream:
    """Where the records of some rows of the table come from.

    Attributes
    ----------
    features
        p.
    norm_bound
        What somebody expects that few (1, features) pass.
    draw
        New records, for a loss: the hardest ones depend on it.
    weighed
        Whether classes are weighed.
    fixed
        Whether every draw has the same records, in another order.
    """

    name: str
    features: int
    norm_bound: float
    draw: Callable[[np.random.Generator, Loss], Drawn]
    weighed: bool = False
    fixed: bool = False


def shuttle(_: Path | None) -> Stream:
    """Return the sensors of the space shuttle, with the ranges of the demonstration's study."""
    study = load_study(Path(str(files("pipeline.study") / "examples" / "shuttle.toml")))
    encoder = Encoder(study)
    slots = opened("shuttle:0/1", Opening()).read(STREAMED, 0.0)
    rows = [encoder.encode(slot.record or {}) for slot in slots]
    return shuffled("shuttle", stack(rows, 9)[:2], 2.0, weighed=True)


def elec(folder: Path | None) -> Stream:
    """Return the electricity market, whose file lies in `folder`."""
    if folder is None:
        raise FileNotFoundError("--data FOLDER must name the folder of elec.csv.gz")
    found = electricity(folder)
    return shuffled("elec", (found.features, found.responses), 2.18)


def late_flights(_: Path | None) -> Stream:
    """Return flights that arrive more than 15 minutes late, or not: 40,000 of a year's a draw."""
    features, responses, carriers = every_flight()

    def draw(rng: np.random.Generator, _: Loss) -> Drawn:
        chosen = rng.choice(len(responses), RECORDS, replace=False)
        return features[chosen], responses[chosen], carriers[chosen]

    return Stream("flights", 3, 1.6, draw)


def every_flight() -> tuple[Matrix, Vector, Integers]:
    """Return all flights of the year that arrived, with their airlines."""
    names, ranges = ("dep_delay", "distance", "hour"), ((-15, 60), (0, 3000), (5, 23))
    airlines = {code: place for place, code in enumerate(AIRLINES)}
    table = np.array(
        [
            [
                *(float(row[name]) for name in names),
                float(row["arr_delay"]),
                airlines[row["carrier"]],
            ]
            for row in flights()
            if row["arr_delay"] != "NA"
        ]
    )
    low, high = np.array(ranges, dtype=float).T
    features = np.clip((2 * table[:, :3] - low - high) / (high - low), -1, 1)
    return features, np.where(table[:, 3] > 15, 1.0, -1.0), table[:, 4].astype(np.int64)


def autoregressive(_: Path | None) -> Stream:
    """Return eight Gaussian features with correlations .5^|j - k|, cut to 3 deviations."""

    def draw(rng: np.random.Generator, _: Loss) -> Drawn:
        x = rng.normal(size=(RECORDS, 8))
        for k in range(1, 8):
            x[:, k] = 0.5 * x[:, k - 1] + np.sqrt(0.75) * x[:, k]
        return *_answered(rng, np.clip(x / 3, -1, 1), 0.3, 3.0), None

    return Stream("AR(.5)", 8, 1.8, draw)


def heavy(_: Path | None) -> Stream:
    """Return six features of Student's t with 4 degrees of freedom, cut to +-4."""

    def draw(rng: np.random.Generator, _: Loss) -> Drawn:
        x = np.clip(rng.standard_t(4, size=(RECORDS, 6)) / 4, -1, 1)
        return *_answered(rng, x, 0.2, 3.0), None

    return Stream("clipped t4", 6, 1.7, draw)


def rare(_: Path | None) -> Stream:
    """Return six features and a class of one record in ten, weighed."""

    def draw(rng: np.random.Generator, _: Loss) -> Drawn:
        x = rng.uniform(-1, 1, (RECORDS, 6))
        return *_answered(rng, x, -2.9, 2.0), None

    return Stream("10:90, weighed", 6, 2.0, draw, weighed=True)


def unequal(_: Path | None) -> Stream:
    """Return a client with 70 % of the records, and seven whose records have another law."""

    def draw(rng: np.random.Generator, _: Loss) -> Drawn:
        large = rng.random(RECORDS) < 0.7
        clients = np.where(large, 0, rng.integers(1, 8, RECORDS))
        x = np.clip(rng.normal(np.where(large, 0.3, -0.3)[:, None], 0.4, (RECORDS, 6)), -1, 1)
        signs = np.array([1.0, -1.0, 1.0, -1.0, 1.0, -1.0])
        odds = np.where(large, 0.5 + x @ (1.5 * signs), -0.5 + x @ np.abs(signs))
        return x, _classes(rng, odds), clients

    return Stream("one client has 70 %", 6, 1.9, draw)


def kink(_: Path | None) -> Stream:
    """Return six features of two levels whose margins at the target lie next to the loss's kink."""

    def draw(rng: np.random.Generator, loss: Loss) -> Drawn:
        x = rng.choice([-1.0, 1.0], (RECORDS, 6))
        slopes = _near_the_kink(loss.name, getattr(loss, "q", 1.0), loss)
        return x, _classes(rng, 0.3 + x @ slopes), None

    return Stream("two levels near the kink", 6, np.sqrt(7.0), draw)


def sliver(_: Path | None) -> Stream:
    """Return five features, and one that matters as much as they do in a thirtieth of its range."""

    def draw(rng: np.random.Generator, _: Loss) -> Drawn:
        x = rng.uniform(-1, 1, (RECORDS, 6))
        x[:, 5] /= 30
        return x, _classes(rng, x @ np.array([1.0, -1.0, 1.0, -1.0, 1.0, -60.0])), None

    return Stream("a strong sliver", 6, 1.8, draw)


#: By name; a real stream may need the folder of its data.
STREAMS: Mapping[str, Callable[[Path | None], Stream]] = {
    "shuttle": shuttle, "elec": elec, "flights": late_flights, "ar": autoregressive,
    "t4": heavy, "rare": rare, "unequal": unequal, "kink": kink, "sliver": sliver,
}  # fmt: skip


def shuffled(
    name: str, records: tuple[Matrix, Vector], norm_bound: float, *, weighed: bool = False
) -> Stream:
    """Return a stream whose draws are orders of the same records."""
    features, responses = records

    def draw(rng: np.random.Generator, _: Loss) -> Drawn:
        order = rng.permutation(len(responses))
        return features[order], responses[order], None

    return Stream(name, features.shape[1], norm_bound, draw, weighed, fixed=True)


def _answered(
    rng: np.random.Generator, x: Matrix, intercept: float, slope: float
) -> tuple[Matrix, Vector]:
    """Return features with classes of a logistic law, slopes of both signs."""
    signs = np.where(np.arange(x.shape[1]) % 2, -1.0, 1.0)
    return x, _classes(rng, intercept + x @ (slope / np.sqrt(x.shape[1]) * signs))


def _classes(rng: np.random.Generator, odds: Vector) -> Vector:
    return np.where(rng.random(len(odds)) < expit(odds), 1.0, -1.0)


@cache
def _near_the_kink(name: str, q: float, loss: Loss) -> Vector:
    """Return slopes of the log odds for which many records' margins are .025 from the kink.

    The target of every multiple of some slopes is found by enumeration, without a penalty.
    """
    from benchmarks.interval_runs import minimiser  # noqa: PLC0415  it imports this module

    levels = np.array(list(product([-1.0, 1.0], repeat=6)))
    slopes, found = np.array([1.0, -0.8, 0.6, -0.5, 0.4, -0.3]), []
    kink = q / (q + 1)
    for multiple in np.linspace(0.5, 1.5, 21):
        chance = expit(0.3 + levels @ (multiple * slopes)) / len(levels)
        x, y = np.tile(levels, (2, 1)), np.repeat([1.0, -1.0], len(levels))
        mass = np.concatenate([chance, 1 / len(levels) - chance])
        point = minimiser(loss, x, y, mass, 1e-3)
        away = np.abs(y * (point[0] + x @ point[1:]) - kink)
        found.append((float(mass[np.abs(away - 0.025) < 0.02].sum()), multiple))
    return max(found)[1] * slopes
