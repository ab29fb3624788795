"""Personal levels of privacy: whose noise a record gets, and what is said and charged for it."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from scipy import stats

from pipeline.backtest import backtest
from pipeline.cli.main import cli
from pipeline.errors import ConfigError, DataError
from pipeline.learning import StreamRegressor
from pipeline.methods import task_of as make_task
from pipeline.methods.ldp_sgd.client import GradientTask, bounded_gradients, query_of
from pipeline.privacy import accounting as gdp
from pipeline.records.encoder import Encoder, Row
from pipeline.release.privatise import privatise
from pipeline.stream.fold import Reducer
from pipeline.stream.in_process import OfflineRun
from pipeline.stream.partition import Partition
from pipeline.stream.release import release_of
from pipeline.study.model import Study
from pipeline.study_file.load import parse_study
from tests.builders import LogEntry, SeededStream
from tests.builders import study_text as renewable
from tests.sgd import TRUTH, drawn, rows_of, study_text, task_of_text
from tests.wire import edited, numbers_of

LEVELS = 'personal = { column = "consent", levels = { normal = 4.0, strict = 0.5, medium = 2.0 } }'


def study(levels: str = LEVELS, **settings: object) -> Study:
    text = study_text(epsilon=4.0, **settings)  # type: ignore[arg-type]
    return parse_study(text.replace("[window]", f"{levels}\n[window]"))


def task_of(level: str | None = None, levels: str = LEVELS, **settings: object) -> GradientTask:
    task = make_task(study(levels, **settings), level)
    assert isinstance(task, GradientTask)
    return task


def noise(task: GradientTask, levels: list[int], seed: int = 1, windows: int = 40) -> np.ndarray:
    """Return what records without a residual send at some levels, in real units."""
    nothing = np.zeros((len(levels), task.size - 1)), np.zeros(len(levels))
    sums = bounded_gradients(task, *nothing, task.first_model, np.array(levels))
    query, stream = query_of(task, sums), SeededStream(seed)
    sent = [privatise(task, query, stream).parts["gradient"] for _ in range(windows)]
    return np.array(sent).reshape(windows, task.slots, task.size) * task.channels.gradient.unit


@pytest.mark.parametrize("mechanism", ["discrete-gaussian", "discrete-laplace"])
def test_a_record_has_the_noise_of_its_own_budget(mechanism: str) -> None:
    task = task_of(records=30, mechanism=mechanism)
    assert task.budget.levels == ("strict", "medium", "normal")
    for place, name in enumerate(task.budget.levels):
        own = study_text(epsilon=task.budget.epsilons[place], mechanism=mechanism)  # type: ignore[arg-type]
        wanted = task_of_text(own).channels.gradient.standard_deviation
        found = task.record_channels[place].standard_deviation
        # lattices differ: rounding costs up to a 256th of the sensitivity
        assert found == pytest.approx(wanted, rel=1 / 250), name
        drawn_noise = noise(task, [place] * 30)
        # 4,800 draws know a deviation to 1 % (to 1.6 % of Laplace noise): five times that
        assert drawn_noise.std() == pytest.approx(found, rel=0.08), name


def test_every_level_keeps_its_epsilon_at_the_deltas_formula() -> None:
    task = task_of()
    for epsilon, channel in zip(task.budget.epsilons, task.record_channels, strict=True):
        mu = 2 * task.clipping_norm * task.loss.slope_bound / channel.standard_deviation
        assert epsilon is not None
        assert 0.9e-6 < gdp.delta_of(mu, epsilon) <= 1e-6


def test_a_missing_unknown_or_impossible_level_is_the_strictest() -> None:
    task = task_of()
    encoder = Encoder(task.study)
    record = {"x0": 0, "x1": 0, "x2": 0, "y": 1}
    asked = {"normal": 2, " medium ": 1, "strict": 0, "NORMAL": 0, "": 0, None: 0, 2: 0, True: 0}
    for value, place in asked.items():
        assert encoder.encode({**record, "consent": value}).level == place
    assert encoder.encode(record).level == 0
    strict = task.record_channels[0].standard_deviation
    for wrong in (-1, 3, 2**40, -(2**40)):
        assert noise(task, [wrong] * 20).std() == pytest.approx(strict, rel=0.1)


def test_slots_without_a_record_have_the_strictest_noise() -> None:
    task = task_of(records=4, mechanism="insecure-simulation")
    [row] = rows_of(task, *drawn("linear", 1, 3))
    loose = Row(row.features, row.response, 0, 2)

    def sent(slots: list[Row | None], seq: int) -> np.ndarray:
        payload = release_of(task, slots, task.first_model, client="a", ledger="l", seq=seq)
        numbers = numbers_of(task, payload).reshape(4, -1)
        return numbers * task.channels.gradient.unit

    many = np.array([sent([loose, None, loose], seq) for seq in range(300)])
    found = many.std(axis=(0, 2))
    strict, _, normal = (part.standard_deviation for part in task.record_channels)
    # 1,200 draws know a deviation to 2 %
    assert found == pytest.approx([normal, strict, normal, strict], rel=0.1)


@pytest.mark.parametrize(("level", "place"), [(None, 0), ("strict", 0), ("normal", 1)])
def test_without_a_column_noise_does_not_show_which_slots_are_empty(
    level: str | None, place: int
) -> None:
    levels = "personal = { levels = { strict = 0.5, normal = 4.0 } }"
    task = task_of(level, levels=levels, records=4, mechanism="insecure-simulation")
    row = Encoder(task.study).encode({"x0": 0, "x1": 0, "x2": 0, "y": 0})

    def sent(seq: int) -> np.ndarray:
        payload = release_of(task, [row, None], task.first_model, client="a", ledger="l", seq=seq)
        numbers = numbers_of(task, payload).reshape(4, -1)
        return numbers * task.channels.gradient.unit

    found = np.array([sent(seq) for seq in range(300)]).std(axis=(0, 2))
    # 1,200 draws know a deviation to 2 %; the two levels are five times apart
    assert found == pytest.approx([task.record_channels[place].standard_deviation] * 4, rel=0.1)
    assert not task.budget.shows_absence


def test_a_column_of_levels_must_be_there_and_be_read() -> None:
    with pytest.raises(DataError, match="no column 'consent'"):
        Encoder(study()).check_columns(["x0", "x1", "x2", "y"])
    assert task_of().budget.shows_absence
    assert not task_of("strict").budget.shows_absence
    columns = {name: [0.0, 0.5] for name in ("x0", "x1", "x2", "y")} | {"consent": ["normal"] * 2}
    with pytest.raises(ConfigError, match="a backtest does not read levels"):
        backtest(study(), columns)
    with pytest.raises(ConfigError, match="a learner does not read levels"):
        StreamRegressor(study()).fit([[0.0, 0.0, 0.0]], [0.0])


def test_a_client_may_be_stricter_than_its_records_ask() -> None:
    task = task_of("medium")
    deviations = [part.standard_deviation for part in task.record_channels]
    for asked, got in ((0, 0), (1, 1), (2, 1)):
        assert noise(task, [asked] * 20).std() == pytest.approx(deviations[got], rel=0.1)
    assert task.revision == task_of().revision
    assert task.budget.claim == task_of().budget.claim
    assert task.budget.event.mu == pytest.approx(gdp.mu_of(2.0, 1e-6), rel=1e-5)
    assert task.budget.largest_event == task_of().budget.event


def test_the_worker_takes_the_largest_noise_and_no_more() -> None:
    task = task_of("strict", records=5)
    row = rows_of(task, *drawn("linear", 1, 3))
    payload = release_of(task, row * 5, task.first_model, client="a", ledger="l", seq=0)
    assert (
        Reducer(task_of(records=5)).fold(Partition.empty(task), [LogEntry(0, b"a", payload)]) == []
    )
    bound = task.record_channels[0].largest(1)
    for number, reasons in ((math.floor(bound), []), (math.ceil(bound) + 1, ["out-of-range"])):
        forged = edited(task, payload, sums=number)
        letters = Reducer(task).fold(Partition.empty(task), [LogEntry(0, b"a", forged)])
        assert [letter.fault.reason for letter in letters] == reasons


def test_the_guarantee_names_the_levels() -> None:
    said = task_of().budget.guarantee
    assert said.epsilon == 4.0
    assert said.levels == {"normal": 4.0, "strict": 0.5, "medium": 2.0}
    assert "any other of the same level" in said.guarantee
    assert "0.5 at level 'strict'" in said.guarantee
    assert "and 0.5 for a record of any other level or none" in said.guarantee
    assert "at which level a record slot was noised" in said.guarantee
    assert said.claim != make_task(parse_study(study_text(epsilon=4.0))).budget.claim
    assert make_task(parse_study(study_text(epsilon=4.0))).budget.guarantee.levels is None


def test_levels_change_the_revision_and_their_absence_does_not() -> None:
    without = make_task(parse_study(study_text(epsilon=4.0))).revision
    assert task_of().revision != without
    assert task_of().revision != task_of(levels=LEVELS.replace("0.5", "0.6")).revision


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (study_text(epsilon=4.0).replace('"discrete-gaussian"', '"none"'), "mechanism"),
        (study_text(epsilon=3.0), "the largest must be privacy.epsilon"),
        (renewable(epsilon=4.0), 'kind = "renewable" noises sums of them; remove it, or choose'),
        (study_text(epsilon=4.0).replace("epsilon", 'unit = "user"\nrecords = 3\nepsilon'), "unit"),
    ],
)
def test_levels_are_refused_where_they_would_not_hold(text: str, key: str) -> None:
    text = text.replace('"none"\nepsilon = 4.0\ndelta = 1e-6', '"none"')
    with pytest.raises(ConfigError, match=r"privacy\.personal") as error:
        parse_study(text.replace("[window]", f"{LEVELS}\n[window]"))
    assert key in str(error.value)


@pytest.mark.parametrize(
    ("levels", "word"),
    [
        ("personal = { levels = { one = 4.0 } }", "levels"),
        ('personal = { column = "x0", levels = { a = 4.0, b = 1.0 } }', "column of its own"),
        ('personal = { column = "y", levels = { a = 4.0, b = 1.0 } }', "column of its own"),
        ("personal = { levels = { a = 4.0, b = 0.0 } }", "levels"),
        ("personal = { levels = { a = 4.0, b = 1.0 }, colum = 3 }", "colum"),
    ],
)
def test_nonsense_levels_are_refused_by_name(levels: str, word: str) -> None:
    with pytest.raises(ConfigError, match="personal") as error:
        study(levels)
    assert word in str(error.value)


def test_a_level_that_is_none_is_refused() -> None:
    for level in ("loose", ""):
        with pytest.raises(ConfigError, match="--level"):
            task_of(level)
    with pytest.raises(ConfigError, match="--level"):
        make_task(parse_study(study_text()), "strict")


def test_produce_refuses_a_level_that_is_none(tmp_path: Path) -> None:
    file = tmp_path / "study.toml"
    file.write_text(study_text(epsilon=4.0).replace("[window]", f"{LEVELS}\n[window]"))
    options = ["produce", str(file), "--client", "a", "--source", "-", "--level", "loose"]
    found = CliRunner().invoke(cli, options)
    assert isinstance(found.exception, ConfigError)
    assert "'strict', 'medium', 'normal'" in str(found.exception)


def test_intervals_of_mixed_levels_are_those_of_the_mean_noise() -> None:
    """PPI-0 reads the middle off the gradients, so that the mean of 1 / mu^2 enters unasked."""
    levels = 'personal = { column = "consent", levels = { strict = 6.0, normal = 18.0 } }'
    text = study_text(epsilon=18.0, records=100, path="behind = 0", mechanism="insecure-simulation")
    task = make_task(parse_study(text.replace("[window]", f"{levels}\n[window]")))
    run = OfflineRun(task)
    features, responses = drawn("linear", 20_000, 11)
    rows = rows_of(task, features, responses)
    mixed = [Row(r.features, r.response, 0, i % 2) for i, r in enumerate(rows)]
    for start in range(0, len(mixed), 100):
        run.add("a", mixed[start : start + 100])
    estimate, message = run.estimate(0.0)
    assert estimate.status == "ready", estimate.reason
    assert message.privacy.levels is None  # a simulation promises nothing
    assert estimate.covariance is not None
    [path] = next(iter(run.partition.sums.states.values())).paths  # type: ignore[union-attr]
    sums = path.stretch()
    middle = np.diag(sums.gg).mean() / sums.records
    # the slopes' own variance is at most that of the residuals; 70,000 squares know their mean
    # to half a percent
    own = (0.5 / task.response_scale[1]) ** 2
    assert 0.98 * task.record_noise**2 < middle < 1.02 * task.record_noise**2 + own
    z = (estimate.coefficients * task.response_scale[1] - TRUTH) / (
        np.sqrt(np.diag(estimate.covariance)) * task.response_scale[1]
    )
    assert np.abs(z).max() < stats.norm.isf(1e-4)
