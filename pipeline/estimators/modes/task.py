"""The records of a study as the published methods take them: by client, and by batch and client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline import losses
from pipeline.errors import DataError
from pipeline.estimators.estimate import class_weights
from pipeline.estimators.modes.claims import reproduction_of
from pipeline.estimators.modes.objective import PenalisedLoss, Records
from pipeline.estimators.modes.ridge import Ridge
from pipeline.local.encode import Row, stack
from pipeline.local.plan import Plan
from pipeline.losses import Loss


@dataclass(frozen=True, slots=True)
class Task:
    """What a method runs on.

    Attributes
    ----------
    clients
        Records of each client, empty slots left out.
    batches, slots
        Window b of every client, and how many slots those windows have.
    """

    plan: Plan
    loss: Loss
    ridge: Ridge
    clients: list[Records]
    batches: list[list[Records]]
    slots: list[int]

    def rng(self) -> np.random.Generator:
        """Return the generator of the simulated noise."""
        return np.random.default_rng(reproduction_of(self.plan).seed)

    def together(self) -> Records:
        """Return the records of all clients, one client after the other."""
        design = np.concatenate([client.design for client in self.clients])
        return Records(design, np.concatenate([client.responses for client in self.clients]))

    def weights(self) -> tuple[float, float]:
        """Return the class weights of all records: negative, positive."""
        negative, positive = self.together().class_counts()
        return class_weights(negative, positive, self.plan.largest_weight)

    def objective(self, weights: tuple[float, float] = (1.0, 1.0)) -> PenalisedLoss:
        """Return the penalised loss of all clients."""
        weighted = [client.weighted(weights) for client in self.clients]
        return PenalisedLoss(self.loss, weighted, self.ridge)


def task_of(plan: Plan, clients: Mapping[str, Sequence[Row | None]]) -> Task:
    """Sort encoded records, None for an empty slot, into clients and batches.

    Raises
    ------
    DataError
        If no slot holds a record.
    """
    estimator = plan.study.estimator
    given, slots = reproduction_of(plan), plan.slots
    matrix = given.ridge_matrix or "intercept-free"
    ridge = (
        Ridge(estimator.ridge, matrix)
        if matrix != "as-printed"
        else Ridge.as_printed(estimator.ridge)
    )
    loss = plan.loss
    if estimator.kind == "online-newton-distributed":
        # a smoother curvature needs less noise
        loss = losses.build(
            estimator.loss, losses.Terms(q=estimator.q, smoothing=estimator.smoothing)
        )
    if not any(row is not None for rows in clients.values() for row in rows):
        raise DataError("no record could be used: the data owner must mend the source")
    longest = max(map(len, clients.values()))
    windows = [
        [rows[start : start + slots] for rows in clients.values()]
        for start in range(0, longest, slots)
    ]
    return Task(
        plan, loss, ridge,
        [_records(plan, rows) for rows in clients.values()],
        [[_records(plan, window) for window in batch] for batch in windows],
        [sum(map(len, batch)) for batch in windows],
    )  # fmt: skip


def _records(plan: Plan, rows: Sequence[Row | None]) -> Records:
    records = Records.of(*stack([row for row in rows if row is not None], plan.size - 1)[:2])
    return records.clipped(l2=plan.norm_bound) if plan.norm_bound < plan.longest else records
