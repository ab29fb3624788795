"""`veilstream backtest` with a grid of settings: a table, a file of runs, and a report."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pipeline.backtest import NOT_PRIVATE, Options
from pipeline.backtest.advice import advise
from pipeline.backtest.grid import Failed, GridResult, Run, named, parse_axis, run_grid
from pipeline.backtest.report import COLUMNS, FAILED, report_of, rows_of
from pipeline.backtest.scores import WORDS
from pipeline.cli.backtest_output import beside_table, check_file, write_whole
from pipeline.cli.context import put, say, show
from pipeline.cli.pool import Pool
from pipeline.messages.results import GridFailure, GridMessage, GridSetting
from pipeline.study.model import Study

#: Scores as heads of narrow columns.
SHORT = {
    "auc": "AUC",
    "mean_absolute_error": "MAE",
}
#: Where the words of a score are no longer than its heading.
LONG = {"auc": "area under the ROC curve"}


def backtest_grid(
    study: Study,
    source: str,
    options: Options,
    *,
    grid: tuple[str, ...],
    draws: int,
    jobs: int | None,
    form: str,
    as_json: bool,
    out: Path | None,
    report: Path | None,
) -> None:
    """Run a grid, say how far it is, and write what was asked for.

    Ends with the exit code of the first run that failed, after all that the others came to.
    """
    axes = [parse_axis(text) for text in grid]
    for path, option, ending in ((out, "--out", ".jsonl"), (report, "--report", ".html")):
        if path is not None:
            check_file(path, source, option, (ending,))
    result = run_grid(
        study, source, axes, options,
        draws=draws, runner=Pool(jobs), form=form, report=_Told(),
    )  # fmt: skip
    if result.shown is None:
        for path in filter(None, (out, report)):
            say(f"did not write {path}: no run came to a result")
        out = report = None
    if out is not None:
        write_whole(out, "--out", lambda file: [file.write(line) for line in _lines(result)])
        say(f"wrote {out}: one line for each run")
    if report is not None:
        page = report_of(
            result,
            history=Path(source).name if Path(source).exists() else source,
            created_at=time.time(),
        ).encode()
        write_whole(report, "--report", lambda file: file.write(page))
        say(f"wrote {report}; show it only to those who may see the data")
    if as_json:
        put(to_dict(result))
    else:
        show(summary(result))
    if result.failed:
        sys.exit(result.failed[0].error.exit_code)


def summary(result: GridResult) -> RenderableType:
    """Return the settings as a table, with the recommendation below; no table without a result."""
    advice = advise(result)
    warnings = [Text(f"- {text}") for text in advice.warnings]
    if result.shown is None:
        return Group(Text(advice.reason, style="bold"), *warnings)
    name = result.main_score
    title = "settings: " + ", ".join(axis.key for axis in result.axes)
    table = Table(title=title if result.axes else "the study as it is", expand=False)
    for axis in result.axes:
        table.add_column(axis.key.rpartition(".")[2])
    for head in (SHORT[name], "open", *(short for short, _ in COLUMNS.values())):
        table.add_column(head, justify="right")
    if result.failed:
        table.add_column(FAILED, justify="right")
    for cell, row in rows_of(result):
        table.add_row(*row, style="bold" if cell is advice.cell else "")
    told = [
        Text(
            f"{SHORT[name]}: {LONG.get(name, WORDS[name])}; open: the same without privacy; "
            "width: median width of the intervals; with: share of the coefficients that have one; "
            "covered: how many intervals hold the fit to all records, over draws of the noise "
            "their share; privacy: share of the variance that comes from the noise"
            + (f"; {FAILED}: how many runs, (which of the reasons below)" if result.failed else "")
        ),
        *(Text(f"open: none, because {why}") for why in result.no_open),
        Text(f"{result.seconds:.0f} s"),
    ]
    if advice.cell is not None:
        told.append(Text(f"recommended: {advice.cell.setting.label}", style="bold"))
    told += [Text(advice.reason), *warnings]
    other = beside_table(result.shown.runs[0].result)
    return Group(table, *told, other, Text(NOT_PRIVATE, style="bold"))


def to_dict(result: GridResult) -> dict[str, Any]:
    """Return means, errors and the recommendation as plain data."""
    advice, shown = advise(result), result.shown
    message = GridMessage(
        not_private=NOT_PRIVATE,
        axes={axis.key: list(axis.values) for axis in result.axes},
        settings=[
            GridSetting(
                setting=dict(cell.setting.changes),
                draws=len(cell.runs),
                means={name: mean.value for name, mean in cell.means.items()},
                standard_errors={name: mean.error for name, mean in cell.means.items()},
                without_privacy=None if cell.open is None else cell.open.measures,
            )
            for cell in result.cells
        ],
        no_open=list(result.no_open),
        failed=[
            GridFailure(
                setting=dict(result.cells[run.setting].setting.changes),
                draw=run.draw,
                error=str(run.error),
                exit_code=run.error.exit_code,
            )
            for run in result.failed
        ],
        recommended=None if advice.cell is None else dict(advice.cell.setting.changes),
        reason=advice.reason,
        warnings=list(advice.warnings),
        beside=None if shown is None else shown.runs[0].result.to_dict()["beside"],
        seconds=round(result.seconds, 3),
    )
    found: dict[str, Any] = msgspec.to_builtins(message)
    return found


class _Told:
    """Says on standard error that a run has ended, and how long the rest may take."""

    def __init__(self) -> None:
        self._begun = time.monotonic()

    def __call__(self, run: Run | Failed, done: int, of: int) -> None:
        taken = time.monotonic() - self._begun
        if isinstance(run, Failed):
            said = f"failed: {run.error}"
        else:
            name, score = run.result.main_score
            said = f"{WORDS[name]} {'none' if score is None else f'{score:.4g}'}"
        say(
            f"run {done} of {of}: {run.label}, {named(run.draw)}: {said}; "
            f"{taken * (of - done) / done:.0f} s left"
        )


def _lines(result: GridResult) -> list[bytes]:
    runs = [
        (cell, run)
        for cell in result.cells
        for run in (*cell.runs, *((cell.open,) if cell.open else ()))
    ]
    return [
        json.dumps(
            {
                "setting": dict(cell.setting.changes),
                "draw": run.draw,
                "measures": run.measures,
                "result": run.result.to_dict(),
            },
            allow_nan=False,
        ).encode()
        + b"\n"
        for cell, run in runs
    ]
