"""Encoded records of a study, sorted into what the published methods run on.

Batch b of an online method is window b of every client, in the order in which clients first
appear; a client whose records have ended sends nothing more, but still adds its share of noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from pipeline.errors import DataError
from pipeline.estimators.estimate import class_weights
from pipeline.estimators.objective import Objective
from pipeline.losses import Loss
from pipeline.methods.offline import Clients
from pipeline.methods.published.offline import objective_of
from pipeline.methods.published.records import Records, Ridge
from pipeline.methods.published.spec import Printed, Spec
from pipeline.records.encode import Arrays
from pipeline.release.task import Task

Keys = TypeVar("Keys", bound=Spec)


@dataclass(frozen=True, slots=True)
class Problem(Generic[Keys]):
    """What a method runs on.

    keys: The study's table [estimator.method].
    clients: Records of each client, empty slots left out.
    batches, slots: Window b of every client, and how many slots those windows have.
    """

    task: Task
    keys: Keys
    loss: Loss
    ridge: Ridge
    clients: list[Records]
    batches: list[list[Records]]
    slots: list[int]

    def together(self) -> Records:
        """Return the records of all clients, one client after the other."""
        design = np.concatenate([client.design for client in self.clients])
        return Records(design, np.concatenate([client.responses for client in self.clients]))

    def weights(self) -> tuple[float, float]:
        """Return the class weights of all records: negative, positive."""
        return class_weights(*self.together().class_counts(), self.task.largest_weight)

    def objective(self, weights: tuple[float, float] = (1.0, 1.0)) -> Objective:
        """Return the penalised loss of all clients."""
        return objective_of(self.loss, [c.weighted(weights) for c in self.clients], self.ridge)


def problem_of(task: Task, keys: Keys, loss: Loss, clients: Clients) -> Problem[Keys]:
    """Sort encoded records into clients and batches; DataError if no slot holds a record."""
    weight, slots = task.study.estimator.ridge, task.slots
    matrix: Printed = getattr(keys, "ridge_matrix", "intercept-free")
    ridge = Ridge.as_printed(weight) if matrix == "as-printed" else Ridge(weight, matrix)
    if all(np.isnan(held.responses).all() for held in clients.values()):
        raise DataError("no record could be used: the data owner must correct the source")
    longest = max(len(held.responses) for held in clients.values())
    windows = [slice(start, start + slots) for start in range(0, longest, slots)]
    return Problem(
        task, keys, loss, ridge,
        [_records(task, held, slice(None)) for held in clients.values()],
        [[_records(task, held, cut) for held in clients.values()] for cut in windows],
        [sum(len(held.responses[cut]) for held in clients.values()) for cut in windows],
    )  # fmt: skip


def _records(task: Task, held: Arrays, cut: slice) -> Records:
    sound = Arrays(held.features[cut], held.responses[cut]).sound
    records = Records.of(sound.features, sound.responses)
    return records.clipped(l2=task.norm_bound) if task.norm_bound < task.longest else records
