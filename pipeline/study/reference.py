"""A public reference population of a study's features: what is expected before any data are seen.

Features are independent, and classes as frequent as the study guesses. A number follows a
triangular law over its encoded range that peaks at its typical value, or a uniform one; a category
is uniform over its levels. Nothing of it is computed from data, and two programs find the same
numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from pipeline.study.data import Data
from pipeline.study.encoding import Encoding
from pipeline.study.model import Study
from pipeline.types import Matrix, Vector

Law = Literal["typical", "uniform"]
#: Records of the sample that stands for the population, and the seed of its generator.
RECORDS, SEED = 2**14, 20_26
#: Share of the population whose norm a typical bound keeps.
KEPT = 0.99
#: So many records of a file stand for the population of a plan, at the most.
MOST_SEEN = 200_000
#: The least bound that is proposed: some room for features.
LEAST_NORM = 1.01
#: Numbers that are held at once.
_NUMBERS = 2**22
#: Part of their ranges that values are supposed to fill where a plan asks for less than all.
PART = 0.1


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """Records that stand for the population of a plan, in the place of the public ones.

    features: Encoded, shape (n, p).
    responses: Encoded, shape (n,); None where only the study says what they are like.
    """

    features: Matrix
    responses: Vector | None = None

    @property
    def products(self) -> Matrix:
        """Mean of (1, x)(1, x)', shape (p + 1, p + 1)."""
        design = np.column_stack([np.ones(len(self.features)), self.features])
        found: Matrix = design.T @ design / len(design)
        return found


def narrowed(study: Study, part: float = PART) -> Seen:
    """Return the public population of a study where numbers fill such a part of their ranges.

    It lies about their typical values, or about the middle. Of the same features it is the same
    object, so that what was found of it is known.
    """
    return _narrowed(msgspec.json.encode(study.data), part)


@lru_cache(maxsize=8)
def _narrowed(written: bytes, part: float) -> Seen:
    data = msgspec.json.decode(written, type=Data)
    encoding = Encoding(data.features, data.interactions, unit=data.scaling == "unit")
    records = min(RECORDS, _NUMBERS // max(len(encoding.columns), 1)) // 4
    return Seen(draw(encoding, _points(encoding, records), law_of(encoding), part))


def law_of(encoding: Encoding) -> Law:
    """Return the law of a study's population: about typical values where it says any."""
    said = any(feature.typical is not None for feature in encoding.features.values())
    return "typical" if said else "uniform"


def draw(encoding: Encoding, points: Matrix, law: Law = "typical", part: float = 1.0) -> Matrix:
    """Return encoded records, shape (n, p).

    points: In (0, 1), shape (n, k): one for each feature, random or evenly spread.
    part: Of their ranges, which numbers fill.
    """
    low, high = encoding.scaled_ends
    scaled = low + points * (high - low)
    levels = np.array([feature.kind == "category" for feature in encoding.features.values()])
    count = high[levels] + 1.0
    scaled[:, levels] = np.minimum(np.floor(points[:, levels] * count), count - 1.0)
    if law == "typical":
        for index in np.flatnonzero(~levels):
            scaled[:, index] = _triangular(encoding, int(index), points[:, index])
    if part != 1.0:
        middle = encoding.typical
        scaled[:, ~levels] = (middle + part * (scaled - middle))[:, ~levels]
    return encoding.expand(scaled)


def sample(encoding: Encoding, law: Law = "typical", records: int = RECORDS) -> Matrix:
    """Return the encoded records that stand for the population, shape (n, p): always the same."""
    return draw(encoding, _points(encoding, records), law)


def _points(encoding: Encoding, records: int) -> Matrix:
    # raw words of the generator, whose further methods may change from version to version
    words = np.random.PCG64(SEED).random_raw(records * len(encoding.names))
    points = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53 + 2.0**-54
    found: Matrix = points.reshape(records, len(encoding.names))
    return found


def norms(encoding: Encoding, law: Law = "typical") -> Vector:
    """Return the norms of (1, features) of the sample, shape (n,)."""
    records = max(2**10, min(RECORDS, _NUMBERS // len(encoding.columns)))
    return norms_of(sample(encoding, law, records))


def norms_of(features: Matrix) -> Vector:
    """Return the norms of (1, features), shape (n,)."""
    found: Vector = np.sqrt(1.0 + np.sum(features * features, axis=1))
    return found


def longer(norms: Vector, bound: float) -> NDArray[np.bool_]:
    """Return which norms exceed a bound, shape (n,): a rounded one that lies on it does not."""
    found: NDArray[np.bool_] = norms > bound * (1.0 + 2.0**-40)
    return found


@lru_cache(maxsize=4)
def moments(encoding: Encoding, law: Law = "typical") -> Matrix:
    """Return the mean of (1, x)(1, x)' of the population, exactly, shape (p + 1, p + 1).

    The matrix cannot be written to: a plan asks for the same one many times.
    """
    size = len(encoding.columns) + 1
    found = np.ones((size, size))
    for name, factors in encoding.factors.items():
        # independent features: a mean of products is the product of means
        within = _moments_of(encoding, name, law)
        at = np.append(0, factors)
        held = np.flatnonzero(at)
        mine = within[at[held]][:, at]
        found[held] *= mine
        others = np.flatnonzero(at == 0)
        found[np.ix_(others, held)] *= mine[:, others].T
    found.flags.writeable = False
    return found


def rarer_share(study: Study) -> float:
    """Return the public guess of the share of the rarer class, in (0, 0.5]; 0.5 of no classes."""
    response = study.data.response
    if response.typical is None or response.kind != "class":
        return 0.5
    return min(response.typical, 1.0 - response.typical)


def typical_mean(study: Study) -> float:
    """Return the public guess of the mean of counts."""
    response = study.data.response
    return response.ends[1] / 4 if response.typical is None else response.typical


def evenness(study: Study) -> float:
    """Return 4 r (1 - r) of that share r, in (0, 1]: p (1 - p) of the mean over what it is at 0."""
    share = rarer_share(study)
    return 4 * share * (1 - share)


def kept_moments(encoding: Encoding, norm_bound: float, seen: Seen | None = None) -> Matrix:
    """Return the same about typical values, where longer records count as if on the norm bound."""
    found = moments(encoding) if seen is None else seen.products
    return found * min(1.0, norm_bound**2 / float(np.trace(found)))


def _moments_of(encoding: Encoding, name: str, law: Law) -> Matrix:
    """Return the mean of (1, x)(1, x)' of the columns of one feature by itself."""
    feature, index = encoding.features[name], encoding.names.index(name)
    if feature.kind == "category":
        share = 1.0 / len(feature.levels or [])
        found = np.diag(np.append(1.0, np.full(len(feature.others), share)))
        found[0, 1:] = found[1:, 0] = share
        return found
    low, high = (float(end[index]) for end in encoding.scaled_ends)
    mean, variance = (low + high) / 2, (high - low) ** 2 / 12
    if law == "typical":
        peak = float(encoding.typical[index])
        mean = (low + high + peak) / 3
        squares = low * low + high * high + peak * peak
        variance = (squares - low * high - low * peak - high * peak) / 18
    return np.array([[1.0, mean], [mean, mean * mean + variance]])


@lru_cache(maxsize=16)
def typical_norm_bound(encoding: Encoding) -> float:
    """Return the norm of (1, features) that 99 % of the population keep, up to four digits.

    At least `LEAST_NORM`: a bound of 1 would leave no room for any feature.
    """
    found = np.sort(norms(encoding))
    norm = max(float(found[int(KEPT * len(found))]), LEAST_NORM)
    unit = 10.0 ** (math.floor(math.log10(norm)) - 3)
    # rounded, so that no difference in the last bit of a transform can show in a revision
    return float(f"{math.ceil(norm / unit - 1e-6) * unit:.4g}")


def _triangular(encoding: Encoding, index: int, points: Vector) -> Vector:
    """Return quantiles of the triangular law over a number's encoded range, shape (n,)."""
    low, high = (end[index] for end in encoding.scaled_ends)
    peak = float(encoding.typical[index])
    width, below = high - low, peak - low
    rising = low + np.sqrt(points * width * below)
    falling = high - np.sqrt((1.0 - points) * width * (high - peak))
    found: Vector = np.where(points * width < below, rising, falling)
    return found
