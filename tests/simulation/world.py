"""Clients and workers as tasks of one loop, and who dies when.

A step is a moment before or after a client's or worker's call to Kafka, Redis or its database, and
every await of a worker. At the steps that a scenario names, whoever takes it dies there: nothing of
it goes on but what was on its way to Kafka, and it starts again. All else that is left to chance,
who comes next and how far, is drawn from the scenario's seed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from agents import publishing
from agents.folding import Folding
from agents.publishing import Publishing
from pipeline.errors import VeilstreamError
from pipeline.messages.authentic import Authenticator
from pipeline.messages.estimate import read_estimate
from pipeline.messages.topics import Topics
from pipeline.release.task import Task
from pipeline.settings import Settings
from producers import client as loop
from producers import models, sender
from producers import rollback as reconcile
from producers.client import Client
from producers.database import Database
from producers.membership import Membership
from producers.models import ModelFeed
from producers.rollback import lost_releases
from producers.sender import Sender
from producers.sources import open_source
from producers.store import ClientStore
from state import RedisStore
from tests.builders import UNCLAIMED
from tests.simulation.clock import Calendar, Clock
from tests.simulation.standins import Kafka, Reader

WORKERS = ("w0", "w1")
#: Exit codes after which a supervisor starts a process again.
PASSING = {41}
#: Simulated seconds within which everything must have come to rest.
REST = 60.0
#: Calls that reach a server.
CALLS = {"send", "flush", "poll", "end_offsets", "execute", "hget", "hmget", "hgetall", "smembers"}
#: How often a batch goes astray on its way, and how often a worker looks at its assignment.
ASTRAY, ATTENTIVE = 0.03, 0.7


class Killed(BaseException):
    """A process died here."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """What happens to a study.

    Attributes
    ----------
    kills, losses
        Steps at which whoever takes them dies; at which Redis loses its last writes.
    held
        Whether clients see no model until they are done: then every run releases the same.
    """

    seed: int
    kills: frozenset[int] = frozenset()
    losses: frozenset[int] = frozenset()
    held: bool = False


@dataclass(eq=False)
class Member:
    """A worker in its group."""

    folding: Folding
    known: tuple[int, ...] | None = None
    positions: dict[int, int] = field(default_factory=dict)
    #: Partitions that it has just been made to read again.
    sought: set[int] = field(default_factory=set)


class World:
    """One study, its clients and workers, and the servers between them.

    Parameters
    ----------
    task, sources
        The study, and each client's file.
    servers
        Stand-ins or real ones.
    folder
        Where the clients' databases are.
    """

    def __init__(
        self, task: Task, sources: dict[str, Path], servers: Any, folder: Path, scenario: Scenario
    ) -> None:
        self.task, self.sources, self.servers, self.folder = task, sources, servers, folder
        self.scenario, self.topics = scenario, Topics.of(task.study)
        self.settings: Settings = servers.settings
        self.chance = random.Random(scenario.seed)
        self.clock = Clock()
        self.store = RedisStore(servers.redis, task)
        self.steps = self.kills = self.losses = 0
        self.faults: list[str] = []
        self.resting = False
        self.outcome: list[Any] = []
        self.members: list[Member] = []
        self.producers: list[Any] = []

    def run(self) -> None:
        """Let everything happen until it rests.

        Raises
        ------
        TimeoutError
            If it does not come to rest.
        """
        with self._seams():
            try:
                self.clock.run_until_complete(asyncio.wait_for(self._everything(), REST))
            finally:
                self.resting = True
                self.clock.run_until_complete(_end(list(asyncio.all_tasks(self.clock))))
                self.clock.close()

    def authority(self) -> Authenticator | None:
        """Return the study's keys, where its releases are authenticated."""
        return None

    def membership(self, _client: str) -> Membership | None:
        """Return what a client has agreed on with such a study."""
        return None

    def step(self) -> None:
        """Take a step, which may be the last one of its process."""
        if self.resting:
            return
        self.steps += 1
        if self.steps in self.scenario.losses:
            self.losses += 1
            self.servers.lose(self.chance)
        if self.steps in self.scenario.kills:
            self.kills += 1
            raise Killed

    async def _everything(self) -> None:
        network = asyncio.create_task(self._network())
        workers = [asyncio.create_task(self._live(self._worker, name)) for name in WORKERS]
        clients = [asyncio.create_task(self._live(self._client, name)) for name in self.sources]
        streaming = asyncio.gather(*clients)
        await self._until(streaming.done, workers)
        await streaming
        await self._until(self._folded, workers)
        self.resting = True
        await _end(workers)
        workers = [asyncio.create_task(self._live(self._worker, name)) for name in WORKERS]
        await self._until(lambda: self._folded() and self._published(), workers)
        await _end([*workers, network])

    async def _until(self, found: Callable[[], bool], workers: list[asyncio.Task[None]]) -> None:
        while not found():
            for worker in workers:
                if worker.done():
                    worker.result()
            await asyncio.sleep(0.1)

    async def _live(self, body: Callable[[str], Coroutine[Any, Any, None]], name: str) -> None:
        """Start a process, and again after each of its deaths."""
        while True:
            try:
                await body(name)
            except Killed:
                pass
            except VeilstreamError as error:
                if error.exit_code not in PASSING:
                    raise
            else:
                return
            await asyncio.sleep(0.05)

    async def _client(self, name: str) -> None:
        study, producer = self.task.study.name, None
        with ExitStack() as closing:
            store = closing.enter_context(ClientStore(self.folder / f"{name}.db", name))
            member = self.membership(name)
            feed = ModelFeed(self.task, self.settings, self.topics, name, membership=member)
            lost = lost_releases(
                self.task, self.settings, store, store.peek(study), print, membership=member
            )
            if lost.seqs or store.missing:
                self.faults.append(f"{name}: its database is behind")
            at = store.open_stream(self.task, f"csv:{name}")
            source = open_source(str(self.sources[name]), at.position, folder=self.folder)
            closing.callback(source.close)
            outbox = Sender(
                store, study, self.settings, self.topics, UNCLAIMED, member, sent=at.sent
            )
            producer = self.producers[-1]
            client = Client(
                self.task, source, store, outbox, feed,
                source_name=f"csv:{name}",
            )  # fmt: skip
            try:
                while client.turn():
                    await self._pause()
                client.finish()
            except Killed:
                producer.settle(self.chance)
                raise
            finally:
                self.producers.remove(producer)

    async def _worker(self, _: str) -> None:
        store = RedisStore(Watched(self, self.servers.redis), self.task)  # type: ignore[arg-type]

        async def reread(number: int, offset: int) -> None:
            await self._pause()
            member.positions[number] = offset
            member.sought.add(number)

        trust = self.authority()
        folding = Folding(
            self.task, self.topics, store, self._send, reread, self._bounds, trust=trust
        )
        member = Member(folding)
        publisher = Publishing(
            self.task, self.topics, store, member.folding, self._send, self._read, self._extent,
            now=self.clock.time, trust=trust,
        )  # fmt: skip
        self.members.append(member)
        runs = self._fold(member), publisher.run(), member.folding.watch_store()
        tasks = [asyncio.create_task(run) for run in runs]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            self.members.remove(member)
            await _end(tasks)
        for task in tasks:
            if not task.cancelled():
                task.result()

    async def _fold(self, member: Member) -> None:
        """Do as Faust does, of one fetched batch after the other."""
        folding = member.folding
        while True:
            mine = self._assigned(member)
            if mine != member.known and self.chance.random() < ATTENTIVE:
                # until here it went on with partitions that may be another's by now
                folding.release(tuple(folding.partitions))
                member.positions = folding.assign({n: (0, self._end_of(n)) for n in mine})
                member.known = mine
            behind = [n for n, at in member.positions.items() if at < self._end_of(n)]
            await self._pause(0.0 if behind else 0.05)
            if not behind:
                continue
            number = self.chance.choice(behind)
            # a consumer that has been told where to read begins there: what is missing then is not
            # in the log, and workers take it so
            astray = self.chance.random() < ASTRAY and number not in member.sought
            at = member.positions[number] + astray
            batch = self.servers.records(self.topics.releases.name, number)[at:]
            batch = batch[: self.chance.randint(1, 4)]
            if not batch:
                continue
            member.positions[number] = batch[-1].offset + 1
            member.sought.discard(number)
            losses = self.losses
            self.step()
            folded = await folding.handle(number, batch)
            if folded and losses == self.losses:
                self._acknowledged(number, batch[-1].offset)

    def _acknowledged(self, number: int, offset: int) -> None:
        if self.store.watermark(number) <= offset:
            self.faults.append(f"offset {offset} of {number} was acknowledged before its commit")

    def _assigned(self, member: Member) -> tuple[int, ...]:
        place, count = self.members.index(member), len(self.members)
        return tuple(n for n in range(self.topics.releases.partitions) if n % count == place)

    async def _pause(self, seconds: float = 0.0) -> None:
        self.step()
        await asyncio.sleep(seconds + self.chance.choice((0.0, 0.0, 0.01, 0.03)))
        self.step()

    async def _network(self) -> None:
        """Let records arrive, some at a time."""
        while True:
            for producer in self.producers:
                producer.land(self.chance.randint(0, 3))
            await asyncio.sleep(self.chance.choice((0.0, 0.01, 0.05)))

    async def _send(self, topic: str, key: Any, value: Any, headers: Any) -> None:
        await self._pause()
        self.servers.append(topic, key, value, headers)
        await self._pause()

    async def _bounds(self, number: int) -> tuple[int, int]:
        await self._pause()
        return 0, self._end_of(number)

    async def _read(self, topic: str, last: int | None) -> list[tuple[int, bytes | None]]:
        await self._pause()
        found = self.servers.records(topic, 0)[-last if last else None :]
        return [(record.offset, record.value) for record in found]

    async def _extent(self, topic: str, partitions: int) -> tuple[int, int]:
        await self._pause()
        return 0, sum(len(self.servers.records(topic, number)) for number in range(partitions))

    def _end_of(self, number: int) -> int:
        return len(self.servers.records(self.topics.releases.name, number))

    def _folded(self) -> bool:
        every = range(self.topics.releases.partitions)
        return all(self.store.watermark(number) == self._end_of(number) for number in every)

    def _published(self) -> bool:
        if not (found := self.servers.records(self.topics.estimates.name, 0)):
            return False
        every = range(self.topics.releases.partitions)
        # and not how far it reaches: repeats at the end of a log make no new estimate
        folded = sum(self.store.load(number).head.folded for number in every)
        return read_estimate(found[-1].value).releases == folded

    @contextmanager
    def _seams(self) -> Iterator[None]:
        """Put the servers, the steps and the simulated time where the real ones are."""
        calendar, write, many = Calendar(self.clock), Database.write, Database.write_many

        def producer(*_: Any, **__: Any) -> Any:
            self.producers.append(self.servers.producer())
            return Watched(self, self.producers[-1])

        def reader(*_: Any, **__: Any) -> Any:
            return Watched(self, self.servers.reader())

        def no_models(*_: Any, **__: Any) -> Any:
            return Watched(self, Reader(Kafka(self.topics)))

        def stepped(original: Callable[..., Any]) -> Callable[..., Any]:
            def changed(database: Database, *given: Any) -> Any:
                self.step()
                found = original(database, *given)
                self.step()
                return found

            return changed

        patch = mock.patch.object
        with (
            patch(sender, "record_producer", producer),
            patch(reconcile, "log_reader", reader),
            patch(models, "log_reader", no_models if self.scenario.held else reader),
            patch(publishing, "time", calendar),
            patch(loop, "time", calendar),
            patch(loop, "GROUP", 2),
            patch(Database, "write", stepped(write)),
            patch(Database, "write_many", stepped(many)),
        ):
            yield


class Watched:
    """A connection to a server: a process may die before and after each call."""

    def __init__(self, world: World, target: Any) -> None:
        self._world, self._target = world, target

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if name in CALLS:
            return partial(self._stepped, found)
        if name == "register_script":
            return lambda text: partial(self._stepped, found(text))
        if name == "pipeline":
            return lambda **given: Watched(self._world, found(**given))
        return found

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, *_: object) -> None:
        self._target.close()

    def _stepped(self, call: Callable[..., Any], *given: Any, **named: Any) -> Any:
        self._world.step()
        answer = call(*given, **named)
        self._world.step()
        return answer


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
