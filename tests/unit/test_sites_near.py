"""When scores of sites are near, and what false points, levels and ridges do to intervals."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.optimize import fsolve
from scipy.special import expit

from benchmarks.sites_coverage import RESULTS, Cell, stream, table
from pipeline.api.planning import proposed
from pipeline.estimators.estimate import Estimate
from pipeline.estimators.population import Population
from pipeline.linalg import Floored, packed_indices
from pipeline.methods import method_of
from pipeline.methods import task_of as make_task
from pipeline.methods.noisy_copies import estimate as copies_estimate
from pipeline.methods.noisy_copies import estimate as copies_near
from pipeline.methods.noisy_copies.client import CopiesTask
from pipeline.methods.noisy_copies.infembler import Assembled, Copies, Drawn, Sent, covariance
from pipeline.methods.noisy_mle import estimate as solving
from pipeline.methods.noisy_mle.client import SiteTask
from pipeline.methods.noisy_mle.estimate import Fit, Points, held_back
from pipeline.methods.sites import robust as near
from pipeline.methods.sites.state import Shape, SiteState, epochs_of, needed_sites
from pipeline.privacy.memory import EPOCHS, epoch_of
from pipeline.release.model import COEFFICIENT_EXPONENT
from pipeline.release.task import form_of
from pipeline.simulate.coverage import Size, simulated
from pipeline.simulate.coverage import stream as simulated_stream
from pipeline.stream.in_process import OfflineRun
from pipeline.study_file.load import parse_study
from tests.sites import name_of, study_text, task_of

#: Steep slopes and large windows: what linearised scores leave out is far more than chance.
STEEP = Cell("logistic", 6000, 6, 8.0, rounds=4)


#: Ridges of copies hold back what few records say.
COPIES = Cell("logistic", 6000, 10, 8.0, intercept=1.0, release="copies", rounds=3, rare=0.05)

LINEAR_COPIES = study_text(
    kind="noisy-copies", p=3, loss="linear", records=400, epsilon=4.0, noise_scale=0.15
)


def task_of_copies(text: str, records: int) -> CopiesTask:
    task = make_task(parse_study(text.replace("records = 400", f"records = {records}")))
    assert isinstance(task, CopiesTask)
    return task


def test_copies_wait_until_ridges_hold_no_rare_level_back() -> None:
    told = [estimate for estimate, _ in stream(COPIES, 1)]
    assert [estimate.status for estimate in told] == ["warming", "ready", "ready"]
    assert told[0].reason == copies_near.FAR
    assert told[0].progress is not None
    assert told[0].progress.share == 0.5
    # the first windows are out: a step to the estimate is no shorter for their sake
    assert np.all(told[0].expansion == told[0].coefficients)
    assert told[1].effective_records == pytest.approx(COPIES.sites * COPIES.records)


def test_what_copies_leave_out_is_what_their_ridge_holds_back() -> None:
    task = COPIES.task(1)
    assert isinstance(task, CopiesTask)
    size, point, theta = task.size, np.array([0.2, 0.1, 0.0, -0.1]), np.array([0.5, 0.1, 0.0, -0.4])
    information, ones = 0.2 * np.eye(size), np.ones(1)
    drawn = Drawn(np.zeros(1, dtype=np.int64), point[None, :], np.zeros(1), ones)
    ridge = task.ridge / task.slots
    copies = Copies(
        ones * task.slots, ones * 39, ones * task.scale, ones * task.scale / 40, theta[None, :],
        np.eye(size)[None], ridge, point[None, :],
    )  # fmt: skip
    fit = copies_estimate.Fit(
        Assembled(theta, information, information, np.eye(size)[None]), ones, ones
    )
    sent = Sent(["site"], copies, ones, ones, drawn)
    # a fit of equal information in all directions goes 0.2 / (0.2 + ridge) of the way
    way = ridge / (0.2 + ridge) * np.abs(point - theta)
    reach = np.sum(np.abs(theta)) + np.sum(way)
    square = float(way @ way)
    least = np.tanh(reach / 2) / 2 * np.sqrt(square) * min(np.sum(way), 2 * np.sqrt(square))
    bent, moved = copies_near.left_out(task, sent, fit, np.zeros((size, size)))
    assert least < bent < 1.2 * least
    # half of the square of the way, in curvature: a record tells of one coefficient at most 1
    assert moved == pytest.approx(np.full(size, min(bent, bent * np.sqrt(square) / np.sum(way))))
    # chance hides how far it is
    assert np.all(copies_near.left_out(task, sent, fit, 1e-4 * np.eye(size))[1] > moved)
    # and a larger ridge holds more back
    longer = replace(sent, copies=replace(copies, ridge=3 * ridge))
    assert np.all(copies_near.left_out(task, longer, fit, np.zeros((size, size)))[1] > moved)
    # nor does a direction of which records say nothing end in what is no number
    nothing = 0.2 * np.array([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]])
    fit = replace(fit, found=replace(fit.found, information=nothing))
    bent, moved = copies_near.left_out(task, sent, fit, 1e30 * np.eye(size))
    assert math.isfinite(bent)
    assert moved.max() == 1e9


def test_a_covariance_of_copies_goes_with_the_squares_of_weights_and_shares() -> None:
    copies = Copies(
        np.array([120.0, 80.0]), np.array([19.0, 29.0]), np.array([10.0, 12.0]),
        np.array([0.5, 0.4]), np.array([[0.8, -0.3], [1.4, -0.9]]),
        np.array([[[4.0, -1.0], [-1.0, 6.0]], [[9.0, 2.0], [2.0, 5.0]]]), 1e-3,
    )  # fmt: skip
    information = np.array([[0.47, 0.08], [0.08, 0.4]])
    found = Assembled(
        np.array([1.0, -0.5]), information, 200 * information, np.stack([information] * 2)
    )
    once = np.array(covariance(copies, found))
    assert np.all(np.linalg.eigvalsh(once) > 0)
    assert np.array(covariance(copies, found, np.full(2, 3.0))) == pytest.approx(9 * once)
    apart = sum(np.array(covariance(copies, found, one)) for one in np.eye(2))
    assert apart == pytest.approx(once)


def test_what_fits_of_few_records_err_is_bounded() -> None:
    """The bias of a maximum-likelihood fit (Cox and Snell 1968, equation (18)), on a grid."""
    text = Cell("logistic", 400, 6, 8.0, release="copies").text(1)
    task, larger = (task_of_copies(text, records) for records in (400, 40_000))
    ends = np.linspace(-1, 1, 9)
    grid = np.array([[1.0, *row] for row in itertools.product(ends, repeat=3)])
    for theta in ([-1.0, 0.5, 0.99, 0.88], [0.5, 0.0, 0.0, 2.0], [2.0, -1.0, 0.0, 0.0]):
        half = grid @ theta / 2
        bend = 0.25 / np.cosh(half) ** 2
        information = (grid.T * bend) @ grid / len(grid)
        full = information + task.ridge / task.slots * np.eye(4)
        inverse = np.linalg.inv(full)
        varied = inverse @ information @ inverse / task.slots
        squares = np.einsum("ni,ij,nj->n", grid, varied, grid)
        third = grid.T @ (bend * np.tanh(half) * squares) / len(grid)
        bias = np.abs(np.linalg.solve(information, third)) / 2
        fit = copies_near.Fit(
            Assembled(np.array(theta), information, information, np.eye(4)[None]),
            np.ones(1), np.ones(1),
        )  # fmt: skip
        bound = copies_near.askew(task, fit)
        assert np.all(bias < bound)
        assert bound.max() < 5 * bias.max()
        assert np.all(copies_near.askew(larger, fit) < bound / 2)
    linear = task_of_copies(LINEAR_COPIES, 400)
    assert np.all(copies_near.askew(linear, fit) == 0)


def test_ways_from_the_first_model_are_longer_than_they_look() -> None:
    away, rows = np.array([[0.1, 0.0], [0.0, 0.2]]), np.diag([1.0, 0.25])
    chance = np.diag([0.0009, 0.0016])
    # one standard error along the way, which the rows' unit does not change
    assert near.longer(away, rows, chance) == pytest.approx([1.3, 1.2])
    assert near.longer(away, 7 * rows, chance) == pytest.approx([1.3, 1.2])
    cell = replace(STEEP, rounds=2)
    task, (told, _) = cell.task(1), stream(cell, 1)[-1]
    assert told.status == "warming"
    points = Points(np.arange(2), np.array([1, 3]), told.coefficients + 0.1, np.zeros(2),
                    np.ones(2), np.zeros(2))  # fmt: skip
    bread = 0.2 * np.eye(4)
    found = []
    for epochs, error in (([1, 1], 1e-9), ([1, 1], 0.05), ([3, 3], 1e-9), ([3, 3], 0.05)):
        some = replace(points, epoch=np.array(epochs), mean=np.tile(points.mean, (2, 1)))
        sites, ones = SimpleNamespace(points=some, records=np.ones(2)), np.ones(2)
        chance = error**2 * bread
        moved = solving.moved(task, sites, ones, told.coefficients, bread, bread, chance)  # type: ignore[arg-type]
        found.append(moved[1])
    assert found[1] > 1.01 * found[0]
    assert found[0] == pytest.approx(found[2]) == pytest.approx(found[3])


@pytest.mark.takes("sites that stop, over some models")
def test_a_way_without_end_is_a_number_and_so_are_its_squares() -> None:
    task = task_of(study_text(loss="logistic"))
    squares, products = near.ways(task, np.full((1, 3), 1e200), np.zeros(1), np.eye(3))
    # as they are when they are squared once more
    assert float(products[0]) ** 2 < np.inf
    assert 1e50 < float(squares[0]) < float(products[0])


def test_sites_that_stop_hold_the_others_up_for_two_models_and_not_for_all() -> None:
    cell = Cell("logistic", 6000, 10, 8.0, every=10, stopping=3, rounds=5)
    told = [estimate for estimate, _ in stream(cell, 1)]
    assert [estimate.status for estimate in told] == ["warming"] * 4 + ["ready"]
    assert "of 10 sites have reported" in told[3].reason
    assert told[-1].details["count"] == 7
    assert set(told[-1].details["dropped"]) == {name_of(k) for k in (7, 8, 9)}


def test_a_quarter_of_the_sites_make_no_others_silent() -> None:
    def needed(epochs: list[int], second: int = 3) -> int:
        state = SiteState(Shape(2, 0), 1)
        ids = np.array([[k, 0] for k in range(len(epochs))], dtype=np.uint64)
        rows = np.zeros((len(epochs), state.shape.width), dtype=np.int64)
        for before in (second, 99):
            state.fold(ids, np.minimum(epochs, before), rows)
        return needed_sites([(1.0, state)], list(state.sites))

    # half of the sites at the newest model leave nobody alone, whatever version they give
    assert needed([0] * 5 + [80] * 5) == 8
    assert needed([1] * 3 + [3] * 7) == 8
    # the third model, where those that stopped are at the first
    assert needed([1] * 3 + [4] * 7) == 6
    assert needed([1] * 4 + [4] * 6) == 6
    # epochs are half a doubling each
    assert needed([5] * 3 + [6] * 7) == 8
    assert needed([5] * 3 + [7] * 7) == 6
    # the second model, of any epoch, is one behind the first, and two behind the start
    assert needed([1] * 3 + [10] * 7, 10) == 8
    assert needed([0] * 3 + [10] * 7, 10) == 6
    assert needed([1] * 3 + [11] * 7, 10) == 6
    assert needed([0]) == 1


def test_a_few_sites_that_come_first_at_a_new_model_are_not_a_majority() -> None:
    rng, run = np.random.default_rng(3), OfflineRun(STEEP.task(3))
    for _ in range(2):
        for site in range(STEEP.sites):
            run.fold(f"site-{site}", run.release(f"site-{site}", STEEP.window(rng), run.model))
        run.move()
    for site in range(STEEP.sites):
        estimate, _ = run.estimate(0.0)
        ready = site / STEEP.sites > 0.75
        assert (estimate.status == "ready") == ready
        # nobody has come to the newest model, or too few have
        said = f"{site} of 6 sites have reported" if site else "5 of 6 sites have sent windows"
        assert (said in estimate.reason) != ready
        assert (estimate.progress is None) or (estimate.progress.share < 1) != ready
        names = {one["site"] for one in estimate.details["sites"]}
        assert names == {name_of(k) for k in range(site if ready else STEEP.sites)}
        run.fold(f"site-{site}", run.release(f"site-{site}", STEEP.window(rng), run.model))


def test_plans_say_when_scores_are_near() -> None:
    text = STEEP.text(1)
    method, windows = method_of(task_of(text).study), 4 * 10 * STEEP.records
    near = method.plan(task_of(text), 10**6, 10)
    # no ridge makes sure of a model that is near
    ridge = text.replace("ridge = 0.0", "ridge = 1.0")
    assert near.usual == method.plan(task_of(ridge), 10**6, 10).usual == windows
    assert near.latest is method.plan(task_of(ridge), 10**6, 10).latest is None
    # a model of 12 releases comes with the second window of ten that move together
    slow = text.replace("releases = 6", "releases = 12")
    assert method.plan(task_of(slow), 10**6, 10).usual == 7 * 10 * STEEP.records
    at_zero = Cell("linear", 6000, 6, 8.0).text(1)
    assert method.plan(task_of(at_zero), 10**6, 10).usual < windows


@pytest.mark.takes("whole streams of simulated clients")
@pytest.mark.parametrize(
    "clients", [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (7, 10))]
)
def test_a_design_has_intervals_when_it_says(clients: int) -> None:
    """Steep slopes, and clients that move together."""
    found = proposed(parse_study(study_text(p=2, loss="logistic", epsilon=1.0)), 31_500, clients)
    population = Population.of(simulated(found.study), np.array([-0.5, 1.0, 1.0]))
    size = Size(found.own.outlook.usual, clients)
    assert size.records <= 0.81 * 31_500
    told = [simulated_stream(population, size, 3, number) for number in range(4)]
    # 95 of 100 streams are, and none was of seven clients with a model after eight releases
    assert sum(estimate.status == "ready" for estimate in told) >= 3


def test_a_ridge_that_outweighs_rare_levels_is_warned_of() -> None:
    text = STEEP.text(1).replace(
        "c = { min = -1, max = 1 }", 'c = { kind = "category", levels = ["s", "t", "u"] }'
    )
    method = method_of(task_of(text).study)
    for ridge, expected in ((0.004, 0), (0.006, 1)):
        warned = method.plan(
            task_of(text.replace("ridge = 0.0", f"ridge = {ridge}")), 10_000, 4
        ).warnings
        assert len(warned) == expected
        assert not warned or "estimator.ridge: 0.006 outweighs" in warned[0]
    plain = STEEP.text(1).replace("ridge = 0.0", "ridge = 0.1")
    assert not method.plan(task_of(plain), 10_000, 4).warnings


def test_the_page_shows_what_was_measured() -> None:
    page = Path(__file__).parents[2] / "docs" / "methods" / "noisy-mle.md"
    lines = "\n".join(table(json.loads(RESULTS.read_text(encoding="utf-8"))))
    assert lines in page.read_text(encoding="utf-8")


def test_epochs_end_soonest_where_models_move_most() -> None:
    versions = np.arange(17)
    expected = [0, 1, 3, 4, 5, 5, 6, 6, 7, 7, 7, 7, 8, 8, 8, 8, 9]
    assert epochs_of(versions).tolist() == expected
    assert epochs_of(np.array([2**40 - 1, 2**40])).tolist() == [80, 81]


CELL = Cell("logistic", 3000, 8, 8.0, rounds=3)


def moved(task: SiteTask, payload: bytes, shift: float) -> bytes:
    """Return a release at a false point, whose linearised score is that of the true one."""
    row, size = np.frombuffer(payload, form_of(task).dtype).copy(), task.size
    channels, sums = task.update_channels, row["sums"][0]
    packed = sums[size : size + size * (size + 1) // 2] * channels.curvature.unit
    way = np.append(shift, np.zeros(size - 1))
    gradient = sums[:size] * channels.gradient.unit + packed[packed_indices(size)] @ way
    limit = task.layout.later[0].largest
    sums[:size] = np.clip(np.round(gradient / channels.gradient.unit), -limit, limit)
    row["point"][0] += np.round(way / math.ldexp(1.0, COEFFICIENT_EXPONENT)).astype(np.int64)
    return row.tobytes()


def versioned(task: SiteTask, payload: bytes, version: int) -> bytes:
    """Return a release that says another model's version, and what that had seen."""
    row = np.frombuffer(payload, form_of(task).dtype).copy()
    row["version"] = version
    if task.growth.divisor:
        row["model_watermark"] = seen = version * CELL.sites * task.slots
        begun = np.arange(EPOCHS) <= epoch_of(seen, task.slots)
        row["starts"] = np.where(begun, np.maximum(row["starts"], 1), 0)
    return row.tobytes()


def told(seed: int, shift: float = 0.0, *, first: int = 0, grows: bool = False) -> list[Estimate]:
    """Return the estimates of a stream after each round; site 0 forges.

    shift: Of its points, at models.
    first: The first of five versions that it says after the second round, in as many epochs.
    """
    cell = replace(CELL, grows=grows)
    task, rng = task_of(cell.text(seed)), np.random.default_rng(seed)
    run, found = OfflineRun(task), []
    for number in range(CELL.rounds):
        for site in range(CELL.sites):
            payload = run.release(f"site-{site}", CELL.window(rng), run.model)
            if shift and number and not site:
                payload = moved(task, payload, shift)
            run.fold(f"site-{site}", payload)
        for double in range(5 if first and number == 1 else 0):
            again = run.release("site-0", CELL.window(rng), run.model)
            run.fold("site-0", versioned(task, again, first << double))
        found.append(run.estimate(0.0)[0])
        run.move()
    return found


@pytest.mark.parametrize(
    ("shift", "grows"),
    [
        (3.0, False), (1000.0, True),
        *(pytest.param(*more, marks=pytest.mark.slow)
          for more in ((0.5, False), (0.5, True), (3.0, True), (1000.0, False))),
    ],
)  # fmt: skip
def test_a_false_point_that_fits_its_score_keeps_no_interval_away(
    shift: float, grows: bool
) -> None:
    honest, found = (told(5, false, grows=grows)[-1] for false in (0.0, shift))
    # they came never, or without end
    assert (honest.status, found.status) == ("ready", "ready")
    assert (honest.details["misplaced"], found.details["misplaced"]) == ([], [name_of(0)])
    assert found.details["flagged"] == [name_of(0)]
    errors, wider = honest.standard_errors(), found.standard_errors()
    assert errors is not None
    assert wider is not None
    assert np.all(wider[0] < 1.2 * errors[0])
    assert np.all(np.abs(found.coefficients - honest.coefficients) < 2 * errors[0])


def test_a_reason_names_the_site_whose_points_are_no_models() -> None:
    found = told(5, 3.0)[1]
    assert found.status == "warming"
    assert name_of(0) in found.reason
    assert name_of(1) not in found.reason


@pytest.mark.parametrize("grows", [False, True])
def test_versions_that_no_other_site_knows_push_nobody_out(grows: bool) -> None:
    found = told(5, first=2**30, grows=grows)
    assert [estimate.details["count"] for estimate in found] == [CELL.sites] * CELL.rounds
    assert found[-1].status == "ready"
    assert found[-1].details["dropped_count"] == 0


@pytest.mark.parametrize("grows", [False, True])
def test_a_site_that_sends_more_than_all_others_does_not_end_the_start_alone(grows: bool) -> None:
    rng, run = np.random.default_rng(1), OfflineRun(replace(CELL, grows=grows).task(1))
    for site in range(CELL.sites):
        run.fold(f"site-{site}", run.release(f"site-{site}", CELL.window(rng), run.model))
    run.move()
    for _ in range(CELL.sites + 1):
        run.fold("site-0", run.release("site-0", CELL.window(rng), run.model))
    found, _ = run.estimate(0.0)
    assert (found.status, found.details["count"]) == ("warming", CELL.sites)
    assert f"1 of {CELL.sites} sites" in found.reason


def test_a_site_that_answers_an_old_model_only_keeps_no_interval_away() -> None:
    rng, run = np.random.default_rng(2), OfflineRun(CELL.task(2))
    models = []
    for _ in range(CELL.rounds):
        models.append(run.model)
        for site in range(CELL.sites):
            model = run.model if site else models[min(1, len(models) - 1)]
            run.fold(f"site-{site}", run.release(f"site-{site}", CELL.window(rng), model))
        found, _ = run.estimate(0.0)
        run.move()
    assert (found.status, found.details["dropped"]) == ("ready", [name_of(0)])


LEVELS = 'c = { kind = "category", levels = ["s", "t"] }'


def fit_of(theta: np.ndarray, curvature: np.ndarray, noise: float = 0.0) -> Fit:
    return Fit(
        theta,
        np.ones(1),
        curvature,
        Floored(curvature, 0, None),
        noise,
        1.0,
        np.ones(1),
        known=True,
    )


@pytest.mark.parametrize("share", [0.01, 0.1])
@pytest.mark.parametrize("base", [-4.0, -2.0, 0.0])
@pytest.mark.parametrize("loss", ["logistic", "linear"])
def test_squared_residuals_of_a_level_are_those_of_its_records(
    loss: str, base: float, share: float
) -> None:
    """Where a model has a level alone, against the truth of its population."""
    ridge, spread = 0.01, 0.04
    task = task_of(study_text(loss=loss, ridge=ridge, declared=[LEVELS], p=1))
    mean = expit if loss == "logistic" else lambda u: u / 10
    truth = mean(np.array([base, base + 3.0]))
    shares = np.array([1 - share, share])

    def score(theta: np.ndarray) -> list[float]:
        off = shares * (truth - (expit if loss == "logistic" else np.asarray)(np.cumsum(theta)))
        return [float(off.sum()), float(off[1] - ridge * theta[1])]

    theta = fsolve(score, [base if loss == "logistic" else truth[0], 0.1])
    said = np.cumsum(theta) if loss == "linear" else expit(np.cumsum(theta))
    bent = np.ones(2) if loss == "linear" else said * (1 - said)
    model = np.full(2, spread) if loss == "linear" else bent
    true = (spread if loss == "linear" else truth * (1 - truth)) + (truth - said) ** 2
    curvature = np.diag([0.0, shares[1] * bent[1]])
    curvature[0, :] = curvature[:, 0] = [float(shares @ bent), shares[1] * bent[1]]
    found = held_back(task, fit_of(theta, curvature))
    expected = shares[1] * (true[1] - model[1])
    # one that is smaller is not said
    assert found[1, 1] == pytest.approx(max(0.0, expected), rel=1e-6, abs=1e-12)
    assert np.array_equal(found, np.full((2, 2), found[1, 1]))
    # a level that noise hides may have any chance
    unknown = held_back(task, fit_of(theta, curvature, noise=1.0))[1, 1]
    slope = 1.0 if loss == "logistic" else task.loss.slope_bound
    assert unknown == pytest.approx(ridge * abs(theta[1]) * slope)
    assert unknown >= expected


def test_numbers_and_slopes_that_no_ridge_holds_are_left_alone() -> None:
    for declared, ridge in (("c = { min = -1, max = 1 }", 0.01), (LEVELS, 0.0)):
        task = task_of(study_text(loss="logistic", ridge=ridge, declared=[declared], p=1))
        assert not held_back(task, fit_of(np.array([-3.0, 1.0]), 0.05 * np.eye(2))).any()


@pytest.mark.parametrize(("together", "square"), [(0.2, 0.3), (-0.8, 0.64)])
def test_numbers_beside_a_level_vary_in_it_as_in_all_records_or_more(
    together: float, square: float
) -> None:
    declared = [LEVELS, "x = { min = -1, max = 1 }"]
    task = task_of(study_text(loss="logistic", ridge=0.01, declared=declared, p=2))
    # of records: a tenth have the level, and there x has this mean
    shares = np.array([[1.0, 0.1, 0.0], [0.1, 0.1, 0.1 * together], [0.0, 0.1 * together, 0.3]])
    found = held_back(task, fit_of(np.array([-3.0, 1.0, 0.0]), 0.2 * shares))
    more = found[0, 0]
    assert more > 0
    row = np.array([1.0, 1.0, together])
    assert found == pytest.approx(
        more * np.outer(row, row) + np.diag([0, 0, more * (square - together**2)])
    )
