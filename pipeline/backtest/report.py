"""A grid as rows of text, with the setting to take, and its report: one HTML file.

The advice is the rule of docs/backtest.md, in words, with the reason. The file is read offline and
printed: its pictures are SVG that stands inside and asks for nothing outside.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from scipy.special import ndtri

from pipeline.backtest.grid import MOST, Axis, Cell, GridResult, Mean, text_of
from pipeline.backtest.options import Options
from pipeline.backtest.result import NOT_PRIVATE, BacktestResult
from pipeline.backtest.scores import WORDS
from pipeline.errors import ConfigError, PrivacyError
from pipeline.messages.envelope import rfc3339
from pipeline.methods import method_of, task_of
from pipeline.methods.plan_words import half_at
from pipeline.settings import extra
from pipeline.study.model import Study
from pipeline.study_file.edit import with_keys
from pipeline.words import digits

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
    failed, name = tuple(_failures(grid)), grid.shown and grid.main_score
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


def _failures(grid: GridResult) -> Iterator[str]:
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
    if result.shortened > 0.05:
        yield (
            f"{result.shortened:.0%} of the records are longer than the norm that the study keeps, "
            "and are shortened or weigh less: coefficients are of such records."
        )
    if result.order:
        yield (
            f"Records are not in a random order: {', '.join(result.order)} go with it. Run this "
            "once more with --shuffle, which shows what the order does."
        )
    for axis in (axis for axis in grid.axes if len(axis.values) > 1):
        if axis.key.removeprefix("privacy.") in PROMISES:
            yield f"{axis.key}: settings that differ in it promise different things."
        numbers = sorted(v for v in axis.values if isinstance(v, int | float))
        for end, value in zip(("smallest", "largest"), (numbers[:1], numbers[-1:]), strict=True):
            if len(numbers) > 1 and [taken.setting.changes[axis.key]] == value:
                yield f"{axis.key} = {value[0]:g} is the {end} that was tried."


def report_of(grid: GridResult, *, history: str, created_at: float) -> str:
    """Return the report as the text of an HTML file.

    history: What to call the history.
    created_at: Seconds since 1970.

    Raises ConfigError if jinja2 or matplotlib is not installed, and what failed the first run if
    none came to a result.
    """
    jinja2 = extra("jinja2", "--report")
    advice = advise(grid)
    shown = advice.cell or grid.shown
    if shown is None:
        raise grid.failed[0].error
    result = shown.runs[0].result
    settings = list(rows_of(grid))
    heads = [WORDS[grid.main_score], "without privacy", *(head for _, head in COLUMNS.values())]
    heads += [FAILED] if grid.failed else []
    draws = max(len(cell.runs) for cell in grid.cells)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True,
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        keep_trailing_newline=True,
    )  # fmt: skip
    page: str = environment.get_template("report.html.jinja").render(
        title=f"Backtest of {result.study.removesuffix('-simulated').removesuffix('-open')}",
        facts=list(_facts(grid, result, history)),
        not_private=NOT_PRIVATE,
        result=result,
        advice=advice,
        draws=draws,
        settings={
            "heads": [*(axis.key for axis in grid.axes), *heads],
            "rows": [row for _, row in settings],
            "failed": grid.failed,
            "taken": next((i for i, (cell, _) in enumerate(settings) if cell is advice.cell), None),
        }
        if len(settings) > 1 or draws > 1
        else None,
        axes=[
            {
                "key": axis.key,
                "scores": against(grid, axis, grid.main_score),
                "widths": against(grid, axis, "width"),
            }
            for axis in grid.axes
            if len(axis.values) > 1
        ],
        score=WORDS[grid.main_score][0].upper() + WORDS[grid.main_score][1:],
        ranking=WORDS[result.main_score[0]],
        label=shown.setting.label,
        level=f"{result.estimate.level:.0%}",
        over_time={
            "scores": scores_over_time(shown),
            "coefficients": coefficients_over_time(result),
            "calibration": calibration(result),
        },
        coefficients=list(coefficients_of(result, "{:.4g}".format, "{:.4g} to {:.4g}")),
        made=_made(grid, result, created_at),
    )
    return page


def _facts(grid: GridResult, result: BacktestResult, history: str) -> Iterator[tuple[str, str]]:
    runs = sum(len(cell.runs) for cell in grid.cells)
    without_privacy = len({id(cell.open) for cell in grid.cells if cell.open is not None})
    yield "history", history
    yield "records", f"{result.records:,}"
    yield "clients", f"{result.clients:,}"
    yield "from", _time(result, result.first)
    yield "to", _time(result, result.last)
    yield "settings", f"{len(grid.cells)}"
    yield "runs", f"{runs} and {without_privacy} without privacy" if without_privacy else f"{runs}"
    if clipped := [f"{name} {share:.2g}" for name, share in result.clipped.items() if share]:
        yield "share of values outside their range", ", ".join(clipped)
    if result.shortened:
        yield "share of records longer than the norm that is kept", f"{result.shortened:.2g}"
    for why in grid.no_open:
        yield "without privacy", f"none, because {why}"
    if grid.failed:
        yield "failed", f"{len(grid.failed)} runs"


def coefficients_of(
    result: BacktestResult, value: Callable[[float], str], ends: str
) -> Iterator[tuple[str, ...]]:
    """Yield name, estimate, interval, pooled fit, its interval, and whether the first holds it.

    ends: How both ends of an interval are written.
    """
    pooled = result.pooled
    for index, row in enumerate(result.estimate.coefficients):
        inside = pooled.covered[index]
        both = row.interval, pooled.intervals[index]
        own, exact = ("-" if one is None else ends.format(*one) for one in both)
        yield (
            row.name,
            value(row.value),
            own,
            "-" if pooled.coefficients is None else value(pooled.coefficients[index]),
            exact,
            "-" if inside is None else ("yes" if inside else "no"),
        )


def _made(grid: GridResult, result: BacktestResult, created_at: float) -> str:
    options, usual = result.options, dataclasses.asdict(Options())
    given = [f"{k.replace('_', ' ')} {text_of(v)}" for k, v in options.items() if v != usual[k]]
    return (
        f"Made {rfc3339(created_at)[:16].replace('T', ' ')} UTC by veilstream "
        f"{version('veilstream')}, study revision {result.revision}, in {grid.seconds:.0f} s. "
        f"Options: {', '.join(given) or 'none'}."
    )


def _time(result: BacktestResult, clock: float) -> str:
    return rfc3339(clock)[:16].replace("T", " ") if result.timed else f"record {clock:,.0f}"


#: Measures behind the score and the same without privacy: short heads, and those of a report.
COLUMNS = {
    "width": ("width", "median width"),
    "intervals": ("with", "coefficients with an interval"),
    "coverage": ("covered", "intervals that contain the pooled fit"),
    "privacy_share": ("privacy", "variance due to privacy"),
    "releases": ("releases", "releases"),
}
#: Head of a last column, where runs have failed.
FAILED = "failed"


def rows_of(grid: GridResult) -> Iterator[tuple[Cell, list[str]]]:
    """Yield each setting with its values, scores and `COLUMNS`, and where runs failed how many."""
    name = grid.main_score
    for index, cell in enumerate(grid.cells):
        means = cell.means
        without_privacy = None if cell.open is None else cell.open.measures[name]
        yield (
            cell,
            [
                *(text_of(value) for value in cell.setting.changes.values()),
                _number(means.get(name)),
                digits(without_privacy),
                _number(means.get("width")),
                _share(means.get("intervals")),
                _covered(cell),
                _share(means.get("privacy_share")),
                _number(means.get("releases"), digits=6),
                *([_failed(grid, index)] if grid.failed else []),
            ],
        )


def _failed(grid: GridResult, setting: int) -> str:
    """Return how many runs of a setting failed, with the numbers that the reasons have below."""
    counts = [sum(run.setting == setting for run in runs) for runs in grid.reasons.values()]
    said = [f"{count} ({number})" for number, count in enumerate(counts, 1) if count]
    return ", ".join(said) or "-"


def _number(mean: Mean | None, digits: int = 4) -> str:
    if mean is None:
        return "-"
    return f"{mean.value:.{digits}g}" + (f" ± {mean.error:.1g}" if mean.error else "")


def _covered(cell: Cell) -> str:
    """Return the share of covered coefficients over draws; of one draw, which says little, counts.

    Coefficients of one draw are not independent, so that their share has no error of its own.
    """
    mean = cell.means.get("coverage")
    if mean is None:
        return "-"
    if mean.error is not None:
        return f"{mean.value:.0%} ± {mean.error:.0%}"
    known = [one for run in cell.runs for one in run.result.pooled.covered if one is not None]
    return f"{sum(known)} of {len(known)}"


def _share(mean: Mean | None) -> str:
    return "-" if mean is None else f"{mean.value:.0%}"


#: Colours that the colour-blind can tell apart (Okabe and Ito).
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
GREY = "#777777"
#: Lines of one picture, and coefficients of another, at most.
LINES, PANELS = len(COLOURS), 12
_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "veilstream",
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "axes.axisbelow": True,
    "legend.frameon": False,
    # names of features are names, whatever signs they hold
    "text.parse_math": False,
}


def _styled(draw: Callable[..., str | None]) -> Callable[..., str | None]:
    """Let a picture be drawn in our style, from its first line to its last."""

    @functools.wraps(draw)
    def styled(*arguments: Any) -> str | None:
        with extra("matplotlib", "--report").rc_context(_STYLE):
            return draw(*arguments)

    return styled


@_styled
def against(grid: GridResult, axis: Axis, measure: str) -> str | None:
    """Return a measure against the values of an axis; None if no setting has it.

    One line for each combination of the other axes, with a bar of one standard error each way, and
    in the same colour, dashed, the same without privacy.
    """
    lines = _lines(grid, axis)
    if not any(measure in cell.means for line in lines.values() for cell in line):
        return None
    numeric = all(isinstance(v, int | float) and not isinstance(v, bool) for v in axis.values)
    figure, (axes,) = _figure(6.2, 3.6)
    for colour, (label, cells) in zip(COLOURS, lines.items(), strict=False):
        known = [cell for cell in cells if measure in cell.means]
        xs = [_x(axis, cell, numeric=numeric) for cell in known]
        means = [cell.means[measure] for cell in known]
        axes.errorbar(
            xs, [m.value for m in means], [m.error or 0.0 for m in means],
            color=colour, marker="o", markersize=4, capsize=3, linewidth=1.5, label=label or None,
        )  # fmt: skip
        without_privacy = [
            (_x(axis, p, numeric=numeric), p.open.measures[measure]) for p in cells if p.open
        ]
        pairs = sorted((x, y) for x, y in without_privacy if y is not None)
        axes.plot([x for x, _ in pairs], [y for _, y in pairs], color=colour, linestyle="--",
                  linewidth=1.0)  # fmt: skip
    ticks = [float(v) for v in axis.values] if numeric else range(len(axis.values))
    if numeric and min(ticks) > 0 and max(ticks) >= 4 * min(ticks):
        axes.set_xscale("log")
    axes.set_xticks(ticks, [text_of(value) for value in axis.values])
    axes.minorticks_off()
    axes.set_xlabel(axis.key)
    axes.set_ylabel(WORDS.get(measure, "median width of the intervals"))
    if any(lines):
        axes.legend(fontsize=8)
    return _svg(figure)


@_styled
def scores_over_time(cell: Cell) -> str | None:
    """Return the main score in each bin of time, with the same without privacy beside it."""
    result = cell.runs[0].result
    name = result.main_score[0]
    figure, (axes,) = _figure(9.0, 3.2)
    shown = False
    beside = [(cell.open.result, GREY, "without privacy")] if cell.open else []
    for one, colour, label in [(result, COLOURS[0], "as set"), *beside]:
        spans = [s for s in one.bins if getattr(s.scores, name) is not None]
        shown = shown or bool(spans)
        middles = [one.moment((span.start + span.end) / 2) for span in spans]
        axes.plot(middles, [getattr(span.scores, name) for span in spans], color=colour,
                  linestyle="-" if one is result else "--", linewidth=1.5, label=label)  # fmt: skip
    if result.freeze is not None:
        spans = [s for s in result.bins if s.frozen and getattr(s.frozen, name) is not None]
        middles = [result.moment((span.start + span.end) / 2) for span in spans]
        axes.plot(middles, [getattr(s.frozen, name) for s in spans], color=COLOURS[1],
                  linewidth=1.5, label="frozen")  # fmt: skip
    axes.set_ylabel(WORDS[name])
    axes.set_xlabel("event time" if result.timed else "record")
    _few_times(axes, result, 8)
    axes.legend(fontsize=8)
    return _svg(figure) if shown else None


@_styled
def calibration(result: BacktestResult) -> str | None:
    """Return observed shares against predicted probabilities, with bars of two standard errors."""
    groups = result.calibration
    if not groups:
        return None
    figure, (axes,) = _figure(4.2, 3.8)
    axes.plot([0, 1], [0, 1], color=GREY, linestyle="--", linewidth=1.0)
    errors = [2 * math.sqrt(g.observed * (1 - g.observed) / g.records) for g in groups]
    axes.errorbar(
        [g.predicted for g in groups], [g.observed for g in groups], errors,
        color=COLOURS[0], marker="o", markersize=4, capsize=3, linewidth=1.5,
    )  # fmt: skip
    axes.set_xlabel("predicted probability")
    axes.set_ylabel("observed share")
    return _svg(figure)


@_styled
def coefficients_over_time(result: BacktestResult) -> str | None:
    """Return the estimate and its intervals over time, one panel for each coefficient."""
    spans = [span for span in result.bins if span.coefficients is not None]
    names = [c.name for c in result.estimate.coefficients][:PANELS]
    if not spans:
        return None
    columns = min(3, len(names))
    rows = -(-len(names) // columns)
    figure, panels = _figure(9.0, 2.0 * rows + 0.3, rows, columns)
    times = [result.moment(span.end) for span in spans]
    for index, (axes, name) in enumerate(zip(panels, names, strict=False)):
        values = [span.coefficients[index] for span in spans if span.coefficients]
        ends = [span.intervals[index] if span.intervals else None for span in spans]
        low, high = ([math.nan if e is None else e[side] for e in ends] for side in (0, 1))
        axes.fill_between(times, low, high, color=COLOURS[0], alpha=0.25, linewidth=0)
        axes.plot(times, values, color=COLOURS[0], linewidth=1.2)
        if result.pooled.coefficients is not None:
            axes.axhline(result.pooled.coefficients[index], color=COLOURS[1], linestyle="--",
                         linewidth=1.0)  # fmt: skip
        axes.set_title(name, fontsize=9)
        axes.tick_params(labelsize=7)
        axes.locator_params(axis="y", nbins=4)
        _few_times(axes, result, 4)
    for axes in panels[len(names) :]:
        axes.set_visible(False)
    return _svg(figure)


def _lines(grid: GridResult, axis: Axis) -> dict[str, list[Cell]]:
    """Return the cells of a grid along an axis, by the label of the other axes."""
    lines: dict[str, list[Cell]] = {}
    for cell in grid.cells:
        others = {k: v for k, v in cell.setting.changes.items() if k != axis.key}
        label = ", ".join(f"{key} = {text_of(value)}" for key, value in others.items())
        lines.setdefault(label, []).append(cell)
    return dict(list(lines.items())[:LINES])


def _x(axis: Axis, cell: Cell, *, numeric: bool) -> float:
    value = cell.setting.changes[axis.key]
    return float(value) if numeric else float(axis.values.index(value))


def _few_times(axes: Any, result: BacktestResult, most: int) -> None:
    """Keep the marks of a time axis short and apart."""
    if not result.timed:
        axes.locator_params(axis="x", nbins=most)
        return
    from matplotlib import dates  # noqa: PLC0415  an extra

    locator = dates.AutoDateLocator(minticks=2, maxticks=most)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator))


def _figure(width: float, height: float, rows: int = 1, columns: int = 1) -> tuple[Any, list[Any]]:
    from matplotlib.figure import Figure  # noqa: PLC0415  an extra, which `_styled` asked for

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False).ravel())


def _svg(figure: Any) -> str:
    """Return a figure as an SVG element without declarations, addresses or data of its own."""
    out = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(out, format="svg", metadata=nothing)
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, count=1, flags=re.DOTALL)
    # a browser knows the names of SVG inside HTML; names of features stay as they are
    head, end, rest = text.partition(">")
    return re.sub(r'\s+xmlns(:\w+)?="[^"]*"', "", head) + end + rest
