from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pipeline.errors import PrivacyError
from pipeline.linalg import pack_upper, unpack_upper
from pipeline.methods import task_of as make_task
from pipeline.methods.renewable.client import (
    local_fit,
    summarise,
    summarise_bounded,
)
from pipeline.privacy.mechanism import INTEGER_LIMIT, Channel, gaussian, laplace
from pipeline.privacy.samplers import DiscreteGaussian
from pipeline.records import blocks
from pipeline.records.encoder import Arrays
from pipeline.release.model import Model, round_model, start_model
from pipeline.release.query import Exact
from pipeline.release.task import Task
from pipeline.study_file.load import parse_study
from tests.builders import oracle, simulate, some_model, study_text, task_of


def values(part: Exact) -> np.ndarray:
    return np.ldexp(part.integers.astype(float), part.exponents)


def window(task: Task, n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    features = rng.uniform(*task.ends, (n, task.size - 1))
    return features, rng.choice([-1.0, 1.0], n)


TASKS = {
    "gdwd": task_of(p=4, maximum=8.0, records=3000),
    "logistic": task_of(p=4, loss="logistic", records=3000),
    "units": task_of(p=3, scaling="none", low=-900.0, high=7.0, records=3000),
    "steep": task_of(p=2, q=500.0, records=3000),
}


@pytest.mark.parametrize("name", TASKS)
def test_bounded_sums_equal_the_plain_ones_up_to_truncation(name: str) -> None:
    """Each record errs by less than one last bit of each factor: 2^-20 and 2^-20, 2^-12 and 2^-14.

    A factor is below the power of two above its bound, so for a column bounded by 2^c and a
    slope bounded by 2^s a product errs by at most 2^(c + s) (2^-20 + 2^-20); for curvatures, of
    columns c and e and a curvature bounded by 2^h, 2^(c + e + h) (2 * 2^-12 + 2^-14).
    """
    task = TASKS[name]
    n = 3000
    features, responses = window(task, n, 1)
    features /= 50 if name == "units" else 1
    model = some_model(task, 3)
    model = Model(3, model.lattice, (1500, 1000))
    weights = tuple(min(w, task.largest_weight) for w in model.class_weights)
    plain = summarise(task, features, responses, model.coefficients, weights)  # type: ignore[arg-type]
    bounded = summarise_bounded(task, features, responses, model)
    column = 2.0 ** np.ceil(np.log2(np.append(1.0, task.magnitudes)))
    slope = 2.0 ** np.ceil(np.log2(task.largest_weight * task.loss.slope_bound))
    curved = 2.0 ** np.ceil(np.log2(task.largest_weight * task.loss.curvature_bound))
    gap = np.abs(values(bounded.gradient) - plain.gradient)
    assert np.all(gap <= n * column * slope * 2.0**-19)
    assert bounded.curvature is not None
    gap = np.abs(values(bounded.curvature) - pack_upper(plain.curvature))
    limit = n * curved * (2 * 2.0**-12 + 2.0**-14) * pack_upper(np.outer(column, column))
    assert np.all(gap <= limit)
    assert tuple(values(bounded.counts)) == plain.counts


def test_the_start_gives_one_unweighted_gradient_for_each_class_negative_first() -> None:
    task = task_of(p=3, maximum=8.0, records=200)
    features, responses = window(task, 200, 3)
    sums = summarise_bounded(task, features, responses, start_model(task.size))
    assert sums.curvature is None
    design = np.column_stack([np.ones(200), features])
    # at zero the slope of y is -y
    wanted = [design[responses < 0].sum(axis=0), -design[responses > 0].sum(axis=0)]
    assert_allclose(values(sums.gradient), np.concatenate(wanted), atol=200 * 2.0**-19)


def test_the_worst_window_of_the_largest_size_is_exact() -> None:
    """A hundred thousand equal records: the sum is that many times one of them."""
    task = task_of(p=2, records=100_000, maximum=1000.0)
    x = np.array([1.0, -(1 - 2.0**-20)])
    model = Model(1, np.zeros(3, dtype=np.int64), (10**6, 10**6))
    one = summarise_bounded(task, x[None], np.ones(1), model)
    many = summarise_bounded(task, np.tile(x, (100_000, 1)), np.ones(100_000), model)
    assert many.gradient.integers.tolist() == (100_000 * one.gradient.integers).tolist()
    assert one.curvature is not None
    assert many.curvature is not None
    assert many.curvature.integers.tolist() == (100_000 * one.curvature.integers).tolist()
    assert one.middle is not None
    assert many.middle is not None
    assert many.middle.integers.tolist() == (100_000 * one.middle.integers).tolist()
    for name, part in task.update_channels.parts.items():
        sums = getattr(many, name)
        rounded = part.round(sums.integers, sums.exponents)
        largest = part.largest(task.slots)
        assert np.abs(rounded).max() + 16 * part.standard_deviation / part.unit <= largest + 1
        assert largest < INTEGER_LIMIT


def summed(*factors: np.ndarray) -> int:
    """Return the sum of products of whole numbers, in integers without end."""
    product = factors[0].astype(np.int64).astype(object)
    for factor in factors[1:]:
        product = product * factor.astype(np.int64).astype(object)
    return int(product.sum())


@pytest.mark.parametrize("extreme", [True, False])
def test_three_sums_over_many_records_are_those_of_big_integers(extreme: bool) -> None:
    rng, n = np.random.default_rng(13), 200_000
    if extreme:
        # the largest that there can be, of one sign or of both, and a last bit that could be lost
        rows = np.full((n, 2), 2.0**20) * np.array([1.0, -1.0])
        slopes, bent, squares = np.full(n, 2.0**20), np.full(n, 2.0**14), np.full(n, 2.0**14)
        rows[-1], slopes[-1] = (1.0, -1.0), 1.0
    else:
        rows = np.trunc(rng.uniform(-(2**20), 2**20, (n, 2)))
        slopes = np.trunc(rng.uniform(-(2**20), 2**20, n))
        bent, squares = np.trunc(rng.uniform(0, 2**14, (2, n)))
    gradient = [summed(slopes, row) for row in rows.T]
    one, two = np.trunc(rows / 2**8).T
    matrices = [
        [summed(weights, *pair) for pair in ((one, one), (one, two), (two, two))]
        for weights in (bent, squares)
    ]
    found = blocks.exact_sums(rows, slopes, bent, squares)
    assert found[0].tolist() == gradient
    assert [pack_upper(matrix).tolist() for matrix in found[1:]] == matrices


def test_no_sum_of_a_window_can_pass_an_integer_and_no_larger_window_is_allowed() -> None:
    features, slopes = blocks.GRADIENT_BITS
    assert blocks.MOST_RECORDS * 2 ** (features + slopes) < 2**63
    assert (
        blocks.MOST_RECORDS * 2 ** (2 * blocks.CURVATURE_BITS[0] + blocks.CURVATURE_BITS[1]) < 2**63
    )
    text = study_text(p=2, records=100_000)
    most = blocks.MOST_RECORDS
    make_task(parse_study(text.replace("records = 100000", f"records = 100000\nmost = {most}")))
    with pytest.raises(PrivacyError, match=r"window\.most"):
        make_task(parse_study(text.replace("records = 100000", "records = 100000\nmost = 9000000")))


def test_the_middle_is_the_sum_of_outer_products_of_clipped_gradients() -> None:
    task = task_of(p=4, maximum=8.0, records=3000, loss="logistic")
    features, responses = window(task, 3000, 14)
    model = Model(3, some_model(task, 3).lattice, (1500, 10**6))
    sums = summarise_bounded(task, features, responses, model)
    weights = (1500 / 1024, 8.0)
    plain = summarise(task, features, responses, model.coefficients, weights)
    assert sums.middle is not None
    # a factor of 14 bits and two rows of 12, as for the curvature
    gap = np.abs(values(sums.middle) - pack_upper(plain.scores))
    assert np.all(gap <= 3000 * 64 * (2 * 2.0**-12 + 2.0**-14))
    assert gap.max() > 0
    start = summarise_bounded(task, features, responses, start_model(task.size))
    assert start.middle is None


def test_an_empty_window_sums_to_zero() -> None:
    task = TASKS["gdwd"]
    none = (np.zeros((0, 4)), np.zeros(0))
    for version in (0, 1):
        sums = summarise_bounded(task, *none, some_model(task, version))
        assert all(not part.integers.any() for part in (sums.gradient, sums.counts))
    assert summarise(task, *none, np.zeros(5), (1.0, 1.0)).records == 0


def test_more_records_than_slots_are_refused() -> None:
    task = task_of(p=2, records=5)
    features, responses = window(task, 6, 1)
    task.query(Arrays(features[:5], responses[:5]), some_model(task, 1))
    with pytest.raises(PrivacyError, match=r"window\.records"):
        task.query(Arrays(features, responses), some_model(task, 1))


@pytest.mark.parametrize("records", [1, 5, 6, 14, 15])
def test_sums_of_blocks_together_are_those_of_one_after_the_other(records: int) -> None:
    """To the last bit, with some empty slots, and with what each block may hold."""
    task = task_of(p=2, records=5)
    features, responses = window(task, records, 1)
    responses[::4] = np.nan
    slots = Arrays(features, responses)
    for model in (task.first_model, some_model(task, 1)):
        together, alone = task.query_blocks(slots, model), Task.query_blocks(task, slots, model)
        assert together.blocks == alone.blocks == -(-records // 5)
        for one, other in zip(together.parts.values(), alone.parts.values(), strict=True):
            assert one.slots == other.slots == 5 * together.blocks
            assert [p.values.tolist() for p in one.pieces()] == [
                p.values.tolist() for p in other.pieces()
            ]


def test_rounding_is_to_the_nearest_and_moves_two_values_apart_by_less_than_one_unit() -> None:
    rng = np.random.default_rng(8)
    for exponent in (-30, -5, 0, 7):
        part = Channel(exponent, 1.0, DiscreteGaussian(2.0**14))
        integers = rng.integers(-(2**40), 2**40, 2000)
        exponents = rng.integers(exponent - 35, exponent - 1, 2000)
        real = np.ldexp(integers.astype(float), exponents)
        rounded = part.round(integers, exponents)
        assert np.all(np.abs(rounded * part.unit - real) <= part.unit / 2)
    integers = rng.integers(-(2**30), 2**30, 1000)
    finer = Channel(-10, 1.0, DiscreteGaussian(2.0**14))
    assert finer.round(integers, np.zeros(1000, dtype=np.int64)).tolist() == [
        1024 * int(i) for i in integers
    ]


@pytest.mark.parametrize(
    ("integer", "exponent"), [(2**42, 0), (-(2**42), 0), (1, 42), (-1, 60), (2**50, -8)]
)
def test_a_sum_that_does_not_fit_is_refused_and_never_wrapped(integer: int, exponent: int) -> None:
    part = Channel(0, 1.0, DiscreteGaussian(2.0**14))
    with pytest.raises(PrivacyError, match="does not fit"):
        part.round(np.array([integer, 0]), np.array([exponent, 0]))


@pytest.mark.parametrize("sensitivity", [0.0, -1.0, float("inf"), float("nan")])
def test_an_impossible_sensitivity_is_refused(sensitivity: float) -> None:
    for calibrate in (gaussian, laplace):
        with pytest.raises(PrivacyError):
            calibrate(sensitivity, 1.0, 1.0)


@pytest.mark.parametrize("sensitivity", [1e-6, 0.3, 1.0, 1000.0])
@pytest.mark.parametrize("mu", [1e-5, 0.1, 1.0, 30.0])
def test_a_channel_has_the_noise_that_its_sensitivity_needs(sensitivity: float, mu: float) -> None:
    part = gaussian(sensitivity, 3.0, mu)
    assert part.sensitivity == pytest.approx(sensitivity + 3 * part.unit)
    needed = (part.sensitivity / part.unit / mu) ** 2 + 1 / 12
    assert part.noise.standard_deviation**2 == pytest.approx(needed, rel=1e-12)
    # as coarse as noise of 2^14 units and a rounding share of 1 / 256 let it be, by powers of two
    assert 3 * part.unit <= sensitivity / 256
    assert part.noise.standard_deviation >= 2**14
    by_noise = part.noise.standard_deviation <= 2**15 * (1 + 1 / 256)
    by_rounding = 2 * 3 * part.unit > sensitivity / 256
    assert by_noise or by_rounding


@pytest.mark.parametrize("budget", [1e-7, 1e-9])
@pytest.mark.parametrize("calibrate", [gaussian, laplace])
def test_the_noise_of_a_tiny_budget_still_fits_the_lattice(
    calibrate: Callable[[float, float, float], Channel], budget: float
) -> None:
    part = calibrate(2.0, 3.0, budget)
    assert part.largest(100_000) < INTEGER_LIMIT
    assert part.sensitivity == pytest.approx(2.0 + 3 * part.unit)
    # there the lattice is coarse, and rounding a part of the distance that has its price
    deviation = part.noise.standard_deviation * budget * part.unit
    assert deviation == pytest.approx(
        part.sensitivity * (1 if calibrate is gaussian else math.sqrt(2)), rel=1e-9
    )
    # rounding alone takes three units, and so noise of 3e12: no lattice holds that
    with pytest.raises(PrivacyError, match="noise scale"):
        calibrate(2.0, 3.0, 1e-12)


def test_the_local_fit_lowers_the_objective_close_to_its_least() -> None:
    features, responses = simulate(np.random.default_rng(10), 4000, 3)
    task = task_of(p=3, private=False)
    found = local_fit(task.loss, features, responses, 0.01)
    wanted = oracle(features, responses, np.ones(4000), q=1.0, ridge=0.01)
    assert_allclose(found, wanted, atol=0.1)


@pytest.mark.parametrize("label", [1.0, -1.0])
def test_the_local_fit_survives_a_window_of_one_class(label: float) -> None:
    task = task_of(p=3, private=False)
    features, _ = simulate(np.random.default_rng(11), 30, 3)
    for x in (features, features[:1], np.zeros((5, 3))):
        found = local_fit(task.loss, x, np.full(len(x), label), 0.0)
        assert np.all(np.isfinite(found))
        assert np.abs(found).max() < 4096


def test_packing_a_symmetric_matrix_is_undone_by_unpacking() -> None:
    rng = np.random.default_rng(12)
    half = rng.normal(size=(5, 5))
    whole = half + half.T
    assert np.array_equal(unpack_upper(pack_upper(whole), 5), whole)


def test_a_model_on_its_lattice_is_exact_in_float64() -> None:
    model = round_model(1, np.array([1 / 3, -4000.123]), (1.0, 1.0))
    assert np.array_equal(np.ldexp(model.coefficients, 12), model.lattice)
