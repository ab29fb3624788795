"""A grid as rows of text, and its report: one HTML file that is read offline and printed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

from pipeline.backtest import plots
from pipeline.backtest.advice import advise
from pipeline.backtest.grid import Cell, GridResult, Mean, text_of
from pipeline.backtest.options import Options
from pipeline.backtest.result import NOT_PRIVATE, BacktestResult
from pipeline.backtest.scores import WORDS
from pipeline.messages.envelope import rfc3339
from pipeline.settings import extra


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
                "scores": plots.against(grid, axis, grid.main_score),
                "widths": plots.against(grid, axis, "width"),
            }
            for axis in grid.axes
            if len(axis.values) > 1
        ],
        score=WORDS[grid.main_score][0].upper() + WORDS[grid.main_score][1:],
        ranking=WORDS[result.main_score[0]],
        label=shown.setting.label,
        level=f"{result.estimate.level:.0%}",
        over_time={
            "scores": plots.scores_over_time(shown),
            "coefficients": plots.coefficients_over_time(result),
            "calibration": plots.calibration(result),
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
                "-" if without_privacy is None else f"{without_privacy:.4g}",
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
