"""Neighbouring windows on the lattice, and a search for those that are furthest apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import mpmath
import numpy as np

from pipeline.linalg import upper_is_diagonal
from pipeline.methods.ldp_sgd.client import RecordsPart
from pipeline.privacy import memory
from pipeline.privacy.mechanism import Channel
from pipeline.privacy.samplers import DiscreteLaplace
from pipeline.records.encoder import Arrays
from pipeline.release.model import COEFFICIENT_LIMIT, Model
from pipeline.release.query import MatrixPart, Part, VectorPart
from pipeline.release.task import Task

#: Share of the steps of a climb that change a pair much.
LEAPS = 0.5
Window = tuple[np.ndarray, np.ndarray]


@dataclass
class Neighbours:
    """A pair of neighbouring windows that share `rest`; `two` is None for a null record."""

    rest: Window
    one: tuple[np.ndarray, float]
    two: tuple[np.ndarray, float] | None
    model: Model

    def windows(self) -> tuple[Window, Window]:
        return joined(self.rest, self.one), joined(self.rest, self.two)


def joined(rest: Window, record: tuple[np.ndarray, float] | None) -> Window:
    if record is None:
        return rest
    return np.vstack([rest[0], record[0]]), np.append(rest[1], record[1])


def distances(task: Task, pair: Neighbours) -> dict[str, float]:
    """Return the distance of each part of the rounded sums, as a share of the stated one.

    Parts are those of the query, each with the channel that noises it.
    """
    one, two = (task.query(Arrays(*w), pair.model).parts for w in pair.windows())
    assert len(one) == len(task.layout.at(pair.model.version))
    assert one.keys() == two.keys()
    svec = np.where(upper_is_diagonal(task.size), 1.0, np.sqrt(2))
    shares = {}
    for name, part in one.items():
        channel, matrix = channel_of(part), isinstance(part, MatrixPart)
        left, right = (channel.round(p.sums.integers, p.sums.exponents) for p in (part, two[name]))
        distance = np.linalg.norm(
            (left - right) * (svec if matrix else 1.0), task.budget.mechanism.order
        )
        shares[name] = float(distance) * channel.unit / channel.sensitivity
    return shares


def channel_of(part: Part) -> Channel:
    """Return what noises a part: of a matrix the diagonal, of records the loosest level."""
    if isinstance(part, MatrixPart):
        beside, wanted = part.off_diagonal, part.diagonal.off_diagonal()
        assert beside.exponent == wanted.exponent
        assert beside.standard_deviation == wanted.standard_deviation
        return part.diagonal
    if isinstance(part, RecordsPart):
        return part.channels[-1]
    assert isinstance(part, VectorPart)
    return part.channel


def cost_of(channel: Channel, order: int) -> mpmath.mpf:
    """Return what a part costs whose neighbours are as far apart as stated: mu^2, or epsilon.

    From its noise alone, to 50 digits: the rounded Gaussian that is behind a discrete one.
    """
    with mpmath.workdps(50):
        whole = mpmath.mpf(channel.sensitivity) / channel.unit
        if order == 1:
            assert isinstance(channel.noise, DiscreteLaplace)
            return whole / mpmath.mpf(channel.noise.scale)
        square = mpmath.mpf(channel.noise.standard_deviation) ** 2 - mpmath.mpf(1) / 12
        # noise that remembers meets a record in eight draws, in units of 2^-11 of the lattice
        meets = sum(c * c for c in memory.COEFFICIENTS) if channel.remembers else 1
        return whole**2 * meets / square


def first_deviation(channel: Channel) -> float:
    """Return the deviation of a chain's first noise, or of any that forgets, in lattice units."""
    finer = 2**memory.BITS if channel.remembers else 1
    return channel.noise.standard_deviation / finer


def random_record(task: Task, rng: np.random.Generator) -> tuple[np.ndarray, float]:
    kind = rng.integers(4)
    x = rng.uniform(-1, 1, task.size - 1)
    if kind == 0:
        x = np.sign(x)
    elif kind == 1:
        x = x * (rng.random(task.size - 1) < 0.5)
    elif kind == 2:
        x = np.eye(task.size - 1)[rng.integers(task.size - 1)] * rng.choice([-1.0, 1.0])
    return x * task.magnitudes, random_response(task, rng)


def random_response(task: Task, rng: np.random.Generator) -> float:
    if task.loss.responses == "number":
        return float(np.clip(rng.normal(), -1, 1))
    if task.loss.responses == "count":
        return float(rng.integers(task.study.data.response.ends[1] + 1))
    return float(rng.choice([-1.0, 1.0]))


def random_model(task: Task, rng: np.random.Generator, *, start: bool) -> Model:
    if start:
        return task.first_model
    scale = 10.0 ** rng.uniform(0, 7.3)
    lattice = np.clip(rng.normal(0, scale, task.size), -COEFFICIENT_LIMIT, COEFFICIENT_LIMIT)
    # weights of a hostile publisher go far beyond the public maximum
    weights = tuple(int(w) for w in 10.0 ** rng.uniform(0, 9, 2))
    return Model(int(rng.integers(1, 2**40)), lattice.astype(np.int64), weights)  # type: ignore[arg-type]


def random_pair(task: Task, rng: np.random.Generator, *, start: bool) -> Neighbours:
    n = int(rng.integers(0, 4))
    others = [random_record(task, rng) for _ in range(n)]
    rest = (
        np.array([x for x, _ in others]).reshape(n, task.size - 1),
        np.array([y for _, y in others]),
    )
    replaced = task.study.privacy.neighbours == "replace-one"
    one = random_record(task, rng)
    two = random_record(task, rng) if replaced else None
    if replaced and rng.random() < 0.3:
        two = (one[0], -one[1] if task.classes else random_response(task, rng))
    return Neighbours(rest, one, two, random_model(task, rng, start=start))


def leapt(task: Task, rng: np.random.Generator, pair: Neighbours) -> Neighbours:
    """Change a pair much, to what the furthest are made of: small steps seldom come there."""
    signs = rng.choice([-1.0, 1.0], task.size - 1)
    (x, y), kind = pair.one, rng.integers(4)
    if kind == 0:
        return replace(pair, one=(signs * task.magnitudes, y))
    if pair.two is not None and kind == 1:
        return replace(pair, two=(x, -y if task.classes else random_response(task, rng)))
    if pair.two is not None and kind == 2:
        return replace(pair, two=(signs * x, y))
    if not pair.model.version:
        return replace(pair, one=random_record(task, rng))
    # all records have one predictor
    lattice = np.zeros(task.size, dtype=np.int64)
    lattice[0] = round(4096 * rng.normal() * 10.0 ** rng.uniform(-1, 2))
    return replace(pair, model=Model(pair.model.version, lattice, pair.model.weights))


def moved(task: Task, rng: np.random.Generator, pair: Neighbours) -> Neighbours:
    """Change a pair: one step of the hill climb."""
    if rng.random() < LEAPS:
        return leapt(task, rng, pair)
    size = 10.0 ** rng.uniform(-3, 0)

    def nudged(record: tuple[np.ndarray, float]) -> tuple[np.ndarray, float]:
        x = record[0] + size * task.magnitudes * rng.normal(size=task.size - 1)
        label = record[1]
        if rng.random() < 0.1:
            label = -record[1] if task.classes else random_response(task, rng)
        return np.clip(x, -task.magnitudes, task.magnitudes), label

    one = nudged(pair.one)
    two = None if pair.two is None else nudged(pair.two)
    lattice = pair.model.lattice
    if pair.model.version:
        factor = 1 + size * rng.normal(size=task.size)
        lattice = np.clip(
            lattice * factor + 4096 * size * rng.normal(size=task.size),
            -COEFFICIENT_LIMIT,
            COEFFICIENT_LIMIT,
        ).astype(np.int64)
    return Neighbours(pair.rest, one, two, Model(pair.model.version, lattice, pair.model.weights))


def climbed(
    task: Task,
    rng: np.random.Generator,
    start: Neighbours,
    score: Callable[[dict[str, float]], float],
    steps: int,
) -> dict[str, float]:
    """Climb towards a larger distance, and return the largest share seen of every part."""
    most = distances(task, start)
    best = score(most)
    for _ in range(steps):
        candidate = moved(task, rng, start)
        found = distances(task, candidate)
        most = {name: max(most[name], found[name]) for name in most}
        if score(found) > best:
            best, start = score(found), candidate
    return most


def searched(
    task: Task, rng: np.random.Generator, parts: list[str], tries: int, steps: int, *, start: bool
) -> float:
    """Return the largest share of any part: of random pairs, and of climbs from the best of them.

    parts: Those that are climbed for, each from the pair that has most of it.
    """
    pairs = [random_pair(task, rng, start=start) for _ in range(tries)]
    found = [distances(task, pair) for pair in pairs]
    most = [max(shares.values()) for shares in found]
    for part in parts:
        best = max(range(tries), key=lambda i, p=part: found[i][p])
        top = climbed(task, rng, pairs[best], lambda shares, p=part: shares[p], steps)
        most.append(max(top.values()))
    return max(most)
