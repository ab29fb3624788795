"""Many backtests of one history: settings of a study, each with noise drawn several times.

Runs are independent, and may go to other processes. One that fails is kept beside the others, with
its reason. Beside each setting stands the same study without privacy, run once: what the noise
costs is the difference.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from typing import Any, Protocol

from pipeline.backtest.axes import Axis, Setting, settings_of
from pipeline.backtest.grid_result import Cell, Failed, GridResult, Run
from pipeline.backtest.history import History, check_history
from pipeline.backtest.options import Options
from pipeline.backtest.result import BacktestResult
from pipeline.backtest.run import run_backtest
from pipeline.errors import ConfigError, VeilstreamError
from pipeline.methods import method_of
from pipeline.study.model import Study
from pipeline.study_file.load import StudySource, read_study

#: Told of a run that has ended or failed, how many have by now, and of how many.
Report = Callable[[Run | Failed, int, int], None]
#: What a run came to.
_Outcome = BacktestResult | VeilstreamError
#: Number of each call, and what it came to, as they end.
_Outcomes = Generator[tuple[int, _Outcome]]


class Runner(Protocol):
    """What computes runs, such as `pipeline.cli.pool.Pool`."""

    def __call__(
        self, work: Callable[..., BacktestResult], calls: Sequence[tuple[Any, ...]]
    ) -> _Outcomes:
        """Yield the number of each call of `work` and what it came to; all, in any order."""


def run_grid(
    study: StudySource,
    history: History,
    axes: Sequence[Axis],
    options: Options,
    *,
    draws: int = 1,
    runner: Runner | None = None,
    form: str = "csv",
    report: Report | None = None,
) -> GridResult:
    """Backtest all settings of a grid.

    study, history, form: As in `backtest`; each run reads the history for itself.
    axes: Keys of the study file with their values; none: the study as it is.
    options: Of every run. With `simulate`, the draws are from that seed on, the same for all
        settings.
    draws: How many times the noise of a setting is drawn, >= 1. Without privacy there is none: one.
    runner: What computes them; by default this process, one after the other. Numbers are the same.
    report: Told of each run.

    Raises ConfigError if an axis, an option or a number is not allowed; DataError if the history
    cannot be read under any setting. What else fails a run fails that run alone, and is in the
    `failed` of the result, even if that is all of them.
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
    # and so is a history that no run could read
    check_history(history, options, form)
    calls = [(changed, history, one, form) for _, _, changed, one in tasks]
    found: list[Run] = []
    failed: list[Failed] = []
    with closing((runner or _here)(_run, calls)) as outcomes:
        for task, result in outcomes:
            number, draw, _, _ = tasks[task]
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
        open_too = private and not method_of(setting.study).spec.needs_noise
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
        if _is_private(setting, options) and (why := method_of(setting.study).spec.needs_noise):
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


def _run(study: Study, history: History, options: Options, form: str) -> BacktestResult:
    return run_backtest(study, history, options, form=form)


def _here(work: Callable[..., BacktestResult], calls: Sequence[tuple[Any, ...]]) -> _Outcomes:
    for number, call in enumerate(calls):
        try:
            result: _Outcome = work(*call)
        except VeilstreamError as error:
            result = error
        yield number, result
