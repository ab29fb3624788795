"""Weights by age: buckets, formulas release by release, and what a study may ask for."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.testing import assert_allclose

from pipeline.api.table import information_line, line
from pipeline.cli.main import cli
from pipeline.errors import ConfigError
from pipeline.estimators.forgetting import (
    KEPT,
    LEAST_WEIGHT,
    PER_HALF_LIFE,
    bucket_of,
    bucket_weights,
    effective,
)
from pipeline.learning import StreamClassifier
from pipeline.linalg import pack_upper
from pipeline.methods.renewable import open as open_side
from pipeline.methods.renewable import solution
from pipeline.methods.renewable.client import summarise
from pipeline.methods.renewable.estimate import estimate_private
from pipeline.methods.renewable.open import OpenRow, OpenState, estimate_open
from pipeline.methods.renewable.state import (
    PrivateState,
    Shape,
)
from pipeline.release.model import Model
from pipeline.stream.in_process import OfflineRun
from pipeline.stream.merge import estimate_of
from pipeline.study.model import Forgetting
from pipeline.study_file.load import parse_study
from tests.builders import (
    LogEntry,
    SeededStream,
    folded,
    payload_of,
    rows_of,
    sample_log,
    simulate,
    stream_of,
    study_text,
    task_of,
)
from tests.by_formula import by_formula
from tests.unit.test_private_estimate import batch_of

RECORDS = Forgetting(half_life=800.0, of="records")
SECONDS = Forgetting(half_life=80.0, of="seconds")


# --- buckets and weights ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seen", "bucket"), [(0, 0), (99, 0), (100, 1), (799, 7), (800, 8), (2**53 - 1, 90071992547409)]
)
def test_a_bucket_of_records_is_an_eighth_of_the_half_life(seen: int, bucket: int) -> None:
    assert bucket_of(RECORDS, watermark=seen, milliseconds=123456789) == bucket


@pytest.mark.parametrize(
    ("milliseconds", "bucket"),
    [(0, 0), (9999, 0), (10_000, 1), (80_000, 8), (-1, 0), (-(2**63), 0)],
)
def test_a_bucket_of_seconds_is_that_of_the_record_in_the_log(
    milliseconds: int, bucket: int
) -> None:
    assert bucket_of(SECONDS, watermark=10**9, milliseconds=milliseconds) == bucket


@pytest.fixture(autouse=True)
def linear_world(monkeypatch: pytest.MonkeyPatch) -> None:
    """Releases here are made by a linear score: no distance is too far for it."""
    monkeypatch.setattr(open_side, "is_far", lambda *_: False)
    monkeypatch.setattr(solution, "SECOND_ORDER", 0.0)
    monkeypatch.setattr(solution, "MOVING", math.inf)


def test_without_forgetting_there_is_one_bucket_of_weight_one() -> None:
    assert bucket_of(None, watermark=10**12, milliseconds=10**15) == 0
    assert bucket_weights(None, [0], slots=10**15) == {0: 1.0}


def test_a_weight_halves_with_each_half_life_and_the_first_dropped_one_is_a_thousandth() -> None:
    weights = bucket_weights(RECORDS, [0, 12, 20, 28], slots=10**6)
    assert weights == {28: 1.0, 20: 0.5, 12: 0.25, 0: 2**-3.5}
    assert 2.0 ** -(KEPT / PER_HALF_LIFE) == 2**-10


def test_no_weight_is_zero_however_old() -> None:
    weights = bucket_weights(SECONDS, [0, 2**60], slots=0)
    assert weights == {0: LEAST_WEIGHT, 2**60: 1.0}
    assert LEAST_WEIGHT**2 > 0


def test_a_model_that_saw_more_than_there_was_ages_nobody() -> None:
    weights = bucket_weights(RECORDS, [0, 8, 2**50], slots=800)
    assert weights == {0: 0.5, 8: 1.0, 2**50: 1.0}


def test_the_effective_number_is_the_number_where_all_weigh_the_same() -> None:
    for number in (1.0, 3.0, 1e15 + 1):
        assert effective(number, number) == number
    weights = 0.5 ** np.arange(200)
    assert effective(weights.sum(), (weights**2).sum()) == pytest.approx(3.0)
    assert effective(0.0, 0.0) == 0.0


# --- formulas, release by release ------------------------------------------------------------


@pytest.mark.parametrize("top", [2, 3, 4])
def test_the_private_estimate_weighs_means_by_w_and_variances_by_its_square(
    top: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(solution, "SECOND_ORDER", 0.5)
    task = task_of(p=3, epsilon=8.0, records=200, ridge=0.003, noise_memory=0)
    epochs = [e for e in range(top) for _ in range(40)]
    parts = np.array_split(epochs, 5)
    batches = [
        (0.7**age, batch_of(task, top + age, part.tolist(), start=2))
        for age, part in enumerate(reversed(parts))
    ]
    states = []
    for weight, batch in batches:
        state = PrivateState(Shape.of(task))
        state.fold(batch)
        states.append((weight, state))
    found, wanted = estimate_private(task, states), by_formula(task, batches)
    assert found.status == "ready"
    assert_allclose(found.coefficients, wanted["theta"], rtol=1e-8)
    assert_allclose(found.covariance, wanted["covariance"], rtol=1e-6, atol=1e-14)
    assert_allclose(found.privacy_covariance, wanted["privacy"], rtol=1e-8, atol=1e-16)
    assert found.effective_records == pytest.approx(float(wanted["records"]))
    share = np.median(np.diag(wanted["privacy"]) / np.diag(wanted["covariance"]))
    assert found.privacy_share == pytest.approx(min(share, 1.0))


def test_the_open_estimate_is_the_zero_of_the_weighted_scores_with_its_sandwich() -> None:
    task = task_of(p=3, private=False, ridge=0.2)
    rng = np.random.default_rng(0)
    penalty = np.diag([0.0, 0.2, 0.2, 0.2])
    parts, bread, right, meat = [], np.zeros((4, 4)), np.zeros(4), np.zeros((4, 4))
    totals = np.zeros(2)
    for weight, count in ((1.0, 90), (0.6, 70), (0.2, 80)):
        features, responses = simulate(rng, count, 3)
        at = rng.normal(0, 0.5, 4)
        s = summarise(task, features, responses, at, (1.0, 1.0))
        state = OpenState(task.size)
        packed = pack_upper(s.curvature), pack_upper(s.scores)
        counts = np.array(s.counts, dtype=float)
        state.fold([OpenRow(s.records, at, s.gradient, *packed, counts)])
        parts.append((weight, state))
        design = np.column_stack([np.ones(count), features])
        scores = design * task.loss.slope(design @ at, responses)[:, None] + penalty @ at
        whole = s.curvature + count * penalty
        bread += weight * whole
        right += weight * (whole @ at - scores.sum(axis=0))
        meat += weight**2 * scores.T @ scores
        totals += [weight * count, weight**2 * count]
    found, inverse = estimate_open(task, parts), np.linalg.inv(bread)
    assert_allclose(found.coefficients, inverse @ right, rtol=1e-10)
    assert_allclose(found.covariance, inverse @ meat @ inverse, rtol=1e-9)
    assert found.effective_records == pytest.approx(totals[0] ** 2 / totals[1])
    assert found.records == 240
    assert found.privacy_share == 0.0


@pytest.mark.parametrize("private", [True, False])
def test_equal_weights_give_the_bits_of_the_plain_sums(private: bool) -> None:
    """One bucket, or a half-life so long that all is in one: the same estimate."""
    plain = task_of(p=2, records=30, private=private, noise_memory=0)
    long = task_of(p=2, records=30, private=private, forgetting='half_life = 1e15, of = "records"')
    estimates = [estimate_of(p, [folded(p, sample_log(p, releases=40))]) for p in (plain, long)]
    assert estimates[0].coefficients.tobytes() == estimates[1].coefficients.tobytes()
    assert estimates[0].effective_records == estimates[1].effective_records


def test_class_weights_follow_the_newest_buckets() -> None:
    rng = np.random.default_rng(1)
    task = task_of(
        p=1, records=100, private=False, maximum=8.0, forgetting='half_life = 100, of = "records"'
    )
    run = OfflineRun(task)
    for number in range(64):
        rare = 1.0 if number < 40 else -1.0
        responses = np.where(rng.random(100) < 0.1, rare, -rare)
        run.add("c", rows_of(rng.uniform(-1, 1, (100, 1)), responses))
    negative, positive = run.estimate(0.0)[0].weights
    assert positive < 1 < negative


def test_too_short_a_half_life_says_so() -> None:
    task = task_of(p=2, records=50, epsilon=8.0, forgetting='half_life = 50, of = "records"')
    *_, (_, found) = stream_of(task, seed=0, rounds=30, clients=4)
    assert found.status == "warming"
    assert "a longer half-life keeps more" in found.reason


# --- the whole way ---------------------------------------------------------------------------


@pytest.mark.parametrize("private", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_run_in_one_process_keeps_few_buckets_and_counts_what_it_drops(private: bool) -> None:
    task = task_of(
        p=1, records=10, private=private, releases=2, forgetting='half_life = 20, of = "records"'
    )
    rng, run = np.random.default_rng(2), OfflineRun(task)
    for number in range(150):
        run.add(f"c{number % 3}", rows_of(*simulate(rng, 10, 1)))
    buckets = run.partition.sums.states
    assert len(buckets) == KEPT
    assert max(buckets) == bucket_of(
        task.study.estimator.forgetting, watermark=1480, milliseconds=0
    )
    estimate, message = run.estimate(0.0)
    held = sum(state.releases for state in buckets.values())
    found = message.diagnostics
    assert found.forgotten == 150 - held > 0
    assert message.releases == estimate.releases == held
    assert run.partition.head.slots == 1500
    # weights 2^-(k / 8) in steps of 20 records: (sum w)^2 / sum w^2 = (1 + r) / (1 - r)
    rate = 2 ** -(20 / 20)
    assert found.effective_records == pytest.approx(20 * (1 + rate) / (1 - rate), rel=1e-2)
    assert f"{found.forgotten} too old to count" in line(message)
    assert (
        f"aims at the fit to the records that count, {found.effective_records:,.0f} of "
        f"{message.records:,} ({found.effective_share:.0%})"
    ) in information_line(message)
    assert found.effective_share == pytest.approx((found.effective_records or 0) / message.records)
    assert message.target.startswith("the fit to the records that count ")


def test_releases_say_what_their_model_had_seen() -> None:
    task = task_of(p=1, private=False, records=10, forgetting='half_life = 20, of = "records"')
    for seen in (0, 2**53 - 1):
        model = Model(1, np.zeros(2, dtype=np.int64), (1024, 1024), seen)
        value = payload_of(task, *simulate(np.random.default_rng(0), 10, 1), model, SeededStream(0))
        state = folded(task, [LogEntry(0, b"a", value)])
        assert list(state.sums.states) == [math.floor(8 * seen / 20)]


# --- what may be asked for -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("forgetting", "words"),
    [
        ('half_life = 0, of = "records"', "estimator.forgetting.half_life"),
        ('half_life = 1e16, of = "records"', "estimator.forgetting.half_life"),
        ('half_life = 49, of = "records"', "at least one window, here 50 records"),
        ('half_life = 0.5, of = "seconds"', "estimator.forgetting.half_life"),
        ('half_life = "long", of = "seconds"', "estimator.forgetting.half_life"),
        ('half_life = 1000, of = "days"', "estimator.forgetting.of"),
        ('of = "records"', "estimator.forgetting.half_life"),
        ("half_life = 1000", "estimator.forgetting.of"),
        ('half_live = 1000, of = "records"', "did you mean 'half_life'"),
    ],
)
def test_a_half_life_out_of_range_is_refused_by_name(forgetting: str, words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        parse_study(study_text(forgetting=forgetting))


def test_a_half_life_in_seconds_is_at_least_a_window() -> None:
    text = study_text(forgetting='half_life = 59, of = "seconds"')
    parse_study(text)
    with pytest.raises(ConfigError, match="at least one window, here 60 seconds"):
        parse_study(text.replace("records = 50", "records = 50\nseconds = 60"))


def test_a_fit_cannot_forget_by_seconds_and_says_what_to_do(tmp_path: Path) -> None:
    text = study_text(p=1, forgetting='half_life = 3600, of = "seconds"')
    study, data = tmp_path / "study.toml", tmp_path / "data.csv"
    study.write_text(text)
    data.write_text("x0,y\n" + "0.5,1\n" * 60)
    result = CliRunner().invoke(cli, ["fit", str(study), "--input", str(data)])
    assert isinstance(result.exception, ConfigError)
    assert 'of = "records"' in str(result.exception)
    with pytest.raises(ConfigError, match='of = "records"'):
        StreamClassifier(text).fit(np.zeros((60, 1)), ["1"] * 60)
