"""An authenticated study without servers: its keys, its clients, and a log of what they send."""

from __future__ import annotations

from dataclasses import dataclass, field

from pipeline.messages.admission import Admission, Retirement, write_signed
from pipeline.messages.authentic import Authenticator
from pipeline.methods import task_of
from pipeline.privacy.randomness import SecureStream
from pipeline.release.model import Model, round_model
from pipeline.release.task import Task
from pipeline.stream.fold import Reducer
from pipeline.stream.partition import Partition
from pipeline.stream.release import release_of
from pipeline.study_file.load import parse_study
from pipeline.trust import Pair, Stamp
from tests.builders import LogEntry
from tests.stage import study_text

TRUST = '\n[trust]\nreleases = "authenticated"\n'


def trusted_task(name: str = "trusted", **settings: object) -> Task:
    """Return an authenticated study of one partition."""
    return task_of(parse_study(study_text(name, partitions=1, **settings) + TRUST))  # type: ignore[arg-type]


@dataclass
class World:
    """A study, its clients, and the log of its one partition.

    pairs: The study's keys, oldest first.
    clients: Pairs by client id.
    bound: Whether admissions say that MACs are over the times of records, as those of today do.
    """

    task: Task = field(default_factory=trusted_task)
    pairs: list[Pair] = field(default_factory=lambda: [Pair(b"s" * 32)])
    clients: dict[str, Pair] = field(default_factory=dict)
    log: list[LogEntry] = field(default_factory=list)
    serial: int = 0
    bound: bool = False
    since: dict[str, int] = field(default_factory=dict)

    @property
    def authority(self) -> Authenticator:
        """The study's keys at work."""
        return Authenticator(self.task, self.pairs)

    def append(self, key: str, value: bytes, time: int = 1000) -> LogEntry:
        """Add a record to the log."""
        self.log.append(LogEntry(len(self.log), key.encode(), value, timestamp=time))
        return self.log[-1]

    def client(self, name: str) -> Pair:
        """Return a client's pair."""
        return self.clients.setdefault(name, Pair(name.encode().ljust(32, b".")))

    def say(self, client: str, key: Pair | None, *, by: Pair | None = None) -> bytes:
        """Add an admission, or a revocation, and return it."""
        self.serial += 1
        public = "" if key is None else key.public.hex()
        self.since[client] = self.serial if self.bound else 0
        word = Admission(self.task.study.name, client, self.serial, public, self.since[client])
        payload = write_signed(word, by or self.pairs[-1])
        self.append(client, payload)
        return payload

    def admit(self, client: str) -> bytes:
        """Admit a client."""
        return self.say(client, self.client(client))

    def retire(self, generation: int, by: Pair) -> None:
        """Add a retirement of older keys."""
        self.serial += 1
        word = Retirement(self.task.study.name, self.serial, generation)
        self.append("/keys", write_signed(word, by))

    def model(self, version: int = 1, pair: Pair | None = None) -> Model:
        """Return a published model, with its ticket."""
        model = round_model(version, [0.25, -0.5, 0.125], (1.0, 1.0), 40)  # type: ignore[arg-type]
        return Authenticator(self.task, [pair or self.pairs[-1]]).ticketed(model)

    def stamp(self, client: str, pair: Pair | None = None, own: Pair | None = None) -> Stamp:
        """Return what puts a client's MAC on its releases."""
        study = pair or self.pairs[-1]
        key = (own or self.client(client)).mac_key(
            study.public, study=self.task.study.name, client=client, generation=study.generation
        )
        return Stamp(key, study.generation, self.since.get(client, 0))

    def bare(self, client: str, seq: int, model: Model | None = None) -> bytes:
        """Return a release as it is before it leaves."""
        return release_of(
            self.task, [], model or self.task.first_model, SecureStream(),
            client=client, ledger=f"l-{client}", seq=seq,
        )  # fmt: skip

    def send(self, client: str, seq: int, model: Model | None = None, time: int = 1000) -> LogEntry:
        """Add a client's release to the log."""
        return self.append(client, self.stamp(client)(self.bare(client, seq, model), time), time)

    def folded(self, *sizes: int) -> tuple[Partition, list[tuple[int, str]]]:
        """Fold the log in batches of these sizes, the rest at once; return dead letters, too."""
        state, reducer = (
            Partition.empty(self.task, number=0),
            Reducer(self.task, trust=self.authority),
        )
        letters, at = [], 0
        for size in (*sizes, len(self.log)):
            found = reducer.fold(state, self.log[at : at + size])
            letters += [(letter.offset, letter.fault.reason) for letter in found]
            at += size
        return state, letters
