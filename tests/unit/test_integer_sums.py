from __future__ import annotations

import numpy as np
import pytest

from pipeline.errors import StateError
from pipeline.estimators import integer_sums as exact

TOP = 2**42 - 1


def by_hand(rows: np.ndarray) -> list[int]:
    values = [[int(x) for x in row] for row in rows]
    width = rows.shape[1]
    return [sum(row[i] * row[j] for row in values) for i in range(width) for j in range(i, width)]


@pytest.mark.parametrize("n", [0, 1, 2, 511, 512, 513, 1500])
@pytest.mark.parametrize("limit", [3, 2**21, 2**22 + 1, TOP])
def test_gram_equals_integer_arithmetic(n: int, limit: int) -> None:
    rng = np.random.default_rng(n)
    rows = rng.integers(-limit, limit, size=(n, 4), endpoint=True)
    assert exact.gram(rows).tolist() == by_hand(rows)


@pytest.mark.parametrize(
    "value", [TOP, -TOP, 2**41, -(2**41), 2**21, -(2**21), 2**21 - 1, -(2**21) - 1, 2**22 - 1]
)
def test_gram_is_exact_where_all_entries_stand_at_an_edge(value: int) -> None:
    rows = np.full((1024, 3), value, dtype=np.int64)
    rows[::2, 1] *= -1
    rows[1::3, 2] -= np.sign(value)
    assert exact.gram(rows).tolist() == by_hand(rows)


def test_gram_does_not_depend_on_order_or_on_the_split() -> None:
    rng = np.random.default_rng(1)
    rows = rng.integers(-TOP, TOP, size=(700, 5))
    whole = exact.gram(rows)
    assert np.array_equal(whole, exact.gram(rng.permutation(rows)))
    assert np.array_equal(whole, exact.gram(rows[:123]) + exact.gram(rows[123:]))


@pytest.mark.parametrize("n", [0, 1, 513, 1100])
@pytest.mark.parametrize("limit", [3, 2**21 + 1, TOP])
def test_cross_products_equal_integer_arithmetic(n: int, limit: int) -> None:
    rng = np.random.default_rng(n)
    left, right = (rng.integers(-limit, limit, (n, k), endpoint=True) for k in (2, 3))
    left[-1:], right[-1:] = limit, -limit
    wanted = [
        sum(int(x) * int(y) for x, y in zip(one, other, strict=True))
        for one in left.T
        for other in right.T
    ]
    found = exact.cross(left, right)
    assert found.tolist() == wanted
    assert found.take(np.array([4, 0])).tolist() == [wanted[4], wanted[0]]
    assert (exact.cross(left[:7], right[:7]) + exact.cross(left[7:], right[7:])).tolist() == wanted


def test_column_sums_equal_integer_arithmetic() -> None:
    rows = np.full((5000, 2), TOP, dtype=np.int64)
    assert exact.column_sums(rows).tolist() == [5000 * TOP, 5000 * TOP]
    assert exact.column_sums(rows[:0]).tolist() == [0, 0]


def test_stored_integers_come_back() -> None:
    values = exact.of([0, 1, -1, 2**127 - 1, -(2**127), -(2**64) - 5])
    data = exact.encode(values)
    assert len(data) == 6 * exact.WIDTH
    assert exact.decode(data, 6).tolist() == values.tolist()


def test_the_largest_sums_that_the_text_promises_still_fit() -> None:
    values = exact.of([TOP * TOP * (2**41)])
    assert exact.decode(exact.encode(values), 1)[0] == TOP * TOP * 2**41


def test_an_integer_beyond_the_width_is_refused_and_never_wrapped() -> None:
    with pytest.raises(OverflowError):
        exact.of([2**127])


@pytest.mark.parametrize("value", [2**127 - 1, -(2**127), 2**126, -(2**126) - 1])
def test_a_sum_beyond_the_width_is_refused_and_never_wrapped(value: int) -> None:
    values = exact.of([0, value])
    with pytest.raises(OverflowError):
        values + values


def edges() -> list[int]:
    """Return integers around the powers of two, of both signs, and some of every length."""
    rng = np.random.default_rng(3)
    near = [2**k + d for k in range(127) for d in (-2, -1, 0, 1, 2)]
    # half-way between two float64, and one beside it
    ties = [(2**53 + odd) * 2**k + d for k in range(60) for odd in (1, 3) for d in (-1, 0, 1)]
    some = [int.from_bytes(rng.bytes(15), "little") >> int(rng.integers(120)) for _ in range(500)]
    return [sign * v for v in (*near, *ties, *some) if v < 2**126 for sign in (1, -1)]


def test_sums_of_two_equal_those_of_python() -> None:
    one = edges()
    other = one[::-1]
    found = (exact.of(one) + exact.of(other)).tolist()
    assert found == [a + b for a, b in zip(one, other, strict=True)]


def test_floats_are_the_nearest_as_python_rounds() -> None:
    for values in (edges(), [v for v in edges() if abs(v) < 2**63], [-(2**127), 2**127 - 1], []):
        assert exact.as_floats(exact.of(values)).tolist() == [float(v) for v in values]


def test_parts_of_vectors_and_joined_ones_are_those_of_lists() -> None:
    values = edges()
    vector = exact.of(values)
    assert vector[-1] == values[-1]
    assert vector[3:9].tolist() == values[3:9]
    assert exact.join(vector[:5], vector[5:]).tolist() == list(vector) == values
    assert len(vector) == len(values)


def test_damaged_sums_are_refused() -> None:
    with pytest.raises(StateError, match="state rebuild"):
        exact.decode(b"\0" * 15, 1)
