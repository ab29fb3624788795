"""Who writes beside the clients of a study, under a broker that lies (`lying`).

An outsider forges releases, admissions, models and estimates. A client that was admitted forges
what it can: numbers, contents, ledgers, points, names. The study's key changes in the middle, and
that client is revoked.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np

from infra import admissions as roll
from infra import keyring
from pipeline.errors import PayloadError
from pipeline.messages.admission import (
    KEYS,
    Admission,
    Entry,
    Link,
    Standing,
    StudyKeys,
    link_text,
    write_signed,
)
from pipeline.messages.authentic import Authenticator
from pipeline.messages.estimate import EstimateMessage, read_estimate
from pipeline.messages.model import read_model, write_model
from pipeline.messages.topics import Topics, partition_of
from pipeline.privacy.randomness import SecureStream
from pipeline.release.model import Model, round_model
from pipeline.release.task import Task
from pipeline.settings import Settings
from pipeline.stream.release import release_of
from pipeline.trust import Pair, Stamp
from producers.membership import Membership
from tests.simulation.lying import LyingKafka
from tests.simulation.standins import Kafka, Record, StandIns
from tests.simulation.world import Scenario, World

#: The client that lies; nobody has admitted the other.
MALLORY, GHOST = "mallory", "ghost"
#: The most that is forged between two arrivals of records.
FORGES = 3


class Byzantine(World):
    """A study among liars.

    Attributes
    ----------
    pairs
        The study's keys, oldest first.
    words
        What it has truly said of clients: bytes to client, serial number and whether it is in.
    """

    def __init__(
        self, task: Task, sources: dict[str, Path], folder: Path, scenario: Scenario
    ) -> None:
        topics, chance = Topics.of(task.study), random.Random(f"lies {scenario.seed}")
        self.broker, self.lying = LyingKafka(topics, chance), chance
        settings = Settings(kafka="simulated:1", redis="redis://simulated:1/0", folder=str(folder))
        super().__init__(task, sources, StandIns(topics, self.broker, settings), folder, scenario)
        self.pairs, self.words = [Pair(b"s" * 32)], dict[bytes, tuple[str, int, bool]]()
        self.forged: Counter[str] = Counter()
        self._standings: dict[str, Standing] = {}
        self._number, self._mallory = 0, Pair(b"m" * 32)
        self._say_keys()
        for client in sources:
            self._admit(client, keyring.enrolled(settings, client).public.hex())
        self._admit(MALLORY, self._mallory.public.hex())

    def authority(self) -> Authenticator:
        """Return the study's keys at work; a worker that runs looks for newer ones by itself."""
        return Authenticator(self.task, self.pairs[:], again=lambda: self.pairs)

    def membership(self, client: str) -> Membership:
        """Return what a client has agreed on with the study."""
        return Membership(self.task.study, self.settings, client, lambda _: None)

    @property
    def models(self) -> list[Model]:
        """Every model that the study has published."""
        return [
            read_model(self.task, record.value)
            for record in self.servers.records(self.topics.models.name, 0)
            if self.is_ours(record.value)
        ]

    @property
    def newest(self) -> EstimateMessage | None:
        """The newest estimate that the study has signed."""
        log = self.servers.records(self.topics.estimates.name, 0)
        ours = [record.value for record in log if self.is_ours(record.value)]
        return read_estimate(ours[-1]) if ours else None

    def is_ours(self, payload: bytes) -> bool:
        """Whether the study has signed a message."""
        try:
            self.authority().check(payload)
        except PayloadError:
            return False
        return True

    def _folded(self) -> bool:
        return not self.broker.delayed and super()._folded()

    def _published(self) -> bool:
        every = range(self.topics.releases.partitions)
        folded = sum(self.store.load(number).head.folded for number in every)
        return self.newest is not None and self.newest.releases == folded

    async def _network(self) -> None:
        turns = 0
        while True:
            for producer in self.producers:
                producer.land(self.chance.randint(0, 3))
            if self.producers:
                turns += 1
                self._forge()
                if turns == 6:
                    self._rotate()
                elif turns == 12:
                    self._admit(MALLORY, "")
                    self.forged["revocations"] += 1
            while self.broker.delayed and not self.producers:
                self.broker.show(0)
            await asyncio.sleep(self.chance.choice((0.0, 0.01, 0.05)))

    @contextmanager
    def _seams(self) -> Iterator[None]:
        def read_all(_: Settings, topic: str) -> list[tuple[bytes | None, bytes | None]]:
            return [(record.key, record.value) for record in self.servers.records(topic, 0)]

        with super()._seams(), mock.patch.object(roll, "read_all", read_all):
            yield

    def _write(self, topic: str, key: str, value: bytes) -> Record:
        """Write as anybody who may."""
        return Kafka.append(self.broker, topic, key.encode(), value)

    def _say_keys(self) -> None:
        links = list[Link]()
        for before, pair in zip([None, *self.pairs], self.pairs, strict=False):
            key = pair.public.hex()
            text = link_text(self.task.study.name, pair.generation, key)
            signature = "" if before is None else before.sign(text).hex()
            links.append(Link(pair.generation, key, signature))
        value = write_signed(StudyKeys(self.task.study.name, links), self.pairs[-1])
        self._write(self.topics.clients.name, KEYS.decode(), value)

    def _rotate(self) -> None:
        self.forged["rotations"] += 1
        self.pairs.append(Pair(b"t" * 32, 2))
        self._say_keys()

    def _admit(self, client: str, key: str) -> None:
        study, entries = self.task.study.name, self._standings.get(client, Standing("", "", []))
        serial = entries.serial + 1
        word = write_signed(Admission(study, client, serial, key), self.pairs[-1])
        self.words[word] = client, serial, bool(key)
        at = self._write(self.topics.releases.name, client, word)
        entry = Entry(serial, key, at.partition, at.offset)
        said = self._standings[client] = Standing(study, client, [*entries.entries, entry])
        self._write(self.topics.clients.name, client, write_signed(said, self.pairs[-1]))

    def _forge(self) -> None:
        for _ in range(self.lying.randint(0, FORGES)):
            lie = self.lying.choice(FORGERIES)
            lie(self)
            self.forged[lie.__name__] += 1

    def _any(self, topic: str, number: int = 0) -> Record | None:
        log = self.servers.records(topic, number)
        return self.lying.choice(log) if log else None

    def _release(
        self, seq: int, model: Model | None = None, ledger: str = "mine", client: str = MALLORY
    ) -> bytes:
        """Return a release as the client that lies would make it."""
        model = model or self.lying.choice([self.task.first_model, *self.models])
        stream = SecureStream()
        return release_of(self.task, [], model, stream, client=client, ledger=ledger, seq=seq)

    def _leave(self, payload: bytes, key: str = MALLORY, *, true: bool = False) -> None:
        pair = self.lying.choice(self.pairs)
        agreed = self._mallory.mac_key(
            pair.public, study=self.task.study.name, client=MALLORY, generation=pair.generation
        )
        payload = Stamp(agreed, pair.generation)(payload)
        if true:
            self.broker.sent.setdefault(MALLORY.encode(), set()).add(payload)
        self._write(self.topics.releases.name, key, payload)

    def sends_what_counts(self) -> None:
        """Send a release: any sums within the bounds are its own affair."""
        self._leave(self._release(self._number), true=True)
        self._number += 1

    def sends_another_of_that_number(self) -> None:
        """Send other sums under a number that it has used."""
        self._leave(self._release(max(0, self._number - 1)), true=True)

    def jumps(self) -> None:
        """Leave numbers out."""
        self._number += self.lying.randint(1, 2**20)
        self.sends_what_counts()

    def sends_at_its_own_point(self) -> None:
        """Send a release at a point and version of its own choice."""
        point = round_model(1, self.lying.choices(range(-3, 3), k=self.task.size), (1.0, 1.0), 40)
        version = self.lying.choice([1, 2, 2**37])
        self._leave(self._release(self._number, replace(point, version=version)))

    def sends_as_another(self) -> None:
        """Send under the name of a client that does not lie, and of one that nobody knows."""
        client = self.lying.choice([*self.sources, GHOST])
        self._leave(self._release(self._number, client=client), client)

    def sends_with_another_ledger(self) -> None:
        """Begin at zero again."""
        if self._number:
            self._leave(self._release(self._number, ledger="another"))

    def sends_next_numbers_of_others(self) -> None:
        """Lock a client out, as whoever reads its id and ledger in the log would."""
        client = self.lying.choice([*self.sources])
        number = partition_of(client.encode(), self.topics.releases.partitions)
        log = self.servers.records(self.topics.releases.name, number)
        mine = [r.value for r in log if r.key == client.encode() and r.value[:1] != b"{"]
        if mine:
            old = bytearray(mine[-1])
            old[80:88] = (int.from_bytes(old[80:88], "little") + 1).to_bytes(8, "little")
            self._leave(bytes(old), client)
            self._write(self.topics.releases.name, client, bytes(old))

    def changes_a_bit(self) -> None:
        """Change a bit of what is in the log."""
        old = self._any(
            self.topics.releases.name, self.lying.randrange(self.topics.releases.partitions)
        )
        if old is not None and old.value:
            data = bytearray(old.value)
            data[self.lying.randrange(len(data))] ^= 1 << self.lying.randrange(8)
            self._write(self.topics.releases.name, (old.key or b"").decode(), bytes(data))

    def admits_itself(self) -> None:
        """Sign an admission with a key of its own, and a revocation of somebody else."""
        study, client = self.task.study.name, self.lying.choice([GHOST, *self.sources])
        key = self.lying.choice(["", self._mallory.public.hex()])
        word = write_signed(Admission(study, client, 2**50, key), self._mallory)
        self._write(self.topics.releases.name, client, word)
        said = Standing(study, client, [Entry(2**50, key, 0, 0)])
        self._write(self.topics.clients.name, client, write_signed(said, self._mallory))
        link = Link(1, self._mallory.public.hex())
        keys = write_signed(StudyKeys(study, [link]), self._mallory)
        self._write(self.topics.clients.name, KEYS.decode(), keys)

    def repeats_what_the_study_said(self) -> None:
        """Write an old word, or old keys, behind newer ones."""
        releases = self.topics.releases
        word = self.lying.choice([*self.words])
        self._write(releases.name, self.words[word][0], word)
        if old := self._any(self.topics.clients.name):
            self._write(self.topics.clients.name, (old.key or b"").decode(), old.value or b"")

    def publishes(self) -> None:
        """Publish a model and an estimate that the study did not sign, and old ones again."""
        models, estimates = self.topics.models.name, self.topics.estimates.name
        model = round_model(1, np.full(self.task.size, 4.0), (1.0, 1.0), 40)
        version = self.lying.choice([1, 3, 2**40 - 1])
        text = write_model(self.task, replace(model, version=version), "2026-01-01T00:00:00Z")
        self._write(models, self.task.study.name, text)
        self._write(
            models, self.task.study.name, Authenticator(self.task, [self._mallory]).sign(text)
        )
        for topic in (models, estimates):
            if old := self._any(topic):
                forged = (old.value or b"").replace(b'"', b'"', 1).replace(b"0", b"1", 1)
                self._write(topic, self.task.study.name, forged)
        if old := self._any(models):
            self._write(models, self.task.study.name, old.value or b"")


FORGERIES = (
    Byzantine.sends_what_counts, Byzantine.sends_what_counts,
    Byzantine.sends_another_of_that_number, Byzantine.jumps, Byzantine.sends_at_its_own_point,
    Byzantine.sends_as_another, Byzantine.sends_with_another_ledger,
    Byzantine.sends_next_numbers_of_others, Byzantine.changes_a_bit, Byzantine.admits_itself,
    Byzantine.repeats_what_the_study_said, Byzantine.publishes,
)  # fmt: skip
