"""Many backtests of one history: settings of a study, each with noise drawn several times.

Runs are independent, and may go to other processes. One that fails is kept beside the others, with
its reason. Beside each setting stands the same study
without privacy, run once: what the noise costs is the difference. Standard errors are over draws of
the noise on this one history; they say nothing about another history.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, as_completed
from dataclasses import dataclass

from pipeline.backtest.axes import Axis, Setting, settings_of
from pipeline.backtest.history import History
from pipeline.backtest.options import Options
from pipeline.backtest.result import BacktestResult
from pipeline.backtest.run import run_backtest
from pipeline.errors import ConfigError, DataError, VeilstreamError
from pipeline.methods import method_of
from pipeline.study import Study, StudySource, read_study

#: Told of a run that has ended or failed, how many have by now, and of how many.
Report = Callable[["Run | Failed", int, int], None]
#: Scores of a run that are averaged, and other numbers of its last estimate.
MEASURES = (
    "accuracy", "balanced_accuracy", "auc", "log_loss", "mean_absolute_error",
    "root_mean_square_error", "width", "intervals", "coverage", "privacy_share", "ready",
    "releases", "seconds",
)  # fmt: skip


#: A setting has intervals if at least this share of its coefficients does, in every draw.
MOST = 0.8


@dataclass(frozen=True, slots=True)
class Run:
    """One backtest of a grid.

    setting, label: Number of its setting, and the same in words.
    draw: Number of its draw of the noise; None for the run without privacy.
    """

    setting: int
    label: str
    draw: int | None
    result: BacktestResult

    @property
    def measures(self) -> dict[str, float | None]:
        """The numbers that are averaged, by name; widths are those of the last estimate."""
        result = self.result
        found = dataclasses.asdict(result.scores)
        diagnostics = result.estimate.diagnostics
        widths = sorted(c.interval[1] - c.interval[0] for c in result.estimate.coefficients
                        if c.interval is not None)  # fmt: skip
        found |= {
            "width": widths[len(widths) // 2] if widths else None,
            "intervals": len(widths) / len(result.estimate.coefficients),
            "coverage": result.pooled.coverage,
            "privacy_share": diagnostics.privacy_share if widths else None,
            "ready": float(result.estimate.status == "ready"),
            "releases": float(result.estimate.releases),
            "seconds": result.seconds,
        }
        return {name: found[name] for name in MEASURES}


@dataclass(frozen=True, slots=True)
class Failed:
    """A backtest of a grid that came to no result; its attributes are as those of `Run`.

    error: Why.
    """

    setting: int
    label: str
    draw: int | None
    error: VeilstreamError

    @property
    def name(self) -> str:
        """Which run it is, in words."""
        return f"{self.label}, {named(self.draw)}"


def ended() -> VeilstreamError:
    """Return why runs fail whose process is gone."""
    return VeilstreamError(
        "a process that computed a part was ended from outside, perhaps for want of memory; the "
        "operator must free some, or give fewer --jobs"
    )


def named(draw: int | None) -> str:
    """Return what a draw of the noise is called, counted from 1; None is the run without it."""
    return "without privacy" if draw is None else f"draw {draw + 1}"


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean over draws of the noise, with its standard error; None of one draw alone."""

    value: float
    error: float | None
    draws: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Mean:
        """Return the mean of at least one value."""
        count = len(values)
        centre = math.fsum(values) / count
        if count == 1:
            return cls(centre, None, 1)
        spread = math.fsum((value - centre) ** 2 for value in values) / (count - 1)
        return cls(centre, math.sqrt(spread / count), count)


@dataclass(frozen=True, slots=True)
class Cell:
    """A setting with what its runs came to.

    runs: One for each draw that did not fail.
    open: The run without privacy; None where the study itself keeps none, its kind has no stream
        without noise, or that run failed.
    """

    setting: Setting
    runs: tuple[Run, ...]
    open: Run | None

    @property
    def means(self) -> dict[str, Mean]:
        """Means over the draws, by measure; those that no run has are left out."""
        found = {}
        for name in MEASURES:
            values = [v for run in self.runs if (v := run.measures[name]) is not None]
            if values:
                found[name] = Mean.of(values)
        return found

    @property
    def has_intervals(self) -> bool:
        """Whether every draw ended with an interval for most of the coefficients."""
        return bool(self.runs) and all(
            (run.measures["intervals"] or 0.0) >= MOST for run in self.runs
        )


@dataclass(frozen=True, slots=True)
class GridResult:
    """What a grid came to.

    axes: The keys and their values.
    cells: One for each setting, in the order of the axes.
    seconds: How long all took.
    failed: Runs that came to no result, in the same order.
    no_open: Why settings have no run without privacy beside them, each reason once.
    """

    axes: tuple[Axis, ...]
    cells: tuple[Cell, ...]
    seconds: float
    failed: tuple[Failed, ...] = ()
    no_open: tuple[str, ...] = ()

    @property
    def first(self) -> Cell:
        """The first setting with a result."""
        return next(cell for cell in self.cells if cell.runs)

    @property
    def main_score(self) -> str:
        """Name of the score that says most in one number."""
        return self.first.runs[0].result.main_score[0]


def run_grid(
    study: StudySource,
    history: History,
    axes: Sequence[Axis],
    options: Options,
    *,
    draws: int = 1,
    executor: Executor | None = None,
    form: str = "csv",
    report: Report | None = None,
) -> GridResult:
    """Backtest all settings of a grid.

    study, history, form: As in `backtest`; each run reads the history for itself.
    axes: Keys of the study file with their values; none: the study as it is.
    options: Of every run. With `simulate`, the draws are from that seed on, the same for all
        settings.
    draws: How many times the noise of a setting is drawn, >= 1. Without privacy there is none: one.
    executor: Where runs go; by default one after the other in this process. Numbers are the same.
    report: Told of each run.

    Raises ConfigError if an axis, an option or a number is not allowed; DataError if the history
    cannot be read, or nothing of it can be used. What else fails a run fails that run alone; the
    first such error is raised if no run of a study as it is set comes to a result.
    """
    if draws < 1:
        raise ConfigError("--draws: it must be at least 1")
    if options.beside and (axes or draws > 1):
        raise ConfigError(
            "--beside: it goes with one setting and one draw; leave --grid and --draws out"
        )
    if history == "-":
        raise ConfigError("--grid: each run reads the history; give a file instead of -")
    begun = time.perf_counter()
    settings = settings_of(read_study(study), axes)
    tasks = list(_tasks(settings, options, draws))
    # a wrong setting is found out before the first run
    for _, _, changed, one in tasks:
        one.study_of(changed)
    found: list[Run] = []
    failed: list[Failed] = []
    for number, draw, result in _results(tasks, history, form, executor):
        label = settings[number].label
        run: Run | Failed
        if isinstance(result, VeilstreamError):
            run = Failed(number, label, draw, result)
            failed.append(run)
        else:
            run = Run(number, label, draw, result)
            found.append(run)
        if report is not None:
            report(run, len(found) + len(failed), len(tasks))
    found.sort(key=_place)
    failed.sort(key=_place)
    cells = tuple(_cells(settings, options, found))
    if not any(cell.runs for cell in cells):
        raise failed[0].error
    seconds, reasons = time.perf_counter() - begun, dict.fromkeys(_no_open(settings, options))
    return GridResult(tuple(axes), cells, seconds, tuple(failed), tuple(reasons))


def _place(run: Run | Failed) -> tuple[int, int]:
    return run.setting, -1 if run.draw is None else run.draw


#: Number of the setting, of the draw, the study and its options.
_Task = tuple[int, int | None, Study, Options]


def _tasks(settings: Sequence[Setting], options: Options, draws: int) -> Iterator[_Task]:
    """Yield the runs of a grid; settings that differ in privacy alone share the one without."""
    without_privacy: set[str] = set()
    for number, setting in enumerate(settings):
        private = _is_private(setting, options)
        for draw in range(draws if private else 1):
            one = options
            if options.simulate is not None:
                # the same noise for every setting: differences are then those of the settings
                one = dataclasses.replace(options, simulate=options.simulate + draw)
            yield number, draw, setting.study, one
        open_too = private and not method_of(setting.study).no_open
        if open_too and (label := _open_label(setting)) not in without_privacy:
            without_privacy.add(label)
            one = dataclasses.replace(options, without_privacy=True, simulate=None, beside=())
            yield number, None, setting.study, one


def _is_private(setting: Setting, options: Options) -> bool:
    """Whether the noise of a setting is drawn at all."""
    return setting.study.noised and not options.without_privacy


def _no_open(settings: Sequence[Setting], options: Options) -> Iterator[str]:
    """Yield why settings with noise have no run without."""
    for setting in settings:
        if _is_private(setting, options) and (why := method_of(setting.study).no_open):
            yield why


def _open_label(setting: Setting) -> str:
    """Return what settings have in common that are the same without privacy."""
    changes = {key: v for key, v in setting.changes.items() if not key.startswith("privacy")}
    return Setting(changes, setting.study).label


def _cells(settings: Sequence[Setting], options: Options, runs: Sequence[Run]) -> list[Cell]:
    beside = {_open_label(settings[run.setting]): run for run in runs if run.draw is None}
    found = []
    for number, setting in enumerate(settings):
        mine = tuple(run for run in runs if run.setting == number and run.draw is not None)
        private = _is_private(setting, options)
        found.append(Cell(setting, mine, beside.get(_open_label(setting)) if private else None))
    return found


#: What a run came to.
_Outcome = BacktestResult | VeilstreamError


def _results(
    tasks: Sequence[_Task], history: History, form: str, executor: Executor | None
) -> Iterator[tuple[int, int | None, _Outcome]]:
    """Yield setting, draw and outcome as runs end.

    Raises DataError: a history that one cannot read is so for all, and no other run begins.
    """
    if executor is None:
        for setting, draw, study, options in tasks:
            one: Future[BacktestResult] = Future()
            try:
                one.set_result(run_backtest(study, history, options, form=form))
            except VeilstreamError as error:
                one.set_exception(error)
            yield setting, draw, _outcome(one)
        return
    waiting = {
        executor.submit(run_backtest, study, history, options, form=form): (setting, draw)
        for setting, draw, study, options in tasks
    }
    try:
        for done in as_completed(waiting):
            yield *waiting[done], _outcome(done)
    finally:
        for one in waiting:
            one.cancel()


def _outcome(done: Future[BacktestResult]) -> _Outcome:
    try:
        return done.result()
    except DataError:
        raise
    except VeilstreamError as error:
        return error
    except BrokenExecutor:
        return ended()
