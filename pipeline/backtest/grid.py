"""Many backtests of one history: settings of a study, each with noise drawn several times.

Standard errors are over draws of the noise on this one history; they say nothing about another
history.

Runs are independent, and may go to other processes. One that fails is kept beside the others, with
its reason. Beside each setting stands the same study without privacy, run once: what the noise
costs is the difference.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import time
import tomllib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Protocol

import msgspec

from pipeline.backtest.history import History, check_history, seen_in
from pipeline.backtest.options import Options
from pipeline.backtest.result import BacktestResult
from pipeline.backtest.run import run_backtest
from pipeline.errors import ConfigError, VeilstreamError
from pipeline.methods import method_of
from pipeline.study.model import Study
from pipeline.study_file.edit import Like, with_keys
from pipeline.study_file.load import StudySource, read_study

#: More settings than this are a slip of the keyboard.
LARGEST = 1000


@dataclass(frozen=True, slots=True)
class Axis:
    """A key of the study file, as `privacy.epsilon`, and its values; None unsets it."""

    key: str
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Setting:
    """One cell of a grid: the keys that it sets, and the study that this gives."""

    changes: Mapping[str, Any]
    study: Study

    @property
    def label(self) -> str:
        """The changes in words; "as it is" without any."""
        said = [f"{key} = {text_of(value)}" for key, value in self.changes.items()]
        return ", ".join(said) or "as it is"


def parse_axis(text: str) -> Axis:
    """Return the axis that a text such as `privacy.epsilon=0.5,1,2` means.

    Values are written as in the study file; quotes may be left out, and `none` unsets a key.

    ConfigError if it means none.
    """
    key, equals, values = (part.strip() for part in text.partition("="))
    if not (key and equals and values):
        raise ConfigError(
            f"--grid: {text!r} is not a key with values; for example 'privacy.epsilon=0.5,1,2,4'"
        )
    found = tuple(_values(values))
    if len({_same(value) for value in found}) < len(found):
        raise ConfigError(f"--grid: {key} has the same value twice; name each once")
    return Axis(key, found)


def settings_of(study: Study, axes: Iterable[Axis]) -> list[Setting]:
    """Return all combinations of the values of some axes, the last one running fastest.

    ConfigError if a key is named twice, a study has no such key, or a value is not allowed.
    """
    axes = list(axes)
    keys = [axis.key for axis in axes]
    if len(set(keys)) < len(keys):
        raise ConfigError("--grid: a key is named twice; give all its values in one --grid")
    combinations = list(itertools.islice(itertools.product(*(a.values for a in axes)), LARGEST + 1))
    if len(combinations) > LARGEST:
        raise ConfigError(f"--grid: at most {LARGEST} settings; leave values out")
    found = []
    for values in combinations:
        changes = dict(zip(keys, values, strict=True))
        found.append(Setting(changes, with_keys(study, changes, name="--grid")))
    return found


def text_of(value: Any) -> str:
    """Return a value as a person would write it."""
    if isinstance(value, str) or value is None:
        return value or "none"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {text_of(one)}" for key, one in value.items()) + " }"
    return f"{value:g}" if isinstance(value, float) else json.dumps(value)


def _same(value: Any) -> str:
    """Return a text that equal values share: 1 and 1.0 are the same."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return repr(float(value)) if number else json.dumps(value, sort_keys=True)


def _values(text: str) -> list[Any]:
    try:
        return list(tomllib.loads(f"values = [{text}]")["values"])
    except tomllib.TOMLDecodeError:
        return [_value(one.strip()) for one in text.split(",")]


def _value(text: str) -> Any:
    if text == "none":
        return None
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


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
    like: Of a study what a plan by the records of the history is of.
    """

    axes: tuple[Axis, ...]
    cells: tuple[Cell, ...]
    seconds: float
    failed: tuple[Failed, ...] = ()
    no_open: tuple[str, ...] = ()
    like: Callable[[Study], Like] = lambda study: (study, None)

    @property
    def shown(self) -> Cell | None:
        """The first setting with a result; None if every run failed."""
        return next((cell for cell in self.cells if cell.runs), None)

    @property
    def reasons(self) -> dict[str, list[Failed]]:
        """Why runs failed, each reason once with its runs."""
        found: dict[str, list[Failed]] = {}
        for run in self.failed:
            found.setdefault(str(run.error), []).append(run)
        return found

    @property
    def main_score(self) -> str:
        """Name of the score that says most in one number.

        Raises what failed the first run if none came to a result.
        """
        if self.shown is None:
            raise self.failed[0].error
        return self.shown.runs[0].result.main_score[0]


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
    calls = [(changed, history, one) for _, _, changed, one in tasks]
    found: list[Run] = []
    failed: list[Failed] = []
    with closing((runner or _here)(partial(run_backtest, form=form), calls)) as outcomes:
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
    seconds = time.perf_counter() - begun
    noised = (setting.study for setting in settings if _is_private(setting, options))
    reasons = dict.fromkeys(why for one in noised if (why := method_of(one).spec.needs_noise))

    @lru_cache(maxsize=1)
    def like(written: bytes) -> Like:
        return seen_in(msgspec.json.decode(written, type=Study), options, history, form)

    # advice is asked for by all who show it, and the history is read once for them
    return GridResult(
        tuple(axes), cells, seconds, tuple(failed), tuple(reasons),
        lambda study: like(msgspec.json.encode(study)),
    )  # fmt: skip


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


def _here(work: Callable[..., BacktestResult], calls: Sequence[tuple[Any, ...]]) -> _Outcomes:
    for number, call in enumerate(calls):
        try:
            result: _Outcome = work(*call)
        except VeilstreamError as error:
            result = error
        yield number, result
