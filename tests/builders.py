"""Small builders for tests: study texts, tasks, simulated windows, payloads, logs, oracles."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from pipeline.estimators.estimate import Estimate
from pipeline.messages.release import seal
from pipeline.methods import task_of as make_task
from pipeline.methods.renewable.client import RenewableTask, local_fit, open_query_of, summarise
from pipeline.privacy.randomness import SecureStream
from pipeline.records.encoder import Arrays, Row
from pipeline.release.model import Model, round_model
from pipeline.release.privatise import disclose, privatise
from pipeline.release.task import Task
from pipeline.stream.fold import Reducer
from pipeline.stream.in_process import OfflineRun
from pipeline.stream.merge import estimate_of, slots_seen
from pipeline.stream.partition import Partition
from pipeline.stream.release import Standing, release_behind
from pipeline.study_file.load import parse_study
from pipeline.types import Matrix, Vector


def study_text(
    *,
    p: int = 3,
    private: bool = True,
    mechanism: str = "discrete-gaussian",
    epsilon: float = 2.0,
    delta: float = 1e-5,
    seed: int = 1,
    neighbours: str = "zero-out",
    loss: str = "gdwd",
    q: float = 1.0,
    smoothing: float | None = None,
    method: str | None = None,
    ridge: float | None = 0.01,
    norm_bound: float | str | None = None,
    maximum: float | None = None,
    scaling: str = "unit",
    low: float = -1.0,
    high: float = 1.0,
    records: int = 50,
    user_records: int | None = None,
    split: str | None = None,
    releases: int = 8,
    forgetting: str | None = None,
    name: str = "test",
    least: float = -1.0,
    most: float = 1.0,
    residual_bound: float | None = None,
    noise_scale: float | None = None,
    declared: Sequence[str] = (),
    interactions: Sequence[str] = (),
    growth: float | None = None,
    noise_memory: int | None = None,
) -> str:
    """Return the text of a study file; `delta` and `seed` go where the mechanism has them.

    `least` and `most` are the range of a regression's response; `declared` are lines of features in
    place of `p` plain ones.
    """
    response = {
        "linear": f'{{ name = "y", kind = "number", min = {least}, max = {most} }}',
        "poisson": f'{{ name = "y", kind = "count", max = {most} }}',
    }.get(loss, '{ name = "y", positive = "1", negative = "0" }')
    lines = [
        f'[study]\nname = "{name}"',
        f"[data]\nresponse = {response}",
        f'scaling = "{scaling}"',
        *([f"interactions = {list(interactions)}"] if interactions else []),
        "[data.features]",
        *(declared or [f"x{i} = {{ min = {low}, max = {high} }}" for i in range(p)]),
        f'[estimator]\nloss = "{loss}"\nq = {q}',
    ]
    given = {
        "ridge": ridge, "residual_bound": residual_bound, "noise_scale": noise_scale,
        "smoothing": smoothing,
        "method": None if method is None else f"{{ {method} }}",
        "norm_bound": None if norm_bound is None else repr(norm_bound),
    }  # fmt: skip
    lines += [f"{key} = {value}" for key, value in given.items() if value is not None]
    if maximum is not None:
        lines.append(f"class_weights = {{ maximum = {maximum} }}")
    if forgetting is not None:
        lines.append(f"forgetting = {{ {forgetting} }}")
    if private:
        lines.append(
            f'[privacy]\nmechanism = "{mechanism}"\nepsilon = {epsilon}\n'
            f'neighbours = "{neighbours}"'
        )
        if mechanism != "discrete-laplace":
            lines.append(f"delta = {delta}")
        if mechanism == "insecure-simulation":
            lines.append(f"seed = {seed}")
        if user_records is not None:
            lines.append(f'unit = "user"\nrecords = {user_records}')
        if split is not None:
            lines.append(f"split = {{ {split} }}")
        if noise_memory is not None:
            lines.append(f"noise_memory = {noise_memory}")
    else:
        lines.append('[privacy]\nmechanism = "none"')
    lines.append(f"[window]\nrecords = {records}")
    if growth is not None:
        lines.append(f"growth = {growth}")
    lines.append(f"[stream]\npublish = {{ releases = {releases} }}")
    return "\n".join(lines) + "\n"


def task_of(**settings: object) -> RenewableTask:
    """Return the task of `study_text(**settings)`."""
    task = make_task(parse_study(study_text(**settings)))  # type: ignore[arg-type]
    assert isinstance(task, RenewableTask)
    return task


class SeededStream(SecureStream):
    """A reproducible stand-in for the cryptographic stream: tests only."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._bits = np.random.PCG64(seed)

    def uint64(self, count: int) -> NDArray[np.uint64]:
        """Return `count` uniform 64-bit integers, the same for the same seed."""
        return self._bits.random_raw(count)


class _Unclaimed:
    """Claims of a ledger that has none, for a sender or a loss by itself."""

    waiting = due = False

    def may_leave(self, _send: object, _study: str, last: int) -> int:
        return last + 1

    def slots_behind(self, _study: str) -> int:
        return 0

    def cover(self, _study: str, lost: range) -> bool:
        return not lost


UNCLAIMED: Any = _Unclaimed()


class ScriptedStream(SecureStream):
    """Uniform numbers written down beforehand; one that is asked for more than that fails."""

    def __init__(self, *words: int) -> None:
        super().__init__()
        self._words = np.array(words, dtype=np.uint64)

    def uint64(self, count: int) -> NDArray[np.uint64]:
        """Return the next `count` numbers of the script."""
        assert count <= len(self._words), "the script is at its end"
        taken, self._words = self._words[:count], self._words[count:]
        return taken


@dataclass(frozen=True, slots=True)
class LogEntry:
    """A record of the log, in memory."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int = 0
    headers: tuple[tuple[str, bytes | None], ...] = ()


# --- data with a population that can be enumerated -------------------------------------------

LEVELS = np.array([-1.0, -0.5, 0.0, 0.5, 1.0])


def truth(p: int) -> Vector:
    """Return the coefficients of the simulated population: intercept, then slopes."""
    return np.concatenate([[0.3], np.resize([1.5, -1.0, 0.5], p)])


def simulate(rng: np.random.Generator, n: int, p: int) -> tuple[Matrix, Vector]:
    """Draw features on five levels and responses of a logistic model."""
    features = rng.choice(LEVELS, size=(n, p))
    predictor = truth(p)[0] + features @ truth(p)[1:]
    positive = rng.random(n) < 1 / (1 + np.exp(-predictor))
    return features, np.where(positive, 1.0, -1.0)


def population(p: int) -> tuple[Matrix, Vector, Vector]:
    """Enumerate the population of `simulate`: features, responses, probabilities."""
    grid = np.array(list(itertools.product(LEVELS, repeat=p)))
    chance = 1 / (1 + np.exp(-(truth(p)[0] + grid @ truth(p)[1:])))
    features = np.vstack([grid, grid])
    responses = np.repeat([1.0, -1.0], len(grid))
    return features, responses, np.concatenate([chance, 1 - chance]) / len(grid)


def oracle(
    features: Matrix, responses: Vector, weights: Vector, *, q: float, ridge: float
) -> Vector:
    """Fit generalised DWD by a general optimiser, on formulas written down once more.

    The minimiser of sum w V(u) / sum w + ridge |slopes|^2 / 2; `weights` are per record.
    """
    design = np.column_stack([np.ones(len(responses)), features])
    knee = q / (q + 1)
    share = weights / np.sum(weights)

    def objective(theta: Vector) -> tuple[float, Vector]:
        u = responses * (design @ theta)
        flat = u <= knee
        tail = np.where(flat, 1.0, u)
        value = np.where(flat, 1 - u, q**q / (q + 1) ** (q + 1) * tail**-q)
        slope = np.where(flat, -1.0, -((knee / tail) ** (q + 1)))
        gradient = design.T @ (share * responses * slope)
        gradient[1:] += ridge * theta[1:]
        return float(share @ value + ridge * theta[1:] @ theta[1:] / 2), gradient

    point = np.zeros(design.shape[1])
    for _ in range(5):
        point = minimize(objective, point, jac=True, method="BFGS", options={"gtol": 1e-12}).x
    return np.asarray(point)


# --- streams ---------------------------------------------------------------------------------


def rows_of(features: Matrix, responses: Vector) -> list[Row]:
    """Return encoded rows."""
    return [Row(x, float(y), 0) for x, y in zip(features, responses, strict=True)]


def cut(rows: Iterable[Row | None], slots: int) -> Iterator[list[Row | None]]:
    """Cut slots, None for an empty one, into windows; the last one may be short."""
    window: list[Row | None] = []
    for row in rows:
        window.append(row)
        if len(window) == slots:
            yield window
            window = []
    if window:
        yield window


def payload_of(
    task: Task,
    features: Matrix,
    responses: Vector,
    model: Model,
    stream: SecureStream,
    *,
    client: str = "a",
    ledger: str = "l",
    seq: int = 0,
) -> bytes:
    """Make a release from arrays; without privacy it is taken at the model's coefficients."""
    if task.study.noised:
        noised = privatise(task, task.query(Arrays(features, responses), model), stream)
        return seal(task, noised, client=client, ledger=ledger, seq=seq)
    summary = summarise(task, features, responses, model.coefficients, model.class_weights)
    opened = disclose(task, open_query_of(summary, model))
    return seal(task, opened, client=client, ledger=ledger, seq=seq)


def some_model(task: Task, version: int, seed: int = 0) -> Model:
    """Return a model near zero, on its lattice."""
    rng = np.random.default_rng(seed)
    return round_model(version, rng.normal(0, 0.3, task.size), (1.0, 1.0))


def sample_log(
    task: Task, *, releases: int = 24, clients: int = 3, seed: int = 0, start: int = 2
) -> list[LogEntry]:
    """Return the log of some clients: `start` windows of each at the start, then later models."""
    rng, stream = np.random.default_rng(seed), SeededStream(seed)
    entries, standings = [], dict[str, Standing]()
    for i in range(releases):
        client, seq = f"client-{i % clients}", i // clients
        version = max(0, seq - start + 1)
        if version == 0:
            model = Model(0, np.zeros(task.size, dtype=np.int64), (1024, 1024))
        else:
            model = some_model(task, version, seed)
        features, responses = simulate(rng, task.slots, task.size - 1)
        ledger, stands = f"l-{client}", standings.get(client, Standing())
        if task.study.noised:
            query = task.query(Arrays(features, responses), model)
            value, standings[client] = release_behind(
                task, query, stands, stream, client=client, ledger=ledger
            )
        else:
            value = payload_of(
                task, features, responses, model, stream, client=client, ledger=ledger, seq=seq
            )
        entries.append(LogEntry(i, client.encode(), value, timestamp=1000 + i))
    return entries


def relogged(entries: Sequence[LogEntry]) -> list[LogEntry]:
    """Give entries new consecutive offsets, in the order in which they stand."""
    return [
        LogEntry(i, entry.key, entry.value, entry.timestamp, entry.headers)
        for i, entry in enumerate(entries)
    ]


def folded(task: Task, entries: Sequence[LogEntry], sizes: Sequence[int] = ()) -> Partition:
    """Fold a log in batches of the given sizes, and the rest at once."""
    partition, reducer, at = Partition.empty(task), Reducer(task), 0
    for size in (*sizes, len(entries)):
        reducer.fold(partition, entries[at : at + size])
        at += size
    return partition


def population_target(p: int, *, q: float, ridge: float) -> Vector:
    """Return what a study of `simulate` estimates: the penalised minimiser of its population."""
    features, responses, chance = population(p)
    return oracle(features, responses, chance, q=q, ridge=ridge)


def whole_stream(task: Task, *, seed: int, rounds: int, clients: int) -> Partition:
    """Run a stream: each round every client releases one window at the newest model."""
    *_, (partition, _) = stream_of(task, seed=seed, rounds=rounds, clients=clients)
    return partition


def stream_of(
    task: Task, *, seed: int, rounds: int, clients: int, flip: int | None = None,
    draw: Callable[[np.random.Generator, int, int], tuple[Matrix, Vector]] = simulate,
) -> Iterator[tuple[Partition, Estimate]]:  # fmt: skip
    """Run a stream round by round; from round `flip` on, the classes are exchanged."""
    rng, stream = np.random.default_rng(seed), SeededStream(seed)
    reducer, partition = Reducer(task), Partition.empty(task)
    model, offset = task.first_model, 0
    for number in range(rounds):
        entries = []
        for c in range(clients):
            features, responses = draw(rng, task.slots, task.size - 1)
            if flip is not None and number >= flip:
                responses = -responses
            at = model
            if number == 0 and not task.study.noised:
                ridge = task.study.estimator.ridge
                at = round_model(1, local_fit(task.loss, features, responses, ridge), (1.0, 1.0))
            value = payload_of(task, features, responses, at, stream, client=f"c{c}", seq=number)
            entries.append(LogEntry(offset, f"c{c}".encode(), value))
            offset += 1
        assert reducer.fold(partition, entries) == []
        estimate = estimate_of(task, [partition])
        seen = slots_seen([partition])
        model = round_model(number + 1, estimate.coefficients, estimate.weights, seen)
        yield partition, estimate


def regression_stream(
    task: Task, draw: Callable[[np.random.Generator, int], tuple[Matrix, Vector]], **size: int
) -> Estimate:
    """Run a stream of encoded records, and return its last estimate."""
    *_, (_, estimate) = stream_of(task, draw=lambda rng, n, _: draw(rng, n), **size)
    return estimate


def run_windows(task: Task, windows: Iterable[tuple[str, Sequence[Row | None]]]) -> OfflineRun:
    """Run all windows, given as (client, rows), and return the run at its end."""
    run = OfflineRun(task)
    for client, rows in windows:
        run.add(client, rows)
    return run


def run_rows(task: Task, rows: Iterable[tuple[str, Row | None]]) -> OfflineRun:
    """Run the slots of several clients, None for an empty one, and return the run at its end."""
    run = OfflineRun(task)
    for client, row in rows:
        run.take(client, (row,))
    run.close()
    return run
