"""`veilstream backtest`: a raw history through clients and fold, with scores over time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pipeline.backtest import NOT_PRIVATE, Options, run_backtest
from pipeline.cli.backtest_grid import backtest_grid
from pipeline.cli.backtest_output import check_file, tables, write_series
from pipeline.cli.context import CLIENT_COLUMN, FILE, FORMAT, STUDY, put, say, show, task_of
from pipeline.cli.progress import Speed
from pipeline.errors import ConfigError
from pipeline.methods import OFFLINE, require_live


@click.command()
@STUDY
@click.option(
    "--input", "source", required=True,
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
    help="Column with the time of each record: RFC 3339, or seconds since 1970.",
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
