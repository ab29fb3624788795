"""`veilstream backtest`: a raw history through clients and fold, alone or in a grid of settings."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import click
import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pipeline.api.table import information_line, line, privacy_line, unit_lines, value
from pipeline.backtest import NOT_PRIVATE, BacktestResult, Options, run_backtest
from pipeline.backtest.grid import Failed, GridResult, Run, named, parse_axis, run_grid
from pipeline.backtest.history import worded_faults
from pipeline.backtest.report import COLUMNS, FAILED, advise, coefficients_of, report_of, rows_of
from pipeline.backtest.scores import WORDS, Scores
from pipeline.cli.context import (
    CLIENT_COLUMN,
    FILE,
    FORMAT,
    SOURCE,
    STUDY,
    TIMES,
    Renamed,
    put,
    say,
    show,
    task_of,
)
from pipeline.cli.pool import Pool
from pipeline.cli.progress import Speed
from pipeline.errors import ConfigError
from pipeline.messages.results import GridFailure, GridMessage, GridSetting
from pipeline.methods import OFFLINE, require_live
from pipeline.records.order import ORDERED
from pipeline.settings import extra
from pipeline.study.model import Study
from pipeline.words import counted, digits, percent


@click.command()
@STUDY
@click.option(
    *SOURCE, cls=Renamed, required=True,
    help="A .parquet, .csv, .jsonl or .ndjson file in the order of time, or -. "
    "A file without an order of time: see --shuffle.",
)  # fmt: skip
@FORMAT
@CLIENT_COLUMN
@click.option(
    "--split", type=int, help=("Deal the records to this many clients instead; --by says how.")
)
@click.option(
    "--by", default="round-robin", show_default=True,
    help="round-robin, blocks:N, range:FEATURE or dirichlet:ALPHA.",
)  # fmt: skip
@click.option(
    "--event-time",
    help=f"Column with the time of each record: {TIMES}.",
)
@click.option(
    "--late", type=click.Choice(["refuse", "keep"]), default="refuse", show_default=True,
    help="If a record is older than the one before it: end with an error, or keep it where it is.",
)  # fmt: skip
@click.option("--from", "start", help="Only records from this event time on.")
@click.option("--to", "end", help="Only records before this event time.")
@click.option(
    "--delay", default="0", show_default=True,
    help="Network delay, each way: 30s, exponential:30s, or 500 records without --event-time.",
)  # fmt: skip
@click.option(
    "--label-delay", default="0", show_default=True,
    help="How long after a record its response is known: 1000 records, or 3600s.",
)  # fmt: skip
@click.option(
    "--freeze", help="Also score the estimate as it was at this time, unchanged, on later records."
)
@click.option(
    "--without-privacy", is_flag=True, help="The same study without noise, to see what it costs."
)
@click.option(
    "--simulate", type=int, metavar="SEED",
    help="Draw noise of the same size from a seed: repeatable, but it protects nobody.",
)  # fmt: skip
@click.option(
    "--shuffle", type=int, metavar="SEED",
    help="Take the records in a random order: for a file that is sorted, or goes site by site.",
)  # fmt: skip
@click.option(
    "--seed",
    type=int, default=0, show_default=True,
    help="Seed of random delays and of --by dirichlet.",
)  # fmt: skip
@click.option(
    "--bins", type=int, default=60, show_default=True,
    help="Largest number of bins of time in tables and plots.",
)  # fmt: skip
@click.option("--pooled/--no-pooled", default=True, help="Also fit all records without privacy.")
@click.option(
    "--beside", default="", metavar="METHODS",
    help=f"Run published methods on the same records, separated by commas: {', '.join(OFFLINE)}.",
)  # fmt: skip
@click.option(
    "--grid", multiple=True, metavar="KEY=VALUES",
    help="A key of the study file with its values: 'privacy.epsilon=0.5,1,2'. May be repeated.",
)  # fmt: skip
@click.option(
    "--draws", type=click.IntRange(min=1), default=1, show_default=True,
    help="How often to run each setting, each time with new noise.",
)  # fmt: skip
@click.option("--jobs", type=click.IntRange(min=1), help="Processes at a time; default: all cores.")
@click.option(
    "--report", type=FILE, help="Write tables and plots into one .html file that needs no network."
)
@click.option("--json", "as_json", is_flag=True, help="The whole result as one JSON object.")
@click.option(
    "--out", type=FILE,
    help="Write the bins of time to a .jsonl or .parquet file; for a grid, its runs as .jsonl.",
)  # fmt: skip
def backtest(
    *, study: Path, source: str, form: str, beside: str, grid: tuple[str, ...], draws: int,
    jobs: int | None, report: Path | None, as_json: bool, out: Path | None, **given: Any,
) -> None:  # fmt: skip
    """Run past records through STUDY in one process, and score its predictions over time.

    Only for people who may see the raw data: the estimate keeps the study's guarantee, but scores,
    clipping rates and coverage are computed from raw records and are NOT private. A private study
    draws fresh noise; no ledger is charged.

    Each record is predicted by the newest estimate of that moment, and learnt afterwards.
    """
    named = tuple(filter(None, (name.strip() for name in beside.split(","))))
    options = Options(beside=named, **given)
    task = task_of(study)
    require_live(task.study, "a backtest")
    if jobs is not None and not (grid or draws > 1):
        raise ConfigError("--jobs: it goes with --grid or --draws")
    many = bool(grid) or draws > 1 or report is not None
    if out is not None and not many:
        check_file(out, source, "--out", (".jsonl", ".parquet"))
    say(f"WARNING: {NOT_PRIVATE}")
    if options.without_privacy or options.simulate is not None:
        say("WARNING: the estimate itself protects nobody: --without-privacy or --simulate")
    if many:
        backtest_grid(
            task.study, source, options, grid=grid, draws=draws, jobs=jobs, form=form,
            as_json=as_json, out=out, report=report,
        )  # fmt: skip
        return
    result = run_backtest(task.study, source, options, form=form, progress=Speed())
    if out is not None:
        write_series(result, out)
        say(f"wrote {out}")
    if as_json:
        put(result.to_dict())
    else:
        show(tables(result))


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
        write_whole(out, "--out", lambda file: [file.write(line) for line in _run_lines(result)])
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


def _run_lines(result: GridResult) -> list[bytes]:
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


#: Names of the scores for people.
SCORES = {**WORDS, "mean_absolute_error": "MAE", "root_mean_square_error": "RMSE"}
#: What the columns of the tables mean.
HELD = (
    "pooled fit, its own: the fit to all records at once without privacy, and its interval; "
    "inside: whether the private interval contains it"
)
OVER_TIME = (
    "width: median length of the intervals; covered: share of them that contain the pooled fit; "
    "status: warming means that there "
    "are no intervals yet"
)
#: The column of what privacy costs.
NOISE = "share of variance from noise"
#: Bins that a terminal shows, at most.
SHOWN = 12


def tables(result: BacktestResult) -> RenderableType:
    """Return coefficients, scores over time and in total, and what they rest on."""
    told = [Text(text) for text in _lines(result) if text]
    units = [Text(text) for text in unit_lines(result.estimate)]
    tail = [*told, beside_table(result), Text(NOT_PRIVATE, style="bold")]
    beside = () if result.pooled.coefficients is None else (Text(HELD),)
    over_time = _over_time(result), Text(OVER_TIME)
    return Group(_coefficients(result), *beside, *units, *over_time, *tail)


def check_file(path: Path, source: str, option: str, endings: tuple[str, ...]) -> None:
    """Refuse an output that cannot be written, before anything is computed.

    ConfigError, naming the option.
    """
    if path.suffix.lower() not in endings:
        raise ConfigError(f"{option}: it must end in {' or '.join(endings)}")
    if path.exists() and Path(source).exists() and path.samefile(source):
        raise ConfigError(f"{option}: it is the input; the operator must name another file")
    if not path.parent.is_dir():
        raise ConfigError(f"{option}: cannot write {path}: there is no folder {path.parent}")


def write_whole(path: Path, option: str, write: Callable[[BinaryIO], object]) -> None:
    """Write a file for its owner's eyes; it is there whole or not at all.

    ConfigError if it cannot be written.
    """
    draft: Path | None = None
    try:
        # a name that nothing else has, and for the owner alone from the start
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        draft = Path(name)
        with os.fdopen(handle, "wb") as out:
            write(out)
        draft.replace(path)
    except BaseException as error:
        if draft is not None:
            draft.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise ConfigError(f"{option}: cannot write {path}: {error.strerror}") from error
        raise


def write_series(result: BacktestResult, path: Path) -> None:
    """Write the bins, one row each; ConfigError if they cannot be written."""
    rows = result.rows()
    if path.suffix.lower() == ".parquet":
        parquet = extra("pyarrow.parquet", "--out as Parquet")
        table = extra("pyarrow", "--out").Table.from_pylist(rows)
        write_whole(path, "--out", lambda out: parquet.write_table(table, out))
        return
    lines = [json.dumps(row, allow_nan=False).encode() + b"\n" for row in rows]
    write_whole(path, "--out", lambda out: out.writelines(lines))


def _coefficients(result: BacktestResult) -> RenderableType:
    message = result.estimate
    grid = Table(title=f"{result.study}: backtest, {result.mechanism}", expand=False)
    grid.add_column("coefficient")
    for name in ("estimate", f"{message.level:.0%} interval", "pooled fit", "its own", "inside"):
        grid.add_column(name, justify="right")
    for row in coefficients_of(result, partial(value, message), "[{:.4g}, {:.4g}]"):
        grid.add_row(*row)
    return grid


def _over_time(result: BacktestResult) -> RenderableType:
    # a terminal is narrow; `--out` and `--json` have every score
    main = result.main_score[0]
    names = [main, f"frozen_{main}"] if result.freeze is not None else [main]
    titles = ["updating", "frozen"] if result.freeze is not None else [SCORES[main]]
    step, count = _step(result), len(result.bins)
    some = f": {-(-count // step)} of {count} bins, the others are in --out" if step > 1 else ""
    grid = Table(title=f"{SCORES[main]} and intervals over time{some}", expand=False)
    grid.add_column("from", no_wrap=True)
    for name in ("records", *titles, "width", "covered", NOISE):
        grid.add_column(name, justify="right")
    grid.add_column("status")
    for row in _some(result):
        cells = [_when(row["start"]), str(row["records"]), *(digits(row[name]) for name in names)]
        cells += [digits(row["width"]), percent(row["coverage"]), percent(row["privacy_share"])]
        grid.add_row(*cells, row["status"])
    return grid


def _some(result: BacktestResult) -> list[dict[str, Any]]:
    """Return bins at equal distances, the last one among them."""
    rows = result.rows()
    return rows[len(rows) - 1 :: -_step(result)][::-1] if rows else []


def _step(result: BacktestResult) -> int:
    """Return which of the bins are shown: every one, every second, ..."""
    return max(-(-len(result.bins) // SHOWN), 1)


def _lines(result: BacktestResult) -> Iterator[str]:
    yield line(result.estimate)
    yield information_line(result.estimate)
    before = f"{counted(result.unscored, 'record')} came before any estimate"
    yield f"in total: {_scores(result.scores)}; {before}"
    if result.freeze is not None:
        since = result.to_dict()["freeze"]["since"]
        yield f"from {since} on, frozen: {_scores(result.freeze.frozen)}"
        yield f"from {since} on, updating: {_scores(result.freeze.updating)}"
    if known := [one for one in result.pooled.covered if one is not None]:
        yield (
            f"{sum(known)} of {len(known)} intervals contain the pooled fit, in this one draw of "
            "the noise; --draws says how often they do"
        )
    elif result.pooled.reason:
        yield f"no pooled fit: {result.pooled.reason}"
    clipped = {name: share for name, share in result.clipped.items() if share > 0}
    said = ", ".join(f"{name} {share:.2%}" for name, share in clipped.items()) or "nothing"
    yield f"clipped to the public range: {said}"
    if result.shortened:
        yield (
            f"longer than the norm that the study keeps: {result.shortened:.2%} of the records; "
            "they are shortened or weigh less, and the coefficients and the pooled fit are of such "
            "records (study check --sample FILE says more)"
        )
    if result.order:
        named = ", ".join(f"{name} {share:.0%}" for name, share in result.order.items())
        yield f"{ORDERED}. It goes with {named}; --shuffle shows what it does here"
    fewest, median, most = result.budget.releases
    yield f"releases of a client: {fewest} to {most}, median {median:g}"
    if result.budget.epsilon is not None:
        budget = result.budget
        each = "" if budget.scope == "record" else "with each release, in all at most "
        yield (
            f"a live study would charge each of {counted(budget.clients, 'client')} {each}epsilon "
            f"{budget.epsilon:g}, delta {budget.delta:g} for each {budget.unit}"
        )
    why = ""
    if said := worded_faults(result.faults):
        why = f" ({said}: missing, no number, or no declared level or class)"
    for count, what in (
        (result.unusable, f"records could not be used; their slots stayed empty{why}"),
        (result.untimed, "of them had no readable time"),
        (result.late, "records were late; they count as arriving where they stand"),
        (result.failures, "times no estimate could be formed"),
    ):
        if count:
            yield f"{count} {what}"
    rate = result.records / result.seconds
    yield f"{counted(result.records, 'record')} in {result.seconds:.1f} s, {rate:.0f} a second"
    yield privacy_line(result.estimate)


def _scores(scores: Scores) -> str:
    parts = [counted(scores.records, "record")]
    for name, said in SCORES.items():
        found = getattr(scores, name)
        if found is not None:
            parts.append(f"{said} {found:.4g}")
    return ", ".join(parts)


def _when(start: str | int) -> str:
    return str(start) if isinstance(start, int) else start[:16].replace("T", " ")


#: What the two columns mean.
HOW = (
    "before: each record is scored before it is learnt, as in a stream; in the end: all records "
    "are predicted by the last coefficients, which have seen them; -: the method has no such "
    "score"
)


def beside_table(result: BacktestResult) -> RenderableType:
    """Return scores of the methods beside the study's, and what each really keeps private."""
    if result.beside is None:
        return Group()
    score = result.main_score[0]
    grid = Table(title=f"beside other methods: {WORDS[score]}", expand=False)
    for name in ("method", "before", "in the end"):
        grid.add_column(name, justify="left" if name == "method" else "right")
    for row in result.beside.compared(score, result.scores):
        grid.add_row(*row)
    kept = [Text(f"{kinds}: {said}") for kinds, said in result.beside.said()]
    own = Text(f"this study: {result.estimate.privacy.guarantee}")
    return Group(grid, Text(HOW), own, *kept)
