"""The report of a grid: one HTML file with everything in it, to be read offline and printed."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Iterable, Iterator
from importlib.metadata import version

from pipeline.backtest import plots
from pipeline.backtest.advice import WORDS, Advice, advise
from pipeline.backtest.axes import text_of
from pipeline.backtest.grid import Cell, GridResult, Mean
from pipeline.backtest.options import Options
from pipeline.backtest.result import NOT_PRIVATE, BacktestResult
from pipeline.backtest.style import STYLE
from pipeline.messages.envelope import rfc3339

#: Measures of the table, with the heads of their columns.
COLUMNS = {
    "width": "median width",
    "coverage": "intervals that hold the pooled fit",
    "privacy_share": "variance due to privacy",
    "ready": "ready",
}
_SHARES = {"coverage", "privacy_share", "ready"}


def report_of(grid: GridResult, *, history: str, created_at: float) -> str:
    """Return the report as the text of an HTML file.

    Parameters
    ----------
    history
        What to call the history.
    created_at
        Seconds since 1970.

    Raises
    ------
    ConfigError
        If matplotlib is not installed.
    """
    advice = advise(grid)
    shown = advice.cell or grid.cells[0]
    result = shown.runs[0].result
    title = f"Backtest of {result.study.removesuffix('-simulated').removesuffix('-open')}"
    parts = [
        f"<h1>{html.escape(title)}</h1>",
        _facts(grid, result, history),
        f'<p class="notice"><strong>Not private.</strong> {html.escape(NOT_PRIVATE)}</p>',
        *_simulation(result),
        _recommendation(advice),
        *_settings(grid, advice),
        *_pictures(grid, shown),
        _estimate(result),
        *_beside(result),
        _promise(result),
        _how(grid, result, created_at),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head>\n<body><main>\n"
        + "\n".join(parts)
        + "\n</main></body></html>\n"
    )


def _facts(grid: GridResult, result: BacktestResult, history: str) -> str:
    runs = sum(len(cell.runs) for cell in grid.cells)
    without_privacy = len({id(cell.open) for cell in grid.cells if cell.open is not None})
    facts = [
        ("history", history),
        ("records", f"{result.records:,}"),
        ("clients", f"{result.clients:,}"),
        ("from", _time(result, result.first)),
        ("to", _time(result, result.last)),
        ("settings", f"{len(grid.cells)}"),
        ("runs", f"{runs} and {without_privacy} without privacy" if without_privacy else f"{runs}"),
    ]
    items = (f"<div><dt>{name}</dt><dd>{html.escape(value)}</dd></div>" for name, value in facts)
    return f'<dl class="facts">{"".join(items)}</dl>'


def _simulation(result: BacktestResult) -> Iterator[str]:
    if result.mechanism in ("insecure-simulation", "none"):
        yield (
            '<p class="notice"><strong>No guarantee.</strong> The estimates in this report protect '
            f"nobody either: mechanism {html.escape(result.mechanism)}.</p>"
        )


def _recommendation(advice: Advice) -> str:
    if advice.cell is None:
        return f"<section><h2>Recommendation</h2><p>{html.escape(advice.reason)}</p></section>"
    warnings = "".join(f"<li>{html.escape(text)}</li>" for text in advice.warnings)
    return (
        '<section class="advice"><h2>Recommendation</h2>'
        f'<p class="choice">{html.escape(advice.cell.setting.label)}</p>'
        f"<p>{html.escape(advice.reason)}</p>"
        + (f"<p>Before you take it:</p><ul>{warnings}</ul>" if warnings else "")
        + "<p>It was chosen by looking at raw records, which no guarantee of the study covers: "
        "choose on a history that may be looked at.</p></section>"
    )


def _settings(grid: GridResult, advice: Advice) -> Iterator[str]:
    if len(grid.cells) == 1 and len(grid.cells[0].runs) == 1:
        return
    name = grid.main_score
    heads = [*(axis.key for axis in grid.axes), WORDS[name], "without privacy", *COLUMNS.values()]
    rows = []
    for cell in grid.cells:
        means = cell.means
        without_privacy = None if cell.open is None else cell.open.measures[name]
        shown = [text_of(value) for value in cell.setting.changes.values()]
        shown += [
            _mean(means.get(name)),
            "-" if without_privacy is None else f"{without_privacy:.4g}",
        ]
        shown += [_mean(means.get(key), share=key in _SHARES) for key in COLUMNS]
        mark = ' class="taken"' if cell is advice.cell else ""
        rows.append(f"<tr{mark}>{_cells(shown)}</tr>")
    draws = max(len(cell.runs) for cell in grid.cells)
    yield "<section><h2>All settings</h2>" + _table(heads, rows)
    yield (
        f"<p class='small'>Means over {draws} draws of the noise, with standard errors behind "
        "&plusmn;: they say how much another draw would differ, not another history. Widths and "
        "shares are of the last estimate.</p></section>"
        if draws > 1
        else "<p class='small'>One draw of the noise for each setting: another draw gives other "
        "numbers. Widths and shares are of the last estimate.</p></section>"
    )


def _pictures(grid: GridResult, shown: Cell) -> Iterator[str]:
    score = WORDS[grid.main_score].capitalize() if grid.main_score != "auc" else "AUC"
    for axis in grid.axes:
        if len(axis.values) < 2:
            continue
        beside = f"against {axis.key}. Bars: one standard error each way; dashed: without privacy."
        figures = _figure(plots.against(grid, axis, grid.main_score), f"{score} {beside}")
        figures += _figure(plots.against(grid, axis, "width"), f"Width of the intervals {beside}")
        head = f"<section><h2>{html.escape(axis.key)}</h2>"
        yield f'{head}<div class="pair">{figures}</div></section>'
    result = shown.runs[0].result
    yield f"<section><h2>Over time: {html.escape(shown.setting.label)}</h2>"
    yield _figure(
        plots.scores_over_time(shown),
        f"{score} in each bin of time; every record is predicted before it is learnt from.",
    )
    yield _figure(
        plots.coefficients_over_time(result),
        f"Estimates with their {result.estimate.level:.0%} intervals, one draw of the noise; no "
        "band where no interval is given. Dashed: the fit of all records at once without privacy.",
    )
    yield (
        _figure(plots.clipping(result), "Share of the values that were clipped, by feature.")
        + "</section>"
    )


def _estimate(result: BacktestResult) -> str:
    rows = []
    for index, row in enumerate(result.estimate.coefficients):
        pooled, inside = result.pooled.coefficients, result.pooled.covered[index]
        shown = [
            row.name,
            f"{row.value:.4g}",
            "-" if row.interval is None else f"{row.interval[0]:.4g} to {row.interval[1]:.4g}",
            "-" if pooled is None else f"{pooled[index]:.4g}",
            "-" if inside is None else ("yes" if inside else "no"),
        ]
        rows.append(f"<tr>{_cells(shown)}</tr>")
    heads = ["coefficient", "estimate", f"{result.estimate.level:.0%} interval",
             "pooled fit without privacy", "inside"]  # fmt: skip
    reasons = [
        f"{text[0].upper()}{text[1:]}."
        for text in (result.estimate.reason, result.pooled.reason)
        if text
    ]
    return (
        f"<section><h2>The last estimate ({html.escape(result.estimate.status)})</h2>"
        + _table(heads, rows)
        + (f"<p class='small'>{html.escape(' '.join(reasons))}</p>" if reasons else "")
        + "</section>"
    )


def _beside(result: BacktestResult) -> Iterator[str]:
    if result.beside is None:
        return
    score = result.ranking_score
    rows = [f"<tr>{_cells(row)}</tr>" for row in result.beside.compared(score, result.scores)]
    heads = [f"{WORDS[score]} of", "each record before it is learnt", "all records in the end"]
    said = "".join(
        f"<li>{html.escape(kinds)}: {html.escape(text)}</li>"
        for kinds, text in result.beside.said()
    )
    yield (
        "<section><h2>Beside other methods</h2>"
        + _table(heads, rows)
        + "<p class='small'>In the end, the last coefficients predict records that they have seen. "
        f"What these methods keep private:</p><ul class='small'>{said}</ul></section>"
    )


def _promise(result: BacktestResult) -> str:
    budget = result.budget
    if result.mechanism == "insecure-simulation":
        said = (
            "This noise came from a seed, and protects nobody. A live study draws noise of that "
            "size which nobody can repeat; `veilstream study check` says what it promises."
        )
    elif budget.epsilon is None:
        said = "This study keeps no guarantee."
    else:
        said = (
            f"A live study of these records keeps (epsilon {budget.epsilon:g}, delta "
            f"{budget.delta:g})-differential privacy for each {budget.unit}, neighbouring relation "
            f"{budget.neighbours}, against whoever sees every release and every estimate; it would "
            f"charge each of {budget.clients:,} clients once. Not hidden are which clients take "
            "part, when they send, and how many windows they have."
        )
    return f"<section><h2>What a live study would promise</h2><p>{html.escape(said)}</p></section>"


def _how(grid: GridResult, result: BacktestResult, created_at: float) -> str:
    usual = dataclasses.asdict(Options())
    given = [
        f"{name.replace('_', ' ')} {text_of(value)}"
        for name, value in result.options.items()
        if value != usual[name]
    ]
    said = (
        f"Made {rfc3339(created_at)[:16].replace('T', ' ')} UTC by veilstream "
        f"{version('veilstream')}, study revision {result.revision}, in {grid.seconds:.0f} s. "
        f"Options: {', '.join(given) or 'none'}."
    )
    return f"<footer>{html.escape(said)}</footer>"


def _table(heads: Iterable[str], rows: Iterable[str]) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in heads)
    return (
        f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}'
        "</tbody></table></div>"
    )


def _cells(cells: Iterable[str]) -> str:
    return "".join(f"<td>{html.escape(cell)}</td>" for cell in cells)


def _figure(svg: str | None, caption: str) -> str:
    if svg is None:
        return ""
    return f"<figure>{svg}<figcaption>{html.escape(caption)}</figcaption></figure>"


def _mean(mean: Mean | None, *, share: bool = False) -> str:
    if mean is None:
        return "-"
    if share:
        return f"{mean.value:.0%}"
    return f"{mean.value:.4g}" + ("" if mean.error is None else f" ± {mean.error:.1g}")


def _time(result: BacktestResult, clock: float) -> str:
    return rfc3339(clock)[:16].replace("T", " ") if result.timed else f"record {clock:,.0f}"
