"""The exact fit of a study to records in one place, as an estimate that keeps no privacy.

Clients linearise at models on their way, and a stream that never returns to a record keeps an error
of that. Whoever holds all records can return to them: this fit does, until nothing moves.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from pipeline.api.records import Records, Rows
from pipeline.api.result import Result
from pipeline.errors import ConfigError, DataWarning, RangeWarning
from pipeline.estimators.reference_fit import exact_fit
from pipeline.messages.envelope import rfc3339
from pipeline.messages.estimate import EstimateMessage, Provenance, compose
from pipeline.messages.results import FitMessage, compose_fit
from pipeline.methods import METHODS, offline_method, task_of
from pipeline.records.encoder import Arrays, Row, stack
from pipeline.release.task import Task
from pipeline.stream.in_process import OfflineRun
from pipeline.study.versions import without_privacy
from pipeline.study_file.load import StudySource, read_study

#: Records that are held in one piece.
PIECE = 8192
#: What an exact fit keeps private: it has no releases to speak of.
UNPROTECTED = (
    "none: privacy is off. The coefficients are those of the records as the study cuts them, to "
    "its ranges and to estimator.norm_bound"
)


class ExactFit:
    """All records of a study, encoded, and the fit that its estimates aim at.

    task: The study, private or not: the fit minimises its loss, with its clipping and its bounds.

    Raises ConfigError if it has no such fit: a published method has its own, and one that forgets
    aims at none.
    """

    def __init__(self, task: Task) -> None:
        study = task.study
        if offline_method(study) is not None:
            raise ConfigError(
                f"--without-privacy and --compare: they go with {' and '.join(METHODS)}; leave "
                f'them out, since kind = "{study.estimator.kind}" keeps no guarantee anyway'
            )
        if study.estimator.forgetting is not None:
            raise ConfigError(
                "--without-privacy and --compare: this study forgets, so it aims at no fit of all "
                'records; remove estimator.forgetting, or set mechanism = "none" to see its stream'
            )
        self._task, self._open = task, task_of(without_privacy(task.study))
        self._parts: list[Arrays] = []
        self._waiting: list[Row] = []
        self._clients: set[str] = set()

    def kept(self, rows: Iterable[tuple[str, Row | None]]) -> Iterator[tuple[str, Row | None]]:
        """Pass rows of clients on, None for an empty slot, and keep those that are there."""
        for client, row in rows:
            self._clients.add(client)
            if row is not None:
                self._waiting.append(row)
            if len(self._waiting) >= PIECE:
                self._join()
            yield client, row

    def message(self, published_at: float) -> EstimateMessage:
        """Return the fit with its sandwich intervals, as an estimate of the study without privacy.

        published_at: Seconds since 1970.

        Raises NumericError if the records do not determine the coefficients; DataError if there is
        none.
        """
        self._join()
        estimate = exact_fit(self._task, lambda: self._parts)
        provenance = Provenance(
            clients=len(self._clients), missing=0, duplicates=0, dead_letters=0,
            model_version=None, watermark=[], event_time=None, published_at=rfc3339(published_at),
        )  # fmt: skip
        found = compose(self._open, estimate, provenance)
        return replace(found, privacy=replace(found.privacy, guarantee=UNPROTECTED))

    def _join(self) -> None:
        if self._waiting:
            self._parts.append(stack(self._waiting, self._task.size - 1))
            self._waiting = []


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
        The path of a .csv, .jsonl, .ndjson or .parquet file; a table of pandas, polars or Arrow or
        a mapping from names to columns, with the response; or an array (n, p) in the study's order
        of features. A record that cannot be used leaves its slot empty.
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
    shown = without_privacy(task.study) if exact else task.study
    return Result(shown, fitting.message(), like=records.label)


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
