"""Golden logs: how they are made, folded, and compared with what was recorded.

Folding goes through the functions of the worker, and making through those of the client; neither
needs the other, so that a change of the noise leaves the fold of old logs checked.
"""

from __future__ import annotations

import lzma
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np

from pipeline.messages.estimate import EstimateMessage
from pipeline.messages.topics import partition_of
from pipeline.methods import task_of
from pipeline.records.encoder import stack
from pipeline.release.model import Model, Part
from pipeline.release.task import Task
from pipeline.stream.fold import Reducer
from pipeline.stream.merge import combine, expansion_of, model_after, slots_seen
from pipeline.stream.partition import SUMS, Partition
from pipeline.stream.release import Standing, Window, release_behind, release_of
from pipeline.study_file.load import parse_study
from pipeline.types import Vector
from tests.builders import LogEntry, SeededStream
from tests.golden.cases import Case, windows_of
from tests.wire import opened

FILE = Path(__file__).parent / "logs.msgpack.xz"
#: Estimates are as close as their largest number times this: linear algebra of a few coefficients
#: in float64, of which processors differ in the last bits.
TOLERANCE = 1e-12
#: Open releases are, too, but for this: the first is expanded at a window's own fit, whose last
#: steps go as far as rounding lets the loss fall.
FITTED = 1e-8
ROW = ("value", "standard_error", "sampling_se", "privacy_se")
#: Time of the first release, in milliseconds since 1970.
FIRST = 1_700_000_000_000
RATIOS = ("condition", "effective_records", "privacy_share", "staleness")


#: The sums of a window that fills, and how many slots are left.
Filling = tuple[Window, int]


class Sent(msgspec.Struct, frozen=True):
    """A release in the log: who sent it, when, and its payload."""

    client: str
    milliseconds: int
    payload: bytes


class Point(msgspec.Struct, frozen=True):
    """A published model, and how many releases had come before it."""

    after: int
    version: int
    lattice: list[int]
    weights: tuple[int, int]
    seen: int
    parts: list[tuple[int, list[int] | None]]

    @classmethod
    def of(cls, model: Model, after: int) -> Point:
        """Note a model."""
        parts = [
            (p.partition_watermark, None if p.lattice is None else p.lattice.tolist())
            for p in model.parts
        ]
        return cls(
            after, model.version, model.lattice.tolist(), model.weights, model.watermark, parts
        )

    @property
    def model(self) -> Model:
        """The model that was noted."""
        parts = tuple(Part(at, None if p is None else np.array(p)) for at, p in self.parts)
        return Model(self.version, np.array(self.lattice), self.weights, self.seen, parts)


class Outcome(msgspec.Struct, frozen=True):
    """What a log says at its end.

    Attributes
    ----------
    exact
        What must not differ at all: status, counters, and the integer sums of each partition as
        they are stored.
    close
        Vectors, compared relative to their largest number: coefficients, errors, intervals.
    """

    exact: dict[str, str | int]
    close: dict[str, list[float]]


class Golden(msgspec.Struct, frozen=True):
    """One recorded log."""

    study: str
    revision: str
    log: list[Sent]
    models: list[Point]
    outcome: Outcome


def load() -> dict[str, Golden]:
    """Return all recorded logs by name; none if there is no file."""
    if not FILE.exists():
        return {}
    return msgspec.msgpack.decode(lzma.decompress(FILE.read_bytes()), type=dict[str, Golden])


def save(logs: dict[str, Golden]) -> None:
    """Write all logs; the same logs give the same bytes."""
    FILE.write_bytes(lzma.compress(msgspec.msgpack.encode(logs), preset=9))


def record(case: Case) -> Golden:
    """Run a study from records to its estimate."""
    task = task_of(parse_study(case.study))
    log: list[Sent] = []
    worker = Worker(task, task.revision)
    models: list[Point] = []
    for sent in _releases(task, case, lambda: models[-1].model if models else task.first_model):
        log.append(sent)
        worker.fold(sent)
        if len(log) % task.study.stream.publish.releases == 0:
            models.append(Point.of(worker.publish(len(models) + 1), len(log)))
    return Golden(case.study, task.revision, log, models, worker.outcome())


def made_again(golden: Golden, case: Case) -> Iterator[bytes]:
    """Make the releases of a recorded log again, at the models that were recorded."""
    task = task_of(parse_study(golden.study))
    count = 0

    def newest() -> Model:
        known = [point for point in golden.models if point.after <= count]
        return known[-1].model if known else task.first_model

    for sent in _releases(task, case, newest):
        count += 1
        yield sent.payload


def _releases(task: Task, case: Case, newest: Callable[[], Model]) -> Iterator[Sent]:
    """Make the releases of a case, each at the model that is the newest as its window begins."""
    # a simulation has a seed of its own
    noise = SeededStream(11) if task.study.private else None
    standings, filling = dict[str, Standing](), dict[str, Filling]()

    def newest_here() -> Model:
        return newest().at(number)

    for i, (client, rows) in enumerate(windows_of(task, case.rounds)):
        number = partition_of(client.encode(), task.study.stream.partitions)
        model = newest_here()
        stands, ledger = standings.get(client, Standing()), f"ledger-{client}"
        if task.chained:
            held = filling.pop(client, None)
            sums, left = held or (Window(task, newest_here), stands.room(task, model))
            sums.take(stack(rows, task.size - 1))
            if left > task.slots:
                filling[client] = sums, left - task.slots
                continue
            payload, standings[client] = release_behind(
                task, sums.close(), stands, noise, client=client, ledger=ledger
            )
        else:
            payload = release_of(
                task, rows, model, noise, client=client, ledger=ledger, seq=stands.seq
            )
            standings[client] = Standing(stands.seq + 1)
        yield Sent(client, FIRST + i * case.apart, payload)


class Worker:
    """Folds a log as workers do, partition by partition."""

    def __init__(self, task: Task, revision: str) -> None:
        self._task = task
        self._reducer = Reducer(task, revision)
        count = task.study.stream.partitions
        self._partitions = {number: Partition.empty(task) for number in range(count)}

    def fold(self, sent: Sent) -> None:
        """Fold one release."""
        key = sent.client.encode()
        partition = self._partitions[partition_of(key, len(self._partitions))]
        entry = LogEntry(partition.head.next_offset, key, sent.payload, sent.milliseconds)
        assert self._reducer.fold(partition, [entry]) == []

    def publish(self, version: int) -> Model:
        """Return the next model."""
        ordered = list(self._partitions.values())
        expansion = expansion_of(self._task, ordered)
        return model_after(self._task, self._partitions, expansion, version, slots_seen(ordered))

    def outcome(self) -> Outcome:
        """Return what the log says."""
        _, message = combine(
            self._task, self._partitions, topic="t", model_version=1, published_at=0.0
        )
        outcome = _outcome(message)
        if self._task.study.noised and not self._task.keeps_slots:
            for number, partition in self._partitions.items():
                fields = partition.fields(everything=True)
                sums = {name: data for name, data in fields.items() if name.startswith(SUMS)}
                outcome.exact.update({f"{name} of {number}": sums[name].hex() for name in sums})
        return outcome


def _outcome(message: EstimateMessage) -> Outcome:
    rows, diagnostics = message.coefficients, msgspec.structs.asdict(message.diagnostics)
    numbers = {
        **{name: [getattr(row, name) for row in rows] for name in ROW},
        **{f"interval {name}": list(sum(ends, ())) for name, ends in message.intervals.items()},
        "interval": [end for row in rows for end in row.interval or ()],
        "class weights": list(message.class_weights.values()),
        "dispersion": [message.dispersion],
        **{name: [diagnostics.pop(name)] for name in RATIOS},
    }
    exact = {"status": message.status, "records": message.records, "releases": message.releases}
    close = {name: [v for v in values if v is not None] for name, values in numbers.items()}
    del diagnostics["effective_share"]  # of two numbers that are compared
    counters = {name: int(count) for name, count in diagnostics.items()}
    return Outcome(exact | {"clients": message.clients} | counters, close)


def folded(golden: Golden) -> tuple[list[Point], Outcome]:
    """Fold a recorded log, and return its models and what it says."""
    worker = Worker(task_of(parse_study(golden.study)), golden.revision)
    points: list[Point] = []
    marks = [point.after for point in golden.models]
    for count, sent in enumerate(golden.log, 1):
        worker.fold(sent)
        if count in marks:
            points.append(Point.of(worker.publish(len(points) + 1), count))
    return points, worker.outcome()


def differences(one: Outcome, other: Outcome, tolerance: float = TOLERANCE) -> list[str]:
    """Return in words how two outcomes differ, nothing if they do not."""
    names = sorted(one.exact.keys() | other.exact.keys())
    changed = [name for name in names if one.exact.get(name) != other.exact.get(name)]
    # the digits of a sum tell people nothing
    found = [
        f"{name}: another sum"
        if name.startswith(SUMS)
        else f"{name}: {one.exact.get(name)!r} is now {other.exact.get(name)!r}"
        for name in changed
    ]
    for name in sorted(one.close.keys() | other.close.keys()):
        left, right = (np.array(part.close.get(name, [])) for part in (one, other))
        if left.shape != right.shape:
            found.append(f"{name}: {len(left)} numbers are now {len(right)}")
            continue
        moved = distance(left, right)
        if not moved <= tolerance:
            found.append(f"{name}: moved by {moved:.2g} of the largest")
    return found


def distance(left: Vector, right: Vector) -> float:
    """Return the largest difference relative to the largest number."""
    moved = float(np.max(np.abs(left - right), initial=0.0))
    return moved / float(np.max(np.abs([left, right]))) if moved else 0.0


def alike(task: Task, one: bytes, other: bytes) -> bool:
    """Whether two payloads are the same: to the bit, or floats of open ones within rounding."""
    if one == other:
        return True
    if task.study.noised or len(one) != len(other):
        return False
    left, right = opened(task, one), opened(task, other)
    numbers = [np.concatenate([row["point"][0], row["sums"][0]]) for row in (left, right)]
    for row in (left, right):
        row["point"] = row["sums"] = 0.0
    return left.tobytes() == right.tobytes() and distance(*numbers) <= FITTED
