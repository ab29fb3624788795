"""Intervals of what is divided by a noised number, and shown only where that is above a limit."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
from rich.console import Console
from scipy.special import ndtr, ndtri

from benchmarks.sites_coverage import Cell, stream
from pipeline.api.table import short_table, table
from pipeline.messages.estimate import EstimateMessage
from pipeline.methods import method_of
from pipeline.methods import task_of as make_task
from pipeline.methods.noisy_copies import estimate as of_copies
from pipeline.methods.noisy_mle import estimate as of_scores
from pipeline.methods.noisy_mle.estimate import limit
from pipeline.methods.sites import robust as rule
from pipeline.methods.sites.robust import FARTHEST, Shown, reach, widened, widening_factors
from pipeline.page.content import Watched
from pipeline.stream.in_process import OfflineRun
from pipeline.study.model import Study
from pipeline.study_file.load import parse_study
from tests import sites

#: How far above the limit the noised number is, in its deviations.
CLEAR = np.linspace(5e-3, 8, 160)
#: Numerators, by the chances that cut a normal law into equal parts.
NORMAL = ndtri((np.arange(25) + 0.5) / 25)
USUAL = 1.959964


def longer_of(clear: float, least: float, estimate: float, own: float) -> float:
    """Return the factor of a ratio of b, with noise of its own, and of a number with variance 1."""
    number = least + clear
    shown = Shown(
        axes=np.ones((1, 1)),
        clear=np.array([clear]),
        limits=np.array([least]),
        gains=np.array([[1 / number]]),
        way=np.array([estimate]),
    )
    variance = (own**2 + estimate**2) / number**2
    return float(widening_factors(shown, np.array([[variance]]), 0.95)[0])


def coverage(least: float, share: float, own: float, *, protected: bool) -> float:
    """Return how often intervals of a truth of 1 hold it that such a share of streams shows."""
    true = least + float(ndtri(share))
    held, weights = [], np.exp(-((least + CLEAR - true) ** 2) / 2)
    for clear in CLEAR.tolist():
        number = least + clear
        estimates = (true + own * NORMAL) / number if own else np.array([true / number])
        halves = USUAL * np.sqrt(own**2 + estimates**2) / number
        if protected:
            halves *= [longer_of(clear, least, one, own) for one in estimates.tolist()]
        held.append(float(np.mean(np.abs(estimates - 1) <= halves)))
    return float(weights @ held / weights.sum())


@pytest.mark.parametrize(
    "own", [*(pytest.param(o, marks=pytest.mark.slow) for o in (0.0, 0.5)), 1.0]
)
@pytest.mark.parametrize("size", [2, *(pytest.param(s, marks=pytest.mark.slow) for s in (3, 4)), 9])
@pytest.mark.parametrize(
    "share",
    [1 / 160, *(pytest.param(s, marks=pytest.mark.slow) for s in (0.1, 0.5, 0.84, 0.999))],
)
def test_whatever_share_is_shown_intervals_hold_what_they_say(
    size: int, share: float, own: float
) -> None:
    # a step of the grid is 0.05, of up to 3 deviations within which the truth is held; noise of
    # the numerators' own that is larger makes it more than is said where few are shown
    found = coverage(limit(size), share, own, protected=True)
    assert 0.93 <= found <= 0.975, found


@pytest.mark.slow
def test_with_standard_errors_alone_or_nearer_limits_they_do_not() -> None:
    assert coverage(5.0, 0.1, 1.0, protected=False) < 0.8
    assert coverage(5.0, 0.1, 0.0, protected=False) < 0.4
    # limits of two and of four coefficients, by the size of the noise of all eigenvalues alone
    for size, most in ((2, 0.83), (4, 0.91)):
        assert coverage(2 * math.sqrt(size), 0.02, 1.0, protected=True) < most


@pytest.mark.parametrize(
    "share", [0.1, *(pytest.param(s, marks=pytest.mark.slow) for s in (0.5, 0.84))]
)
def test_copies_of_few_coefficients_have_the_limit_of_four(share: float) -> None:
    # no share has more noise than the root of 2 over the degrees
    assert of_copies.limit(2) == of_copies.limit(3) == of_copies.limit(4) < of_copies.limit(5)
    assert 0.93 <= coverage(of_copies.limit(2) / math.sqrt(2), share, 0.0, protected=True) <= 0.975
    # that of two
    assert coverage(2.0, 0.1, 0.0, protected=True) < 0.7


@pytest.mark.slow
@pytest.mark.parametrize(
    ("share", "shown", "least", "most"),
    [
        pytest.param(0.3, 0.1, 0.95, 0.975, marks=pytest.mark.slow),
        pytest.param(0.3, 0.02, 0.9, 0.96, marks=pytest.mark.slow),
        pytest.param(0.0, 0.1, 0.89, 0.94, marks=pytest.mark.slow),
        (0.0, 0.02, 0.64, 0.83),
    ],
)
def test_limits_of_copies_of_four_coefficients_are_nearer_than_those_of_scores(
    share: float, shown: float, least: float, most: float
) -> None:
    """As the page says of them: short where degrees are many and few streams are shown."""
    # the share is limit / root of the degrees, and its noise (1 - share) sqrt(2 / degrees)
    deviations = of_copies.limit(4) / math.sqrt(2) / (1 - share)
    found = [coverage(deviations, shown, own, protected=True) for own in (0.0, 0.5, 1.0)]
    assert least <= min(found) <= max(found) <= most


def test_far_above_its_limit_a_number_makes_nothing_longer() -> None:
    assert longer_of(20.0, 4.0, 1.0, 0.5) == 1.0
    assert longer_of(0.1, 4.0, 1.0, 0.5) > longer_of(1.0, 4.0, 1.0, 0.5) > 1.2
    # an estimate at the points of its scores may be there by chance alone
    assert longer_of(0.1, 4.0, 1.0, 0.5) > longer_of(0.1, 4.0, 0.0, 0.5) > 1.2
    assert reach(1e6, 0.95, 1.0, FARTHEST) == pytest.approx(float(ndtri(0.95)), abs=1e-6)
    assert reach(0.0, 0.95, 1.0, 3.0) == 3.0
    half = reach(1.0, 0.95, 1.0, FARTHEST)
    assert ndtr(-half) == pytest.approx(0.05 * ndtr(1.0 - half), rel=1e-6)


def test_where_noise_may_be_all_of_a_number_no_interval_ends() -> None:
    shown = Shown(np.ones((1, 1)), np.zeros(1), np.full(1, 4.0), np.ones((1, 1)), np.ones(1))
    variance = np.ones((1, 1))
    assert np.isinf(widening_factors(shown, variance, 0.95)).all()
    assert np.isnan(widened(shown, variance, variance, 0.95)[0]).all()


def test_a_coefficient_whose_interval_has_no_end_takes_none_from_the_others() -> None:
    clear, limits, way = np.array([0.0, 40.0]), np.full(2, 5.0), np.ones(2)
    shown = Shown(np.eye(2), clear, limits, np.diag([1.0, 0.02]), way)
    wider, noise = widened(shown, np.eye(2), np.eye(2) / 2, 0.95)
    for found in (wider, noise):
        assert np.isnan(found[0]).all()
        assert np.isnan(found[:, 0]).all()
    assert wider[1, 1] == 1.0
    assert noise[1, 1] == 0.5


@pytest.mark.parametrize("lost", [[2], [0, 1, 2, 3]])
@pytest.mark.parametrize("release", ["sufficient", "copies"])
def test_an_estimate_says_which_coefficients_have_no_interval_and_what_gives_them_one(
    monkeypatch: pytest.MonkeyPatch, release: str, lost: list[int]
) -> None:
    factor = np.ones(4)
    factor[lost] = np.inf
    monkeypatch.setattr(rule, "widening_factors", lambda shown, of, level: factor.copy())
    loss = "logistic" if release == "copies" else "linear"
    cell = Cell(loss, 6000, 8, 8.0, 0.1, release=release, rounds=3)
    found, _ = stream(cell, 0)[-1]
    assert found.progress is not None
    assert 0 < found.progress.share < 1
    assert found.progress.records is not None
    assert found.progress.records > 0
    ends = found.intervals(0.95)
    if len(lost) == 4:
        assert found.status == "warming"
        assert "intervals need more releases" in found.reason
        assert ends is None
        return
    assert found.status == "ready"
    assert found.reason.startswith("no interval for b: ")
    assert "More releases or larger windows (window.records)" in found.reason
    assert ends is not None
    assert np.isnan(ends[0]).tolist() == [False, False, True, False]
    assert np.isfinite(found.coefficients).all()


def test_an_estimate_near_its_limit_has_longer_intervals_where_it_is_unsure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cell = Cell("linear", 4000, 8, 4.0, 0.1, release="sufficient", rounds=1, together=0.988)
    [(near, _)] = stream(cell, 0)
    monkeypatch.setattr(
        of_scores.robust, "widening_factors", lambda shown, of, level: np.ones(len(of))
    )
    [(usual, _)] = stream(cell, 0)
    assert near.status == usual.status == "ready"
    assert np.array_equal(near.coefficients, usual.coefficients)
    told, before = near.standard_errors(), usual.standard_errors()
    assert told is not None
    assert before is not None
    assert np.all(told[0][2:] > 1.2 * before[0][2:])
    assert told[0][:2] == pytest.approx(before[0][:2], rel=0.05)
    # it is the noise that is in doubt
    assert told[1] == pytest.approx(before[1])


@pytest.mark.parametrize("near", [True, False])
def test_copies_near_their_limit_have_longer_intervals_where_they_are_unsure(
    monkeypatch: pytest.MonkeyPatch, *, near: bool
) -> None:
    records, epsilon, together = (3000, 4.0, 0.93) if near else (6000, 8.0, 0.0)
    cell = Cell("logistic", records, 8, epsilon, 0.1, release="copies", rounds=3, together=together)
    found, _ = stream(cell, 0)[-1]
    monkeypatch.setattr(of_copies, "widened", lambda decided, of, noise, level: (of, noise))
    usual, _ = stream(cell, 0)[-1]
    assert found.status == usual.status == "ready"
    assert np.array_equal(found.coefficients, usual.coefficients)
    told, before = found.standard_errors(), usual.standard_errors()
    assert told is not None
    assert before is not None
    assert told[0][:2] == pytest.approx(before[0][:2], rel=0.05)
    assert np.all(told[0][2:] > 1.2 * before[0][2:]) == near
    if not near:
        assert np.array_equal(told[0], before[0])


@cache
def streamed(loss: str, lies: str = "", kind: str = "noisy-mle") -> tuple[Study, EstimateMessage]:
    """Return a study, and the last estimate of nine sites of which the first lies, or none."""
    text = sites.study_text(
        kind=kind, p=3, loss=loss, records=600, releases=9, ridge=1e-3, seed=4,
        mechanism="insecure-simulation", norm_bound="typical",
    )  # fmt: skip
    study = parse_study(text)
    stream = OfflineRun(make_task(study))
    rng = np.random.default_rng(4)
    for _ in range(4):
        for site in range(9):
            found = sites.window(loss, 600, rng, lie=lies == "responses" and site == 0)
            if lies == "features" and site == 0:
                found = found._replace(features=found.features / 20)
            stream.add(f"site-{site}", found)
    stream.publish()
    return study, stream.estimate(0.0)[1]


def drawn(study: Study, message: EstimateMessage, height: int = 0) -> str:
    """Return what a terminal of 300 columns is given."""
    console = Console(width=300, force_terminal=True, color_system=None)
    with console.capture() as captured:
        console.print(short_table(message, study, height) if height else table(message, study))
    return captured.get()


@pytest.mark.parametrize("loss", [pytest.param("linear", marks=pytest.mark.slow), "logistic"])
def test_a_terminal_names_the_site_that_is_left_out_and_says_what_to_do(loss: str) -> None:
    study, message = streamed(loss, "responses")
    name = sites.name_of(0)
    (row,) = (row for row in message.details["sites"] if row["site"] == name)
    shown = drawn(study, message)
    assert f"1 of 9 sites: {name} (distance {row['distance']:.1f}: honest" in shown
    assert "client revoke" in shown
    assert name in drawn(study, message, height=14)
    assert not any(ord(one) < 32 and one != "\n" for one in shown)


def test_a_site_of_another_spread_is_said_to_have_that() -> None:
    study, message = streamed("linear", "features")
    first, _ = method_of(study).report.lines(study, message.details)
    assert f"{sites.name_of(0)} (distance" in first
    assert "its curvature is unlike that of the others" in first


def test_where_nobody_is_left_out_nothing_is_said() -> None:
    study, message = streamed("linear")
    assert message.details["flagged"] == []
    assert method_of(study).report.lines(study, message.details) == ()


@pytest.mark.parametrize(("loss", "kind"), [("linear", "noisy-mle"), ("logistic", "noisy-copies")])
def test_sites_say_that_nothing_tells_of_records_that_go_together(loss: str, kind: str) -> None:
    study, message = streamed(loss, kind=kind)
    assert message.details["design_effect"] is None
    assert message.status == "ready", message.reason
    assert "records do not depend on each other in time" in drawn(study, message)


@pytest.mark.parametrize("evil", ["\x1b[2J", "a" * 31 + "\x9b", "a" * 32 + "\n", "A" * 32])
def test_what_is_no_digest_is_not_shown(evil: str) -> None:
    """Whoever may write to an open study's topics forges details, too."""
    study, message = streamed("linear", "responses")
    of = method_of(study)
    for key in ("flagged", "misplaced"):
        assert of.report.lines(study, {**message.details, key: [evil]}) == ()
    forged = [{"site": evil, "share": 0.0, "distance": 9.0, "flag": True}]
    assert of.report.lines(study, {**message.details, "sites": forged}) == ()
    assert of.report.clients({**message.details, "sites": forged}) == {}


def test_the_page_names_clients_and_shows_those_that_are_left_out_first() -> None:
    study, message = streamed("linear", "responses")
    watched = Watched(study)
    for site in (3, 0):
        key = f"site-{site}".encode()
        watched.seen(lambda clients, key=key: clients.release(0, 0, key, 1000))  # type: ignore[misc]
    watched.estimate(message, live=False)
    rows = watched.around()["clients"]["rows"]
    assert [row["name"] for row in rows] == ["site-0", "site-3"]
    assert [row["site"]["flag"] for row in rows] == [1, 0]
    assert rows[0]["site"]["share"] == 0
    told = watched.whole()["now"]["told"]
    assert any(f"site-0 ({sites.name_of(0)}) (distance" in line for line in told)
    # nobody but admitted clients has a name there
    watched.seen(lambda clients: clients.admit({"site-3"}))
    assert "site-0" not in str(watched.whole()["now"]["told"])
    assert [row["name"] for row in watched.around()["clients"]["rows"]] == [
        "(not admitted)", "site-3",
    ]  # fmt: skip
