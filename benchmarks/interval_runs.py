"""One draw of a stream to its last estimate, beside the pooled fit and the floor of its errors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from benchmarks.interval_records import Drawn, Stream
from pipeline.estimators.estimate import Estimate, class_weights
from pipeline.estimators.reference_fit import Rows, pooled_fit, study_rows, target
from pipeline.linalg import sandwich
from pipeline.losses import Loss
from pipeline.methods import task_of
from pipeline.methods.renewable.client import RenewableTask
from pipeline.privacy.randomness import SeededStream
from pipeline.records.encoder import Arrays
from pipeline.release.model import round_model
from pipeline.stream.fold import Reducer
from pipeline.stream.in_process import OfflineRecord
from pipeline.stream.merge import estimate_of, slots_seen
from pipeline.stream.partition import Partition
from pipeline.stream.release import release_of
from pipeline.study_file.load import parse_study
from pipeline.types import Integers, Matrix, Vector

#: Clients where the stream does not say whose records are whose; releases for each model.
CLIENTS, RHYTHM, WINDOW = 8, 8, 250
STUDY = """
[study]
name = "intervals"
[data]
response = {{ name = "y", positive = "1", negative = "-1" }}
[data.features]
{features}
[estimator]
loss = "{loss}"
q = {q}
{ridge}
norm_bound = {norm_bound}
{weights}
[privacy]
{privacy}
[window]
records = {window}
[stream]
publish = {{ releases = {rhythm} }}
"""


@dataclass(frozen=True)
class Setting:
    """What a row of the table has beside its stream."""

    loss: str = "gdwd"
    q: float = 1.0
    epsilon: float | None = 1.0
    ridge: float | None = None

    @property
    def label(self) -> str:
        """What stands in its row."""
        tail = f" {self.q:g}" if self.loss == "gdwd" else ""
        return f"{self.loss}{tail}, " + (
            "open" if self.epsilon is None else f"epsilon {self.epsilon:g}"
        )


@lru_cache(maxsize=64)
def task_for(stream: Stream, setting: Setting) -> RenewableTask:
    """Return the task of a study that says nothing of the ridge unless the setting does."""
    ridge = "" if setting.ridge is None else f"ridge = {setting.ridge}"
    privacy = 'mechanism = "none"'
    if setting.epsilon is not None:
        privacy = (
            f'mechanism = "insecure-simulation"\nepsilon = {setting.epsilon}\ndelta = 1e-6\n'
            "seed = 1"
        )
    text = STUDY.format(
        features="\n".join(f"x{i} = {{ min = -1, max = 1 }}" for i in range(stream.features)),
        loss=setting.loss, q=setting.q, ridge=ridge, norm_bound=stream.norm_bound,
        weights="class_weights = { maximum = 8.0 }" if stream.weighed else "",
        privacy=privacy, window=WINDOW, rhythm=RHYTHM,
    )  # fmt: skip
    task = task_of(parse_study(text))
    assert isinstance(task, RenewableTask)
    return task


def streamed(task: RenewableTask, drawn: Drawn, seed: int) -> Estimate:
    """Run one stream: every client releases full windows, in the order of its records."""
    return halfway(task, drawn, seed)[1]


def halfway(task: RenewableTask, drawn: Drawn, seed: int) -> tuple[Estimate, Estimate]:
    """Run one stream; return the estimate that is first behind half of it, and the last."""
    middle, partition = folded(task, drawn, seed)
    last = estimate_of(task, [partition])
    return middle or last, last


def folded(
    task: RenewableTask, drawn: Drawn, seed: int, models: list[Vector] | None = None,
    estimates: list[Estimate] | None = None,
) -> tuple[Estimate | None, Partition]:  # fmt: skip
    """Run one stream; return the estimate behind half of it, and what was folded in the end.

    models: Takes the coefficients of each model, the first one behind the start's.
    estimates: Takes the estimate that each model was made of.
    """
    features, responses, clients = drawn
    noised = task.study.noised
    reducer, partition, model = Reducer(task), Partition.empty(task), task.first_model
    log, sequence, middle = [], {}, None
    for number, (client, rows) in enumerate(windows(responses, clients, task.slots)):
        sequence[client] = sequence.get(client, -1) + 1
        payload = release_of(
            task, Arrays(features[rows], responses[rows]), model,
            SeededStream(seed, str(client), sequence[client]) if noised else None,
            client=str(client), ledger="l", seq=sequence[client],
        )  # fmt: skip
        log.append(OfflineRecord(number, str(client).encode(), payload))
        if len(log) == RHYTHM:
            letters = reducer.fold(partition, log)
            if letters:
                raise letters[0].fault
            found, log = estimate_of(task, [partition]), []
            seen = slots_seen([partition])
            if middle is None and seen >= len(responses) / 2:
                middle = found
            model = round_model(model.version + 1, found.expansion, found.weights, seen)
            if models is not None:
                models.append(model.coefficients)
            if estimates is not None:
                estimates.append(found)
    reducer.fold(partition, log)
    return middle, partition


def windows(
    responses: Vector, clients: Integers | None, slots: int
) -> Iterator[tuple[int, Integers]]:
    """Yield clients and rows of full windows, in the order in which they are full."""
    if clients is None:
        for number, start in enumerate(range(0, len(responses) - slots + 1, slots)):
            yield number % CLIENTS, np.arange(start, start + slots)
        return
    full: list[tuple[int, int, Integers]] = []
    for client in np.unique(clients):
        own = np.flatnonzero(clients == client)
        starts = range(0, len(own) - slots + 1, slots)
        full += [(int(own[i + slots - 1]), int(client), own[i : i + slots]) for i in starts]
    for _, client, rows in sorted(full, key=lambda window: window[0]):
        yield client, rows


def released(task: RenewableTask, drawn: Drawn) -> Drawn:
    """Return the records that are in a full window: the others never leave their client."""
    features, responses, clients = drawn
    rows = np.concatenate([rows for _, rows in windows(responses, clients, task.slots)])
    return features[rows], responses[rows], None if clients is None else clients[rows]


def true_weights(task: RenewableTask, responses: Vector) -> tuple[float, float]:
    """Return the class weights that exact counts give."""
    up = float(np.mean(responses > 0))
    return class_weights(1 - up, up, task.largest_weight)


def pooled(task: RenewableTask, drawn: Drawn) -> Vector:
    """Return the penalised fit to all records."""
    rows = study_rows(task, drawn[0], drawn[1], true_weights(task, drawn[1]))
    return target(task, lambda: [rows]).coefficients


def minimiser(loss: Loss, x: Matrix, y: Vector, mass: Vector, ridge: float) -> Vector:
    """Return the penalised minimiser of a law on finitely many records."""
    design = np.column_stack([np.ones(len(x)), x])
    rows = Rows(design, y, mass * len(mass))
    return pooled_fit(loss, lambda: [rows], np.append(0.0, np.full(x.shape[1], ridge))).coefficients


def floor_of(task: RenewableTask, drawn: Drawn, point: Vector) -> Vector:
    """Return the standard errors that all records would give without privacy, (d,).

    The sandwich at the pooled fit.
    """
    weights = true_weights(task, drawn[1])
    rows = study_rows(task, drawn[0], drawn[1], weights)
    weight = np.ones(len(drawn[1])) if rows.weights is None else rows.weights
    predictor = rows.design @ point
    curved = rows.design * (weight * task.loss.sharp_curvature(predictor, drawn[1]))[:, None]
    count = len(predictor)
    bread = curved.T @ rows.design / count + np.diag(task.penalty)
    scores = rows.design * (weight * task.loss.slope(predictor, drawn[1]))[:, None]
    scores = scores + task.penalty * point
    meat = scores.T @ scores / count**2
    return np.sqrt(np.diag(sandwich(bread, meat)))


def auc(features: Matrix, responses: Vector, point: Vector) -> float:
    """Return the area under the curve of a linear rule."""
    from scipy.stats import rankdata  # noqa: PLC0415

    ranks = rankdata(point[0] + features @ point[1:])
    up = responses > 0
    n, m = int(up.sum()), int((~up).sum())
    return float((ranks[up].sum() - n * (n + 1) / 2) / (n * m))
