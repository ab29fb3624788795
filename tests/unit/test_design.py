"""Plans of studies: formulas against closed forms and simulated streams, and what is said."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import scipy
from click.testing import CliRunner
from scipy.special import expit

from pipeline.api import sample
from pipeline.api.check import check_study
from pipeline.api.planning import (
    LITTLE,
    NEARLY_ALL,
    lacking,
    other_kind,
    plan,
    proposed,
    verdict,
)
from pipeline.cli.design import design
from pipeline.cli.doctor import coverage
from pipeline.cli.study import check
from pipeline.errors import ConfigError
from pipeline.estimators.population import Population, even_points
from pipeline.methods import METHODS, load_live, method_of, task_of
from pipeline.methods.base import Plan
from pipeline.methods.plan_words import numbers, when
from pipeline.methods.renewable.client import RenewableTask
from pipeline.methods.renewable.expected import Windows, expect, noise_size, reference_of, stages
from pipeline.methods.renewable.method import LARGEST_RIDGE, default_ridge
from pipeline.methods.renewable.solution import KNOWN, noise_of
from pipeline.study.model import Study
from pipeline.study.reference import Seen
from pipeline.study_file.edit import TEMPLATE, edited, template_of, with_keys
from pipeline.study_file.load import parse_study
from tests.builders import study_text
from tests.builders import task_of as plain_task
from tests.by_formula import covariance_of_chain
from tests.sgd import study_text as gradients

RECORDS, CLIENTS = 20_000, 5


def designed(study: Study, records: int = RECORDS, clients: int = CLIENTS) -> tuple[Study, Plan]:
    method = method_of(study)
    found = with_keys(study, method.propose(study, records, clients).changes, name="designed")
    return found, method.plan(task_of(found), records, clients)


@pytest.mark.parametrize("ridge", [5e-324, 1e-160])
@pytest.mark.parametrize("kind", ["renewable", "noisy-mle"])
def test_a_ridge_next_to_nothing_makes_sure_of_nothing_and_ends_no_plan(
    kind: str, ridge: float
) -> None:
    text = study_text(p=2, loss="logistic", ridge=ridge)
    study = parse_study(text.replace("[estimator]\n", f'[estimator]\nkind = "{kind}"\n'))
    found = method_of(study).plan(task_of(study), RECORDS, CLIENTS)
    assert found.latest is None or found.latest >= 10**12
    assert found.usual < 10**20


def kept(features: np.ndarray, classes: np.ndarray, penalty: np.ndarray) -> float:
    """Return the median share of logistic slopes that a penalty leaves, by two fits."""
    design = np.column_stack([np.ones(len(classes)), features])

    def fit(held: np.ndarray) -> np.ndarray:
        found = scipy.optimize.minimize(
            lambda at: np.logaddexp(0, -classes * (design @ at)).mean() + held @ at**2 / 2,
            np.zeros(len(held)),
            tol=1e-8,
        )
        return np.asarray(found.x[1:])

    return float(np.median(fit(penalty) / fit(0 * penalty)))


@pytest.mark.slow
def test_what_a_ridge_leaves_of_slopes_is_known_of_a_sample_whose_features_go_together() -> None:
    task = plain_task(p=2, loss="logistic", ridge=0.05, epsilon=1.0)
    rng = np.random.default_rng(6)
    own = rng.uniform(-0.9, 0.9, 4000)
    features = np.column_stack([own, own + rng.uniform(-0.1, 0.1, 4000)])
    classes = np.where(rng.random(4000) < expit(features @ [2.0, 1.0]), 1.0, -1.0)
    method = method_of(task.study)
    found = method.plan(task, 50_000, CLIENTS, seen=Seen(features, classes))
    by_hand = kept(features, classes, task.penalty)
    assert found.kept == pytest.approx(by_hand, abs=0.02)
    # slopes of classes that a feature separates have no end without a ridge
    apart = Seen(features, np.where(features[:, 0] > 0, 1.0, -1.0))
    assert (method.plan(task, 50_000, CLIENTS, seen=apart).kept or 1.0) < 0.2
    # a column that never varies changes nothing of it; a copy takes half of a slope, and lets it be
    # known
    wider = plain_task(p=3, loss="logistic", ridge=0.05, epsilon=1.0)
    copied = np.column_stack([features, features[:, 0]])
    with_copy = kept(copied, classes, wider.penalty)
    for more, expected in ((np.column_stack([features, 0 * own]), by_hand), (copied, with_copy)):
        known = method.plan(wider, 50_000, CLIENTS, seen=Seen(more, classes)).kept
        assert known == pytest.approx(expected, abs=0.02)


def test_the_sizes_are_the_formulas_of_the_page() -> None:
    study = parse_study(study_text(loss="logistic", ridge=0.02, epsilon=1.0, records=100))
    task = task_of(study)
    assert isinstance(task, RenewableTask)
    found = method_of(study).plan(task, 50_000, CLIENTS)
    # by the ridge alone, with the noise's least eigenvalue below it: to 1 %
    sure = (KNOWN + np.sqrt(2 - 2 / task.size)) / 0.9
    assert found.latest is not None
    assert sure * noise_size(task, found.latest, CLIENTS) <= 0.02
    assert sure * noise_size(task, 0.97 * found.latest, CLIENTS) > 0.02
    features, classes = Population.of(task).draw(np.random.default_rng(5), 50_000)
    assert found.kept == pytest.approx(kept(features, classes, task.penalty), abs=0.01)
    assert (found.ridge, found.kept_by_ridge is None) == (None, False)
    # without one it is said which would do, and what it would leave
    real = parse_study(study_text(loss="logistic", ridge=0.0, epsilon=1.0, records=100))
    other = method_of(real).plan(task_of(real), 50_000, CLIENTS)
    assert (other.kept, other.latest) == (None, None)
    assert other.ridge == pytest.approx(sure * noise_size(task, 50_000, CLIENTS), rel=0.1)
    assert 0.5 < (other.kept_by_ridge or 0) < 1


@pytest.mark.parametrize(
    "loss", ["logistic", *(pytest.param(o, marks=pytest.mark.slow) for o in ("linear", "poisson"))]
)
def test_real_coefficients_are_planned_unless_a_ridge_is_asked_for(loss: str) -> None:
    text = study_text(loss=loss, epsilon=1.0, most=12.0 if loss == "poisson" else 1.0)
    for ridge in (None, 0.02):
        study = parse_study(text.replace("ridge = 0.01", "" if ridge is None else "ridge = 0.02"))
        assert study.estimator.ridge == (ridge or 0.0)
        changes = method_of(study).propose(study, RECORDS, CLIENTS).changes
        assert "estimator.ridge" not in changes


def test_gdwd_has_the_least_ridge_that_its_size_needs() -> None:
    study = parse_study(study_text(epsilon=1.0, ridge=0.5))
    few, many = (designed(study, records)[0] for records in (RECORDS, 10 * RECORDS))
    assert many.estimator.ridge < few.estimator.ridge <= LARGEST_RIDGE
    task = task_of(many)
    assert isinstance(task, RenewableTask)
    sure = (KNOWN + np.sqrt(2 - 2 / task.size)) / 0.9
    least = sure * noise_size(task, 10 * RECORDS, CLIENTS)
    assert least <= many.estimator.ridge <= max(1.1 * least, 1e-3)
    # and where the file says none, that of a usual size
    bare = parse_study(study_text(epsilon=1.0).replace("ridge = 0.01", ""))
    own = task_of(bare)
    assert isinstance(own, RenewableTask)
    assert bare.estimator.ridge == default_ridge(own)
    usual = KNOWN * noise_size(own, 160 * own.slots, 8)
    assert usual <= bare.estimator.ridge <= min(1.1 * usual, LARGEST_RIDGE)


@pytest.mark.slow
def test_a_client_with_few_windows_remembers_nothing() -> None:
    study = parse_study(study_text(p=7, loss="logistic", epsilon=1.0, ridge=0.0))
    method = method_of(study)
    many = method.propose(study, 20_000, 128).changes
    assert many["privacy.noise_memory"] == 0
    assert "privacy.noise_memory" not in method.propose(study, 20_000, 2).changes


@pytest.mark.slow
def test_of_counts_the_gradient_has_more_where_that_shortens_intervals() -> None:
    study = parse_study(study_text(p=7, loss="poisson", most=12.0, epsilon=1.0, ridge=0.0))
    method = method_of(study)
    few, many = (method.propose(study, records, 8) for records in (20_000, 1_000_000))
    assert "privacy.split" not in few.changes
    assert many.changes["privacy.split"]["gradient"] > 0.63
    assert "% shorter" in many.reasons["privacy.split"]


def test_without_a_ridge_nothing_bounds_it_and_it_says_so() -> None:
    study = parse_study(study_text(p=2, loss="logistic", ridge=0.0))
    outlook = method_of(study).plan(task_of(study), RECORDS, CLIENTS)
    assert outlook.latest is None
    found = check_study(study, records=RECORDS, clients=CLIENTS)["intervals"]
    assert isinstance(found, dict)
    assert "No number of records guarantees them all" in found["come"]
    assert f"{outlook.usual_half:.2g} for a slope at 20,000 records of 5 clients" in found["half"]
    assert "of real slopes" in found["half"]
    assert f"estimator.ridge = {outlook.ridge:g} would be enough" in found["ridge"]
    # the numbers of all commands are those of one plan
    assert (found["first"], found["usual"]) == (outlook.first, outlook.usual)
    held = parse_study(study_text(p=2, loss="logistic", ridge=0.05))
    told = check_study(held)["intervals"]
    assert isinstance(told, dict)
    assert "of penalised slopes, of which the ridge keeps about" in told["half"]
    assert "ridge" not in told


def test_a_plan_has_rows_for_every_live_kind_at_every_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pipeline.api.planning.EPSILONS", (0.5,))
    found = plan(parse_study(study_text(loss="gdwd", epsilon=3.0)), RECORDS, CLIENTS)
    rows = {(row.kind, row.epsilon): row for row in found.rows}
    assert {epsilon for _, epsilon in rows} == {0.5, 3.0}
    # the study's own row says besides what values in a tenth of their ranges would take
    assert (found.own.outlook.tenth or 0) > found.own.outlook.usual
    alone = replace(found.own, outlook=replace(found.own.outlook, tenth=None))
    assert rows["renewable", 3.0] == alone
    other = rows["ldp-sgd", 3.0]
    assert (other.loss, other.neighbours, other.outlook.latest) == ("logistic", "replace-one", None)
    # 80 % of estimates with this half interval are further from zero: 1 + .8416 / 1.96
    assert found.own.outlook.usual_half is not None
    assert found.own.detectable == pytest.approx(1.4294 * found.own.outlook.usual_half, rel=1e-4)
    monkeypatch.setattr("pipeline.api.planning.EPSILONS", ())
    paths = plan(parse_study(gradients()), RECORDS, CLIENTS)
    own = [row for row in found.rows if row.kind == "renewable"]
    assert "1,000 records are too few at epsilon 0.5" in lacking(own, 1000)
    assert not lacking([row for row in own if row.outlook.usual <= 1000], 1000)
    # a study with features can be of every kind but those that collect a response alone
    kinds = {kind for kind in METHODS if load_live(kind).spec.features}
    assert {kind for kind, _ in rows} == kinds
    # copies of linear fits need the residuals' deviation
    assert {row.kind for row in paths.rows} == kinds - {"noisy-copies"}
    with pytest.raises(ConfigError, match="give --epsilon"):
        plan(parse_study(study_text(private=False)), RECORDS, CLIENTS)


def test_when_says_what_is_certain_and_what_is_usual() -> None:
    assert when(Plan(latest=500, usual=500)).startswith(
        "after 500 records for slopes; for the intercept perhaps later. Only slopes"
    )
    assert when(Plan(latest=500, usual=400)).startswith("after about 400 records, if features")
    sure = when(Plan(latest=500, usual=400))
    assert "Whatever features are like, slopes have one after 500. Only slopes that" in sure
    # of slopes that go with the intercept it is no latest one
    assert "latest" not in sure
    assert "No number of records guarantees" in when(Plan(latest=None, usual=400))
    both = when(Plan(latest=500, usual=400, intercept=700))
    assert "about 400 records for slopes and 700 for the intercept" in both


def test_when_says_what_comes_at_first_what_stays_and_what_is_late() -> None:
    said = when(Plan(latest=None, usual=9_000, first=4_000, whole=20_000, late=("b=x", "b=y")))
    assert said.startswith("at first after about 4,000 records, and to stay after about 9,000")
    assert "for b=x, b=y after about 20,000" in said
    same = when(Plan(latest=12_000, usual=9_000, first=9_000, whole=9_000))
    assert same.startswith("after about 9,000 records, if features are independent")
    assert "The ridge alone is enough for slopes after 12,000" in same


@pytest.mark.parametrize("kind", ["noisy-mle", pytest.param("renewable", marks=pytest.mark.slow)])
def test_a_verdict_names_settings_that_are_enough(kind: str) -> None:
    """Also from a tiny budget: rounded to two places on the way, 1.25 times .01 is .01 for ever."""
    text = study_text(p=2, loss="logistic", epsilon=0.004)
    study = parse_study(text.replace("[estimator]\n", f'[estimator]\nkind = "{kind}"\n'))
    few = proposed(study, 2_000, 2)
    said = verdict(few)
    assert f"about {few.enough_records:,} records" in said
    assert f"privacy.epsilon = {few.enough_epsilon:g}" in said
    assert few.enough_epsilon is not None
    assert few.enough_epsilon > 0.1
    richer = with_keys(study, {"privacy.epsilon": few.enough_epsilon}, name="richer")
    for enough in (proposed(study, few.enough_records or 0, 2), proposed(richer, 2_000, 2)):
        assert "are enough" in verdict(enough)
    plenty = with_keys(study, {"privacy.epsilon": 1.0}, name="plenty")
    assert "wide intervals only" not in verdict(proposed(plenty, 100_000, 2))


def test_a_plan_says_which_kind_finds_clearly_more_and_what_is_lost_by_it() -> None:
    text = study_text(p=3, loss="logistic", epsilon=1.0, ridge=0.0)
    found = proposed(parse_study(text), 100_000, 5)
    own = found.own
    assert own.effect is not None
    later = replace(own.outlook, usual=2 * own.outlook.usual, kept=0.6)
    row = replace(own, kind="noisy-mle", outlook=later)

    def said(effect: float | None, records: int = 100_000, **other: object) -> str:
        rows = (own, replace(row, effect=effect, **other))  # type: ignore[arg-type]
        return other_kind(replace(found, rows=rows, records=records))

    told = said(0.7 * own.effect)
    assert 'estimator.kind = "noisy-mle" would find effects larger than' in told
    assert f"find those larger than {own.effect:.2g}. One would lose: small windows" in told
    assert f"between about {own.outlook.usual:,} and {later.usual:,} records" in told
    assert "a ridge that keeps about 60%" in told
    # where these settings have none at this size, another kind is worth a word whatever it finds
    few = replace(row.outlook, usual=own.outlook.usual - 2)
    told = said(0.99, own.outlook.usual - 1, outlook=few)
    assert "where these settings find none" in told
    for silent in (
        said(0.9 * own.effect),
        said(None),
        said(0.7 * own.effect, epsilon=2.0),
        # effects of another loss have another unit
        said(0.7 * own.effect, loss="linear"),
        # it would find next to nothing either
        said(1.5, own.outlook.usual - 1, outlook=few),
        said(0.7 * own.effect, own.outlook.usual),
    ):
        assert silent == ""


def test_a_plan_that_was_interrupted_is_the_same_when_it_is_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is kept of a course is whole steps of it alone."""
    task = task_of(parse_study(study_text(loss="logistic", records=60)))
    assert isinstance(task, RenewableTask)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        list(islice(stages(task, CLIENTS), 5))
        patched.setattr("pipeline.methods.renewable.expected._Course._estimates", interrupted)
        with pytest.raises(KeyboardInterrupt):
            list(islice(stages(task, CLIENTS), 20))
    again = [stage.records for stage in islice(stages(task, CLIENTS), 20)]
    other = task_of(parse_study(study_text(loss="logistic", records=60, name="other")))
    assert isinstance(other, RenewableTask)
    assert again == [stage.records for stage in islice(stages(other, CLIENTS), 20)]


def test_what_another_kind_is_planned_without_is_said_to_be_lost() -> None:
    """Estimates that forget nothing have the shorter intervals, and are of something else."""
    text = study_text(loss="logistic", maximum=10.0, forgetting="half_life = 20000, of = 'records'")
    found = proposed(parse_study(text), 100_000, 5)
    effect = 0.5 * (found.own.effect or math.nan)
    rows = (found.own, replace(found.own, kind="noisy-mle", effect=effect))
    said = other_kind(replace(found, rows=rows))
    for key in ("class_weights", "forgetting"):
        assert f"estimator.{key}, without which this is planned" in said


@pytest.mark.parametrize(
    ("loss", "records", "wide", "unit"),
    [
        ("linear", 1_600, True, "of the response's range"),
        pytest.param("logistic", 100_000, False, "in log odds", marks=pytest.mark.slow),
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


def test_a_ridge_that_leaves_next_to_nothing_of_slopes_is_said_to_find_nothing() -> None:
    outlook = Plan(latest=900, usual=800, usual_half=0.2, kept=LITTLE / 2, first=700)
    found = proposed(parse_study(study_text(p=2, epsilon=1.0)), 30_000, 3)
    said = verdict(replace(found, own=replace(found.own, outlook=outlook)))
    assert "for wide intervals only" in said
    assert "they find next to no effect" in said
    assert "larger than" not in said


@pytest.mark.parametrize("kind", METHODS)
@pytest.mark.parametrize(
    ("records", "clients"),
    [(100_000, 10), pytest.param(200_000, 30, marks=pytest.mark.slow)],
)
def test_a_new_study_of_each_kind_has_intervals_within_its_records(
    kind: str, records: int, clients: int
) -> None:
    text = template_of(load_live(kind).spec, clients)
    found = proposed(parse_study(text), records, clients)
    assert found.study.estimator.kind == (kind if text != TEMPLATE else "renewable")
    assert found.own.outlook.usual <= records
    assert parse_study(edited(text, found.own.design.changes)) == found.study
    names = task_of(found.study).clients
    assert len(names) in (0, clients)


def test_a_design_says_that_it_overrides_a_ridge_of_zero(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.api.planning.EPSILONS", ())
    path, written = tmp_path / "study.toml", tmp_path / "new.toml"
    path.write_text(study_text(ridge=0.0))
    size = ["--records", "20000", "--clients", "5"]
    done = CliRunner().invoke(design, [str(path), *size, "--write", str(written)])
    assert done.exit_code == 0
    assert "instead of 0 in the file" in done.stdout
    for text in (done.stdout, written.read_text().replace("#", "")):
        assert "overrides the ridge = 0" in " ".join(text.split())


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


def narrow_sample(path: Path, share: float = 0.5, records: int = 2000) -> Path:
    """Write records of two features in a tenth of their ranges, with classes by the first."""
    rng = np.random.default_rng(1)
    x = rng.uniform(-0.1, 0.1, (records, 2))
    up = rng.random(records) < share * (1 + 5 * x[:, 0])
    rows = [f"{one},{other},{int(y)}" for (one, other), y in zip(x, up, strict=True)]
    path.write_text("\n".join(["x0,x1,y", *rows]) + "\n")
    return path


@pytest.mark.slow
@pytest.mark.takes("plans of many sizes and budgets, and two streams")
@pytest.mark.parametrize("sampled", [False, True])
def test_all_commands_have_the_numbers_of_one_plan(sampled: bool, tmp_path: Path) -> None:
    path, size = tmp_path / "study.toml", ["--records", str(RECORDS), "--clients", str(CLIENTS)]
    path.write_text(study_text(p=2, loss="logistic", ridge=0.0))
    like, more = None, list[str]()
    if sampled:
        file = str(narrow_sample(tmp_path / "sample.csv"))
        more = ["--sample", file]
        like, _ = sample.like(task_of(parse_study(path.read_text())), file)
    asked, seen = like or (parse_study(path.read_text()), None)
    # a design of its settings is the study itself
    own = proposed(asked, RECORDS, CLIENTS, seen).own
    asked = with_keys(asked, own.design.changes, name="designed")
    path.write_text(edited(path.read_text(), own.design.changes))
    wanted = numbers(own.outlook)
    looked = CliRunner().invoke(check, [str(path), *size, *more, "--json"])
    simulated = CliRunner().invoke(
        coverage, [str(path), *size, *more, "--replications", "2", "--json"]
    )
    for done, part in ((looked, "intervals"), (simulated, "plan")):
        assert done.exit_code == 0, done.output
        found = json.loads(done.stdout)[part]
        assert {name: found[name] for name in wanted} == wanted
    # and in words, which name what is supposed
    said = json.loads(looked.stdout)["intervals"]["come"]
    assert said == when(method_of(asked).outlook(task_of(asked), RECORDS, CLIENTS, seen), asked)
    assert said in simulated.stderr
    assert ("like those of the sample" in said) == sampled
    assert ("if they filled a tenth of them" in said) != sampled


def test_values_that_fill_a_tenth_of_their_ranges_need_more_records(tmp_path: Path) -> None:
    study = parse_study(study_text(p=2, loss="logistic", epsilon=4.0, ridge=0.0, records=250))
    task = task_of(study)
    found = method_of(study).outlook(task, RECORDS, CLIENTS)
    assert found.first is not None
    assert found.tenth is not None
    assert found.tenth > 10 * found.first
    # of a sample that fills a tenth it is about as much, whatever the ranges allow
    like, _ = sample.like(task, str(narrow_sample(tmp_path / "sample.csv")))
    assert like is not None
    seen = method_of(study).outlook(task_of(like[0]), RECORDS, CLIENTS, like[1])
    assert seen.tenth is None
    assert seen.first is not None
    assert found.tenth / 8 < seen.first < 8 * found.tenth
    assert seen.usual_half is not None
    assert seen.usual_half > 3 * (found.usual_half or 0.0)
    # classes are those of the file
    rare, _ = sample.like(task, str(narrow_sample(tmp_path / "rare.csv", 0.1)))
    assert rare is not None
    assert rare[0].data.response.typical == pytest.approx(0.1, abs=0.03)


@pytest.mark.parametrize("clients", [1, 7])
def test_noise_of_whole_windows_is_that_of_the_chains(clients: int) -> None:
    task = plain_task(loss="logistic", records=100)
    windows = Windows(task, clients)
    ends = clients * np.cumsum([0, *islice(task.growth.schedule(10**9), 60)])
    for first, last in ((0, 1), (0, 40), (25, 60)):
        found = windows.noise(float(ends[first]), float(ends[last]))
        assert found == pytest.approx(clients * covariance_of_chain(last)[first:, first:].sum())
        assert windows.releases(float(ends[first]), float(ends[last])) == pytest.approx(
            clients * (last - first)
        )
    # of noise that remembers nothing it is the number of releases
    plain = Windows(plain_task(loss="logistic", records=100, noise_memory=0), clients)
    assert plain.noise(0.0, float(ends[40])) == pytest.approx(40 * clients)
    fixed = Windows(plain_task(loss="logistic", records=100, growth=0.0), clients)
    assert fixed.number(100.0 * clients * 1234.5) == pytest.approx(1234.5)


@pytest.mark.parametrize("records", [3_000.0, 50_000.0, 1e6])
def test_what_has_come_is_what_is_released_and_half_a_window_of_each_client(records: float) -> None:
    windows = Windows(plain_task(loss="logistic", records=100), 5)
    slots = windows.released(records)
    # a window that has just grown may be on either side
    assert windows.come(slots) == pytest.approx(records, abs=windows.next_window(slots) / 2)


def test_points_are_even_in_every_column_and_always_the_same() -> None:
    points = even_points(3, 128)
    assert np.array_equal(np.sort(points, axis=0)[:, 1], (np.arange(128) + 0.5) / 128)
    assert np.array_equal(points, even_points(3, 128))
    assert np.abs(np.corrcoef(points.T)[np.triu_indices(3, 1)]).max() < 0.35


@pytest.mark.parametrize("loss", ["logistic", "linear", "poisson"])
def test_with_next_to_no_noise_lengths_are_those_of_all_records(loss: str) -> None:
    more = {"most": 12.0} if loss == "poisson" else {}
    task = plain_task(loss=loss, ridge=0.0, epsilon=20.0, records=250, **more)
    reference, records = reference_of(task), 3e8
    bread = np.linalg.inv(reference.curvature)
    wanted = np.diag(bread @ reference.middle @ bread) / records
    assert expect(task, records, 2).variances == pytest.approx(wanted, rel=0.1)
    # and of a likelihood the middle is the curvature
    if loss != "linear":
        assert reference.middle == pytest.approx(reference.curvature, rel=0.05, abs=0.16)


def test_the_reference_is_what_is_drawn_of_the_population() -> None:
    task = plain_task(loss="logistic", p=2, ridge=0.05, maximum=4.0)
    x, y = Population.of(task).draw(np.random.default_rng(3), 200_000)
    reference = reference_of(task)
    design = np.column_stack([np.ones(len(y)), x])
    # even classes weigh 1 each
    curvature = (design * task.loss.curvature(design @ reference.target, y)[:, None]).T @ design
    assert reference.curvature == pytest.approx(curvature / len(y), abs=6e-3)
    held = reference.curvature + np.diag(task.penalty)
    turned = (reference.vectors * reference.values) @ reference.vectors.T
    assert turned == pytest.approx(held)


def test_the_size_of_the_noise_is_by_hand() -> None:
    task, clients = plain_task(loss="logistic", records=100, releases=8), 4
    windows = Windows(task, clients)
    # eight windows at the start, and ten of each client behind them with half an open one
    records = 800 + clients * (10 * 100 + 50)
    assert windows.begun == 800
    noise = clients * covariance_of_chain(10).sum()
    size = noise_of(task).curvature * math.sqrt(task.size * noise) / (clients * 1000)
    assert noise_size(task, records, clients) == pytest.approx(size)


def test_more_records_or_budget_give_shorter_intervals_sooner() -> None:
    one, richer = (
        expect(plain_task(loss="logistic", p=7, ridge=0.0, epsilon=e, records=250), 50_000, 8)
        for e in (0.5, 2.0)
    )
    later = expect(
        plain_task(loss="logistic", p=7, ridge=0.0, epsilon=0.5, records=250), 200_000, 8
    )
    assert np.all(richer.variances < one.variances)
    assert np.all(later.variances < one.variances)
    assert (later.first, later.lasting) == (one.first, one.lasting)
    assert (richer.lasting or 0) < (one.lasting or 0)
    assert (one.first or 0) <= (one.lasting or 0)


def test_a_rare_level_comes_late() -> None:
    levels = ", ".join(f'"{n}"' for n in range(8))
    declared = [f"x{i} = {{ min = -1, max = 1 }}" for i in range(8)]
    declared.append(f'b = {{ kind = "category", levels = [{levels}] }}')
    task = plain_task(loss="logistic", declared=declared, ridge=0.0, epsilon=4.0, records=250)
    found = expect(task, 100_000, 4)
    assert found.first is not None
    assert found.whole is not None
    assert found.whole > found.first
    assert not found.late[1:9].any()
    assert found.late[9:].all()


def test_fewer_releases_than_intervals_need_have_none() -> None:
    task = plain_task(loss="linear", p=2, ridge=0.0, epsilon=20.0, records=100, residual_bound=0.3)
    early = [stage for stage in islice(stages(task, 3), 40) if stage.records < 800 + 1000]
    assert early
    assert not any(stage.ready for stage in early)
    found = expect(task, 10_000, 3)
    # eight windows at the start, ten behind it, and half an open one of each client
    assert found.first == pytest.approx(800 + 1000 + 150)


def test_a_study_that_forgets_expects_no_more_than_it_keeps() -> None:
    forgetting = 'half_life = 2000, of = "records"'
    text = study_text(loss="logistic", p=7, epsilon=0.5, ridge=0.0, records=250)
    kept, fading = (
        method_of(study).plan(method_of(study).task(study), 100_000, 4)
        for study in (
            parse_study(text),
            parse_study(text.replace("[privacy]", f"forgetting = {{ {forgetting} }}\n[privacy]")),
        )
    )
    assert kept.usual < 10**12
    assert fading.usual == 10**12
    assert (fading.usual_half or 0) > 2 * (kept.usual_half or 0)
