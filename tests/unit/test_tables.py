"""Look-up in tables: every threshold, every tie and both ends, against high precision."""

from __future__ import annotations

from bisect import bisect_left
from functools import lru_cache

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.privacy import laws as tables
from pipeline.privacy.laws import (
    BLOCK,
    FEWEST,
    GUIDED,
    Digit,
    Gaussian,
    Laplace,
    Law,
    Table,
    Weights,
    resolve,
)
from tests.builders import ScriptedStream, SeededStream
from tests.laws import bell, cumulative, geometric

SomeLaw = Gaussian | Laplace | Digit
SCALES = (0.1, 0.5, 1.0, 3.7, 100.0, 1000.0)
LAWS: list[SomeLaw] = [
    *map(Gaussian, SCALES),
    *(Laplace(scale, 1) for scale in SCALES[:5]),
    Laplace(1000.0, 16),
    Laplace(23000.5, 512),
    Digit(0.5, 1, 2),
    Digit(1.0, 1, 64),
    Digit(100.0, 1, 2),
    Digit(1000.0, 1, 16),
    Digit(2e5, 1024, 4),
    Digit(2e5, 1, 1024),
]
TOP = 2**64 - 1
#: The widest ones take long in high precision.
WIDE = {Gaussian(1000.0), Laplace(2.0**38 - 0.5, 2**32), Laplace(60.0, 1), Laplace(100.0, 1)}
MOSTLY = [pytest.param(law, marks=[pytest.mark.slow] * (law in WIDE)) for law in LAWS]


def thresholds(table: Table) -> list[int]:
    return [int(t) for t in table._thresholds[:-1]]


def scaled(law: SomeLaw, k: int, bits: int) -> int:
    """Return floor(2^bits P(X <= k))."""
    return scaled_row(law, k, k, bits)[0]


@lru_cache(maxsize=64)
def scaled_row(law: SomeLaw, first: int, last: int, bits: int) -> list[int]:
    # forty digits more than 2^bits has
    digits = bits * 302 // 1000 + 40
    with mpmath.workdps(digits + 10):
        return [int(mpmath.floor(p * 2**bits)) for p in cumulative(law, first, last, digits)]


@pytest.mark.parametrize("law", MOSTLY, ids=str)
def test_every_threshold_is_the_floor_of_the_exact_cumulative_probability(law: SomeLaw) -> None:
    table = Table(law)
    found = thresholds(table)
    digits = 70 if len(found) > 500 else 400
    with mpmath.workdps(digits + 10):
        last = table.first + len(found) - 1
        true = cumulative(law, table.first, last, digits)
        assert found == [int(mpmath.floor(p * 2**64)) for p in true]
        if law.endless:
            # what the table leaves out has no 64-bit number of its own
            assert (found[0], found[-1]) == (0, TOP)
        else:
            assert (table.first, len(found)) == (0, law.count - 1)  # type: ignore[union-attr]


# --- ties ------------------------------------------------------------------------------------


def words(number: int, count: int) -> list[int]:
    """Split a number of 64 count bits into words, the leading one first."""
    return [number >> 64 * i & TOP for i in reversed(range(count))]


def decided(law: SomeLaw, number: int, count: int) -> int:
    """Return the draw of a uniform number of 64 count bits, all of them needed."""
    first, *rest = words(number, count)
    stream = ScriptedStream(*rest)
    draw = resolve(law, first, stream)
    assert len(stream._words) == 0, "fewer bits decided"
    return draw


TIES = [
    *((Gaussian(3.7), k) for k in (-20, -9, -1, 0, 1, 8, 15)),
    *((Gaussian(40.0), k) for k in (-301, -1, 0, 123)),
    *((Laplace(1.0, 1), k) for k in (-30, -1, 0, 1, 30)),
    *((Laplace(300.0, 16), k) for k in (-99, -1, 0, 77)),
    *((Digit(1000.0, 1, 16), k) for k in (0, 7, 14)),
    *((Digit(2e5, 1024, 4), k) for k in (0, 1, 2)),
]


@pytest.mark.parametrize(("law", "k"), TIES, ids=str)
@pytest.mark.parametrize("count", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_a_tie_is_decided_by_further_bits_on_both_sides_of_the_threshold(
    law: SomeLaw, k: int, count: int
) -> None:
    """Numbers next to P(X <= k), which agree with it in all words but the last."""
    whole = scaled(law, k, 64 * count)
    assert words(whole, count)[0] in thresholds(Table(law))
    assert decided(law, whole - 1, count) == k
    assert decided(law, whole + 1, count) == k + 1
    # far on one side, and far on the other
    cut = whole >> 64 << 64
    if count == 2:
        assert decided(law, cut, count) == k
        assert decided(law, cut + TOP, count) == k + 1
    # a number that agrees in these words too needs one more
    with pytest.raises(AssertionError, match="end"):
        decided(law, whole, count)


def beside(law: SomeLaw, k: int) -> tuple[int, int]:
    """Return P(X <= k) in as few words as tell k and k + 1 from their neighbours, and how many."""
    for count in range(2, 12):
        row = scaled_row(law, k - 1, k + 1, 64 * count)
        if min(row[1] - row[0], row[2] - row[1]) > 4:
            return row[1], count
    raise AssertionError("too rare for any test")


FAR = [
    (Gaussian(0.5), 5),
    (Gaussian(3.7), 36),
    (Gaussian(3.7), 48),
    (Gaussian(100.0), 950),
    (Gaussian(100.0), 1330),
    pytest.param(Gaussian(1000.0), 9400, marks=pytest.mark.slow),
    pytest.param(Gaussian(1000.0), 13_300, marks=pytest.mark.slow),
    (Laplace(0.5, 1), 23),
    (Laplace(0.5, 1), 44),
    (Laplace(1.0, 1), 60),
    (Laplace(1000.0, 16), 2900),
    pytest.param(Laplace(1000.0, 16), 5550, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("law", "far"), FAR, ids=str)
@pytest.mark.parametrize("side", [-1, 1])
def test_the_far_tails_are_drawn_as_exactly_as_the_middle(
    law: SomeLaw, far: int, side: int
) -> None:
    """Integers whose whole mass lies below the first 64-bit number, or above the last."""
    whole, count = beside(law, side * far)
    assert words(whole, count)[0] == (0 if side < 0 else TOP)
    assert decided(law, whole - 1, count) == side * far
    assert decided(law, whole + 1, count) == side * far + 1


def test_a_tail_beyond_every_table_is_drawn_from_as_many_words_as_it_takes() -> None:
    law = Laplace(1.0, 1)
    for k in (-260, 260):
        whole, count = beside(law, k)
        assert count >= 6  # e^-260 is about 2^-375
        assert decided(law, whole - 1, count) == k
        assert decided(law, whole + 1, count) == k + 1


def test_a_draw_is_decided_by_a_table_that_ends_before_it() -> None:
    """The first and the last 64-bit number both stand for whole tails."""
    table = Table(Gaussian(3.7))
    zeros, tops = [ScriptedStream(word, 2**63) for word in (0, TOP)]
    low, high = table.draw(1, zeros)[0], table.draw(1, tops)[0]
    # U = 2^-65 and 1 - 2^-65
    assert low == bisect_left(scaled_row(Gaussian(3.7), -60, 60, 400), 2**335) - 60
    assert high == -low


@pytest.mark.parametrize("law", [Digit(1.0, 1, 64), Digit(0.5, 1, 64), Digit(3.0, 1, 256)])
def test_the_last_digits_share_the_last_number_exactly(law: Digit) -> None:
    """Digits whose masses all lie above the last 64-bit number, up to the very end."""
    assert scaled(law, law.count - 2, 64) == TOP
    for k in range(law.count - 8, law.count - 1):
        whole, count = beside(law, k)
        assert decided(law, whole - 1, count) == k
        assert decided(law, whole + 1, count) == k + 1
    assert resolve(law, TOP, ScriptedStream(*[TOP] * 8)) == law.count - 1


def test_the_first_number_is_the_first_digit() -> None:
    for law in (Digit(1.0, 1, 64), Digit(1000.0, 1, 16)):
        assert Table(law).draw(1, ScriptedStream(0)).tolist() == [0]


class Thirds:
    """P(X = 0) = 1/3 and P(X = 1) = 2/3, known vaguely until many bits are asked for."""

    endless = False

    def __init__(self, *, above: bool) -> None:
        self._above = above

    def weights(self, bits: int) -> Weights:
        unit = 1 << 400
        vague = unit >> 100 if bits <= 128 + 64 else 0
        # one of the two bounds of P(X <= 0) is exact
        low, high = (unit - vague, unit) if self._above else (unit, unit + vague)
        return Weights(0, [low, 2 * unit], [high, 2 * unit], 0, 0)


@pytest.mark.parametrize("above", [False, True])
@pytest.mark.parametrize("word", [0, 2**64 // 3 - 1, 2**64 // 3 + 1, TOP])
@pytest.mark.parametrize("step", [-1, 0, 1])
def test_bounds_too_vague_for_a_number_are_never_taken_for_a_decision(
    above: bool, word: int, step: int
) -> None:
    """A number next to 1/3 in 128 bits, whose third word decides if anything does."""
    first, second = words(2**128 // 3 + step, 2)
    stream = ScriptedStream(second, word, word, word)
    wanted = int(step > 0 or (step == 0 and word > 2**64 // 3))
    assert resolve(Thirds(above=above), first, stream) == wanted
    if step == 0:
        assert len(stream._words) < 3, "two words were enough for it"


# --- guided and plain ------------------------------------------------------------------------


class Handed(SeededStream):
    """Hands out given uniform numbers; further bits of a tie are a fixed function of their turn."""

    def __init__(self, uniforms: NDArray[np.uint64]) -> None:
        super().__init__(0)
        self._left = uniforms
        self._more = np.random.default_rng(5)

    def uint64(self, count: int) -> NDArray[np.uint64]:
        if count == 1 and len(self._left) != 1:
            return self._more.integers(0, 2**64, 1, dtype=np.uint64)
        taken, self._left = self._left[:count], self._left[count:]
        return taken


def awkward(table: Table) -> NDArray[np.uint64]:
    """Uniform numbers at, beside and between thresholds, at the ends, and at the guide's cells."""
    edges = thresholds(table)
    cells = [cell << 48 for cell in range(0, 1 << 16, 97)]
    near = [x + d for x in (*edges, *cells, 0, TOP) for d in (-2, -1, 0, 1, 2) if 0 <= x + d <= TOP]
    rng = np.random.default_rng(1)
    some = rng.choice(np.array(near, dtype=np.uint64), min(len(near), 30_000), replace=False)
    return np.concatenate([some, rng.integers(0, 2**64, 20_000, dtype=np.uint64)])


@pytest.mark.parametrize("law", MOSTLY, ids=str)
def test_guided_and_plain_look_up_give_the_same_draws_ties_included(
    law: SomeLaw, monkeypatch: pytest.MonkeyPatch
) -> None:
    # ties are settled one by one in the order of their numbers, in both
    monkeypatch.setattr(tables, "resolve", lambda _, leading, __: leading % 1009)
    table = Table(law)
    uniforms = awkward(table)
    assert len(uniforms) > BLOCK + GUIDED
    guided = table.draw(len(uniforms), Handed(uniforms))
    for size in (FEWEST - 1, FEWEST + 1):
        # the first size is always looked up plainly, the second with the guide from GUIDED on
        fresh = Table(law)
        parts = np.array_split(uniforms, len(uniforms) // (size - 1) + 1)
        assert (max(map(len, parts)) < FEWEST) == (size < FEWEST)
        plain = np.concatenate([fresh.draw(len(part), Handed(part)) for part in parts])
        assert np.array_equal(guided, plain)
        assert (fresh._guide is None) == (size < FEWEST)
    edges = [*thresholds(table), TOP]
    for u, draw in zip(uniforms[::7].tolist(), guided[::7].tolist(), strict=True):
        index = bisect_left(edges, u)
        tied = index < len(edges) and edges[index] == u
        assert draw == (u % 1009 if tied else table.first + index)


def test_ties_within_a_block_go_through_the_exact_decision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = Table(Gaussian(3.7))
    edges = np.array(thresholds(table), dtype=np.uint64)
    uniforms = np.resize(edges, 3 * BLOCK + 5)
    asked = []

    def noting(law: SomeLaw, leading: int, stream: SeededStream) -> int:
        asked.append(leading)
        return 10_000 + len(asked)

    monkeypatch.setattr(tables, "resolve", noting)
    draws = table.draw(len(uniforms), Handed(uniforms))
    assert asked == uniforms.tolist()
    assert draws.tolist() == list(range(10_001, 10_001 + len(uniforms)))


def test_a_draw_has_the_right_type_for_any_count() -> None:
    table = Table(Gaussian(3.7))
    for count in (0, 1, 65, FEWEST - 1, FEWEST, GUIDED, BLOCK, BLOCK + 1, 2 * BLOCK + 7):
        draws = table.draw(count, SeededStream(1))
        assert (draws.dtype, draws.shape) == (np.int64, (count,))


def test_equal_laws_share_one_table() -> None:
    assert tables.table(Gaussian(3.7)) is tables.table(Gaussian(3.7))
    assert tables.table(Gaussian(3.7)) is not tables.table(Gaussian(3.8))


WIDTHS = (0.1, 0.5, 1.0, 3.7, 100.0, 1000.0)
BOUNDED: list[Gaussian | Laplace | Digit] = [
    *map(Gaussian, WIDTHS),
    Laplace(0.02, 1),
    *(Laplace(scale, 1) for scale in (*WIDTHS[:4], 60.0)),
    Laplace(1000.0, 16),
    Laplace(2.0**38 - 0.5, 2**32),
    Digit(0.5, 1, 2),
    Digit(1.0, 1, 64),
    Digit(1000.0, 1, 16),
    Digit(23000.5, 1, 512),
    Digit(2.0**38 - 0.5, 2**30, 4),
]
SMALL = [law for law in BOUNDED if law != Gaussian(1000.0)]


def last_of(weights: Weights) -> int:
    return weights.first + len(weights.low) - 1


def true_weights(law: Law, weights: Weights) -> list[mpmath.mpf]:
    """Return the weights from their definitions, in the unit of the list: that of k = 0."""
    unit = mpmath.mpf(weights.low[-weights.first])
    count = max(-weights.first, last_of(weights)) + 1
    if isinstance(law, Gaussian):
        half = bell(law.sigma, count)
        return [unit * half[abs(k)] for k in range(weights.first, last_of(weights) + 1)]
    assert isinstance(law, Laplace | Digit)
    b = mpmath.mpf(law.scale)
    powers = geometric(mpmath.exp(-law.stride / b), count)
    # of each stride the integer nearest to zero, as the others of the stride follow it
    left = [unit * mpmath.exp(-1 / b) * powers[-k - 1] for k in range(weights.first, 0)]
    return left + [unit * power for power in powers[: last_of(weights) + 1]]


@pytest.mark.parametrize(
    "law", [pytest.param(law, marks=[pytest.mark.slow] * (law in WIDE)) for law in BOUNDED], ids=str
)
def test_the_bounds_of_every_weight_and_of_the_tails_hold_the_truth(law: Law) -> None:
    bits = 64 if law == Gaussian(1000.0) else 128
    weights = law.weights(bits)
    assert weights.low[-weights.first] == weights.high[-weights.first]
    with mpmath.workdps(130):
        true = true_weights(law, weights)
        assert all(
            low <= w <= high for low, w, high in zip(weights.low, true, weights.high, strict=True)
        )
        total = mpmath.fsum(true)
        spread = sum(weights.high) - sum(weights.low) + weights.left + weights.right
        assert spread < total * mpmath.mpf(2) ** (4 - bits)
        below, above = outside(law, weights, total)
        # a hundred digits, so that rounding here cannot fail a bound that is met exactly
        assert below <= weights.left * (1 + mpmath.mpf("1e-100"))
        assert above <= weights.right * (1 + mpmath.mpf("1e-100"))
        if law.endless:
            assert min(weights.left, weights.right) > 0
        else:
            assert (weights.left, weights.right, weights.first) == (0, 0, 0)


def outside(law: Law, weights: Weights, total: mpmath.mpf) -> tuple[mpmath.mpf, mpmath.mpf]:
    """Return the true weight to the left and to the right of the list."""
    if isinstance(law, Gaussian):
        half = bell(law.sigma, 2 - 2 * weights.first)
        tail = weights.low[-weights.first] * mpmath.fsum(half[1 - weights.first :])
        return tail, tail
    assert isinstance(law, Laplace | Digit)
    ends = cumulative(law, weights.first - 1, last_of(weights), 120)
    share = 1 - ends[0] - (1 - ends[-1])
    if isinstance(law, Digit):
        return mpmath.mpf(0), 1 - ends[-1]
    return total * ends[0] / share, total * (1 - ends[-1]) / share


@pytest.mark.parametrize("law", SMALL, ids=str)
@pytest.mark.parametrize("bits", [64, pytest.param(192, marks=pytest.mark.slow)])
def test_the_cumulative_bounds_hold_the_truth_and_are_close(law: Law, bits: int) -> None:
    weights = law.weights(bits + 64)
    lower, upper = weights.cumulative(bits)
    assert upper == sorted(upper)
    # a probability must be told from one; small scales fall by e^-50 and more with each integer
    digits = 400 if last_of(weights) < 100 else 100
    with mpmath.workdps(digits + 10):
        true = cumulative(law, weights.first, last_of(weights), digits)  # type: ignore[arg-type]
        for low, value, high in zip(lower, true, upper, strict=True):
            floor = int(mpmath.floor(value * 2**bits))
            assert low <= floor <= high
            assert high - low <= 1
    if law.endless:
        assert max(upper) < 2**bits


@pytest.mark.parametrize("law", BOUNDED, ids=str)
def test_more_bits_never_contradict_fewer(law: Law) -> None:
    """A draw that is decided at some precision stays the same at any higher one."""
    if law == Gaussian(1000.0):
        law = Gaussian(100.0)
    coarse, fine = law.weights(96), law.weights(224)
    lower, upper = coarse.cumulative(64)
    finer_lower, finer_upper = fine.cumulative(64)
    shift = coarse.first - fine.first
    assert shift >= 0
    for i in range(len(lower)):
        assert lower[i] <= finer_lower[i + shift] <= finer_upper[i + shift] <= upper[i]
