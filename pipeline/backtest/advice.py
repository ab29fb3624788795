"""Which setting of a grid to take, in words, with the reason: the rule of docs/backtest.md."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass

from scipy.special import ndtri

from pipeline.backtest.grid import MOST, Cell, GridResult, Mean
from pipeline.backtest.result import BacktestResult
from pipeline.backtest.scores import WORDS
from pipeline.errors import ConfigError, PrivacyError
from pipeline.methods import method_of, task_of
from pipeline.methods.plan_words import half_at
from pipeline.study.model import Study
from pipeline.study_file.edit import with_keys

#: Largest loss of AUC, and of the share of an error, that counts as close.
CLOSE, CLOSE_SHARE = 0.01, 0.02
#: Keys of [privacy] that change what an epsilon means.
PROMISES = ("mechanism", "delta", "unit", "records", "neighbours", "personal")
#: Keys of [estimator] that settings agree in whose widths are compared: they estimate the same.
TARGET = ("kind", "loss", "q", "smoothing", "ridge", "norm_bound", "residual_bound", "tau",
          "class_weights")  # fmt: skip
#: Which settings are said to have intervals, as `Cell.has_intervals` has it.
ENOUGH = f"an interval for at least {MOST:.0%} of the coefficients in every draw"


@dataclass(frozen=True, slots=True)
class Advice:
    """The setting to take (None if none was scored), why, and what to look at before that."""

    cell: Cell | None
    reason: str
    warnings: tuple[str, ...]


def advise(grid: GridResult) -> Advice:
    """Return which setting to take."""
    failed, name = tuple(_failed(grid)), grid.shown and grid.main_score
    scored = [cell for cell in grid.cells if name in cell.means]
    if not scored:
        said = "No run came to a result." if name is None else "No estimate came before the last."
        return Advice(None, said, failed)
    scored.sort(key=lambda cell: _loss(grid, cell.means[grid.main_score].value))
    best = _loss(grid, scored[0].means[grid.main_score].value)
    limit = best * (1 + CLOSE_SHARE) if best >= 0 else best + CLOSE
    close = [c for c in scored if _loss(grid, c.means[grid.main_score].value) <= limit]
    least = min(map(_preference, close))
    equal = [cell for cell in close if _preference(cell) == least]
    taken = min((cell for cell in equal if _target(cell) == _target(equal[0])), key=_width)
    return Advice(taken, _reason(grid, taken, scored), (*failed, *_warnings(grid, taken, scored)))


def _loss(grid: GridResult, score: float) -> float:
    return score if grid.main_score.endswith("error") else -score


def _preference(cell: Cell) -> tuple[bool, float, float]:
    """Return what is the smaller, the better; a guarantee comes before none."""
    privacy = cell.setting.study.privacy
    epsilon = math.inf if privacy.epsilon is None else privacy.epsilon
    return not cell.has_intervals, epsilon, privacy.delta or 0.0


def _width(cell: Cell) -> float:
    """Return the width of the intervals per quantile of their level, infinite without them."""
    quantile = ndtri((1 + cell.setting.study.estimator.level) / 2)
    return cell.means["width"].value / float(quantile) if cell.has_intervals else math.inf


def _target(cell: Cell) -> list[object]:
    estimator = cell.setting.study.estimator
    return [cell.setting.study.data, *(getattr(estimator, key) for key in TARGET)]


def _reason(grid: GridResult, taken: Cell, scored: list[Cell]) -> str:
    name, best = grid.main_score, scored[0]
    said = f"{WORDS[name][0].upper()}{WORDS[name][1:]} {_told(taken.means[name])}"
    if taken is not best:
        said += f", against {_told(best.means[name])} at best ({best.setting.label})"
    beside = [f"{WORDS[other]} {_told(taken.means[other])}" for other in ("log_loss",
              "balanced_accuracy") if other in taken.means]  # fmt: skip
    said += f"; {', '.join(beside)}" if beside else ""
    last = "the narrowest intervals, or else the best score"
    if any(_target(cell) != _target(taken) for cell in grid.cells):
        last = "the best score, then the narrowest intervals of the settings that estimate the same"
    within = f"{CLOSE_SHARE:.0%}" if name.endswith("error") else f"{CLOSE:g}"
    kept = f"those with {ENOUGH}" if taken.has_intervals else f"all, as none has {ENOUGH}"
    close = f"of {len(scored)} settings, those within {within} of the best, and of these {kept}"
    return f"{said}. Looked at: {close}. It has the smallest epsilon, and among equals {last}."


def _told(mean: Mean) -> str:
    return f"{mean.value:.4g}" + (f" (standard error {mean.error:.1g})" if mean.error else "")


def _failed(grid: GridResult) -> Iterator[str]:
    for number, (reason, runs) in enumerate(grid.reasons.items(), 1):
        some = [run.name for run in runs[:3]] + [f"{len(runs) - 3} more"] * (len(runs) > 3)
        yield f"({number}) Failed, and in no number here: {'; '.join(some)}: {reason}"


def _more(grid: GridResult, study: Study, result: BacktestResult) -> Iterator[str]:
    """Yield what more records, and what more epsilon, would bring by the plan of a study."""
    if not study.private:
        return
    study, seen = grid.like(study)
    sizes = {"as it is": (study, 1), "with twice the records": (study, 2)}
    double = {"privacy.epsilon": 2 * (study.privacy.epsilon or 0.0)}
    # an epsilon that is too large to promise anything is none to advise
    with contextlib.suppress(ConfigError, PrivacyError):
        sizes["with twice the epsilon"] = with_keys(study, double, name="twice the epsilon"), 1
    said = []
    for words, (one, times) in sizes.items():
        size = times * result.records
        outlook = method_of(one).outlook(task_of(one), size, result.clients, seen)
        said.append(f"{half_at(outlook, size)} {words}")
    yield f"Half an interval of a slope, by a plan for records like these: {', '.join(said)}."


def _warnings(grid: GridResult, taken: Cell, scored: list[Cell]) -> Iterator[str]:
    score, result = taken.means[grid.main_score].value, taken.runs[0].result
    without = taken.open and taken.open.measures[grid.main_score]
    if without and _loss(grid, float(f"{score:.4g}")) < _loss(grid, float(f"{without:.4g}")):
        yield "It scores better than without privacy: by chance, or as a ridge would."
    if not taken.has_intervals and (others := [c for c in scored if c.has_intervals]):
        near = _told(others[0].means[grid.main_score])
        yield f"There is {ENOUGH} with {others[0].setting.label}, at {near}."
    held, level = taken.means.get("coverage"), result.estimate.level
    if held and held.error is not None and held.value + 2 * held.error < level:
        yield f"Of intervals, {held.value:.0%} contain the fit of all records; {level:.0%} should."
    yield from _more(grid, taken.setting.study, result)
    if clipped := [f"{n} ({share:.0%})" for n, share in result.clipped.items() if share > 0.05]:
        yield f"Values outside their public range were clipped: {', '.join(clipped)}."
    for axis in (axis for axis in grid.axes if len(axis.values) > 1):
        if axis.key.removeprefix("privacy.") in PROMISES:
            yield f"{axis.key}: settings that differ in it promise different things."
        numbers = sorted(v for v in axis.values if isinstance(v, int | float))
        for end, value in zip(("smallest", "largest"), (numbers[:1], numbers[-1:]), strict=True):
            if len(numbers) > 1 and [taken.setting.changes[axis.key]] == value:
                yield f"{axis.key} = {value[0]:g} is the {end} that was tried."
