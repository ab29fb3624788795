"""Studies, records and streams for tests of stochastic gradient descent."""

from __future__ import annotations

import numpy as np

from pipeline.estimators.estimate import Estimate
from pipeline.methods import task_of as make_task
from pipeline.methods.ldp_sgd.client import GradientTask
from pipeline.methods.ldp_sgd.state import SgdPath, SgdState
from pipeline.records.encoder import Encoder, Row
from pipeline.release.model import round_model
from pipeline.release.task import Task
from pipeline.stream.fold import Reducer
from pipeline.stream.in_process import OfflineRun
from pipeline.stream.partition import Partition
from pipeline.stream.release import release_of
from pipeline.study_file.load import parse_study
from pipeline.types import Matrix, Vector
from tests.builders import LogEntry, SeededStream

TRUTH = np.array([1.0, 0.8, -0.5, 0.3])


def study_text(
    *,
    p: int = 3,
    loss: str = "linear",
    mechanism: str = "discrete-gaussian",
    epsilon: float = 10.997,
    seed: int = 1,
    records: int = 20,
    width: float = 10.0,
    path: str = "",
    releases: str = "gradients",
    estimator: str | None = None,
    publish: int = 1,
    partitions: int = 1,
    name: str = "path",
) -> str:
    """Return a study file; epsilon = 10.997 at delta = 1e-6 is mu = 2.

    A number lies within `width` of zero. `releases` is what is released unless `path` says it, ""
    for the default: most tests look at the path itself, and release gradients alone.
    """
    response = f'{{ name = "y", kind = "number", min = -{width}, max = {width} }}'
    if loss == "logistic":
        response = '{ name = "y", positive = "1", negative = "0" }'
    if estimator is None:
        estimator = "" if loss == "logistic" else "residual_bound = 0.6725"
    private = {
        "none": "",
        "discrete-laplace": f'epsilon = {epsilon}\nneighbours = "replace-one"',
        "discrete-gaussian": f'epsilon = {epsilon}\ndelta = 1e-6\nneighbours = "replace-one"',
        "insecure-simulation": (
            f'epsilon = {epsilon}\ndelta = 1e-6\nneighbours = "replace-one"\nseed = {seed}'
        ),
    }
    if releases and "releases" not in path:
        path = ", ".join(filter(None, [f'releases = "{releases}"', path]))
    features = "\n".join(f"x{i} = {{ min = -1, max = 1 }}" for i in range(p))
    return f"""[study]
name = "{name}"
[data]
response = {response}
[data.features]
{features}
[estimator]
kind = "ldp-sgd"
loss = "{loss}"
ridge = 0
{estimator}
path = {{ {path} }}
[privacy]
mechanism = "{mechanism}"
{private[mechanism]}
[window]
records = {records}
[stream]
partitions = {partitions}
publish = {{ releases = {publish} }}
"""


def task_of(**settings: object) -> GradientTask:
    """Return the task of `study_text(**settings)`."""
    return task_of_text(study_text(**settings))  # type: ignore[arg-type]


def task_of_text(text: str, level: str | None = None) -> GradientTask:
    """Return the task of a study file of this kind."""
    task = make_task(parse_study(text), level)
    assert isinstance(task, GradientTask)
    return task


def drawn(loss: str, count: int, seed: int, truth: Vector = TRUTH) -> tuple[Matrix, list[object]]:
    """Draw features of -1 and 1, which have unit variance, and responses of the loss's model."""
    rng = np.random.default_rng(seed)
    features = rng.choice([-1.0, 1.0], (count, len(truth) - 1))
    predictor = truth[0] + features @ truth[1:]
    if loss == "logistic":
        said = rng.random(count) < 1 / (1 + np.exp(-predictor))
        return features, [str(int(value)) for value in said]
    return features, (predictor + rng.normal(0, 0.5, count)).tolist()


def rows_of(task: Task, features: Matrix, responses: list[object]) -> list[Row]:
    """Encode records."""
    encoder = Encoder(task.study)
    return encoder.rows(features, [encoder.response.of_label(value) for value in responses])


def streamed(task: Task, count: int, seed: int, clients: int = 5) -> OfflineRun:
    """Run a stream of records through clients and a worker, in this process."""
    rows = rows_of(task, *drawn(task.study.estimator.loss, count, seed))
    run = OfflineRun(task)
    for number, start in enumerate(range(0, count, task.slots)):
        run.add(f"client-{number % clients}", rows[start : start + task.slots])
    return run


def final(task: Task, count: int, seed: int) -> Estimate:
    """Return the estimate at the end of a stream."""
    return streamed(task, count, seed).estimate(0.0)[0]


def log_of(task: Task, releases: int, seed: int = 0) -> list[LogEntry]:
    """Return a log of one client, made at models near zero."""
    features, responses = drawn(task.study.estimator.loss, releases * task.slots, seed)
    rows, stream = rows_of(task, features, responses), SeededStream(seed)
    entries = []
    for i in range(releases):
        rng = np.random.default_rng(i)
        point = rng.normal(0, 0.1, task.size)
        model = round_model(i, point, (1.0, 1.0), max(0, i - 2) * task.slots)
        part = rows[i * task.slots : (i + 1) * task.slots]
        payload = release_of(task, part, model, stream, client="a", ledger="l", seq=i)
        entries.append(LogEntry(i, b"a", payload, timestamp=1000 + i))
    return entries


def folded(task: Task, log: list[LogEntry], sizes: list[int]) -> Partition:
    """Fold a log in batches of these sizes and what is left."""
    partition, reducer, at = Partition.empty(task), Reducer(task), 0
    for size in (*sizes, len(log)):
        assert reducer.fold(partition, log[at : at + size]) == []
        at += size
    return partition


def path_of(partition: Partition) -> SgdPath:
    """Return the one path of a partition."""
    [state] = partition.sums.states.values()
    assert isinstance(state, SgdState)
    return state.path
