"""Grids of backtests: axes, runs, means, advice, and the report."""

from __future__ import annotations

import dataclasses
import io
import math
import re
import statistics
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import numpy as np
import pytest
from rich.console import Console

from pipeline.api.check import facts_of
from pipeline.api.sample import like
from pipeline.backtest import BacktestResult as Result
from pipeline.backtest import Options
from pipeline.backtest import grid as grids
from pipeline.backtest.grid import (
    Axis,
    Cell,
    Failed,
    GridResult,
    Mean,
    Run,
    parse_axis,
    run_grid,
    settings_of,
    text_of,
)
from pipeline.backtest.report import CLOSE, advise, report_of, rows_of
from pipeline.cli.backtest import summary, to_dict
from pipeline.cli.pool import Pool
from pipeline.errors import ConfigError, DataError, NumericError
from pipeline.methods import method_of, task_of
from pipeline.study_file.edit import with_keys
from pipeline.study_file.load import parse_study
from tests.builders import study_text
from tests.sites import study_text as sites_text

VOID = {"meta", "br"}


@pytest.mark.parametrize(
    ("text", "key", "values"),
    [
        ("privacy.epsilon=0.5,1, 2", "privacy.epsilon", (0.5, 1, 2)),
        ("estimator.loss=gdwd,logistic", "estimator.loss", ("gdwd", "logistic")),
        ('estimator.loss="gdwd"', "estimator.loss", ("gdwd",)),
        ("estimator.norm_bound=none,2", "estimator.norm_bound", (None, 2)),
        (
            'estimator.forgetting={half_life=500,of="records"}',
            "estimator.forgetting",
            ({"half_life": 500, "of": "records"},),
        ),
    ],
)
def test_an_axis_is_a_key_and_values_as_the_study_file_writes_them(
    text: str, key: str, values: tuple[object, ...]
) -> None:
    assert parse_axis(text) == Axis(key, values)


@pytest.mark.parametrize(
    "text", ["privacy.epsilon", "=1", "privacy.epsilon=", "window.records=5,5"]
)
def test_what_is_no_axis_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--grid"):
        parse_axis(text)


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        (["privacy.epsilom=1"], "did you mean 'epsilon'"),
        (["nothing.at.all=1"], "nothing: unknown key"),
        (["study.name.more=1"], "study.name.more: a study has no such key"),
        (["privacy.epsilon=-1"], "privacy.epsilon"),
        (["privacy.epsilon=1", "privacy.epsilon=2"], "named twice"),
        (["window.records=" + ",".join(map(str, range(1, 1102)))], "at most 1000 settings"),
    ],
)
def test_a_key_or_value_that_a_study_does_not_have_is_refused(
    axes: list[str], message: str
) -> None:
    study = parse_study(study_text())
    with pytest.raises(ConfigError, match=message):
        settings_of(study, [parse_axis(text) for text in axes])


def test_settings_are_all_combinations_and_change_nothing_else() -> None:
    study = parse_study(study_text(epsilon=2.0, records=50))
    found = settings_of(study, [Axis("privacy.epsilon", (1, 2.0)), Axis("window.records", (50, 9))])
    assert [tuple(one.changes.values()) for one in found] == [(1, 50), (1, 9), (2.0, 50), (2.0, 9)]
    assert found[2].study == study
    assert found[1].study.privacy.epsilon == 1
    assert found[1].study.window.records == 9
    assert settings_of(study, [])[0].study == study
    assert text_of({"half_life": 5.0, "of": "records"}) == "{ half_life = 5, of = records }"


@pytest.fixture(scope="module")
def history() -> dict[str, object]:
    rng = np.random.default_rng(4)
    x = rng.uniform(-1.0, 1.2, (1200, 3))
    y = (x @ [2.0, -1.0, 0.5] + 0.5 * rng.normal(size=1200) > 0).astype(int).astype(str)
    return {**{f"x{i}": x[:, i] for i in range(3)}, "y": list(y)}


@pytest.fixture(scope="module")
def grid(history: dict[str, object]) -> GridResult:
    axes = [Axis("privacy.epsilon", (0.25, 4.0)), Axis("window.records", (50, 100))]
    options = Options(split=3, simulate=7)
    return run_grid(study_text(), history, axes, options, draws=2, runner=Pool(2))


@pytest.mark.slow
def test_a_grid_runs_each_setting_with_the_same_draws_and_once_without_privacy(
    grid: GridResult, history: dict[str, object]
) -> None:
    assert [len(cell.runs) for cell in grid.cells] == [2, 2, 2, 2]
    every = [run.result for cell in grid.cells for run in cell.runs]
    # the seed as it was given, and one further on for each draw
    seeds = [[run.result.options["simulate"] for run in cell.runs] for cell in grid.cells]
    assert seeds == [[7, 8]] * 4
    assert len({result.estimate.coefficients[0].value for result in every}) == 8
    # settings that differ in epsilon alone have the same run beside them
    assert grid.cells[0].open is grid.cells[2].open
    assert grid.cells[0].open is not grid.cells[1].open
    assert grid.cells[0].open is not None
    assert grid.cells[0].open.result.mechanism == "none"
    # as many processes as one likes, in whatever order they end: the same numbers
    again = run_grid(study_text(), history, grid.axes, Options(split=3, simulate=7), draws=2)
    pairs = zip(grid.cells, again.cells, strict=True)
    for one, other in pairs:
        assert [stable(run) for run in one.runs] == [stable(run) for run in other.runs]


def stable(run: Run) -> dict[str, float | None]:
    return {name: value for name, value in run.measures.items() if name != "seconds"}


def test_a_run_that_fails_leaves_the_others_with_its_reason(
    history: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    true, told = grids.run_backtest, []

    def failing(study: object, history: object, options: Options, **given: object) -> object:
        if options.simulate == 8 or options.without_privacy:
            raise NumericError("no estimate of this draw")
        return true(study, history, options, **given)  # type: ignore[arg-type]

    monkeypatch.setattr(grids, "run_backtest", failing)
    # its records are no matter here
    few = {name: values[:600] for name, values in history.items()}  # type: ignore[index]
    options = Options(split=3, simulate=7)
    found = run_grid(
        study_text(), few, [], options, draws=3, report=lambda run, *_: told.append(type(run))
    )
    [cell] = found.cells
    assert [run.draw for run in cell.runs] == [0, 2]
    assert [run.draw for run in found.failed] == [None, 1]
    assert cell.open is None
    assert told == [Run, Failed, Run, Failed]
    [warning] = [text for text in advise(found).warnings if "Failed" in text]
    assert "as it is, without privacy; as it is, draw 2: no estimate of this draw" in warning
    assert [row["draw"] for row in to_dict(found)["failed"]] == [None, 1]
    summary(found)
    assert "no estimate of this draw" in report_of(found, history="h", created_at=0.0)
    # a setting without any result stands in the table, and is not recommended
    axes = [Axis("privacy.epsilon", (4.0, 1.0))]
    monkeypatch.setattr(grids, "run_backtest", lambda study, *given, **named: (
        failing(study, given[0], Options(split=3, simulate=8 if study.privacy.epsilon == 4 else 7))
    ))  # fmt: skip
    found = run_grid(study_text(), few, axes, options)
    assert [len(cell.runs) for cell in found.cells] == [0, 1]
    assert advise(found).cell is found.cells[1]
    report_of(found, history="h", created_at=0.0)
    summary(found)


def test_a_setting_that_makes_no_record_usable_leaves_the_others(
    history: dict[str, object],
) -> None:
    wrong = {"name": "y", "positive": "much", "negative": "little"}
    right = {"name": "y", "positive": "1", "negative": "0"}
    axes = [Axis("data.response", (wrong, right))]
    some = {name: list(column)[:600] for name, column in history.items()}  # type: ignore[call-overload]
    found = run_grid(study_text(), some, axes, Options(simulate=7), draws=2)
    assert [len(cell.runs) for cell in found.cells] == [0, 2]
    assert [(run.setting, run.draw) for run in found.failed] == [(0, None), (0, 0), (0, 1)]
    assert {run.error.exit_code for run in found.failed} == {DataError.exit_code}
    assert advise(found).cell is found.cells[1]
    # its row says how many failed, and under which number the reason stands
    rows = [row[-1] for _, row in rows_of(found)]
    assert rows == ["3 (1)", "-"]
    [said] = [text for text in advise(found).warnings if text.startswith("(1) Failed")]
    assert "none of its 600 records could be used: column 'y'" in said
    assert "3 (1)" in report_of(found, history="h", created_at=0.0)
    # even where no setting can be recommended the report says why runs failed
    few = {name: column[:20] for name, column in some.items()}
    found = run_grid(study_text(), few, axes, Options(simulate=7))
    assert (advise(found).cell, found.shown) == (None, found.cells[1])
    assert "(1) Failed" in report_of(found, history="h", created_at=0.0)


def test_a_grid_without_any_result_keeps_why(history: dict[str, object]) -> None:
    wrong = {"name": "y", "positive": "much", "negative": "little"}
    options = Options(split=3, simulate=7)
    found = run_grid(study_text(), history, [Axis("data.response", (wrong,))], options)
    assert (len(found.failed), found.shown) == (2, None)
    told = to_dict(found)
    assert [run["exit_code"] for run in told["failed"]] == [DataError.exit_code] * 2
    assert (told["recommended"], told["settings"][0]["draws"]) == (None, 0)
    console = Console(width=200, file=io.StringIO(), record=True)
    console.print(summary(found))
    assert "No run came to a result" in console.export_text()
    with pytest.raises(DataError):
        report_of(found, history="h", created_at=0.0)


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        ("nowhere.csv", Options(), "nowhere.csv: cannot be opened"),
        ("nowhere.parquet", Options(), "nowhere.parquet: cannot be read"),
        ({"x0": [1.0]}, Options(client_column="who"), "no column 'who'"),
        ({"x0": [], "when": []}, Options(event_time="when"), "holds no records"),
    ],
)
def test_a_history_that_no_run_could_read_is_refused_at_once(
    given: object, options: Options, message: str
) -> None:
    told: list[object] = []
    with pytest.raises(DataError, match=message):
        run_grid(study_text(), given, [], options, report=lambda *run: told.append(run))
    assert told == []


def test_a_kind_that_needs_noise_has_no_run_without_it(history: dict[str, object]) -> None:
    text = sites_text(p=3, records=200, loss="logistic")
    found = run_grid(text, history, [], Options(split=3, simulate=7), draws=2)
    [cell] = found.cells
    assert (len(cell.runs), cell.open, found.failed) == (2, None, ())
    assert "without noise" in found.no_open[0]
    assert to_dict(found)["no_open"] == list(found.no_open)
    assert found.no_open[0].replace('"', "&#34;") in report_of(found, history="h", created_at=0.0)
    with pytest.raises(ConfigError, match="without privacy"):
        run_grid(text, history, [], Options(split=3, without_privacy=True))


def test_means_have_the_standard_error_over_draws(grid: GridResult) -> None:
    cell = grid.cells[0]
    scores = [run.result.scores.balanced_accuracy for run in cell.runs]
    mean = cell.means["balanced_accuracy"]
    assert mean.value == pytest.approx(statistics.fmean(scores))
    assert mean.error == pytest.approx(statistics.stdev(scores) / math.sqrt(2))
    assert Mean.of([3.0]) == Mean(3.0, None, 1)
    assert "mean_absolute_error" not in cell.means


def edited(grid: GridResult, change: Callable[[int, Result], Result]) -> GridResult:
    """Return the grid as if its runs had other results: of each setting's number and its own."""
    cells = []
    for number, cell in enumerate(grid.cells):
        runs = [dataclasses.replace(run, result=change(number, run.result)) for run in cell.runs]
        cells.append(Cell(cell.setting, tuple(runs), cell.open))
    return dataclasses.replace(grid, cells=tuple(cells))


def scored(grid: GridResult, *scores: float) -> GridResult:
    """Return the grid as if its settings had these scores."""
    return edited(grid, lambda number, result: dataclasses.replace(
        result,
        scores=dataclasses.replace(
            result.scores, auc=scores[number], log_loss=1 - scores[number]
        ),
    ))  # fmt: skip


def having(result: Result, *ends: tuple[float, float] | None) -> Result:
    """Return a result whose coefficients have these intervals, and all further ones the last."""
    rows = [
        msgspec.structs.replace(row, interval=ends[min(place, len(ends) - 1)])
        for place, row in enumerate(result.estimate.coefficients)
    ]
    estimate = msgspec.structs.replace(result.estimate, coefficients=rows)
    return dataclasses.replace(result, estimate=estimate)


def test_the_advice_is_the_smallest_epsilon_that_is_close_to_the_best(
    grid: GridResult, history: dict[str, object]
) -> None:
    near, far = 0.9 - 0.9 * CLOSE, 0.9 - 1.1 * CLOSE
    assert advise(scored(grid, 0.5, near, 0.9, 0.9)).cell is not None
    for scores, taken in (
        ((0.5, near, 0.9, 0.9), 1),
        ((0.5, far, 0.6, 0.9), 3),
        ((0.9, 0.5, 0.9, 0.9), 0),
        ((0.9 - CLOSE / 2, 0.9, 0.9, 0.9), narrowest(grid)),
    ):
        told = scored(grid, *scores)
        advice = advise(told)
        assert advice.cell is told.cells[taken]
        assert f"{scores[taken]:.4g}" in advice.reason
    assert any("smallest that was tried" in text for text in advice.warnings)
    high = advise(scored(grid, 0.5, far, 0.6, 0.9))
    assert any("largest that was tried" in text for text in high.warnings)
    clipped = [text for text in high.warnings if "clipped" in text]
    assert len(clipped) == 1
    for i in range(3):
        assert f"x{i} ({np.mean(np.abs(np.asarray(history[f'x{i}'])) > 1):.0%})" in clipped[0]


def with_intervals(grid: GridResult, *some: int) -> GridResult:
    """Return the grid as if some of its settings had an interval for all coefficients."""
    return edited(
        grid, lambda number, result: having(result, (-1.0, 1.0) if number in some else None)
    )


def test_the_advice_prefers_settings_with_intervals_and_says_where_there_are_some(
    grid: GridResult,
) -> None:
    # settings 0 and 1 have the smaller epsilon
    told = scored(with_intervals(grid, 2, 3), 0.9, 0.9, 0.9 - CLOSE / 2, 0.9 - CLOSE / 2)
    assert not told.cells[0].has_intervals
    assert advise(told).cell is told.cells[2]
    assert "those with an interval for at least 80% of the coefficients" in advise(told).reason
    far = scored(with_intervals(grid, 3), 0.9, 0.9, 0.9, 0.8)
    advice = advise(far)
    assert advice.cell is not far.cells[3]
    [said] = [text for text in advice.warnings if "There is an interval for at least 80%" in text]
    assert far.cells[3].setting.label in said
    assert "0.8" in said


def test_the_advice_denies_no_interval_that_there_is(grid: GridResult) -> None:
    # three of four coefficients have one
    some = edited(grid, lambda _, result: having(result, None, (-1.0, 1.0)))
    assert [cell.means["intervals"].value for cell in some.cells] == [0.75] * 4
    reason = advise(some).reason
    assert "none has intervals" not in reason
    assert "all, as none has an interval for at least 80% of the coefficients in every" in reason


def test_noise_that_seems_to_help_is_called_chance(grid: GridResult) -> None:
    assert grid.cells[0].open is not None
    without = grid.cells[0].open.measures["auc"]
    assert without is not None
    # what rounds to the same is no better
    for add, count in ((0.01, 1), (-0.01, 0), (1e-7, 0)):
        advice = advise(scored(grid, *[without + add] * 4))
        assert sum("better than without privacy" in text for text in advice.warnings) == count


@pytest.mark.slow
def test_classes_are_judged_by_their_ranking_with_other_scores_beside(grid: GridResult) -> None:
    assert grid.main_score == "auc"
    told = scored(grid, 0.6, 0.7, 0.6, 0.6)
    advice = advise(told)
    assert advice.cell is not None
    assert advice.cell.setting is told.cells[1].setting
    beside = advice.cell.means["log_loss"].value, advice.cell.means["balanced_accuracy"].value
    said = r"AUC 0\.7.*; log-loss (\d\.\d+)[^,]*, balanced accuracy (\d\.\d+)"
    found = re.search(said, advice.reason)
    assert found is not None
    assert [float(number) for number in found.groups()] == pytest.approx(beside, rel=1e-3)
    # the command's table and the page know that score, too
    console = Console(width=200, file=io.StringIO(), record=True)
    console.print(summary(told))
    assert "area under the ROC curve" in console.export_text()
    assert "AUC" in report_of(told, history="h.csv", created_at=0.0)


def test_the_advice_says_what_a_plan_by_its_records_says_of_more_records_and_epsilon(
    grid: GridResult, history: dict[str, object], tmp_path: Path
) -> None:
    file = tmp_path / "history.csv"
    rows = zip(*history.values(), strict=True)
    file.write_text("\n".join([",".join(history), *(",".join(map(str, row)) for row in rows)]))
    taken = advise(scored(grid, 0.5, 0.5, 0.9, 0.5))
    assert taken.cell is not None
    study, result = taken.cell.setting.study, taken.cell.runs[0].result
    assert study.privacy.epsilon is not None
    [said] = [text for text in taken.warnings if text.startswith("Half an interval of a slope")]
    words = (
        r"like these: (.*) as it is, (.*) with twice the records, (.*) with twice the epsilon\.$"
    )
    found = re.search(words, said)
    assert found is not None
    double = with_keys(study, {"privacy.epsilon": 2 * study.privacy.epsilon}, name="it")
    ranges = []
    for told, one, size in zip(
        found.groups(), (study, study, double), np.array([1, 2, 1]) * result.records, strict=True
    ):
        # as `study check --sample` has it, to the letter
        task = task_of(one)
        facts = facts_of(task, int(size), result.clients, like(task, str(file))[0])["intervals"]
        assert isinstance(facts, dict)
        few, late = f"+-{facts['usual_half']:.2g}", f"none before {facts['usual']:,} records"
        assert told == (few if facts["usual"] <= size else late)
        ranges.append(method_of(one).plan(task, int(size), result.clients).usual_half)
    # the declared ranges alone say otherwise
    assert found.group(2) != f"+-{ranges[1]:.2g}"


def test_widths_are_not_compared_between_ridges(grid: GridResult) -> None:
    def told(*ridges: float) -> GridResult:
        # the last has the narrowest intervals, and a score that is close
        widths = (2.0, 3.0, 4.0, 1.0)
        found = edited(grid, lambda n, result: having(result, (-widths[n], widths[n])))
        cells = []
        for cell, ridge in zip(found.cells, ridges, strict=True):
            keys = {"estimator.ridge": ridge, "privacy.epsilon": 1.0}
            study = with_keys(cell.setting.study, keys, name="it")
            setting = dataclasses.replace(cell.setting, study=study)
            cells.append(dataclasses.replace(cell, setting=setting))
        return scored(dataclasses.replace(found, cells=tuple(cells)), 0.9, 0.899, 0.9, 0.897)

    alike, apart = told(0.1, 0.1, 0.1, 0.1), told(0.1, 0.1, 0.3, 0.3)
    assert advise(alike).cell is alike.cells[3]
    assert advise(apart).cell is apart.cells[0]
    assert "of the settings that estimate the same" in advise(apart).reason


def test_coverage_is_judged_over_draws_by_their_error(grid: GridResult) -> None:
    def warned(*coverage: float) -> bool:
        shares, cell = iter(coverage), grid.cells[0]

        def covering(_: int, result: Result) -> Result:
            pooled = dataclasses.replace(result.pooled, coverage=next(shares))
            return dataclasses.replace(result, pooled=pooled)

        some = Cell(cell.setting, cell.runs[: len(coverage)], cell.open)
        told = edited(dataclasses.replace(grid, cells=(some,)), covering)
        return any("of all records" in text for text in advise(told).warnings)

    assert warned(0.5, 0.52)
    assert not warned(0.5, 0.9)
    assert not warned(0.95, 0.97)
    assert not warned(0.5)


def narrowest(grid: GridResult) -> int:
    """Return which of the first two settings has the narrower intervals; without any, the second.

    They have the same epsilon, and the score of the second is better.
    """
    if not all(cell.has_intervals for cell in grid.cells[:2]):
        return 1
    widths = [cell.means["width"].value for cell in grid.cells[:2]]
    return widths.index(min(widths))


class Page(HTMLParser):
    """Checks that what is opened is closed, and keeps words and addresses."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.addresses: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        found = dict(attrs)
        for name in ("href", "src", "xlink:href", "action"):
            if not (found.get(name) or "#").startswith("#"):
                self.addresses.append(str(found[name]))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_the_report_is_one_file_that_asks_for_nothing(grid: GridResult) -> None:
    text = report_of(grid, history="<b>mine</b>.csv", created_at=0.0)
    page = Page()
    page.feed(text)
    assert page.open == []
    assert page.addresses == []
    assert not re.search(r"https?:|url\((?!#)|@import|<script", text)
    words = " ".join(page.words)
    assert "<b>mine</b>.csv" in words
    assert "b" not in page.tags
    # two axes with two pictures each, scores and coefficients over time
    shown = sum(any("width" in p.means for p in grid.cells) for _ in grid.axes)
    assert page.tags.count("svg") == 2 + shown + 2
    for cell in grid.cells:
        mean = cell.means["auc"]
        assert f"{mean.value:.4g} ± {mean.error:.1g}" in words
    assert "Not private." in words
    assert "No guarantee." in words


@pytest.mark.slow
def test_a_report_of_one_run_has_no_table_of_settings(history: dict[str, object]) -> None:
    study = study_text(loss="logistic")
    one = run_grid(study, history, [], Options(without_privacy=True))  # type: ignore[arg-type]
    text = report_of(one, history="h", created_at=0.0)
    assert "All settings" not in text
    # the loss has probabilities: scores, calibration and coefficients
    assert text.count("<svg") == 3
    assert "predicted probability</text>" in text
    assert one.cells[0].open is None
    assert one.cells[0].setting.label == "as it is"
