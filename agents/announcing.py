"""What a study says to its clients: which revision runs, its keys, and who is admitted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from infra.admissions import announce_keys, own_roll, say_again
from infra.keyring import read_study, study_path
from infra.topics import announce
from pipeline.messages.authentic import Authenticator
from pipeline.messages.topics import Topics
from pipeline.release.task import Task
from pipeline.settings import Settings
from pipeline.stream.partition import Partition
from pipeline.trust import Pair
from state import RedisStore
from state.connection import redis_client


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


def state_key(task: Task, settings: Settings) -> bytes:
    """Return the key of the MACs over a study's stored state; ConfigError as above.

    It follows from the study's first key, which every file has: a change of keys leaves the state
    as it is. Empty where releases are open.
    """
    if not task.study.authenticated:
        return b""
    return read_study(settings, task.study.name).pairs[0].state_key


def store_of(task: Task, settings: Settings) -> RedisStore:
    """Return the stored state of a study; ConfigError as `state_key`."""
    return RedisStore(redis_client(settings), task, state_key(task, settings))


def begin_admitted(
    task: Task, settings: Settings, trust: Authenticator | None, states: Mapping[int, Partition],
) -> None:  # fmt: skip
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
                states[entry.partition].admissions.enter(standing.client, entry)


#: Seconds between two looks at whether the topics still have it.
LOOK_SECONDS = 10.0
#: Where the clients topic holds more records, it is read at a worker's start alone: whoever fills
#: it holds nobody up.
FEW = 10_000
Say = Callable[[str], None]
#: First and next offset of each of some topics with one partition.
Extents = Callable[[Sequence[str]], Awaitable[Sequence[tuple[int, int]]]]


def say_all(task: Task, settings: Settings, states: Mapping[int, Partition], say: Say) -> None:
    """Write to a study's topics whatever of it they do not end with.

    states: All partitions, as they are stored.

    ConfigError if another revision runs, or the key file is an old copy; BrokerError.
    """
    # what was folded says which revision is the right one, and a record may be forged
    folded = any(state.head.next_offset for state in states.values())
    announce(task, settings, overrule=folded, say=say)
    if task.study.authenticated:
        _say_admissions(task, settings, states, say)


def _say_admissions(
    task: Task, settings: Settings, states: Mapping[int, Partition], say: Say
) -> None:
    held = read_study(settings, task.study.name)
    announce_keys(task.study, settings, held)
    admitted = {number: state.admissions.clients for number, state in states.items()}
    if said := say_again(task.study, settings, held, admitted):
        say(
            f"WARNING: the newest word about {len(said)} clients was not at the end of the "
            "clients topic, and has been written again; if this repeats, somebody else writes to "
            "the topic"
        )


class Announcing:
    """Sees to it, at the worker that publishes, that it is said again where a topic was made anew.

    store: Where the state is, which knows who is admitted.
    extents: Tells where topics begin and end.
    owner: Whether this worker publishes.
    """

    def __init__(
        self, task: Task, settings: Settings, store: RedisStore, extents: Extents,
        owner: Callable[[], bool], say: Say,
    ) -> None:  # fmt: skip
        # the worker's working directory is another one when they are read
        self._task, self._settings, self._store = task, settings.rooted(), store
        self._extents, self._owner, self._say = extents, owner, say
        topics = Topics.of(task.study)
        self._names, self._clients = [topics.study.name], topics.clients.name
        if task.study.authenticated:
            self._names.append(self._clients)
        self._ends: dict[str, int] = {}

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if self._owner():
                await self.look()

    async def look(self) -> None:
        """Say all again where a topic was made anew or emptied: it ends earlier, or holds nothing.

        Who has written to the clients topic may have repeated an old word, the only one that
        compaction leaves then.
        """
        found = dict(zip(self._names, await self._extents(self._names), strict=True))
        ends = {name: end for name, (_, end) in found.items()}
        # at the first look the clients topic may have changed since the worker started
        before, self._ends = self._ends, ends
        lost = [
            name
            for name, (first, end) in found.items()
            if first >= end or end < before.get(name, 0)
        ]
        if lost:
            self._say(
                f"WARNING: {' and '.join(lost)} was made anew or emptied: what the study had "
                "written there is written again"
            )
            await asyncio.to_thread(self._again, say_all)
        elif ends != before and self._clients in found:
            first, end = found[self._clients]
            if end != before.get(self._clients) and end - first <= FEW:
                await asyncio.to_thread(self._again, _say_admissions)

    def _again(self, what: Callable[[Task, Settings, Mapping[int, Partition], Say], None]) -> None:
        numbers = range(self._task.study.stream.partitions)
        states = {number: self._store.load(number) for number in numbers}
        what(self._task, self._settings, states, self._say)
