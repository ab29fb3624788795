"""One window to one payload: sum at a model, privatise, write.

Clients and offline runs share these functions; nothing else turns records into bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pipeline.estimators.forgetting import bucket_of
from pipeline.messages.release import seal
from pipeline.privacy.memory import Chain, epoch_of
from pipeline.privacy.randomness import SecureStream, SeededStream
from pipeline.records.encoder import Arrays, Rows, joined, stack
from pipeline.release.budget import most_releases
from pipeline.release.model import Model
from pipeline.release.privatise import disclose, privatise_behind
from pipeline.release.query import Query
from pipeline.release.task import Task


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a client stands behind its releases of a study: what its next one is made with.

    seq: Number of the next release.
    held: Record slots of all before it.
    chain: What the next noise remembers; it is never sent.
    """

    seq: int = 0
    held: int = 0
    chain: Chain = field(default_factory=Chain)

    def anew(self) -> Standing:
        """Return where a new chain begins: it costs nothing.

        Numbers of releases are charged for ever, lost ones, too: so none before it has its number.
        """
        return Standing(self.seq, self.held, Chain(self.seq))

    def at(self, task: Task, model: Model) -> Standing:
        """Return where a window at a model stands: an older one than the last begins a new chain.

        Sums since an epoch of models would have gaps otherwise.
        """
        stale = model.version and epoch_of(model.watermark, task.slots) < self.chain.epoch
        return self.anew() if stale else self

    def room(self, task: Task, model: Model) -> int:
        """Return how many record slots the next window has at a model; 0: it must wait for others.

        `trust.largest_share` may leave less than windows have grown to.
        """
        chain = self.at(task, model).chain
        slots = task.growth.next_window(chain.slots if model.version else 0)
        most = most_releases(task.study, model.watermark)
        if most is None:
            return slots
        left = most - self.held // task.slots
        return min(slots, max(0, left) * task.slots)


class Window:
    """The sums of a window that fills, block by block at the newest model as its first is full.

    No record is kept longer than until its block of `window.records` slots is full.

    newest: Says which model that is by now; at the one of the beginning it got its room.

    model: At which it is.
    """

    def __init__(self, task: Task, newest: Callable[[], Model]) -> None:
        self.model, self._newest, self._task = newest(), newest, task
        self._waiting: list[Arrays] = []
        self._slots, self._query = 0, list[Query]()

    def take(self, slots: Arrays) -> None:
        """Take the next slots."""
        size = self._task.slots
        self._waiting.append(slots)
        self._slots += len(slots.responses)
        if full := self._slots // size * size:
            every = joined(self._waiting)
            self._add(every.part(slice(full)))
            self._waiting, self._slots = [every.part(slice(full, None))], self._slots - full

    def close(self) -> Query:
        """Return the sums; what the last block lacks stays empty."""
        if self._slots or not self._query:
            block = joined(self._waiting) if self._waiting else stack([], self._task.size - 1)
            self._add(block)
            self._waiting, self._slots = [], 0
        return self._query[0]

    def _add(self, blocks: Arrays) -> None:
        if not self._query:
            # behind an older model a chain ends, and there would be less room
            self.model = max(self.model, self._newest(), key=lambda model: model.version)
        query = self._task.query_blocks(blocks, self.model)
        self._query = [self._query[0] + query if self._query else query]


def closes_early(task: Task, began: tuple[Model, float], newest: tuple[Model, float]) -> bool:
    """Whether a window should close because releases have another age by now.

    began, newest: A model, and seconds since 1970: as the window began, and now.
    """
    one, other = (
        bucket_of(
            task.study.estimator.forgetting,
            watermark=model.watermark, milliseconds=int(1000 * seconds),
        )
        for model, seconds in (began, newest)
    )  # fmt: skip
    return one != other


def release_behind(
    task: Task, query: Query, standing: Standing, stream: SecureStream | None = None,
    *, client: str, ledger: str,
) -> tuple[bytes, Standing]:  # fmt: skip
    """Make the release of the sums of one window, and return where the client stands behind it.

    Call it once for a window, as it draws noise; with the same standing it draws it anew.

    stream: Where noise comes from; by default a stream of the release's own: under a fresh key, so
        that a resumed copy of a process cannot repeat its noise, or under the study's seed in a
        simulation.

    Raises PrivacyError if a sum does not fit its lattice, or the window is larger than it may be.
    """
    noise = stream or _stream(task, client, standing.seq)
    answer, chain = privatise_behind(task, query, noise, standing.at(task, query.model).chain)
    payload = seal(task, answer, client=client, ledger=ledger, seq=standing.seq, held=standing.held)
    return payload, Standing(standing.seq + 1, standing.held + answer.slots, chain)


def release_of(
    task: Task,
    rows: Rows,
    model: Model,
    stream: SecureStream | None = None,
    *,
    client: str,
    ledger: str,
    seq: int,
) -> bytes:
    """Make the release of one window that depends on none before; call it once for a window.

    rows: The encoded records, at most `task.slots`; None, and fewer of them, mean empty slots.
    model: The newest model that the client knows.
    stream: As `release_behind` takes it.
    client, ledger, seq: The identity that goes into the payload.

    Raises PrivacyError if a sum does not fit its lattice.
    """
    task, window = task.of_client(client), stack(rows, task.size - 1)
    if not task.study.noised:
        answer = disclose(task, task.open_query(window.sound, model))
        return seal(task, answer, client=client, ledger=ledger, seq=seq)
    query = task.query(window if task.keeps_slots else window.sound, model)
    standing = Standing(seq, seq * task.slots)
    return release_behind(task, query, standing, stream, client=client, ledger=ledger)[0]


def _stream(task: Task, client: str, seq: int) -> SecureStream:
    seed = task.study.privacy.seed
    return SecureStream() if seed is None else SeededStream(seed, client, seq)
