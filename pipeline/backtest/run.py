"""One backtest from a history to its result."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from pipeline.backtest.beside import beside, tasks_beside
from pipeline.backtest.engine import Engine
from pipeline.backtest.history import History, Reading
from pipeline.backtest.options import Options
from pipeline.backtest.result import BacktestResult, Bin, Budget, Frozen, Pooled
from pipeline.backtest.scores import Judge, Snapshot, Tally
from pipeline.errors import ConfigError, NumericError
from pipeline.estimators.estimate import Estimate, class_weights
from pipeline.estimators.reference_fit import counted_fit
from pipeline.messages.estimate import EstimateMessage
from pipeline.methods import method_of, task_of
from pipeline.release.task import Task
from pipeline.study_file.load import StudySource, read_study
from pipeline.types import Vector

#: Told of what is going on, how many records have been read, and which share of the history.
Progress = Callable[[str, int, float | None], None]


def backtest(
    study: StudySource, history: History, *, progress: Progress | None = None, **options: Any
) -> BacktestResult:
    """Run a raw history through the clients and the fold of a study, in this process.

    A private study draws fresh noise under its law. The result is computed from raw records and is
    not private; no ledger is charged.

    Parameters
    ----------
    study
        A study, the path of a study file, or its text (a string with a line break).
    history
        The path of a .csv, .jsonl, .ndjson or .parquet file, a data frame, or a mapping from names
        to columns, in the order of time.
    progress
        Called about once for each batch.
    options
        See `Options`.

    Raises
    ------
    ConfigError
        If the study has no live stream, or options do not go together.
    DataError
        If the history cannot be read, or nothing of it can be used.
    """
    unknown = sorted(set(options) - {field.name for field in dataclasses.fields(Options)})
    if unknown:
        known = ", ".join(field.name for field in dataclasses.fields(Options))
        raise ConfigError(f"{unknown[0]} is not an option of a backtest; allowed: {known}")
    return run_backtest(read_study(study), history, Options(**options), progress=progress)


def run_backtest(
    study: StudySource,
    history: History,
    options: Options,
    *,
    form: str = "csv",
    progress: Progress | None = None,
) -> BacktestResult:
    """Run one backtest; `form` is what standard input holds, and the rest is as in `backtest`."""
    begun = time.perf_counter()
    given = read_study(study)
    task = task_of(options.study_of(given))
    others = tasks_beside(given, options)
    if isinstance(history, str) and history == "-" and (options.pooled or others):
        raise ConfigError(
            "the pooled fit and --beside read the history more than once, and standard input can "
            "be read once; give a file, or --no-pooled without --beside"
        )
    reading = Reading(task.study, options, history, form)
    since = options.clock(options.freeze, "--freeze")
    engine = Engine(
        task,
        timed=options.event_time is not None,
        names=reading.names,
        network=options.network,
        labels=options.labels,
        seed=options.seed,
        bins=options.bins,
        freeze=since,
    )
    for part in reading.parts():
        engine.feed(part)
        if progress is not None:
            progress("backtest", reading.records, reading.share)
    first, last = reading.span or (0.0, 0.0)
    if since is not None and since > last:
        raise ConfigError("--freeze: no record comes after it; give an earlier time")
    engine.finish()
    estimate, message = engine.run.estimate(time.time())
    exact, reason = _exact(task, history, options, form, reading, progress)
    target = None if exact is None else exact.coefficients
    usable = max(reading.records - reading.unusable, 1)
    names = task.study.encoding.names
    spans = list(_bins(task, engine, target, frozen=options.freeze is not None))
    total = _total(engine)
    return BacktestResult(
        study=task.study.name,
        revision=task.revision,
        mechanism=task.study.privacy.mechanism,
        options=dataclasses.asdict(options),
        timed=options.event_time is not None,
        records=reading.records,
        unusable=reading.unusable,
        faults=dict(reading.faults),
        late=reading.late,
        untimed=reading.untimed,
        unscored=sum(span.unscored for span in spans),
        clients=sum(len(partition.clients) for partition in engine.run.partitions),
        first=first,
        last=last,
        scores=total.scores,
        calibration=Judge(task).calibration(total.ranking),
        freeze=None if since is None else Frozen(since, engine.frozen.scores, engine.after.scores),
        estimate=message,
        pooled=_pooled(task, message, exact, reason),
        publications=engine.publications,
        failures=engine.failures,
        clipped={n: int(c) / usable for n, c in zip(names, reading.clipped, strict=True)},
        budget=_budget(task, engine),
        bins=spans,
        beside=beside(task, others, history, options, form, estimate.coefficients)
        if others
        else None,
        seconds=time.perf_counter() - begun,
    )


def _exact(
    task: Task,
    history: History,
    options: Options,
    form: str,
    reading: Reading,
    progress: Progress | None,
) -> tuple[Estimate | None, str]:
    """Return the pooled fit on encoded features, or why there is none."""
    if not options.pooled:
        return None, "not asked for"
    if task.study.estimator.forgetting is not None:
        return None, "the study forgets, and aims at no fit of the whole history"
    if why := method_of(task.study).spec.no_reference_fit:
        return None, why
    if task.classes and 0 in reading.classes:
        return None, "the history has one class only, so there is no pooled fit"
    usable = reading.records - reading.unusable

    def read() -> Any:
        alone = dataclasses.replace(options, client_column=None, split=None, by="round-robin")
        again = Reading(task.study, alone, history, form)
        for number, part in enumerate(again.usable_records()):
            if progress is not None and number % 8 == 0:
                progress("pooled fit", again.records, again.share)
            yield part

    negative, positive = reading.classes
    weights = class_weights(negative, positive, task.largest_weight)
    try:
        return counted_fit(task, read, usable, weights), ""
    except NumericError as error:
        return None, str(error)


def _pooled(task: Task, message: EstimateMessage, exact: Estimate | None, reason: str) -> Pooled:
    nothing: list[Any] = [None] * task.size
    if exact is None:
        return Pooled(None, nothing, nothing, None, reason)
    values = task.in_units(exact.coefficients)
    ends = exact.intervals(task.study.estimator.level)
    covered = [
        None if row.interval is None else bool(row.interval[0] <= value <= row.interval[1])
        for row, value in zip(message.coefficients, values, strict=True)
    ]
    known = [one for one in covered if one is not None]
    return Pooled(
        values.tolist(),
        nothing if ends is None else _ends(task, ends),
        covered,
        sum(known) / len(known) if known else None,
        "",
    )


def _bins(task: Task, engine: Engine, target: Vector | None, *, frozen: bool) -> Any:
    unit = task.response_scale[1]
    last: Snapshot | None = None
    for start, end, span in engine.timeline.spans():
        last = span.last or last
        width = last.width if last else None
        yield Bin(
            start=start,
            end=end,
            records=span.arrived,
            unusable=span.unusable,
            unscored=span.unscored,
            scores=span.tally.scores,
            frozen=span.frozen.scores if frozen else None,
            status=last.status if last else "none",
            releases=last.releases if last else 0,
            width=None if width is None else unit * width,
            privacy_share=last.privacy_share if last else None,
            coverage=last.coverage(target) if last and target is not None else None,
            coefficients=None if last is None else task.in_units(last.coefficients).tolist(),
            intervals=None if last is None or last.ends is None else _ends(task, last.ends),
        )


def _ends(task: Task, ends: tuple[Vector, Vector]) -> list[tuple[float, float] | None]:
    low, high = map(task.in_units, ends)
    return [None if math.isnan(a) else (float(a), float(b)) for a, b in zip(low, high, strict=True)]


def _total(engine: Engine) -> Tally:
    total = Tally()
    for _, _, span in engine.timeline.spans():
        total.merge(span.tally)
    return total


def _budget(task: Task, engine: Engine) -> Budget:
    privacy = task.study.privacy
    releases = sorted(
        one.highest + 1 for part in engine.run.partitions for one in part.clients.values()
    )
    counts = (releases[0], float(np.median(releases)), releases[-1]) if releases else (0, 0.0, 0)
    return Budget(
        epsilon=privacy.epsilon if task.study.private else None,
        delta=(privacy.delta or 0.0) if task.study.private else None,
        unit=privacy.unit,
        neighbours=privacy.neighbours,
        scope=task.budget.scope,
        clients=len(releases) if task.study.private else 0,
        releases=counts,
    )
