"""Which setting of a grid to take, in words, with the reason: a rule that anyone can check.

Of all settings whose score is close to the best one's, those that have intervals come first; among
them it is that with the smallest epsilon, then the smallest delta, then the narrowest intervals at
a common level, or else the best score. Widths are compared between settings that estimate the same:
those of a larger ridge are of smaller coefficients. Close is within a hundredth for classes, and
within two per cent for errors of numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from scipy.special import ndtri

from pipeline.backtest.grid_result import MOST, Cell, GridResult, Mean

#: Largest loss of balanced accuracy, and of the share of an error, that counts as close.
CLOSE, CLOSE_SHARE = 0.01, 0.02
#: Shares from which on something is worth a warning.
CLIPPED, UNSCORED, NOISE = 0.05, 0.2, 0.9
#: Failed runs that a sentence names.
NAMED = 3
#: Standard errors beyond which draws show that intervals hold too little.
CHANCE = 2.0
#: Keys that change what an epsilon means.
PROMISES = frozenset(
    f"privacy.{key}" for key in ("mechanism", "delta", "unit", "records", "neighbours", "personal")
)
#: Keys of [estimator] that change what is estimated.
TARGETS = (
    "kind", "loss", "q", "smoothing", "ridge", "norm_bound", "residual_bound", "tau",
    "class_weights",
)  # fmt: skip
#: Which settings are said to have intervals, as `Cell.has_intervals` has it.
ENOUGH = f"an interval for at least {MOST:.0%} of the coefficients in every draw"
#: What is said where balanced accuracy cannot tell settings apart.
ONE_CLASS = (
    "Balanced accuracy is about 0.5 in all settings, as if they predicted the same class for every "
    "record: a rare class hardly ever has the larger probability. So settings are judged by the "
    "AUC."
)
#: Names of scores for people.
WORDS = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "auc": "AUC",
    "log_loss": "log-loss",
    "mean_absolute_error": "mean absolute error",
    "root_mean_square_error": "root mean square error",
}


@dataclass(frozen=True, slots=True)
class Advice:
    """A recommendation.

    cell: The setting to take; None if none was scored.
    reason: Why, in sentences.
    warnings: What to look at before it is taken.
    """

    cell: Cell | None
    reason: str
    warnings: tuple[str, ...]


def advise(grid: GridResult) -> Advice:
    """Return which setting to take."""
    if grid.shown is None:
        return Advice(None, "No run came to a result.", tuple(_failed(grid)))
    name = grid.main_score
    scored = [cell for cell in grid.cells if name in cell.means]
    if not scored:
        said = "No record was scored: no estimate came before the last one."
        return Advice(None, said, tuple(_failed(grid)))
    best = min(scored, key=lambda cell: _loss(name, _score(cell, name)))
    close = [cell for cell in scored if _loss(name, _score(cell, name)) <= _limit(name, best)]
    least = min(map(_preference, close))
    equal = [cell for cell in close if _preference(cell) == least]
    first = min(equal, key=lambda cell: _loss(name, _score(cell, name)))
    alike = [cell for cell in equal if _target(cell) == _target(first)]
    taken = min(alike, key=lambda cell: (_width(cell), _loss(name, _score(cell, name))))
    return Advice(taken, _reason(grid, taken, best, len(scored)), tuple(_warnings(grid, taken)))


def headline(name: str) -> str:
    """Return the name of a score for people, as a sentence begins with it."""
    return WORDS[name][0].upper() + WORDS[name][1:]


def _score(cell: Cell, name: str) -> float:
    return cell.means[name].value


def _loss(name: str, score: float) -> float:
    return score if name.endswith("error") else -score


def _limit(name: str, best: Cell) -> float:
    loss = _loss(name, _score(best, name))
    return loss + (CLOSE_SHARE * loss if name.endswith("error") else CLOSE)


def _preference(cell: Cell) -> tuple[bool, float, float]:
    """Return what is the smaller, the better: no intervals, epsilon, delta.

    What has intervals in every draw comes before what has not, a guarantee before none.
    """
    study = cell.setting.study
    epsilon = math.inf if study.privacy.epsilon is None else study.privacy.epsilon
    return not cell.has_intervals, epsilon, study.privacy.delta or 0.0


def _width(cell: Cell) -> float:
    """Return the width of the intervals per quantile of their level, infinite without them."""
    width = cell.means.get("width")
    if width is None or not cell.has_intervals:
        return math.inf
    return width.value / float(ndtri((1 + cell.setting.study.estimator.level) / 2))


def _target(cell: Cell) -> tuple[object, ...]:
    """Return what settings agree in that estimate the same."""
    study = cell.setting.study
    return study.data, *(getattr(study.estimator, key) for key in TARGETS)


def _reason(grid: GridResult, taken: Cell, best: Cell, count: int) -> str:
    name = grid.main_score
    score = taken.means[name]
    said = [f"{headline(name)} {_told(score)}"]
    if taken is not best:
        said.append(f"against {_told(best.means[name])} at best ({best.setting.label})")
    if taken.open is not None and (without_privacy := taken.open.measures[name]) is not None:
        said.append(f"and {without_privacy:.4g} without privacy")
    within = f"{CLOSE_SHARE:.0%}" if name.endswith("error") else f"{CLOSE:g}"
    scored = "" if count == len(grid.cells) else " that have a score"
    kept = f"those with {ENOUGH}" if taken.has_intervals else f"all, as none has {ENOUGH}"
    rule = (
        f"Of {count} settings{scored}, those within {within} of the best were looked at, and of "
        f"these {kept}: it has the smallest epsilon, and among equals {_best_of(grid)}."
        if count > 1
        else f"It is the only one of {len(grid.cells)} settings that has a score."
        if len(grid.cells) > 1
        else "It is the only setting that was tried."
    )
    judged = f"{ONE_CLASS} " if name == "auc" else ""
    return f"{judged}{', '.join(said)}. {rule}"


def _best_of(grid: GridResult) -> str:
    if all(_target(cell) == _target(grid.cells[0]) for cell in grid.cells):
        return "the narrowest intervals, or else the best score"
    return (
        "the best score, then the narrowest intervals of the settings that estimate the same (a "
        "larger ridge makes coefficients and intervals smaller)"
    )


def _told(mean: Mean) -> str:
    if mean.error is None:
        return f"{mean.value:.4g}"
    return f"{mean.value:.4g} (standard error {mean.error:.1g} over {mean.draws} draws of noise)"


def _failed(grid: GridResult) -> Iterator[str]:
    """Say which runs came to no result, and why: each reason once."""
    for number, (reason, runs) in enumerate(grid.reasons.items(), 1):
        some = "; ".join(run.name for run in runs[:NAMED]) + (
            f"; {more} more" if (more := len(runs) - NAMED) > 0 else ""
        )
        yield f"({number}) Failed, and in no number here: {some}: {reason}"


def _warnings(grid: GridResult, taken: Cell) -> Iterator[str]:
    result, means = taken.runs[0].result, taken.means
    yield from _failed(grid)
    score = means[grid.main_score]
    if score.error is None and taken.open is not None:
        yield "The noise was drawn once: another draw gives other scores (--draws)."
    elif score.error is not None and score.error > CLOSE and not grid.main_score.endswith("error"):
        yield "The scores differ much from draw to draw: more draws, or more data, are needed."
    yield from _beaten(grid, taken)
    yield from _elsewhere(grid, taken)
    unready = [run.result.estimate for run in taken.runs if run.result.estimate.status != "ready"]
    if unready:
        yield (
            f"In {len(unready)} of {len(taken.runs)} draws the last estimate has no intervals "
            f"(status {unready[0].status}: {unready[0].reason})."
        )
    without = {
        row.name
        for run in taken.runs
        for row in run.result.estimate.coefficients
        if row.interval is None and run.result.estimate.status == "ready"
    }
    if without:
        yield (
            f"Not every draw has an interval for {', '.join(sorted(without))}: the data say too "
            "little about it at this budget."
        )
    level, held = result.estimate.level, means.get("coverage")
    if held is not None and held.error is not None and held.value + CHANCE * held.error < level:
        yield (
            f"Over {held.draws} draws of the noise {held.value:.0%} of the intervals (standard "
            f"error {held.error:.1%}) contain the fit of all records; they promise {level:.0%}. "
            "The distribution of the records may change over time, or the model may not fit it."
        )
    promises = [axis.key for axis in grid.axes if axis.key in PROMISES and len(axis.values) > 1]
    if promises:
        yield (
            f"{', '.join(promises)}: settings that differ in it promise different things, which "
            "epsilon does not compare. Choose first what is to be promised, then the rest."
        )
    if "privacy_share" in means and means["privacy_share"].value > NOISE:
        yield (
            f"{means['privacy_share'].value:.0%} of the variance is the privacy noise: more "
            "records, or a larger epsilon, narrow the intervals; a better model does not."
        )
    clipped = {n: s for n, s in result.clipped.items() if s > CLIPPED}
    if clipped:
        named = ", ".join(f"{name} ({share:.0%})" for name, share in clipped.items())
        yield (
            f"Many values lie outside their public range and were clipped: {named}. A wider range "
            "must come from public knowledge, not from these data."
        )
    usable = result.records - result.unusable
    if usable and result.unscored > UNSCORED * usable:
        yield (
            f"{result.unscored / usable:.0%} of the records came before the first estimate and "
            "are not scored."
        )
    yield from _edges(grid, taken)


def _beaten(grid: GridResult, taken: Cell) -> Iterator[str]:
    """Say where noise seems to help, which it cannot."""
    name = grid.main_score
    without = None if taken.open is None else taken.open.measures[name]
    if without is None or f"{_score(taken, name):.4g}" == f"{without:.4g}":
        return
    if _loss(name, _score(taken, name)) < _loss(name, without):
        yield (
            f"It scores better than without privacy ({_told(taken.means[name])} against "
            f"{without:.4g}): that is chance, or the noise pulls coefficients together as a "
            "ridge does. Do not rely on it; try a larger estimator.ridge without privacy."
        )


def _elsewhere(grid: GridResult, taken: Cell) -> Iterator[str]:
    """Say what intervals would cost, where the recommended setting has too few."""
    name = grid.main_score
    others = [cell for cell in grid.cells if name in cell.means and cell.has_intervals]
    if not taken.has_intervals and others:
        near = min(others, key=lambda cell: _loss(name, _score(cell, name)))
        yield (
            f"There is {ENOUGH} with {near.setting.label}, at {WORDS[name]} "
            f"{_told(near.means[name])}."
        )


def _edges(grid: GridResult, taken: Cell) -> Iterator[str]:
    """Say where the best value of an axis is the last one that was tried."""
    for axis in grid.axes:
        numbers = [v for v in axis.values if isinstance(v, int | float)]
        value = taken.setting.changes[axis.key]
        if len(numbers) < 2 or value not in (min(numbers), max(numbers)):
            continue
        if axis.key == "privacy.epsilon" and value == max(numbers):
            yield f"{axis.key} = {value:g} is the largest that was tried; try larger ones too."
        elif axis.key == "privacy.epsilon":
            yield f"{axis.key} = {value:g} is the smallest that was tried; a smaller one may do."
        else:
            yield f"{axis.key} = {value:g} is at the end of what was tried."
