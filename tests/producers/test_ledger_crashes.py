"""Clients that die at random points, and copies of their files: nothing repeats or is lost."""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import LocalStoreError
from pipeline.release.task import Task
from producers.store import ClientStore, Outgoing, Tally
from tests.producers.ledger_lives import (
    CLIENT,
    SOURCE,
    STUDIES,
    VAULT,
    Forks,
    Outcome,
    Witness,
    campaign,
    task_of,
)
from tests.stage import until

HERE = "tests.producers.test_ledger_crashes"
#: Fewest deaths of a quick run and of one that has time; at least one in thirty is of each kind.
QUICK, DEATHS = 60, 300


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    with Forks(HERE) as server:
        yield server


@pytest.mark.parametrize("deaths", [QUICK, pytest.param(DEATHS, marks=pytest.mark.slow)])
def test_clients_that_die_anywhere_release_each_record_once(
    forks: Forks, tmp_path: Path, deaths: int
) -> None:
    seed = time.time_ns()
    chance, outcome = random.Random(seed), Outcome()
    while outcome.deaths.total() < deaths and not outcome.faults:
        folder = tmp_path / str(outcome.campaigns)
        folder.mkdir()
        campaign(forks, folder, chance, outcome)
    assert outcome.faults == [], seed
    assert min(outcome.deaths[kind] for kind in ("start", "step", "call", "kill")) >= deaths // 30


class PositionApart(ClientStore):
    """Moves the source position in a transaction of its own."""

    def __init__(self, path: Path, client: str) -> None:
        super().__init__(path, client)
        advance = self._advance

        def stay(study: str, seqs: Sequence[int], position: bytes, tally: Tally) -> None:
            advance(study, seqs, self.peek(study).position, tally)  # type: ignore[arg-type]

        self._advance = stay  # type: ignore[method-assign]

    def release(self, task: Task, source: str, group: Any, **rest: Any) -> None:
        super().release(task, source, group, **rest)
        with self._db.transaction():
            self._db.write("UPDATE streams SET position = ?2 WHERE study = ?1", task.study.name,
                           rest["position"])  # fmt: skip


class PositionFirst(ClientStore):
    """Moves the source position before the release."""

    def release(self, task: Task, source: str, group: Any, **rest: Any) -> None:
        with self._db.transaction():
            self._db.write("UPDATE streams SET position = ?2 WHERE study = ?1", task.study.name,
                           rest["position"])  # fmt: skip
        super().release(task, source, group, **rest)


class GroupInPieces(ClientStore):
    """Stores the releases of a group one by one, each with the last position."""

    def release(self, task: Task, source: str, group: Any, **rest: Any) -> None:
        tally = rest.pop("tally")
        for outgoing in group:
            super().release(task, source, [outgoing], tally=tally, **rest)
            tally = Tally(0, {}, 0)


class SpendApart(ClientStore):
    """Charges the budget in a transaction of its own, behind each release."""

    def release(self, task: Task, source: str, group: Any, **rest: Any) -> None:
        charge, self._budgets.charge = self._budgets.charge, lambda *_: None  # type: ignore[method-assign]
        try:
            super().release(task, source, group, **rest)
        finally:
            self._budgets.charge = charge  # type: ignore[method-assign]
        with self._db.transaction():
            charge(task, source, {group[0].seq: task.budget.event})


class DropsEarly(ClientStore):
    """Forgets bytes when they are handed out, before they are acknowledged."""

    def unsent(self, study: str, after: int, limit: int) -> list[Outgoing]:
        found = super().unsent(study, after, limit)
        super().sent(study, [outgoing.seq for outgoing in found], None)
        return found


class NoisesAgain(ClientStore):
    """Makes new bytes for what it sends again."""

    def unsent(self, study: str, after: int, limit: int) -> list[Outgoing]:
        mark = os.urandom(4).hex().encode()
        return [
            Outgoing(o.seq, o.payload[:-2] + mark + b'"]', o.headers)
            for o in super().unsent(study, after, limit)
        ]


@pytest.mark.parametrize(
    "broken", [PositionApart, PositionFirst, GroupInPieces, SpendApart, DropsEarly, NoisesAgain]
)
def test_a_broken_vault_is_found(forks: Forks, tmp_path: Path, broken: type[ClientStore]) -> None:
    """Else the test above shows nothing."""
    chance, outcome = random.Random(1), Outcome()
    while not outcome.faults:
        # kills fall anywhere: the rarest fault took 87 deaths on average of 17 searches, and so
        # 600 deaths miss it once in a thousand runs, 1,200 once in a million
        assert outcome.deaths.total() < 4 * DEATHS
        folder = tmp_path / str(outcome.campaigns)
        folder.mkdir()
        campaign(forks, folder, chance, outcome, f"{HERE}:{broken.__name__}")


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        time.sleep(0.0005)
    yield
    os.kill(pid, signal.SIGCONT)


def torn(pid: int, folder: Path, made: Path, chance: random.Random) -> None:
    """Copy all files at one moment, and cut the log at a random byte."""
    with stopped(pid):
        for file in folder.glob(f"{CLIENT}.*"):
            shutil.copy(file, made)
    log = made / f"{CLIENT}.db-wal"
    os.truncate(log, chance.randint(0, log.stat().st_size))


def careless(pid: int, folder: Path, made: Path, chance: random.Random) -> None:
    """Copy file by file while the client goes on."""
    names = list(folder.glob(f"{CLIENT}.*"))
    for file in chance.sample(names, len(names)):
        shutil.copy(file, made)
        time.sleep(chance.uniform(0, 0.004))


def mixed(pid: int, folder: Path, made: Path, chance: random.Random) -> None:
    """Put an older file beside the log that a client has left, as a hasty restore does."""
    with stopped(pid):
        for name in (f"{CLIENT}.db", f"{CLIENT}.lock"):
            shutil.copy(folder / name, made)
    time.sleep(chance.uniform(0, 0.05))
    with stopped(pid):
        shutil.copy(folder / f"{CLIENT}.db-wal", made)


#: So many that some of each kind can be opened; one in ten to twenty can.
COPIES = 240


@pytest.fixture
def disk() -> Iterator[Path]:
    """Yield a folder on a disk: in memory a client writes too fast for most of these copies."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        yield Path(folder)


@pytest.mark.slow
@pytest.mark.parametrize("copy", [careless, torn, mixed])
def test_a_copy_of_a_live_clients_files_is_an_earlier_state_or_refused(
    forks: Forks, disk: Path, copy: Callable[..., None]
) -> None:
    """Each way of copying breaks what SQLite asks of a disk; a gap would be a release repeated."""
    seed = time.time_ns()
    chance, topic = random.Random(seed), disk / "published"
    pid = forks.begin(folder=str(disk), store=VAULT, records=100_000, kind="none", at=0, seed=seed)
    until(lambda: topic.exists() and topic.stat().st_size >= 100, "it publishes")
    copies = [disk / f"copy-{n}" for n in range(COPIES)]
    for made in copies:
        made.mkdir()
        copy(pid, disk, made, chance)
        time.sleep(chance.uniform(0, 0.02))
    os.kill(pid, signal.SIGKILL)
    forks.answer()
    witness = Witness(disk)
    faults, opened = witness.faults(), 0
    for made in copies:
        with suppress(LocalStoreError):
            with ClientStore(made / f"{CLIENT}.db", CLIENT) as store:
                for study in STUDIES:
                    store.open_stream(task_of(study), SOURCE)
                    store.unsent(study, -1, 10_000)
            opened += 1
            faults += [f"{fault} ({made.name})" for fault in witness.faults(made)]
    assert faults == [], seed
    assert opened > 5
