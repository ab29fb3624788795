"""A study's keys where a worker, a rebuild or a replay needs them."""

from __future__ import annotations

from collections.abc import Mapping

from infra.keyring import read_study, study_path
from infra.roll import own_roll
from pipeline.messages.authentic import Authenticator
from pipeline.release.task import Task
from pipeline.settings import Settings
from pipeline.stream.partition import Partition
from pipeline.trust.crypto import Pair


def authenticator(task: Task, settings: Settings) -> Authenticator | None:
    """Return a study's keys at work; None if its releases are open.

    ConfigError if its key file cannot be used.
    """
    if not task.study.authenticated:
        return None
    path, name = study_path(settings, task.study.name), task.study.name
    held, read_at = read_study(settings, name), path.stat().st_mtime_ns

    def again() -> list[Pair]:
        # clients may know of a new key before this worker was started again
        nonlocal read_at
        if not path.exists() or (changed_at := path.stat().st_mtime_ns) == read_at:
            return []
        pairs = list(read_study(settings, name).pairs)
        # a file that cannot be read yet is looked at again
        read_at = changed_at
        return pairs

    return Authenticator(task, held.pairs, held.least, again=again)


def begin_admitted(
    task: Task,
    settings: Settings,
    trust: Authenticator | None,
    states: Mapping[int, Partition],
) -> None:
    """Let states that begin in the middle of the log know who was admitted before.

    What the log itself said is gone or left out; the clients topic has said it, too, and the
    study's key file has from where on its older keys count no more.
    """
    starts = {number: state.head.next_offset for number, state in states.items()}
    if trust is None or not any(starts.values()):
        return
    held = read_study(settings, task.study.name)
    roll = own_roll(task.study, settings, held)
    for number, start in starts.items():
        states[number].admissions.retire(held.least_at(number, start))
    for standing in roll.clients.values():
        for entry in standing.entries:
            if entry.offset < starts.get(entry.partition, 0):
                states[entry.partition].admissions.enter(standing.client, entry.serial, entry.key)
