"""How features become the columns of the linear predictor: centre, scale, levels, products.

A number x becomes (t(x) - t(typical)) / half, with its transform t and half the width of its range
after t; with `scaling = "none"` it is t(x). A category becomes one column of 0 and 1 for each level
but its base. An interaction is the product of the columns of both features. All of it is public.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from pipeline.errors import ConfigError
from pipeline.study.data import (
    WIDEST,
    Feature,
    columns_of,
    main_columns,
    pair_of,
    restored,
    transformed,
    with_indicators,
    words_of,
)
from pipeline.types import Matrix, Vector

#: Indices of columns, shape (n,).
Indices: TypeAlias = NDArray[np.intp]


class Encoding:
    """The columns of the features of a study, k features to p columns.

    features: By name, in the order of the study; checked by `check_features`; with indicators.
    interactions: Each as "a:b".
    unit: Whether numbers are centred and scaled; else they keep the unit of their transform.

    names, columns: Of the features, (k,), and of the columns, (p,).
    ends: Lower and upper ends of the columns, each of shape (p,).
    magnitudes: Largest absolute value of each column, shape (p,).
    reach: Largest norm of the columns of each feature and each interaction: of the columns of a
        category at most one is not zero. All of them can be reached by one record.
    levels: Which columns are 1 in records that have a level, or two, and else 0, shape (p,).
    exclusive: Columns of the features and interactions that have several: at most one is not zero.
    range: Lower and upper ends of values that are kept, each (k,): the public range of a number,
        the indices of the first and the last level.
    centre, half: A scaled number is (t(x) - centre) / half, shapes (k,); 0 and 1 of a category.
    scaled_ends: Lower and upper ends of scaled numbers, each (k,); of categories as in `range`.
    """

    def __init__(
        self, features: Mapping[str, Feature], interactions: Sequence[str], *, unit: bool
    ) -> None:
        self.features, self.unit = (features := with_indicators(features)), unit
        self.names = tuple(features)
        self.columns = columns_of(features, interactions)
        self.pairs = [pair_of(text, features) for text in interactions]
        kept, scales, coded = [], [], []
        for feature in features.values():
            kept.append(_kept(feature))
            scales.append(_scale(feature, unit=unit))
            coded.append(_coded(feature, *scales[-1]))
        self.range = _columns(kept)
        self.centre, self.half = _columns(scales)
        self.scaled_ends = _columns(coded)
        self._transforms = [
            (index, feature)
            for index, feature in enumerate(features.values())
            if feature.transform is not None
        ]
        self._lay_out()
        self._key = (msgspec.json.encode(self.features), self.columns, unit)

    def __eq__(self, other: object) -> bool:
        """Whether records become the same columns."""
        return isinstance(other, Encoding) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def clip(self, values: Matrix | Vector) -> Matrix:
        """Clip finite values to their public ranges, shape (..., k)."""
        inside: Matrix = np.maximum(values, self.range[0])
        return np.minimum(inside, self.range[1], out=inside)

    def transformed(self, inside: Matrix | Vector) -> Matrix:
        """Apply the transforms to values of the ranges, shape (..., k)."""
        if not self._transforms:
            return inside
        found = np.array(inside)
        for index, feature in self._transforms:
            # a copy: numpy may round what is not contiguous otherwise
            found[..., index] = transformed(feature, np.array(found[..., index]))
        return found

    def scale(self, inside: Matrix | Vector) -> Matrix:
        """Centre and scale values of the ranges, (..., k) to (..., k); levels keep their index."""
        scaled: Matrix = self.transformed(inside) - self.centre
        scaled /= self.half
        # the division may leave the ends by a rounding error; the bound must hold exactly
        low, high = self.scaled_ends
        np.maximum(scaled, low, out=scaled)
        return np.minimum(scaled, high, out=scaled)

    def expand(self, scaled: Matrix | Vector) -> Matrix:
        """Make scaled numbers and indices of levels into columns, (..., k) to (..., p)."""
        if not (len(self._level) or len(self._left)):
            return scaled
        found = np.empty((*scaled.shape[:-1], len(self.columns)))
        found[..., self._plain] = scaled[..., self._numbers]
        found[..., self._hot] = scaled[..., self._category] == self._level
        found[..., self._product] = found[..., self._left] * found[..., self._right]
        return found

    def encode(self, inside: Matrix | Vector) -> Matrix:
        """Return the columns of values of the ranges, (..., k) to (..., p)."""
        return self.expand(self.scale(inside))

    @property
    def typical(self) -> Vector:
        """Scaled typical values, shape (k,): 0 unless units are kept; of categories their base."""
        found = []
        for feature in self.features.values():
            levels = feature.levels or []
            found.append(float(levels.index(feature.base_level)) if levels else 0.0)
            if feature.kind == "number" and not self.unit:
                low, high = transformed(feature, np.array(feature.ends)).tolist()
                found[-1] = low / 2 + high / 2
                if feature.typical is not None:
                    found[-1] = float(transformed(feature, np.array([feature.typical]))[0])
        return np.array(found)

    @property
    def factors(self) -> dict[str, Indices]:
        """Which column of a feature each column has as a factor, from 1, or 0: name to (p,)."""
        found = {name: np.zeros(len(self.columns), dtype=np.intp) for name in self.names}
        for name, first in self._first.items():
            width = len(main_columns(name, self.features[name]))
            mains = np.arange(first, first + width)
            for target, of in (
                (mains, mains), (self._product, self._left), (self._product, self._right)
            ):  # fmt: skip
                held = (of >= first) & (of < first + width)
                found[name][target[held]] = of[held] - first + 1
        return found

    def column_of(self, name: str) -> int:
        """Return the index of the first column of a feature."""
        return self._first[name]

    def own_units(self, intercept: float, slopes: Vector) -> tuple[float, Vector]:
        """Return the coefficients of the same predictor on numbers that are not scaled.

        Columns are then t(x), levels, and products of these.
        """
        centre, half = self._column_scale
        left, right = self._left, self._right
        own = slopes / half
        shift = float(np.sum(own * centre))
        # (u - a) (v - b) = u v - b u - a v + a b
        products = slopes[self._product] / (half[left] * half[right])
        own[self._product] = products
        np.subtract.at(own, left, products * centre[right])
        np.subtract.at(own, right, products * centre[left])
        return intercept - shift + float(np.sum(products * centre[left] * centre[right])), own

    def _lay_out(self) -> None:
        """Find the index of every column, and what it is made from."""
        plain, numbers, hot, category, level = [list[int]() for _ in range(5)]
        self._first: dict[str, int] = {}
        held: dict[str, range] = {}
        at, blocks = 0, list[slice]()
        for index, (name, feature) in enumerate(self.features.items()):
            width = len(main_columns(name, feature))
            self._first[name], held[name] = at, range(at, at + width)
            if feature.kind == "number":
                plain.append(at)
                numbers.append(index)
            if feature.kind == "category":
                hot += held[name]
                category += [index] * width
                level += [(feature.levels or []).index(other) for other in feature.others]
            blocks.append(slice(at, at := at + width))
        pairs = [(i, j) for one, other in self.pairs for i in held[one] for j in held[other]]
        alone = np.isin(np.arange(at), hot)
        both = [alone[i] and alone[j] for i, j in pairs]
        self.levels = np.concatenate([alone, np.array(both, dtype=bool)])
        after = at
        for one, other in self.pairs:
            blocks.append(slice(after, after := after + len(held[one]) * len(held[other])))
        self.exclusive = [block for block in blocks if block.stop - block.start > 1]
        self._plain, self._numbers = _indices(plain), _indices(numbers)
        self._hot, self._category, self._level = _indices(hot), _indices(category), _indices(level)
        self._left = _indices([i for i, _ in pairs])
        self._right = _indices([j for _, j in pairs])
        self._product = np.arange(at, at + len(pairs))
        self.ends = self._column_ends(at)
        low, high = self.ends
        self.magnitudes: Vector = np.maximum(np.abs(low), np.abs(high))
        self.reach = self._block_reach()
        centre, half = np.zeros(at + len(pairs)), np.ones(at + len(pairs))
        centre[plain], half[plain] = self.centre[numbers], self.half[numbers]
        self._column_scale = centre, half

    def _column_ends(self, mains: int) -> tuple[Vector, Vector]:
        low, high = np.zeros(mains), np.ones(mains)
        low[self._plain], high[self._plain] = (end[self._numbers] for end in self.scaled_ends)
        left, right = self._left, self._right
        corners = [a[left] * b[right] for a in (low, high) for b in (low, high)]
        if not len(left):
            return low, high
        return np.append(low, np.min(corners, axis=0)), np.append(high, np.max(corners, axis=0))

    def _block_reach(self) -> Vector:
        mains = {name: self.magnitudes[first] for name, first in self._first.items()}
        return np.array([*mains.values(), *(mains[a] * mains[b] for a, b in self.pairs)])


def check_reach(encoding: Encoding) -> None:
    """Refuse interactions whose products are too large or too small to be summed.

    Raises ConfigError, naming the way out.
    """
    if not np.all((encoding.reach >= 1 / WIDEST) & (encoding.reach <= WIDEST)):
        raise ConfigError(
            f"data.interactions: products beyond {WIDEST:g}, or none above {1 / WIDEST:g}; set "
            'scaling = "unit", or choose narrower ranges'
        )


def _kept(feature: Feature) -> tuple[float, float]:
    if feature.kind == "number":
        return feature.ends
    return 0.0, float(len(feature.levels or []) - 1)


def _scale(feature: Feature, *, unit: bool) -> tuple[float, float]:
    if feature.kind != "number" or not unit:
        return 0.0, 1.0
    low, high = transformed(feature, np.array(feature.ends)).tolist()
    # halves first: the sum of two ends may overflow where each of them does not
    centre, half = low / 2 + high / 2, high / 2 - low / 2
    if feature.typical is not None:
        centre = float(transformed(feature, np.array([feature.typical]))[0])
    return centre, half


def _coded(feature: Feature, centre: float, half: float) -> tuple[float, float]:
    if feature.kind != "number":
        return _kept(feature)
    if feature.typical is None and (centre, half) != (0.0, 1.0):
        return -1.0, 1.0
    low, high = ((transformed(feature, np.array(feature.ends)) - centre) / half).tolist()
    return low, high


def _columns(pairs: list[tuple[float, float]]) -> tuple[Vector, Vector]:
    low, high = np.ascontiguousarray(np.array(pairs, dtype=np.float64).reshape(len(pairs), 2).T)
    return low, high


def _indices(found: list[int]) -> Indices:
    return np.array(found, dtype=np.intp)


#: Digits of a number that a sentence has.
DIGITS = 4
TOGETHER = "both together, beyond each alone"


def steps_of(encoding: Encoding) -> tuple[str, ...]:
    """Return the words of each coefficient, intercept first; empty where a range says all.

    That is so for the intercept, and for a number without a typical value and a transform: half its
    range from the middle, or its own unit.
    """
    plain = {name: _plain(feature) for name, feature in encoding.features.items()}
    words = []
    for name, columns in _mains(encoding).items():
        words += ["" if plain[name] else text for text in columns.values()]
    # the names of interactions say of what
    return ("", *words, *[TOGETHER] * (len(encoding.columns) - len(words)))


def described(encoding: Encoding) -> dict[str, str]:
    """Return the words of each feature and interaction by name, plain numbers as well."""
    found = {}
    for name, columns in _mains(encoding).items():
        [words, *_] = columns.values()
        found[name] = f"its coefficient is for a step of {words}"
        if encoding.features[name].kind == "category":
            found[name] = f"{len(columns)} columns, each a level {words}"
    return {**found, **{f"{one}:{other}": TOGETHER for one, other in encoding.pairs}}


def _plain(feature: Feature) -> bool:
    return feature.kind == "number" and feature.typical is None and feature.transform is None


def _mains(encoding: Encoding) -> dict[str, dict[str, str]]:
    """Return the columns of each feature by name, with their words."""
    found = {}
    for index, (name, feature) in enumerate(encoding.features.items()):
        if feature.kind == "category":
            words = f"beside the base level {feature.base_level!r}"
        if feature.kind == "number":
            words = _of_number(encoding, index, name, feature)
        found[name] = dict.fromkeys(main_columns(name, feature), words)
    return found


def _of_number(encoding: Encoding, index: int, name: str, feature: Feature) -> str:
    if not encoding.unit:
        return f"1 of {words_of(name, feature)}"
    half = float(encoding.half[index])
    zero = feature.typical
    if zero is None:
        zero = float(restored(feature, np.array([encoding.centre[index]]))[0])
    words = words_of(name, feature)
    return f"{half:.{DIGITS}g} of {words}, 0 at {name} = {zero:.{DIGITS}g}"
