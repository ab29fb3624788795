"""A study over records that are all at hand: the whole pipeline in one process, without Kafka."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError, DataWarning, RangeWarning
from pipeline.library.exact import ExactFit
from pipeline.library.records import Records, Rows
from pipeline.library.results import Result
from pipeline.messages.estimate import EstimateMessage
from pipeline.messages.results import FitMessage, compose_fit
from pipeline.methods import task_of
from pipeline.methods.offline import offline_method
from pipeline.records.encoder import Row, stack
from pipeline.release.task import Task
from pipeline.stream.in_process import OfflineRun
from pipeline.study.variants import without_privacy
from pipeline.study_file.load import StudySource, read_study


def fit(
    study: StudySource,
    data: Any,
    y: Any = None,
    *,
    client_column: str | None = None,
    exact: bool = False,
) -> Result:
    """Estimate a study from records, through the same functions as the live stream.

    With a private study the result is a release of its own under the study's guarantee: it draws
    fresh noise, and no ledger is charged. Every fit of the same records is one more release of
    them, and nobody counts them.

    Parameters
    ----------
    study
        A study, the path of a study file, or its text (a string with a line break).
    data
        The path of a .csv, .jsonl, .ndjson or .parquet file; a pandas frame or a mapping from names
        to columns, with the response; or an array (n, p) in the study's order of features. A
        record that cannot be used leaves its slot empty.
    y
        The responses, shape (n,), where `data` does not hold them.
    client_column
        Column that says whose record it is; default: all are one client's.
    exact
        Whether to fit without privacy to all records at once, as `veilstream fit
        --without-privacy`: what the intervals of the private study aim at. It protects nobody.

    Raises
    ------
    ConfigError
        If the study, or what is given with it, cannot be used.
    DataError
        If the records cannot be read, or none of them can be used.
    NumericError
        If no estimate can be formed from them.

    Warns
    -----
    DataWarning
        If some records could not be used.
    RangeWarning
        If values lay outside their public range, naming their columns.
    """
    if isinstance(data, (str, Path)) and str(data) == "-":
        raise ConfigError("data: standard input belongs to the command line; name a file")
    task = task_of(read_study(study))
    records = Records(task, data, y, client_column=client_column)
    fitting = Fitting(task, exact=exact)
    fitting.take(iter(records))
    records.check()
    if records.faults_line:
        warnings.warn(records.faults_line, DataWarning, stacklevel=2)
    if records.clipped:
        columns = ", ".join(map(repr, sorted(records.clipped)))
        warnings.warn(
            f"values of {columns} lie outside the public range and were cut to it: declare the "
            "range that the instrument or the form can show",
            RangeWarning,
            stacklevel=2,
        )
    return Result(without_privacy(task.study) if exact else task.study, fitting.message())


class Fitting:
    """One study from encoded rows to its message, whichever way its method runs.

    task: The study; a published method runs over all its records at once.
    exact: Whether to fit without privacy to all records at once, instead of streaming them.

    Raises ConfigError if an exact fit is asked for and the study has none.
    """

    def __init__(self, task: Task, *, exact: bool = False) -> None:
        self._task, self._method = task, offline_method(task.study)
        self._exact = ExactFit(task) if exact else None
        self._run = None if self._method or self._exact else OfflineRun(task)
        self._clients: dict[str, list[Row | None]] = {}

    def take(self, rows: Rows) -> None:
        """Take all rows: windows are released when they are full, and those that stay open last."""
        if self._exact is not None:
            for _ in self._exact.kept(rows):
                pass
            return
        if self._run is None:
            for client, row in rows:
                self._clients.setdefault(client, []).append(row)
            return
        for client, row in rows:
            self._run.take(client, (row,))
        self._run.close()

    def message(self) -> EstimateMessage | FitMessage:
        """Return the estimate, or the fit of a published method.

        Raises NumericError if none can be formed.
        """
        now = time.time()
        if self._run is not None:
            return self._run.estimate(now)[1]
        if self._exact is not None:
            return self._exact.message(now)
        assert self._method is not None  # noqa: S101  one of the two is there
        task, clients = self._task, self._clients
        held = {name: stack(found, task.size - 1) for name, found in clients.items()}
        return compose_fit(
            task, self._method, self._method.fit(task, held),
            slots=sum(map(len, clients.values())), clients=len(clients), published_at=now,
        )  # fmt: skip
