"""One backtest from a history to its result, and methods that run over files alone beside it.

An online method predicts each record before it learns it, at the coefficients after the last batch
that had ended by then: batch b ends with the last record of window b of any client. Labels and
network have no delay for it. Every method also predicts all records in the end, after it has seen
them; a method that is not online does nothing else, and neither is a forecast.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from pipeline.backtest.engine import Engine
from pipeline.backtest.history import History, Reading
from pipeline.backtest.options import Options
from pipeline.backtest.result import BacktestResult, Beside, Bin, Budget, Frozen, Other, Pooled
from pipeline.backtest.scores import Judge, Scores, Snapshot, Tally
from pipeline.errors import ConfigError, NumericError, PrivacyError
from pipeline.estimators.estimate import Estimate, class_weights
from pipeline.estimators.reference_fit import counted_fit
from pipeline.messages.estimate import EstimateMessage
from pipeline.methods import method_of, offline_methods, task_of
from pipeline.records.encoder import Arrays
from pipeline.records.order import going_with_the_order
from pipeline.release.task import Task
from pipeline.study.model import Study
from pipeline.study.reference import MOST_SEEN, longer, norms_of
from pipeline.study_file.load import StudySource, read_study, study_of
from pipeline.types import Integers, Matrix, Vector

#: Told of what is going on, how many records have been read, and which share of the history.
Progress = Callable[[str, int, float | None], None]


def tasks_beside(study: Study, options: Options) -> list[Task]:
    """Return the study with each of the methods that were asked for.

    ConfigError if one of them cannot go with the study.
    """
    if not options.beside:
        return []
    # the methods claim what the study does, whatever noise is drawn here
    methods = offline_methods(options.beside, "--beside")
    tasks = []
    for kind, method in zip(options.beside, methods, strict=True):
        tables = msgspec.to_builtins(method.beside(study, options.seed))
        tasks.append(task_of(study_of(tables, name=f"--beside {kind}")))
    if options.label_delay != "0" or options.delay != "0":
        raise ConfigError(
            "--beside: methods that run over files know no delay of network or labels; leave "
            "--delay and --label-delay out, or --beside"
        )
    return tasks


def beside(
    task: Task,
    tasks: Sequence[Task],
    history: History,
    options: Options,
    form: str,
    coefficients: Vector,
) -> Beside:
    """Read the history again and run all methods; all of its records are held in memory.

    tasks: Of `tasks_beside`.
    coefficients: The study's own last estimate, on encoded features, shape (d,).
    """
    records = _Records.read(task, history, options, form)
    judge = Judge(task)
    return Beside(
        records.scores(judge, coefficients),
        tuple(_other(one, records, judge) for one in tasks),
    )


@dataclass(frozen=True, slots=True)
class _Records:
    """All record slots of a history in its order: shapes (n, p), (n,), (n,) and (n,).

    Responses are NaN where a slot is empty. `owners` are the numbers of the clients, shape (n,).
    """

    features: Matrix
    responses: Vector
    written: Vector
    owners: Integers

    @classmethod
    def read(cls, task: Task, history: History, options: Options, form: str) -> _Records:
        parts = list(Reading(task.study, options, history, form).parts())
        usable = np.concatenate([part.usable for part in parts])
        responses = np.concatenate([part.responses for part in parts])
        return cls(
            np.concatenate([part.features for part in parts]),
            np.where(usable, responses, np.nan),
            np.concatenate([part.written for part in parts]),
            np.concatenate([part.clients for part in parts]),
        )

    def rows(self) -> dict[str, Integers]:
        """Return the rows of each client's slots; clients in the order of their first one."""
        order = np.argsort(self.owners, kind="stable")
        cuts = np.flatnonzero(np.diff(self.owners[order])) + 1
        held = sorted(np.split(order, cuts), key=lambda rows: int(rows[0]))
        return {str(number): rows for number, rows in enumerate(held)}

    def clients(self, rows: Mapping[str, Integers]) -> dict[str, Arrays]:
        """Return the slots of each client."""
        return {
            name: Arrays(self.features[held], self.responses[held]) for name, held in rows.items()
        }

    def scores(self, judge: Judge, coefficients: Vector) -> Scores:
        """Return the scores of all records at one point."""
        tally = Tally()
        self._add(tally, judge, coefficients, 0, len(self.responses))
        return tally.scores

    def path_scores(self, judge: Judge, path: Iterator[Vector], ends: Sequence[int]) -> Scores:
        """Return the scores of records after the first batch, at the newest point of a path."""
        tally, after = Tally(), [*ends[1:], len(self.responses) - 1]
        for coefficients, end, then in zip(path, ends, after, strict=True):
            self._add(tally, judge, coefficients, end + 1, then + 1)
        return tally.scores

    def _add(self, tally: Tally, judge: Judge, point: Vector, start: int, end: int) -> None:
        sound = start + np.flatnonzero(~np.isnan(self.responses[start:end]))
        tally.add(judge, self.written[sound], judge.predictor(self.features[sound], point))


def ends_of(rows: Mapping[str, Integers], slots: int) -> list[int]:
    """Return the row of the last record of each batch, window b of all clients."""
    longest = max(len(held) for held in rows.values())
    last = []
    for start in range(0, longest, slots):
        open_ones = (held for held in rows.values() if len(held) > start)
        last.append(max(int(held[min(start + slots, len(held)) - 1]) for held in open_ones))
    # no batch is folded before the one in front of it
    ends: list[int] = np.maximum.accumulate(last).tolist()
    return ends


def _other(task: Task, records: _Records, judge: Judge) -> Other:
    kind = task.study.estimator.kind
    [method] = offline_methods([kind], "--beside")
    said = ": ".join(filter(None, [method.label, method.meaning]))
    found = Other(kind, said, None, None, "", "")
    rows = records.rows()
    clients = records.clients(rows)
    try:
        found = dataclasses.replace(found, guarantee=method.guarantee(task, len(clients)).guarantee)
        fit = method.fit(task, clients)
        found = dataclasses.replace(found, after=records.scores(judge, fit.coefficients))
        if method.online:
            path, ends = method.path(task, clients), ends_of(rows, task.slots)
            before = records.path_scores(judge, path, ends)
            found = dataclasses.replace(found, before=before)
    except (NumericError, PrivacyError) as error:
        return dataclasses.replace(found, reason=str(error))
    return found


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
        The path of a .csv, .jsonl, .ndjson or .parquet file; a table of pandas, polars or Arrow; or
        a mapping from names to columns. In the order of time.
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
    shortened, thinned = 0, _Thinned()
    for part in reading.parts():
        engine.feed(part)
        if options.event_time is None:
            thinned.add(np.column_stack([part.responses, part.features])[part.usable])
        beyond = longer(norms_of(part.features), task.kept_norm)
        shortened += int(np.count_nonzero(part.usable & beyond))
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
    total = Tally()
    for _, _, span in engine.timeline.spans():
        total.merge(span.tally)
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
        shortened=shortened / usable,
        order=_order(task, thinned),
        budget=_budget(task, engine),
        bins=spans,
        beside=beside(task, others, history, options, form, estimate.coefficients)
        if others
        else None,
        seconds=time.perf_counter() - begun,
    )


class _Thinned:
    """Rows in their order, every one or every second, fourth, ...: `MOST_SEEN` at most."""

    def __init__(self) -> None:
        self._kept, self._rows, self._next, self._step = list[Matrix](), 0, 0, 1

    def add(self, rows: Matrix) -> None:
        """Take what comes behind the rows before."""
        taken = rows[self._next :: self._step]
        self._next = (self._next - len(rows)) % self._step
        self._kept.append(taken)
        self._rows += len(taken)
        if self._rows > MOST_SEEN:
            # every second one, and of those to come as well
            self._next += self._step * (self._rows % 2)
            self._step *= 2
            self._kept = [np.concatenate(self._kept)[::2]]
            self._rows = len(self._kept[0])

    @property
    def columns(self) -> Matrix:
        """Return what is kept, one row for each column; none where nothing was taken."""
        return np.concatenate(self._kept).T if self._kept else np.zeros((0, 0))


def _order(task: Task, thinned: _Thinned) -> dict[str, float]:
    """Return which columns go with the order of the records."""
    columns = thinned.columns
    if not len(columns):
        return {}
    names = [task.study.data.response.name, *task.study.coefficient_names[1:]]
    return going_with_the_order(dict(zip(names, columns, strict=True)))


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
