"""One window to one payload: sum at a model, privatise, write.

Clients and offline runs share this function; nothing else turns records into bytes.
"""

from __future__ import annotations

from collections.abc import Iterable

from pipeline.messages.release import seal
from pipeline.privacy.randomness import SecureStream
from pipeline.privacy.simulation import SeededStream
from pipeline.records.encode import Arrays, Rows, stack
from pipeline.release.model import Model
from pipeline.release.privatise import disclose, privatise
from pipeline.release.task import Task
from pipeline.types import Vector


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
    """Make the release of one window; call it once for a window, as it draws noise.

    rows: The encoded records, at most `task.slots`; None, and fewer of them, mean empty slots.
    model: The newest model that the client knows.
    stream: Where noise comes from; by default a stream of the release's own: under a fresh key, so
        that a resumed copy of a process cannot repeat its noise, or under the study's seed in a
        simulation.
    client, ledger, seq: The identity that goes into the payload.

    Raises PrivacyError if a sum does not fit its lattice.
    """
    task, window = task.of_client(client), stack(rows, task.size - 1)
    if not task.study.noised:
        answer = disclose(task, task.open_query(window.sound, model))
        return seal(task, answer, client=client, ledger=ledger, seq=seq)
    query = task.query(window if task.keeps_slots else window.sound, model)
    noised = privatise(task, query, stream or _stream(task, client, seq))
    return seal(task, noised, client=client, ledger=ledger, seq=seq)


def release_again(
    task: Task, windows: Iterable[Arrays], point: Vector, model: Model,
    *, client: str, ledger: str, seq: int,
) -> bytes:  # fmt: skip
    """Make a release of all windows so far, which takes the place of those before it."""
    again = disclose(task, task.query_again(windows, point, model))
    return seal(task, again, client=client, ledger=ledger, seq=seq)


def _stream(task: Task, client: str, seq: int) -> SecureStream:
    seed = task.study.privacy.seed
    return SecureStream() if seed is None else SeededStream(seed, client, seq)
