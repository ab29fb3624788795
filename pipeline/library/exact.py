"""The exact fit of a study to records in one place, as an estimate that keeps no privacy.

Clients linearise at models on their way, and a stream that never returns to a record keeps an error
of that. Whoever holds all records can return to them: this fit does, until nothing moves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pipeline.errors import ConfigError
from pipeline.estimators.reference_fit import exact_fit
from pipeline.messages.envelope import rfc3339
from pipeline.messages.estimate import EstimateMessage, Provenance, compose
from pipeline.methods import METHODS, task_of
from pipeline.methods.offline import offline_method
from pipeline.records.encoder import Arrays, Row, stack
from pipeline.release.task import Task
from pipeline.study.variants import without_privacy

#: Records that are held in one piece.
PIECE = 8192


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
        return compose(self._open, estimate, provenance)

    def _join(self) -> None:
        if self._waiting:
            self._parts.append(stack(self._waiting, self._task.size - 1))
            self._waiting = []
