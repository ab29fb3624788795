"""`veilstream fit`: the whole pipeline over a file, in one process."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import click
from rich.console import Console

from pipeline.cli.context import SAVE_MODEL, STUDY, plan_of, save_model, say
from pipeline.cli.table import fit_table, intervals_table, table
from pipeline.cli.words import clipped_line, counted
from pipeline.errors import ConfigError, DataError, RecordError
from pipeline.local.encode import Encoder, Row, stack
from pipeline.local.plan import Plan
from pipeline.messages.estimate import write_estimate
from pipeline.messages.fit import compose_fit, write_fit
from pipeline.methods import METHODS
from pipeline.methods import plan_of as make_plan
from pipeline.methods.offline import OfflineMethod, offline_method
from pipeline.offline import OfflineRun, by_client
from pipeline.study import without_privacy
from producers.sources import Source, open_once

#: Encoded records with their clients, in the order of the source; None for an empty slot.
Rows: TypeAlias = Iterator[tuple[str, Row | None]]


@click.command()
@STUDY
@click.option(
    "--input", "source", required=True, help="A .csv, .jsonl, .ndjson or .parquet file, or -."
)
@click.option("--format", "form", type=click.Choice(["csv", "jsonl"]), default="csv")
@click.option("--client-column", help="Column that says whose record it is; default: one client.")
@click.option(
    "--without-privacy", "bare", is_flag=True,
    help="The same study without noise, to see what privacy costs. For whoever may see the data.",
)  # fmt: skip
@click.option(
    "--intervals",
    "all_intervals",
    is_flag=True,
    help="All intervals side by side, with what each needs.",
)
@click.option("--json", "as_json", is_flag=True, help="The estimate as JSON.")
@SAVE_MODEL
def fit(
    study: Path, source: str, form: str, client_column: str | None, bare: bool,
    all_intervals: bool, as_json: bool, save_model_to: Path | None,
) -> None:  # fmt: skip
    """Estimate STUDY from a file, through the same functions as the live stream.

    A study whose estimator.kind is a published method runs that on the pooled records, and says
    what it keeps private. With a private study the estimate is a release of its own under the
    study's guarantee: it draws fresh noise, and no ledger is charged.
    """
    plan = plan_of(study)
    method = offline_method(plan.study)
    if method is not None:
        if bare:
            raise ConfigError(
                f"--without-privacy: it goes with {' and '.join(METHODS)}; leave it out, since "
                f'kind = "{plan.study.estimator.kind}" keeps no guarantee anyway'
            )
        rows = _rows(plan, source, form, client_column)
        _offline(plan, method, rows, source, as_json, save_model_to)
        return
    if bare:
        if save_model_to is not None:
            raise ConfigError(
                "--save-model: an estimate without privacy is of no study; leave it out"
            )
        say("WARNING: --without-privacy: nobody's data is protected in what follows")
        plan = make_plan(without_privacy(plan.study))
    run = OfflineRun(plan, trace=all_intervals)
    count, faults = _stream(plan, run, _rows(plan, source, form, client_column))
    _say_faults(source, count, faults)
    _, message = run.estimate(time.time())
    if as_json:
        sys.stdout.write(write_estimate(message).decode() + "\n")
    else:
        Console().print(table(message, plan.study))
        if all_intervals:
            Console().print(intervals_table(message, plan.study))
    if save_model_to is not None:
        save_model(plan, message, save_model_to)


def _stream(plan: Plan, run: OfflineRun, rows: Rows) -> tuple[int, int]:
    """Cut records into windows and run them; return how many came, and how many were bad."""
    started, last = time.monotonic(), time.monotonic()
    count = faults = 0

    def watched() -> Rows:
        nonlocal count, faults, last
        for client, row in rows:
            count += 1
            faults += row is None
            yield client, row
            if time.monotonic() - last > 1:
                last = time.monotonic()
                say(f"{counted(count, 'record')}, {count / (last - started):.0f} a second")

    for client, window in by_client(watched(), plan.slots):
        run.add(client, window)
    return count, faults


def _offline(
    plan: Plan, method: OfflineMethod, rows: Rows, source: str, as_json: bool,
    save_model_to: Path | None,
) -> None:  # fmt: skip
    """Run the offline method of a study, print what it gives, and save it if asked."""
    clients: dict[str, list[Row | None]] = {}
    for client, row in rows:
        clients.setdefault(client, []).append(row)
    every = [row for client in clients.values() for row in client]
    _say_faults(source, len(every), every.count(None))
    held = {name: stack(found, plan.size - 1) for name, found in clients.items()}
    message = compose_fit(
        plan, method, method.fit(plan, held),
        slots=len(every), clients=len(clients), published_at=time.time(),
    )  # fmt: skip
    if as_json:
        sys.stdout.write(write_fit(message).decode() + "\n")
    else:
        Console().print(fit_table(message, plan.study))
    if save_model_to is not None:
        save_model(plan, message, save_model_to)


def _say_faults(source: str, count: int, faults: int) -> None:
    if count == 0:
        raise DataError(f"{source} holds no records")
    if faults == count:
        raise DataError(
            f"{source}: none of its {counted(count, 'record')} could be used; their columns or "
            "values are not those that the study file declares"
        )
    if faults:
        say(f"{faults} of {counted(count, 'record')} could not be used; such slots stayed empty")


def _rows(plan: Plan, spec: str, form: str, client_column: str | None) -> Rows:
    source = open_once(spec, form=form)
    try:
        yield from _encoded(plan, source, client_column)
    finally:
        source.close()


def _encoded(plan: Plan, source: Source, client_column: str | None) -> Rows:
    encoder = Encoder(plan.study)
    if source.columns is not None:
        encoder.check_columns(source.columns)
        if client_column is not None and client_column not in source.columns:
            raise DataError(f"--client-column: the source has no column {client_column!r}")
    client = "client"
    while not source.ended:
        for slot in source.read(1000, 1.0):
            if slot.record is None:
                # nobody can tell whose it was: it takes a slot of the client before it
                yield client, None
                continue
            if client_column:
                client = str(slot.record.get(client_column) or "") or "(no name)"
            try:
                yield client, encoder.encode(slot.record)
            except RecordError:
                yield client, None
    # counted from raw data: for the person at the terminal, not for a log collector
    if encoder.clipped and sys.stderr.isatty():
        say(clipped_line(encoder.clipped))
