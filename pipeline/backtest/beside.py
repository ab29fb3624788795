"""Methods that run over files alone, beside a study on the same history, and scored alike.

An online method predicts each record before it learns it, at the coefficients after the last batch
that had ended by then: batch b ends with the last record of window b of any client. Labels and
network have no delay for it. Every method also predicts all records in the end, after it has seen
them; a method that is not online does nothing else, and neither is a forecast.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from pipeline.backtest.history import History, Reading
from pipeline.backtest.options import Options
from pipeline.backtest.scores import Judge, Scores, Tally
from pipeline.errors import ConfigError, NumericError, PrivacyError
from pipeline.methods import offline_methods, task_of
from pipeline.records.encoder import Arrays
from pipeline.release.task import Task
from pipeline.study.model import Study
from pipeline.study_file.load import study_of
from pipeline.types import Integers, Matrix, Vector


@dataclass(frozen=True, slots=True)
class Other:
    """One method beside the study.

    kind, method: `estimator.kind`, and what it is in the field's words.
    before: Scores of records that were predicted before they were learnt; None of a method that is
        not online.
    after: Scores of all records in the end; None without an estimate, and `reason` says why.
    guarantee: What the method really keeps private.
    """

    kind: str
    method: str
    before: Scores | None
    after: Scores | None
    guarantee: str
    reason: str


@dataclass(frozen=True, slots=True)
class Beside:
    """The last estimate of the study on all records, and the same of other methods."""

    own: Scores
    others: tuple[Other, ...]

    def compared(self, score: str, before: Scores) -> Iterator[tuple[str, str, str]]:
        """Yield "this study" and each kind, with a score before learning and in the end.

        score: Its name in `Scores`.
        before: The study's own prequential scores.
        """
        yield "this study", _told(before, score), _told(self.own, score)
        for other in self.others:
            yield other.kind, _told(other.before, score), _told(other.after, score)

    def said(self) -> Iterator[tuple[str, str]]:
        """Yield what each method really keeps private; kinds that keep the same are together."""
        found: dict[str, list[str]] = {}
        for other in self.others:
            said = f"{other.guarantee}; no estimate: {other.reason}"
            text = (said if other.guarantee else said[2:]) if other.reason else other.guarantee
            found.setdefault(text, []).append(other.kind)
        for text, kinds in found.items():
            yield ", ".join(kinds), text


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


def _told(scores: Scores | None, name: str) -> str:
    found = None if scores is None else getattr(scores, name)
    return "-" if found is None else f"{found:.4g}"
