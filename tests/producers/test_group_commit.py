"""Windows that share a transaction: how many may, that all of them or none are stored, and when.

The client's loop, its source and its database are real; the two ends at Kafka are stand-ins that
acknowledge and model as a test says, but for the last test.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from pipeline.messages.release import header_of
from pipeline.methods import task_of as make_task
from pipeline.release.model import Model, round_model, start_model
from pipeline.release.task import Task
from pipeline.study_file.load import parse_study
from producers import client as loop
from producers.budget import Limit
from producers.client import Client
from producers.sources import open_source
from producers.sources.base import Source
from producers.store import ClientStore
from tests.databases import sqlite_file
from tests.stage import HEADER, OPEN, lines, study_text, write_csv

NAME = "csv:data.csv"
#: Turns in which a window must be released once its time has come: the reader of a pipe is a thread
#: of its own. Turns and no seconds: a machine that stalls stalls both.
PROMPT = 5


def task_of(**study: Any) -> Task:
    return make_task(
        parse_study(
            study_text("one", **{"privacy": OPEN, "stream": "max_in_flight_windows = 0"} | study)
        )
    )


@dataclass
class Ends:
    """Stands for sender and model feed; acknowledges what it is told to.

    Attributes
    ----------
    read_to
        How many releases the newest model has seen.
    acknowledged
        How many Kafka has: the offset of a release is its number.
    """

    claiming = False

    store: ClientStore
    newest: Model
    acknowledge: int = 0
    read_to: int = 0
    acknowledged: int = 0

    def pump(self) -> None:
        numbers = [item.seq for item in self.store.unsent("one", -1, self.acknowledge)]
        if numbers:
            self.store.sent("one", numbers, (0, numbers[-1]))
            self.acknowledged = numbers[-1] + 1

    def unseen(self, offset: int) -> tuple[int, int]:
        return self.acknowledged - offset, 0

    def wait(self, seconds: float) -> bool:
        return False

    def move(self, version: int, seen: int) -> None:
        """Bring a model that has seen so many releases."""
        self.newest = round_model(version, np.full(len(self.newest.lattice), 0.1), (1.0, 1.0))
        self.read_to = seen

    def drain(self) -> None:
        self.pump()

    def poll(self, seconds: float = 0.0) -> Model:
        time.sleep(min(seconds, 0.005))
        return self.newest


@dataclass
class Bench:
    """A folder with a client's database and source, and what is needed to run its loop."""

    folder: Path
    task: Task
    ends: Ends = field(init=False)
    store: ClientStore = field(init=False)

    def start(self, spec: Path | str | None = None, **options: Any) -> Client:
        """Start the loop where the database stands."""
        self.store = ClientStore(self.folder / "site.db", "site")
        self.ends = Ends(self.store, start_model(self.task.size))
        stream = self.store.open_stream(self.task, NAME, options.pop("limit", Limit()))
        rate = options.pop("rate", None)
        clock, ahead = options.pop("clock", time.monotonic), options.pop("ahead", 0.0)
        source = open_source(
            str(spec or self.folder / "data.csv"), stream.position, folder=self.folder, **options
        )
        return Client(
            self.task, cast("Source", source), self.store, cast("Any", self.ends),
            cast("Any", self.ends), source_name=NAME, rate=rate,
            ahead=ahead, clock=clock,
        )  # fmt: skip

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        with sqlite_file(f"file:{self.folder}/site.db?mode=ro", uri=True) as db:
            return db.execute(statement).fetchall()

    def numbers(self) -> list[int]:
        return [seq for (seq,) in self.rows("SELECT seq FROM ledger")]

    def records(self) -> list[int]:
        """Return how many records each release in the outbox holds; without privacy it says so."""
        found = [header_of(payload) for (payload,) in self.rows("SELECT payload FROM outbox")]
        return [release.records for release in found]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(count: int, **study: Any) -> Bench:
        write_csv(tmp_path / "data.csv", count)
        made.append(Bench(tmp_path, task_of(**study)))
        return made[-1]

    yield make
    for one in made:
        one.store.close()


Make = Callable[..., Bench]


def test_windows_that_are_ready_together_share_a_transaction(bench: Make) -> None:
    one = bench(330, records=10)
    client = one.start()
    commits = 0

    def count(statement: str) -> None:
        nonlocal commits
        commits += statement == "COMMIT"

    one.store._db._db.set_trace_callback(count)
    while client.turn():
        pass
    assert (one.numbers(), one.records()) == (list(range(33)), [10] * 33)
    assert commits == 1


@pytest.mark.parametrize("windows", [1, loop.GROUP, loop.GROUP + 1])
def test_no_group_is_larger_than_allowed_and_numbers_go_on(bench: Make, windows: int) -> None:
    one = bench(10 * windows - 3, records=10)
    client, seen = one.start(), [0]
    going = True
    while going:
        going = client.turn()
        seen.append(client.progress.releases)
    groups = [after - before for before, after in pairwise(seen)]
    assert max(groups) == min(windows, loop.GROUP)
    assert one.numbers() == list(range(windows))
    assert one.records() == [10] * (windows - 1) + [7]
    assert one.rows("SELECT next_seq, records FROM streams") == [(windows, 10 * windows - 3)]


def test_large_windows_do_not_make_a_turn_read_more_than_its_slots(bench: Make) -> None:
    one = bench(72_000, records=1500)
    client = one.start()
    client.turn()
    assert client.progress.records == loop.GROUP_SLOTS
    while client.turn():
        pass
    assert one.records() == [1500] * 48


@pytest.mark.parametrize("lead", [2, loop.GROUP + 6])
def test_a_group_never_goes_beyond_the_lead(bench: Make, lead: int) -> None:
    one = bench(5 * 4 * lead + 7, records=5, stream=f"max_in_flight_windows = {lead}")
    client = one.start()
    for version in range(1, 4):
        for _ in range(6):
            client.turn()
        assert client.progress.releases == version * lead
        assert client.progress.waiting_for == "a newer model"
        one.ends.acknowledge = client.progress.releases
        one.ends.move(version, 0 if version == 1 else (version - 2) * lead)
        for _ in range(6):
            # a newer model alone changes nothing, and neither does an acknowledgement
            client.turn()
        assert client.progress.releases == version * lead
        one.ends.acknowledge = 0
        one.ends.move(version, version * lead)
    while client.turn():
        one.ends.acknowledge = lead
        one.ends.move(9, one.ends.acknowledged)
    assert client.progress.releases == 4 * lead + 2


def test_whatever_comes_when_no_limit_is_passed(bench: Make, monkeypatch: Any) -> None:
    """Models and acknowledgements at random, and so are the lead and the outbox."""
    for lead, limit in [(1, 7), (3, 40), (10, 7), (30, 1)]:
        chance = random.Random(100 * lead + limit)
        monkeypatch.setattr(loop, "OUTBOX_LIMIT", limit)
        windows = chance.randint(20, 45)
        one = bench(3 * windows - 1, records=3, stream=f"max_in_flight_windows = {lead}")
        client, version = one.start(), 0
        while client.turn():
            assert one.store.waiting("one") <= limit
            assert client.progress.releases - one.ends.read_to <= lead
            one.ends.acknowledge = chance.choice([0, 0, 1, 5, 100])
            if chance.random() < 0.3:
                version += 1
                one.ends.move(version, chance.randint(one.ends.read_to, one.ends.acknowledged))
        assert one.numbers() == list(range(windows))
        one.store.close()
        (one.folder / "site.db").unlink()
        (one.folder / "site.lock").unlink()


def test_the_outbox_stops_at_its_limit_and_takes_as_many_as_kafka_took(
    bench: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "OUTBOX_LIMIT", 200)
    one = bench(300, records=1)
    client = one.start()
    most = 0
    for _ in range(30):
        client.turn()
        most = max(most, one.store.waiting("one"))
    assert (most, client.progress.releases) == (200, 200)
    assert client.progress.waiting_for == "Kafka"
    for taken in (1, 70):
        one.ends.acknowledge = taken
        before = client.progress.releases
        client.turn()
        one.ends.acknowledge = 0
        client.turn()
        assert client.progress.releases == before + taken
        assert one.store.waiting("one") == 200


def test_what_an_open_window_holds_is_counted_with_its_release(bench: Make) -> None:
    one = bench(0, records=10)
    good = lines(40)
    bad = ["warm,0.5,yes\n", "NaN,0.5,yes\n", "1e6,0.5,yes\n"]  # two faults and a clipped value
    source = one.folder / "data.csv"
    source.write_text(
        HEADER + "".join([*good[:8], *bad[:2], *good[8:17], bad[2], *good[17:19], *bad])
    )
    query = "SELECT next_seq, records, rejected, clipped FROM streams"

    client = one.start(follow=True)
    client.turn()
    assert client.progress.records == 25
    assert one.rows(query) == [(2, 18, 2, 1)]
    one.store.close()
    # a restart reads the open window again; it must not have been counted
    client = one.start(follow=True)
    client.turn()
    assert client.progress.records == 5
    assert one.rows(query) == [(2, 18, 2, 1)]
    with source.open("a") as file:
        file.write("".join(good[20:26]))
    client.turn()
    assert one.rows(query) == [(3, 26, 4, 2)]
    assert sum(n for (n,) in one.rows("SELECT count FROM rejects")) == 4
    assert one.records() == [8, 10, 8]


# from here on: how long a window waits


@dataclass
class Clock:
    """Seconds that pass when a test says so."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def promptly(client: Client, releases: int) -> None:
    """Turn until so many releases are stored."""
    for _ in range(PROMPT):
        client.turn()
        if client.progress.releases >= releases:
            break
    assert client.progress.releases == releases


def test_windows_from_a_slow_pipe_are_released_as_they_fill(bench: Make) -> None:
    """Nothing follows a window until it is released: one that waits for a group never comes."""
    one = bench(0, records=5)
    inside, outside = os.pipe()
    with os.fdopen(inside, "rb", buffering=0) as stream, os.fdopen(outside, "wb", 0) as pipe:
        pipe.write(HEADER.encode())
        client = one.start("-", stream=stream)
        for window in range(20):
            pipe.write("".join(lines(5, window)).encode())
            promptly(client, window + 1)
    assert one.records() == [5] * 20


def test_windows_of_a_paced_source_are_released_at_its_pace(bench: Make) -> None:
    one, clock = bench(100, records=10), Clock()
    client = one.start(rate=100, clock=clock)
    for window in range(6):
        clock.now = 0.1 * (window + 1) - 0.01
        client.turn()
        assert client.progress.releases == window
        clock.now = 0.1 * (window + 1) + 0.001
        promptly(client, window + 1)
    assert one.records() == [10] * 6


def test_a_paced_source_holds_up_no_release_that_waits_for_its_claim(
    bench: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, clock, slept = bench(100, records=10), Clock(), list[float]()
    client = one.start(rate=100, clock=clock)
    monkeypatch.setattr("producers.client.time.sleep", slept.append)
    for one.ends.claiming in (True, False):
        client.turn()
    assert list(filter(None, slept)) == [0.005, 0.1]


def test_a_rate_counts_from_the_time_that_all_clients_were_given(bench: Make) -> None:
    one, clock = bench(5000, records=10), Clock()
    client = one.start(rate=100, ahead=5.0, clock=clock)
    for now in (0.0, 4.9, 5.05):
        clock.now = now
        client.turn()
        assert client.progress.records == 0
    clock.now = 5.101
    client.turn()
    assert client.progress.records == 10
    # a client that is late has at once what the others have sent by now
    one.store.close()
    late = one.start(rate=100, ahead=-2.0, clock=clock)
    late.turn()
    assert late.progress.records == 200


def test_windows_with_a_time_are_released_when_it_is_over(bench: Make) -> None:
    """Each window's time begins with its first record."""
    one, clock = bench(0, records=1000, window="seconds = 0.4"), Clock()
    client = one.start(follow=True, clock=clock)
    with (one.folder / "data.csv").open("a", buffering=1) as file:
        for window in range(4):
            for line in lines(window + 1, window):
                file.write(line)
                client.turn()
                clock.now += 0.39 / (window + 1)
            client.turn()
            assert client.progress.releases == window
            clock.now += 0.02
            promptly(client, window + 1)
            clock.now += 5.0
    assert one.records() == [1, 2, 3, 4]
