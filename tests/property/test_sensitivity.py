"""Adversarial search: neighbouring windows on the lattice, against the stated distance.

In the norm of the study's mechanism: L2 for Gaussian noise, L1 for Laplace noise.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from pipeline.privacy import sensitivity
from pipeline.privacy.sensitivity import Bounds, Order
from pipeline.records.encoder import Encoder
from pipeline.release.model import COEFFICIENT_LIMIT, Model
from pipeline.release.task import Task
from tests import sgd
from tests.builders import task_of
from tests.neighbours import (
    Neighbours,
    Window,
    climbed,
    distances,
    random_pair,
    random_record,
    searched,
)

MECHANISMS = ["discrete-gaussian", "discrete-laplace"]
mechanisms = pytest.mark.parametrize("mechanism", MECHANISMS)
#: How long the search for the worst neighbours of a study is.
EFFORTS = (1, pytest.param(20, marks=pytest.mark.slow))
#: Features whose zero is not the middle of their range, which so is not as far on both sides.
OFF_CENTRE = (
    "a = { min = 0, max = 1e6, transform = 'asinh', unit = 100, typical = 50 }",
    "b = { min = 0, max = 40, typical = 1 }",
    "c = { min = 0, max = 9, transform = 'log1p', typical = 9 }",
)
CATEGORIES = (
    "a = { min = 0, max = 1e6, transform = 'asinh', unit = 100, typical = 50 }",
    "b = { min = -2, max = 2 }",
    "c = { kind = 'category', levels = ['n', 's', 'w', 'e'], base = 's' }",
    "e = { kind = 'category', levels = ['0', '1', '2'] }",
)
STUDIES = {
    "unit": {"p": 3},
    "unit-weighted": {"p": 3, "maximum": 8.0},
    "clipped": {"p": 4, "norm_bound": 1.6, "maximum": 3.7},
    "barely-clipped": {"p": 2, "norm_bound": 1.05},
    "units-kept": {"p": 3, "scaling": "none", "low": -7.0, "high": 3.0},
    "units-clipped": {"p": 3, "scaling": "none", "low": -7.0, "high": 900.0, "norm_bound": 9.0},
    "logistic": {"p": 2, "loss": "logistic"},
    "linear": {"p": 2, "loss": "linear", "least": -2.0, "most": 6.0},
    "linear-narrow": {"p": 2, "loss": "linear", "residual_bound": 0.3},
    "linear-known": {"p": 2, "loss": "linear", "noise_scale": 0.3},
    "poisson": {"p": 2, "loss": "poisson", "most": 20},
    "poisson-clipped": {"p": 3, "loss": "poisson", "most": 1, "norm_bound": 1.3},
    "heavy-tail": {"p": 2, "q": 0.01},
    "hinge-like": {"p": 2, "q": 1000.0},
    "one-feature": {"p": 1, "norm_bound": 1.2},
    "off-centre": {"declared": OFF_CENTRE},
    "categories": {"declared": CATEGORIES, "maximum": 3.0},
    "interactions": {"declared": CATEGORIES, "interactions": ["a:c", "c:e", "a:b"]},
    "interactions-clipped": {
        "declared": CATEGORIES, "interactions": ["a:c", "c:e"], "norm_bound": "typical",
    },
    "interactions-of-units": {
        "declared": CATEGORIES, "interactions": ["a:c", "a:b"], "scaling": "none",
    },
    "smoothing": {"p": 3, "smoothing": 0.25, "maximum": 3.7},
}  # fmt: skip


#: Each study with both mechanisms and with both kinds of neighbours; a long run has each with each.
APART = [
    pytest.param(
        settings, neighbours, mechanism, id=f"{name}-{neighbours}-{mechanism}",
        marks=[pytest.mark.slow] * ((number + one + other) % 2),
    )
    for number, (name, settings) in enumerate(STUDIES.items())
    for one, neighbours in enumerate(("zero-out", "replace-one"))
    for other, mechanism in enumerate(MECHANISMS)
]  # fmt: skip


@pytest.mark.parametrize(("settings", "neighbours", "mechanism"), APART)
@pytest.mark.parametrize("effort", EFFORTS)
def test_no_neighbours_are_further_apart_than_stated(
    effort: int, settings: dict[str, object], neighbours: str, mechanism: str
) -> None:
    task = task_of(neighbours=neighbours, mechanism=mechanism, **settings)
    rng = np.random.default_rng(7)
    for start in (True, False):
        parts = ["gradient"] if start else ["gradient", "curvature"]
        assert searched(task, rng, parts, 12 * effort, 20 * effort, start=start) <= 1.0


@mechanisms
@pytest.mark.parametrize(
    ("epsilon", "user_records"),
    [(1e-4, None), (0.01, None), (1.0, None), (10.0, None), (1e-4, 5000), (1.0, 5000),
     (10.0, 5000), (1.0, 10**5)],
)  # fmt: skip
def test_the_distance_holds_on_the_lattice_of_any_budget(
    epsilon: float, user_records: int | None, mechanism: str
) -> None:
    """A tiny budget makes the lattice coarser than one record; rounding is a part of the distance.

    On a lattice with a unit above 1 two neighbouring counts can round to points a unit apart.
    """
    delta = 1e-3 if epsilon > 5 else 1e-7
    if user_records and mechanism == "discrete-gaussian":
        # so many numbers of one user need an epsilon in which the discrete law does not show
        epsilon = max(epsilon, 2e-6 * user_records)
    task = task_of(
        p=1, epsilon=epsilon, delta=delta, user_records=user_records, records=100_000,
        mechanism=mechanism,
    )  # fmt: skip
    zero = np.zeros(2, dtype=np.int64)
    for part in (task.initial_channels.counts, task.update_channels.counts):
        assert part is not None
        middle = min(task.slots, max(1, math.ceil(part.unit / 2)))
        for count in (1, middle):
            one = part.round(np.array([0, count]), zero)
            two = part.round(np.array([0, count - 1]), zero)
            apart = np.linalg.norm(one - two, task.budget.mechanism.order)
            assert apart * part.unit <= part.sensitivity


#: Studies of single records with all that they can release; one norm cuts no record, others do.
RECORDS = {
    "linear": {"path": "clipping_norm = 2.0"},
    "linear-weighted": {"path": "clipping_norm = 1.2"},
    "linear-inside": {"path": "clipping_norm = 0.7"},
    "logistic": {"loss": "logistic", "path": "clipping_norm = 1.5"},
    "expectile": {
        "loss": "expectile", "estimator": "residual_bound = 3\ntau = 0.8",
        "path": "clipping_norm = 1.4",
    },
}  # fmt: skip


def record_task(settings: dict[str, str], mechanism: str, **more: object) -> Task:
    path = f'{settings["path"]}, releases = "gradients+curvature+products"'
    return sgd.task_of(**{**settings, "path": path, "mechanism": mechanism, "records": 6, **more})


@mechanisms
@pytest.mark.parametrize("settings", RECORDS.values(), ids=RECORDS.keys())
@pytest.mark.parametrize("effort", EFFORTS)
def test_no_two_records_move_any_part_further_than_stated(
    effort: int, settings: dict[str, str], mechanism: str
) -> None:
    task, rng = record_task(settings, mechanism), np.random.default_rng(8)
    assert searched(task, rng, [], 12 * effort, 0, start=True) <= 1.0
    parts = ["gradient", "curvature", "products"]
    assert searched(task, rng, parts, 12 * effort, 30 * effort, start=False) <= 1.0


CORNERS = (np.ones(3), np.array([1.0, -1.0, -1.0]))
_EVEN = np.array([1.0, 1.0, 0.0]) / math.sqrt(2)
#: Features of norm sqrt(1.25) whose records, (1, x), are orthogonal and have the norm 1.5.
SHORTER = tuple(
    math.sqrt(1.25) * x for x in (_EVEN, -0.8 * _EVEN + np.array([0.0, 0.0, 0.6]))
)  # fmt: skip


@pytest.mark.parametrize(
    ("clipping_norm", "features", "response", "part"),
    [
        # residuals of zero have the full curvature, whose weights make any record as long as the
        # norm; those beyond the bound have the full slope, and products the length of w(x) x
        ("2.0", CORNERS, 0.0, "curvature"),
        ("1.2", CORNERS, 0.0, "curvature"),
        ("0.7", CORNERS, 0.0, "curvature"),
        ("2.0", CORNERS, 1.0, "products"),
        ("1.5", SHORTER, 1.0, "products"),
    ],
)  # fmt: skip
def test_matrices_of_records_reach_the_distance_where_records_are_orthogonal(
    clipping_norm: str, features: tuple[np.ndarray, np.ndarray], response: float, part: str
) -> None:
    task = record_task({"path": f"clipping_norm = {clipping_norm}"}, "discrete-gaussian")
    one, two = features
    assert 1 + one @ two == pytest.approx(0)
    model = Model(1, np.zeros(4, dtype=np.int64), (1024, 1024))
    nobody = (np.zeros((0, 3)), np.zeros(0))
    found = distances(task, Neighbours(nobody, (one, response), (two, response), model))
    assert 0.97 < found[part] <= 1


@mechanisms
def test_the_gradient_of_a_record_reaches_the_distance_where_its_response_flips(
    mechanism: str,
) -> None:
    task = record_task({"path": "clipping_norm = 2.0"}, mechanism)
    nobody = (np.zeros((0, 3)), np.zeros(0))
    model = Model(1, np.zeros(4, dtype=np.int64), (1024, 1024))
    pair = Neighbours(nobody, (np.ones(3), 1.0), (np.ones(3), -1.0), model)
    assert 0.97 < distances(task, pair)["gradient"] <= 1


def flat_model(task: Task) -> Model:
    """Return a model at which every record has its full slope and, for gdwd, no curvature."""
    top = round(task.largest_weight * 1024)
    return Model(1, np.zeros(task.size, dtype=np.int64), (top, top))


def steep_model(task: Task) -> Model:
    """Return a model at which every record with y = 1 has its full curvature: u below the top."""
    loss = task.loss
    lattice = np.zeros(task.size, dtype=np.int64)
    lattice[0] = math.floor(loss.top * 4096)  # type: ignore[attr-defined]
    top = round(task.largest_weight * 1024)
    return Model(1, lattice, (top, top))


NOBODY: Window = (np.zeros((0, 8)), np.zeros(0))


REGRESSIONS = {
    "linear": {"loss": "linear", "residual_bound": 0.3},
    "poisson": {"loss": "poisson", "most": 8},
}  # fmt: skip


@mechanisms
@pytest.mark.parametrize("settings", REGRESSIONS.values(), ids=REGRESSIONS.keys())
def test_the_distances_of_a_regression_are_reached_where_a_record_vanishes(
    settings: dict[str, object], mechanism: str
) -> None:
    task = task_of(p=8, mechanism=mechanism, **settings)
    most = task.study.data.response.ends[1]
    # a mean far below the response has the largest slope, one close to it the largest curvature
    near = math.log(most) if task.loss.name == "poisson" else most
    for intercept, parts in ((-20.0, ("gradient", "counts")), (near, ("curvature",))):
        lattice = np.zeros(task.size, dtype=np.int64)
        lattice[0] = math.floor(intercept * 4096)
        pair = Neighbours(NOBODY, (np.ones(8), most), None, Model(1, lattice, (1024, 1024)))
        found = distances(task, pair)
        for part in parts:
            assert 0.97 < found[part] <= 1


@mechanisms
@pytest.mark.parametrize(
    ("declared", "interactions"),
    [(OFF_CENTRE, []), (CATEGORIES, []), (CATEGORIES, ["a:c", "c:e", "a:b"])],
)
def test_the_distances_of_declared_features_are_reached_by_records_that_can_be(
    declared: tuple[str, ...], interactions: list[str], mechanism: str
) -> None:
    """Levels exclude each other, and a range reaches as far as its own ends: no noise is wasted."""
    task = task_of(
        declared=declared, interactions=interactions, mechanism=mechanism, smoothing=0.25
    )
    record: dict[str, object] = {"a": 1e6, "b": 40, "c": 0, "e": "1", "y": "1"}
    if declared is CATEGORIES:
        record |= {"b": 2, "c": "w"}
    farthest = Encoder(task.study).encode(record).features
    assert np.linalg.norm(np.append(1.0, farthest)) == pytest.approx(task.longest)
    nobody = (np.zeros((0, task.size - 1)), np.zeros(0))
    for model, part in ((flat_model(task), "gradient"), (steep_model(task), "curvature")):
        found = distances(task, Neighbours(nobody, (farthest, 1.0), None, model))
        assert 0.97 < found[part] <= 1


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_record_with_all_levels_at_once_moves_nothing_further_than_one_with_one(
    mechanism: str,
) -> None:
    """No encoder makes such a record; what comes all the same is cut to what a record can be."""
    task = task_of(declared=CATEGORIES, interactions=["a:c", "c:e"], mechanism=mechanism)
    nobody = (np.zeros((0, task.size - 1)), np.zeros(0))
    full = task.magnitudes * np.random.default_rng(1).uniform(0.9, 5, task.size - 1)
    pair = Neighbours(nobody, (full, 1.0), None, flat_model(task))
    assert 0.9 < distances(task, pair)["gradient"] <= 1


@mechanisms
def test_the_gradient_distance_is_reached_where_a_record_vanishes(mechanism: str) -> None:
    for maximum in (None, 8.0):
        task = task_of(p=8, maximum=maximum, mechanism=mechanism)
        pair = Neighbours(NOBODY, (np.ones(8), 1.0), None, flat_model(task))
        assert 0.97 < distances(task, pair)["gradient"] <= 1
        start = Model(0, np.zeros(9, dtype=np.int64), (1024, 1024))
        pair = Neighbours(NOBODY, (np.ones(8), -1.0), None, start)
        assert 0.97 < distances(task, pair)["gradient"] <= 1


STARTS = {
    "gdwd": {},
    "gdwd-q": {"q": 0.3},
    "logistic": {"loss": "logistic"},
    "linear": {"loss": "linear"},
    "linear-narrow": {"loss": "linear", "residual_bound": 0.3},
    "poisson": {"loss": "poisson", "most": 8},
}  # fmt: skip


@mechanisms
@pytest.mark.parametrize("settings", STARTS.values(), ids=STARTS.keys())
def test_the_start_distance_is_reached_where_a_record_vanishes(
    settings: dict[str, object], mechanism: str
) -> None:
    """Noise for slopes that no loss has at the start would be wasted on every first release."""
    task = task_of(p=8, mechanism=mechanism, **settings)
    most = 8.0 if task.loss.responses == "count" else 1.0
    pair = Neighbours(NOBODY, (np.ones(8), most), None, task.first_model)
    assert 0.97 < distances(task, pair)["gradient"] <= 1


@mechanisms
def test_a_hostile_point_called_the_start_moves_no_record_beyond_the_distance(
    mechanism: str,
) -> None:
    """Away from zero a logistic slope is up to twice that of the start: it is cut."""
    task = task_of(p=8, mechanism=mechanism, loss="logistic")
    lattice = np.full(9, -COEFFICIENT_LIMIT, dtype=np.int64)
    pair = Neighbours(NOBODY, (np.ones(8), 1.0), None, Model(0, lattice, (1024, 1024)))
    assert 0.97 < distances(task, pair)["gradient"] <= 1


@mechanisms
def test_the_gradient_distance_is_reached_where_a_label_flips(mechanism: str) -> None:
    task = task_of(p=8, neighbours="replace-one", maximum=4.0, mechanism=mechanism)
    pair = Neighbours(NOBODY, (np.ones(8), 1.0), (np.ones(8), -1.0), flat_model(task))
    assert 0.97 < distances(task, pair)["gradient"] <= 1
    assert 0.999 < distances(task, pair)["counts"] <= 1


def test_the_start_distance_is_nearly_reached_where_features_are_mirrored() -> None:
    task = task_of(p=8, neighbours="replace-one")
    start = Model(0, np.zeros(9, dtype=np.int64), (1024, 1024))
    pair = Neighbours(NOBODY, (np.ones(8), 1.0), (-np.ones(8), 1.0), start)
    # at zero the intercept's part cancels: 2 sqrt(C^2 - 1) of 2 C
    assert 0.92 < distances(task, pair)["gradient"] <= 1


@mechanisms
def test_the_curvature_distance_is_reached(mechanism: str) -> None:
    task = task_of(p=8, maximum=2.0, smoothing=0.25, mechanism=mechanism)
    pair = Neighbours(NOBODY, (np.ones(8), 1.0), None, steep_model(task))
    assert 0.97 < distances(task, pair)["curvature"] <= 1
    assert 0.999 < distances(task, pair)["counts"] <= 1


def test_the_curvature_distance_is_reached_by_orthogonal_records() -> None:
    task = task_of(p=7, neighbours="replace-one", smoothing=0.25)
    nobody = (np.zeros((0, 7)), np.zeros(0))
    one, two = np.ones(7), np.array([1.0, 1.0, 1.0, -1.0, -1.0, -1.0, -1.0])
    assert 1 + one @ two == 0
    pair = Neighbours(nobody, (one, 1.0), (two, 1.0), steep_model(task))
    assert 0.97 < distances(task, pair)["curvature"] <= 1


@pytest.mark.parametrize(
    "mechanism", ["discrete-gaussian", pytest.param("discrete-laplace", marks=pytest.mark.slow)]
)
def test_the_climb_finds_the_worst_case_by_itself(mechanism: str) -> None:
    """The search can find what it looks for: else the tests above would prove little."""
    task = task_of(p=2, mechanism=mechanism)
    rng = np.random.default_rng(1)
    for part in ("gradient", "curvature"):
        best = 0.0
        for _ in range(3):
            pair = random_pair(task, rng, start=False)
            pair = Neighbours(NOBODY_OF_TWO, pair.one, None, flat_model(task))
            most = climbed(task, rng, pair, lambda shares, p=part: shares[p], 250)
            best = max(best, most[part])
        assert 0.93 < best <= 1.0


NOBODY_OF_TWO: Window = (np.zeros((0, 2)), np.zeros(0))


@mechanisms
@pytest.mark.parametrize("weights", [(10**15, 10**15), (0, 10**18), (-(10**9), 5), (1, -1)])
@pytest.mark.parametrize("coefficient", [COEFFICIENT_LIMIT, -COEFFICIENT_LIMIT, 2**62, 0, 1])
def test_a_hostile_model_moves_no_record_beyond_the_distance(
    weights: tuple[int, int], coefficient: int, mechanism: str
) -> None:
    task = task_of(p=3, maximum=5.0, scaling="none", low=-300.0, high=300.0, mechanism=mechanism)
    rng = np.random.default_rng(2)
    for version in (0, 1):
        lattice = coefficient * rng.choice([-1, 1], 4)
        model = Model(version, lattice.astype(np.int64), weights)
        for _ in range(20):
            pair = Neighbours(
                (np.zeros((0, 3)), np.zeros(0)), random_record(task, rng), None, model
            )
            assert max(distances(task, pair).values()) <= 1.0


# --- the formulas ----------------------------------------------------------------------------


def svec(matrix: np.ndarray) -> np.ndarray:
    """Return the diagonal, and the entries above it times sqrt 2; shape (n, d (d + 1) / 2)."""
    size = matrix.shape[-1]
    left, right = np.triu_indices(size)
    return matrix[:, left, right] * np.where(left == right, 1.0, math.sqrt(2))


def into(bounds: Bounds, x: np.ndarray) -> np.ndarray:
    """Shorten features, shape (n, d - 1), until (1, x) keeps both norms."""
    l1, l2 = np.abs(x).sum(axis=1), np.linalg.norm(x, axis=1)
    shares = [(bounds.l1 - 1) / np.maximum(l1, 1e-12),
              math.sqrt(bounds.l2**2 - 1) / np.maximum(l2, 1e-12)]  # fmt: skip
    return x * np.minimum(1.0, np.minimum(*shares))[:, None]


def farthest(bounds: Bounds, size: int, order: Order, *, replaced: bool, curved: bool) -> float:
    """Search for the records that are furthest apart, by steps of many climbers at once."""
    rng, n, p = np.random.default_rng(9), 300, size - 1
    points = rng.normal(size=(n, 2, p)) * rng.choice([1.0, 0.0], (n, 2, p), p=[0.7, 0.3])
    points[: n // 4] = np.sign(points[: n // 4])
    # a slope of either sign, a curvature of at most one
    factors = rng.choice([0.0, 1.0] if curved else [-1.0, 1.0], (n, 2))
    if not replaced:
        factors[:, 1] = 0.0

    def apart(points: np.ndarray) -> np.ndarray:
        sums = []
        for side in (0, 1):
            row = np.column_stack([np.ones(n), into(bounds, points[:, side])])
            if curved:
                row = svec(row[:, :, None] * row[:, None, :])
            sums.append(factors[:, side, None] * row)
        return np.asarray(np.linalg.norm(sums[0] - sums[1], order, axis=1))

    best = apart(points)
    for turn in range(60):
        moved = points + rng.normal(size=points.shape) * 0.9**turn
        found = apart(moved)
        points[found > best] = moved[found > best]
        best = np.maximum(best, found)
    return float(best.max())


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize("size", [2, *(pytest.param(s, marks=pytest.mark.slow) for s in (3, 6))])
def test_no_bounded_records_are_further_apart_than_the_formulas_say(
    size: int, replaced: bool, order: Order
) -> None:
    neighbours: sensitivity.Neighbours = "replace-one" if replaced else "zero-out"
    for l2 in (1.05, 1.3, 1.9, math.sqrt(size)):
        for l1 in (1 + math.sqrt((size - 1) * (l2**2 - 1)), 1 + 1.1 * math.sqrt(l2**2 - 1)):
            bounds = Bounds(l1, l2)
            for curved in (False, True):
                formula = sensitivity.of_curvature if curved else sensitivity.of_gradient
                stated = formula(bounds, 1.0, neighbours, order)
                found = farthest(bounds, size, order, replaced=replaced, curved=curved)
                assert found <= stated * (1 + 1e-12)
                # an absence is a single record; no record has both norms where l1 is the short one
                if not replaced and l1 == 1 + math.sqrt((size - 1) * (l2**2 - 1)):
                    assert found > 0.99 * stated


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize("clipping_norm", [0.6, 1.0, 1.3, 2.0])
def test_no_shrunk_products_are_further_apart_than_the_formula_says(
    clipping_norm: float, replaced: bool, order: Order
) -> None:
    """Records are shrunk whole, by any factor: w(x) for products, its root for curvatures."""
    neighbours: sensitivity.Neighbours = "replace-one" if replaced else "zero-out"
    rng, n, size = np.random.default_rng(3), 4000, 4
    bounds = Bounds(1.0 + 3.0, 2.0)
    stated = sensitivity.of_outer_product(bounds, 1.0, clipping_norm, size, neighbours, order)
    x = rng.choice([-1.0, 1.0], (n, 2, size - 1)) * rng.choice([1.0, 0.3], (n, 2, 1))
    rows = np.concatenate([np.ones((n, 2, 1)), x], axis=2)
    rows *= np.minimum(1.0, clipping_norm / np.linalg.norm(rows, axis=2))[:, :, None]
    if not replaced:
        rows[:, 1] = 0.0
    one, two = (svec(rows[:, i, :, None] * rows[:, i, None, :]) for i in (0, 1))
    found = np.linalg.norm(one - two, order, axis=1).max()
    assert found <= stated * (1 + 1e-12)
    # all signs occur: orthogonal ones, whose L2 distance is the stated one, and full L1 norms
    if order == 2 or not replaced:
        assert found > 0.999 * stated
