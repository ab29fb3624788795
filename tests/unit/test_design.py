"""Plans of studies: formulas against closed forms and simulated streams, and what is said."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from scipy.special import expit

from pipeline.cli.design import design
from pipeline.doctor.streams import _Releases, simulated
from pipeline.errors import ConfigError
from pipeline.estimators.population import default_truth
from pipeline.library.checking import check_study
from pipeline.library.plan_words import BLIND, LITTLE, NEARLY_ALL, lacking, verdict, when
from pipeline.library.planning import plan, proposed
from pipeline.methods import METHODS, load_live, method_of, task_of
from pipeline.methods.facts import Outlook
from pipeline.methods.renewable.design import LARGEST_RIDGE, reference_bread
from pipeline.methods.renewable.task import RenewableTask
from pipeline.study import (
    TEMPLATE,
    Study,
    edited,
    parse_study,
    with_features,
    with_keys,
    with_tables,
)
from pipeline.study.reference import draw
from pipeline.types import Vector
from tests.builders import study_text
from tests.sgd import study_text as gradients

RECORDS, CLIENTS, STREAMS = 20_000, 5, 5


def designed(study: Study, records: int = RECORDS) -> tuple[Study, Outlook]:
    method = method_of(study)
    found = with_keys(study, method.design(study, records, CLIENTS).changes, name="designed")
    return found, method.outlook(task_of(found), records)


@pytest.mark.parametrize("ridge", [5e-324, 1e-160])
@pytest.mark.parametrize("kind", ["renewable", "noisy-mle"])
def test_a_ridge_next_to_nothing_makes_sure_of_nothing_and_ends_no_plan(
    kind: str, ridge: float
) -> None:
    text = study_text(p=2, loss="logistic", ridge=ridge)
    study = parse_study(text.replace("[estimator]\n", f'[estimator]\nkind = "{kind}"\n'))
    found = method_of(study).outlook(task_of(study), RECORDS)
    assert found.latest is None or found.latest > 10**20
    assert found.usual < 10**20


def test_the_bounds_are_the_formulas_of_the_page() -> None:
    study = parse_study(study_text(loss="linear", ridge=0.2, norm_bound=1.5, residual_bound=0.5))
    task, method = task_of(study), method_of(study)
    channels = task.update_channels
    gradient, bent = channels.gradient.standard_deviation, channels.curvature.standard_deviation
    size, slots = 4, 50
    found = method.outlook(task, 50_000)
    releases = (0.75 * bent * math.sqrt(size) / slots / 0.2) ** 2
    assert found.latest == slots * math.ceil(max(releases, 20 / 0.75))
    noise = gradient / (slots * math.sqrt(0.75 * 1000)) * 1.5 / 0.2
    # a Huber slope is at most the residual bound, and features within a norm of 1.5 and their mean
    sampling = 0.5 * 2 * math.sqrt(1.5**2 - 1) / 0.2 / math.sqrt(50_000)
    assert found.longest == pytest.approx(1.959964 * math.hypot(noise, sampling), rel=1e-6)


@pytest.mark.parametrize("loss", ["gdwd", "logistic", "linear"])
@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_designed_intervals_are_certain_at_half_and_shorter_with_more(
    loss: str, epsilon: float
) -> None:
    study = parse_study(study_text(loss=loss, epsilon=epsilon))
    found, outlook = designed(study)
    assert outlook.latest is not None
    # windows and ridge are rounded to two digits
    assert outlook.latest <= 0.51 * RECORDS
    assert outlook.usual <= outlook.latest
    assert found.estimator.ridge <= LARGEST_RIDGE
    more, longer = designed(study, 10 * RECORDS)
    assert more.estimator.ridge <= found.estimator.ridge
    assert (longer.usual_half or 0) < (outlook.usual_half or 0)
    richer, shorter = designed(with_keys(study, {"privacy.epsilon": 2 * epsilon}, name="richer"))
    assert richer.estimator.ridge <= found.estimator.ridge
    assert (shorter.usual_half or 0) < (outlook.usual_half or 0)


@pytest.mark.parametrize(
    ("loss", "more"),
    [
        ("gdwd", {"maximum": 4.0}),
        *(pytest.param(loss, {}, marks=pytest.mark.slow) for loss in ("logistic", "linear")),
    ],
)
def test_simulated_streams_have_the_intervals_that_were_planned(
    loss: str, more: dict[str, float]
) -> None:
    study, outlook = designed(parse_study(study_text(loss=loss, epsilon=1.0, **more)))
    assert outlook.longest is not None
    assert outlook.usual_half is not None
    firsts, halves = zip(*(streamed(study, number) for number in range(STREAMS)), strict=True)
    # half of the streams, at the median; of each, one round is a tenth of what was planned
    assert outlook.usual / 2 <= np.median(firsts) <= 2 * outlook.usual
    assert np.nanmax(halves) < outlook.longest
    # the reference bends less than these records do, so it errs towards length
    assert outlook.usual_half / 2 < np.nanmedian(halves) < 1.25 * outlook.usual_half


def streamed(study: Study, number: int) -> tuple[float, Vector]:
    """Return where one simulated stream had its first interval, and half the last of its slopes.

    Features are those of the reference of plans, and responses those of the doctor.
    """
    task = simulated(study)
    rng, truth, count = np.random.default_rng([11, number]), default_truth(task), task.size - 1
    run, first, waiting = _Releases(task, 5, number), math.inf, 0
    for one in range(1, RECORDS // (CLIENTS * task.slots) + 1):
        x = draw(task.encoding, rng.random((CLIENTS * task.slots, count)), "typical")
        predictor = truth[0] + x @ truth[1:]
        y = np.clip(predictor + 0.1 * rng.standard_normal(len(x)), -1, 1)
        if task.classes:
            y = np.where(rng.random(len(x)) < expit(predictor), 1.0, -1.0)
        run.fold(x, y, CLIENTS)
        waiting += CLIENTS
        if waiting >= task.study.stream.publish.releases:
            run.publish()
            waiting = 0
        if first == math.inf and run.estimate().standard_errors() is not None:
            first = one * CLIENTS * task.slots
    errors = run.estimate().standard_errors()
    nothing = np.full(task.size - 1, np.nan)
    half = nothing if errors is None else 1.96 * task.response_scale[1] * errors[0][1:]
    return first, half


def test_without_a_ridge_nothing_is_certain_and_it_says_so() -> None:
    study = parse_study(study_text(ridge=0.0))
    outlook = method_of(study).outlook(task_of(study), RECORDS)
    assert (outlook.latest, outlook.longest) == (None, None)
    assert "curvature" in outlook.why
    found = check_study(study)["intervals"]
    assert isinstance(found, dict)
    assert "No number of records guarantees it" in found["come"]
    assert "estimator.ridge is 0" in found["but"]


def test_a_hundred_records_are_told_what_would_do() -> None:
    study = parse_study(study_text(p=5, epsilon=1.0))
    found = plan(study, 100, 2)
    assert found.own.outlook.usual > 100
    assert found.enough_records is not None
    again = plan(study, found.enough_records, 2)
    assert again.own.outlook.usual <= found.enough_records
    assert again.enough_records is None
    below = plan(study, found.enough_records // 2, 2)
    assert below.own.outlook.usual > below.records


def test_a_plan_has_rows_for_every_live_kind_at_every_budget() -> None:
    found = plan(parse_study(study_text(loss="gdwd", epsilon=3.0)), RECORDS, CLIENTS)
    rows = {(row.kind, row.epsilon): row for row in found.rows}
    assert {epsilon for _, epsilon in rows} == {0.5, 1.0, 2.0, 3.0, 4.0, 8.0}
    assert rows["renewable", 3.0] == found.own
    other = rows["ldp-sgd", 3.0]
    assert (other.loss, other.neighbours, other.outlook.latest) == ("logistic", "replace-one", None)
    # 80 % of estimates with this half interval are further from zero: 1 + .8416 / 1.96
    assert found.own.outlook.usual_half is not None
    assert found.own.detectable == pytest.approx(1.4294 * found.own.outlook.usual_half, rel=1e-4)
    paths = plan(parse_study(gradients()), RECORDS, CLIENTS)
    # a study with features can be of every kind but those that collect a response alone
    kinds = {kind for kind in METHODS if load_live(kind).features}
    assert {row.kind for row in paths.rows} == kinds
    with pytest.raises(ConfigError, match="give --epsilon"):
        plan(parse_study(study_text(private=False)), RECORDS, CLIENTS)


def test_two_hundred_features_can_be_planned() -> None:
    found, outlook = designed(parse_study(with_features(200)), 10**7)
    assert task_of(found).size == 201
    assert outlook.usual < 10**7


def test_when_says_what_is_certain_and_what_is_usual() -> None:
    assert when(Outlook(500, 500, None, None)).startswith(
        "after 500 records for slopes; for the intercept perhaps later. Only slopes"
    )
    assert when(Outlook(500, 400, None, None)).startswith("after about 400 records, if features")
    sure = when(Outlook(500, 400, None, None))
    assert "Whatever features are like, slopes have one after 500. Only slopes that" in sure
    # of slopes that go with the intercept it is no latest one
    assert "latest" not in sure
    assert "No number of records guarantees" in when(Outlook(None, 400, None, None))
    both = when(Outlook(500, 400, None, None, intercept=700))
    assert "about 400 records for slopes and 700 for the intercept" in both


@pytest.mark.parametrize("loss", ["linear", "poisson"])
def test_a_default_ridge_that_makes_sure_of_nothing_says_what_to_do(loss: str) -> None:
    study = parse_study(study_text(loss=loss, epsilon=1.0, ridge=1e-3))
    found = check_study(study)["intervals"]
    assert isinstance(found, dict)
    assert found["latest"] > 10 * found["usual"]
    assert "`veilstream study design STUDY --records N --clients K`" in found["advice"]
    planned = check_study(proposed(study, 100_000, 5).study)["intervals"]
    assert isinstance(planned, dict)
    assert "advice" not in planned


def test_where_no_settings_are_enough_those_of_the_fewest_records_that_are_are_proposed() -> None:
    study = parse_study(study_text(p=5, epsilon=1.0))
    few = proposed(study, 100, 2)
    enough = proposed(study, few.enough_records or 0, 2)
    assert few.study == enough.study
    assert few.larger == few.chosen == enough.own == enough.chosen
    assert (few.chosen_for, enough.chosen_for) == (few.enough_records,) * 2
    # not those of its own size, with which more records than these would not do
    assert few.own.design != few.chosen.design


@pytest.mark.parametrize("epsilon", [0.004, 0.0101, 0.012])
def test_a_larger_epsilon_is_found_from_a_tiny_one(epsilon: float) -> None:
    """Rounded to two places on the way, 1.25 times .01 is .01 for ever."""
    study = with_keys(
        parse_study(study_text(p=2, epsilon=1.0)), {"privacy.epsilon": epsilon}, name="tiny"
    )
    found = proposed(study, 2_000, 2).enough_epsilon
    assert found is not None
    assert found > epsilon


def test_a_verdict_names_settings_that_are_enough() -> None:
    study = parse_study(study_text(p=5, epsilon=1.0))
    few = proposed(study, 100, 2)
    said = verdict(few)
    assert f"about {few.enough_records:,} records" in said
    assert f"privacy.epsilon = {few.enough_epsilon:g}" in said
    richer = with_keys(study, {"privacy.epsilon": few.enough_epsilon}, name="richer")
    for enough in (proposed(study, few.enough_records or 0, 2), proposed(richer, 100, 2)):
        assert "are enough" in verdict(enough)
    assert "wide intervals only" in verdict(proposed(study, few.enough_records or 0, 2))
    assert "wide intervals only" not in verdict(proposed(study, 100_000, 2))
    rows = plan(study, 100, 2).rows
    own = [row for row in rows if row.kind == "renewable"]
    assert "100 records are too few at epsilon 0.5, 1" in lacking(own, 100)
    assert not lacking([row for row in own if row.outlook.usual <= 100], 100)


@pytest.mark.parametrize(
    ("loss", "records", "wide", "unit"),
    [
        ("linear", 100_000, False, "of the response's range"),
        ("linear", 1_600, True, "of the response's range"),
        ("logistic", 100_000, False, "in log odds"),
        ("poisson", 100_000, False, "in the log of the mean"),
    ],
)
def test_a_verdict_says_how_long_intervals_are(
    loss: str, records: int, wide: bool, unit: str
) -> None:
    found = proposed(parse_study(study_text(p=3, loss=loss, epsilon=1.0)), records, 5)
    said = verdict(found)
    assert found.own.outlook.usual <= records
    assert found.own.detectable is not None
    assert found.own.effect is not None
    assert f"effects larger than {found.own.effect:.2g}" in said
    shrunk = f"({found.own.detectable:.2g} after the ridge, which keeps about" in said
    assert shrunk == ((found.own.outlook.kept or 0) < NEARLY_ALL)
    assert unit in said
    assert ("wide intervals only" in said) == wide
    if loss == "linear":
        # the response's range is 2 wide
        assert f"{found.own.effect / 2:.0%} of the response's range" in said


def test_a_plan_says_effects_before_the_ridge_shrinks_them() -> None:
    study = parse_study(study_text(p=5, epsilon=1.0))
    found = proposed(study, 100_000, 5)
    own, task = found.own, task_of(found.study)
    assert isinstance(task, RenewableTask)
    bread = reference_bread(task)
    curvature = bread - np.diag(task.penalty)
    kept = np.median(np.diag(np.linalg.solve(bread, curvature))[1:])
    assert own.outlook.kept == pytest.approx(kept)
    assert own.detectable is not None
    assert own.effect == pytest.approx(own.detectable / kept)
    # the penalised slope alone would not be called wide here
    wide = proposed(study, 6_000, 5)
    assert (wide.own.detectable or 0) < BLIND < (wide.own.effect or 0)
    assert "for wide intervals only" in verdict(wide)


def test_a_ridge_that_leaves_next_to_nothing_of_slopes_is_said_to_find_nothing() -> None:
    levels = ", ".join(f'"{n}"' for n in range(200))
    declared = [f'place = {{ kind = "category", levels = [{levels}] }}']
    found = proposed(parse_study(study_text(declared=declared, epsilon=1.0)), 30_000, 3)
    assert found.own.outlook.usual <= 30_000
    assert (found.own.outlook.kept or 0) < LITTLE
    said = verdict(found)
    assert "for wide intervals only" in said
    assert "they find next to no effect" in said
    assert "fewer levels" in said
    assert "larger than" not in said


@pytest.mark.parametrize(("records", "needed"), [(3_400, True), (400_000, False)])
def test_a_verdict_says_that_predictions_need_the_intercept(records: int, needed: bool) -> None:
    text = study_text(p=9, loss="linear", epsilon=1.0)
    found = proposed(parse_study(text), records, 5)
    assert found.own.outlook.usual <= records
    assert found.own.outlook.intercept is not None
    assert (found.own.outlook.intercept > records) == needed
    assert ("Predictions need the intercept" in verdict(found)) == needed


@pytest.mark.parametrize("kind", METHODS)
@pytest.mark.parametrize(("records", "clients"), [(100_000, 10), (200_000, 30)])
def test_a_new_study_of_each_kind_has_intervals_within_its_records(
    kind: str, records: int, clients: int
) -> None:
    text = with_tables(load_live(kind).beginning(clients))
    found = proposed(parse_study(text), records, clients)
    assert found.study.estimator.kind == (kind if text != TEMPLATE else "renewable")
    assert found.own.outlook.usual <= records
    assert parse_study(edited(text, found.own.design.changes)) == found.study
    names = load_live(kind).clients(found.study)
    assert len(names) in (0, clients)


def test_the_intercept_s_condition_is_the_rule_of_the_estimate() -> None:
    """Of one feature that is always 0: the intercept's own curvature must be 1.75 s."""
    declared = study_text(p=1, epsilon=1.0, ridge=0.3, loss="logistic")
    task = task_of(parse_study(declared))
    found = method_of(task.study).outlook(task, 10_000).intercept
    assert found is not None
    # the guess of a record's curvature is .55 / 4, and 3 / 4 of the releases count
    least = 0.55 / 4 / 1.75
    noise = task.update_channels.curvature.standard_deviation * math.sqrt(task.size) / task.slots
    releases = max((noise / least) ** 2, 20) / 0.75
    assert releases <= found / task.slots <= 1.06 * releases + 1


def test_a_design_says_that_it_overrides_a_ridge_of_zero(tmp_path: Path) -> None:
    path, written = tmp_path / "study.toml", tmp_path / "new.toml"
    for ridge, told in ((0.0, True), (0.01, False)):
        path.write_text(study_text(loss="logistic", ridge=ridge))
        size = ["--records", "20000", "--clients", "5"]
        done = CliRunner().invoke(design, [str(path), *size, "--write", str(written)])
        assert done.exit_code == 0
        assert ("overrides the ridge = 0" in " ".join(done.stdout.split())) == told
        assert f"instead of {ridge:g} in the file" in done.stdout
        comments = " ".join(written.read_text().replace("#", "").split())
        assert ("overrides the ridge = 0" in comments) == told
        written.unlink()


TEXT = study_text(ridge=0.01).replace("records = 50", "records = 50    # mine")


def test_keys_of_a_file_are_set_and_the_rest_stays() -> None:
    changes = {
        "window.records": 120, "estimator.ridge": 0.25, "estimator.norm_bound": 1.5,
        "privacy.split": {"gradient": 0.5, "curvature": 0.5, "counts": 0.1},
    }  # fmt: skip
    found = edited(TEXT, changes)
    assert parse_study(found) == with_keys(parse_study(TEXT), changes, name="x")
    changed = set(found.splitlines()) - set(TEXT.splitlines())
    assert len(changed) == 4
    [window] = [line for line in changed if line.startswith("records")]
    assert window.endswith("# mine")
    inline = TEXT.replace("[window]\nrecords = 50    # mine", "").replace(
        "[study]", "window = { records = 50 }\n[study]"
    )
    assert parse_study(inline)
    with pytest.raises(ConfigError, match="set these keys by hand"):
        edited(inline, changes)


def test_a_key_that_is_set_again_says_why_and_no_longer_what_was() -> None:
    text = TEXT.replace("# mine", "# sums of 50 records").replace(
        "ridge = 0.01", "# ridge: a number\nridge = 0.01   # small"
    )
    once = edited(text, {"window.records": 120, "estimator.ridge": 0.2}, {"estimator.ridge": "one"})
    assert "sums of 50" not in once
    assert "# ridge: a number\n# proposed: one\nridge = 0.2 " in once
    again = edited(once, {"estimator.ridge": 0.3}, {"estimator.ridge": "two " * 40})
    assert "one" not in again.split()
    assert again.count("# proposed: ") == 1
    assert max(map(len, again.splitlines())) <= 100
    third = edited(again, {"estimator.ridge": 0.4}, {"estimator.ridge": "three"})
    assert "two" not in third
    assert len(third.splitlines()) == len(once.splitlines())
