"""A storm: crashes of everything and restores of old backups, and no record noised twice.

`python -m benchmarks.storm [--kills 200] [--minutes M] [--seed S] [--only STUDY ...]`. Three
studies at once, each with a Kafka and a Redis of its own, four clients and two workers as
processes, windows in flight by default, half of the clients with times of 2013. At random, and at
once restarted: SIGKILL of clients, workers, Redis and Kafka; copies of client folders, taken while
they run, come back with or without their lock file, and whoever is refused with 44 goes on with
--skip-lost. K is how many processes SIGKILL ends while the others run; a third of them in a study
with noise, a third in one without privacy whose records can be told apart in its sums, and a third
in an authenticated one, where keys change, clients are revoked and taken back, and workers come and
go. Prints a line of JSON; ends with 1 on a fault.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import random
import shutil
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from types import MappingProxyType

from agents.history import refold
from infra.local import LocalRuntime
from pipeline.messages.envelope import header
from pipeline.stream.partition import differences
from tests.log_checks import PLANTED, noised_twice, payloads, shared_records, uncounted
from tests.stage import Stage, study_text
from tests.trusted import TRUST

STUDIES = ("noised", "planted", "trusted")
CLIENTS, WORKERS, SLOTS = ("north", "east", "south", "west"), ("w0", "w1"), 20
TIMED = ("south", "west")
#: Codes of ends that pass by themselves: a supervisor starts again.
PASSING = {41, 50, 60}
BEHIND = 44
#: Records that a source grows by at a time, and seconds in between.
GROWTH, EVERY = 2 * SLOTS, 1.0
#: Longest that everything may take to come to rest, in seconds, without a release that is folded.
REST = 300.0
#: A worker that comes and goes, and how a client ends that was revoked.
GUEST, REFUSED = "w2", 10


class Storm:
    """One study in a storm.

    stage, runtime: The study's processes, and the servers that they use.
    chance: Where and when blows fall.

    weights: Of a hundred blows, how many are of each kind.
    clients, timed: Who sends, and which of them with times of 2013.
    """

    clients, timed = CLIENTS, TIMED
    weights: Mapping[str, int] = MappingProxyType(
        {"worker": 30, "client": 36, "redis": 8, "kafka": 6, "restore": 20}
    )

    def __init__(self, stage: Stage, runtime: LocalRuntime, chance: random.Random) -> None:
        self.stage, self.runtime, self.chance = stage, runtime, chance
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []
        self.rows = dict.fromkeys(self.clients, 0)
        self._copies: dict[str, list[Path]] = {client: [] for client in self.clients}
        self._skips: set[str] = set()
        self._restored: set[str] = set()
        self._grown = 0.0

    def prepare(self) -> None:
        self.stage.ensure_topics()

    def run(self, kills: int, minutes: float) -> None:
        """Let blows fall, until so many processes were killed or time is over; rest, and look."""
        self.begin()
        # the first copies are from before the first acknowledgement, or soon after it
        deadline = time.monotonic() + REST
        while not all(self._copies.values()):
            if time.monotonic() > deadline:
                raise RuntimeError("the clients do not start")
            for client in self.clients:
                if not self._copies[client]:
                    self._copy(client)
            self.let_pass(0.1)
        end = time.monotonic() + 60 * minutes
        while kills > self.counts["SIGKILL"] and time.monotonic() < end:
            self._blow()
            self.let_pass(self.chance.uniform(0.2, 3.0))
            struck = f"{self.stage.folder.name}: {self.counts['SIGKILL']} kills"
            print(f"\r{struck:30}", end="", file=sys.stderr, flush=True)
        self.rest()

    def begin(self) -> None:
        self.prepare()
        for client in self.clients:
            self._file(client).write_text("mark,heat,load,failed,at\n")
        self._grow()
        for worker in WORKERS:
            self.stage.worker(worker)
        for client in self.clients:
            self._produce(client)

    def let_pass(self, seconds: float) -> None:
        """Let time pass: sources grow, copies are taken, and what has ended is started again."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if time.monotonic() - self._grown > EVERY:
                self._grow()
                if "restore" in self.weights and self.chance.random() < 0.6:
                    self._copy(self.chance.choice(self.clients))
            self.tend()
            time.sleep(0.05)

    def _blow(self) -> None:
        [kind] = self.chance.choices(list(self.weights), list(self.weights.values()))
        self.counts[kind] += 1
        self.strike(kind)

    def strike(self, kind: str) -> None:
        if kind in ("redis", "kafka"):
            self.counts["SIGKILL"] += 1
            self.runtime.kill(kind)
            self.let_pass(self.chance.uniform(0.0, 1.0))
            self.runtime.restart(kind)
        elif kind == "restore":
            self._restore(self.chance.choice(self.clients))
        else:
            name = self.chance.choice(WORKERS if kind == "worker" else self.clients)
            self.kill(name)
            self.start(name)

    def kill(self, name: str) -> None:
        """Kill a client or worker; one that has ended by itself does not count."""
        self.counts["SIGKILL"] += self.stage.processes[name].poll() is None
        self.stage.kill(name)

    def _copy(self, client: str) -> None:
        """Take a copy as an operator would: of the database in one piece, and of the lock file."""
        here, copy = self.stage.database(client), self.stage.folder / "copies" / client
        copy = copy / str(len(self._copies[client]))
        copy.mkdir(parents=True, exist_ok=True)
        try:
            with (
                contextlib.closing(sqlite3.connect(f"file:{here}?mode=ro", uri=True)) as source,
                contextlib.closing(sqlite3.connect(copy / here.name)) as target,
            ):
                source.backup(target)
                if not target.execute("SELECT 1 FROM identity").fetchall():
                    return
        except sqlite3.Error:
            # it is not whole yet, or nobody holds it who could let a reader in
            return
        shutil.copy(here.with_suffix(".lock"), copy)
        self._copies[client].append(copy)
        self.counts["copies"] += 1

    def _restore(self, client: str) -> None:
        """Put a copy back, the newest ones more often, with or without its lock file."""
        self.kill(client)
        copies = self._copies[client]
        copy = copies[-1 - min(len(copies) - 1, int(self.chance.expovariate(0.3)))]
        if self.chance.random() < 0.3:
            copy = copies[0]
        here = self.stage.database(client)
        for end in ("-wal", "-shm"):
            here.with_name(here.name + end).unlink(missing_ok=True)
        shutil.copy(copy / here.name, here)
        if self.chance.random() < 0.5:
            shutil.copy(copy / f"{client}.lock", here.with_suffix(".lock"))
        self._restored.add(client)
        self.start(client)

    def tend(self) -> None:
        """Start again what has ended."""
        for name, process in list(self.stage.processes.items()):
            if (code := process.poll()) is not None:
                self.judge(name, code)
                self.start(name)

    def judge(self, name: str, code: int) -> None:
        """Accept an end that has a reason."""
        if code == BEHIND and name in self._restored:
            self.counts["refused"] += 1
            self._skips.add(name)
        elif code not in PASSING:
            said = self.stage.said(name).splitlines()[-1:]
            raise RuntimeError(f"{name} ended with {code}: {said}")

    def start(self, name: str) -> None:
        if name not in self.clients:
            self.stage.worker(name)
        else:
            self._produce(name)

    def _produce(self, client: str, *, follow: bool = True) -> None:
        options = ["--follow"] * follow + ["--event-time", "at"] * (client in self.timed)
        # whoever was refused must not be refused again
        options += ["--skip-lost"] * (client in self._skips)
        self._skips.discard(client)
        self.stage.produce(client, self._file(client), *options)

    def _grow(self) -> None:
        self._grown, noised = time.monotonic(), self.stage.task.study.noised
        for client in self.clients:
            first, count = self.rows[client], self.due(client)
            with self._file(client).open("a") as file:
                for mark in range(first, first + count):
                    y, x = self.chance.uniform(-1, 1), self.chance.uniform(-1, 1)
                    word = ("no" if y < x else "yes") if noised else f"{y:.4f}"
                    file.write(f"{mark},{50 + 40 * x:.4f},{x:.4f},{word},{1_360_000_000 + mark}\n")
            self.rows[client] += count

    def due(self, _client: str) -> int:
        """Return by how many records a source grows now: full windows, as all are counted."""
        return GROWTH

    def _file(self, client: str) -> Path:
        return self.stage.folder / f"{client}.csv"

    def rest(self) -> None:
        """Finish the sources as they are, wait for the workers, and compare everything."""
        stage = self.stage
        for client in self.clients:
            stage.kill(client)
            self._produce(client, follow=False)
        deadline, left, folded = time.monotonic() + REST, set(self.clients), 0
        while left:
            # what has grown while everything was struck down may take as long again
            if folded < (reached := sum(p.head.next_offset for p in stage.partitions())):
                deadline, folded = time.monotonic() + REST, reached
            if time.monotonic() > deadline:
                raise RuntimeError(f"{sorted(left)} do not come to their end")
            for client in sorted(left):
                if (code := stage.processes[client].poll()) == 0:
                    left.remove(client)
                    del stage.processes[client]
                elif code is not None:
                    self.judge(client, code)
                    self._produce(client, follow=False)
            for worker in WORKERS:
                if (code := stage.processes[worker].poll()) is not None:
                    self.judge(worker, code)
                    stage.worker(worker)
            time.sleep(1.0)
        stage.caught_up()
        self._look()

    def _look(self) -> None:
        stage, log = self.stage, self.stage.releases()
        found = payloads(log)
        self.faults += [f"{identity} has several bytes" for identity in noised_twice(found)]
        unsent = 0
        for client in self.clients:
            faults, never = uncounted(stage, client, self.rows[client], found)
            self.faults += faults
            unsent += never
        if not stage.task.study.noised:
            self.faults += shared_records(stage.task, found)
        stored = stage.partitions()
        for number, partition in enumerate(stored):
            self.faults += differences(partition, refold(stage.task, stage.settings, number))
        missing = sum(entry.missing for p in stored for entry in p.clients.values())
        letters = self.letters(sum(p.head.dead_letters for p in stored))
        if missing > unsent + letters:
            self.faults.append(f"{missing} missing, {unsent} never sent, {letters} dead letters")
        if not stage.verified():
            self.faults.append("state verify")
        self.counts.update(
            releases=len(found), sent_again=len(log) - len(found), never_sent=unsent,
            records=sum(self.rows.values()),
        )  # fmt: skip

    def letters(self, count: int) -> int:
        """Return how many releases may be missing as they are dead letters: here none may be."""
        if count:
            self.faults.append(f"{count} dead letters")
        return 0


class TrustedStorm(Storm):
    """An authenticated study in a storm, among changes of who is believed."""

    weights = MappingProxyType({**Storm.weights, "rotate": 12, "revoke": 16, "rebalance": 20})

    def prepare(self) -> None:
        super().prepare()
        self._run("study", "keys")
        for client in self.clients:
            enrolled = self._run("client", "enrol", "--client", client, study=False)
            (self.stage.folder / f"{client}.json").write_text(enrolled)
            self._admit(client)

    def strike(self, kind: str) -> None:
        if kind == "rotate":
            self._run("study", "keys", "--rotate")
            # a worker that starts tells the clients
            worker = self.chance.choice(WORKERS)
            self.kill(worker)
            self.start(worker)
        elif kind == "revoke":
            client = self.chance.choice(self.clients)
            self._run("client", "revoke", client)
            self.let_pass(self.chance.uniform(0.0, 2.0))
            self._admit(client)
        elif kind == "rebalance":
            if GUEST in self.stage.processes:
                self.stage.stop(GUEST)
                del self.stage.processes[GUEST]
            else:
                self.start(GUEST)
        else:
            super().strike(kind)

    def judge(self, name: str, code: int) -> None:
        """Accept the end of a client that was revoked, too."""
        said = self.stage.said(name).splitlines()[-3:]
        if code == REFUSED and "was revoked" in " ".join(said):
            self.counts["turned away"] += 1
            return
        super().judge(name, code)

    def letters(self, count: int) -> int:
        """Return how many releases came while their client was revoked."""
        found = {
            tuple(
                header(r.headers, f"veil_dlq_{part}") for part in ("partition", "offset", "reason")
            )
            for r in self.stage.dead_letters()
        }
        if len(found) != count or {reason for _, _, reason in found} - {b"revoked"}:
            self.faults.append(f"{count} dead letters are counted, and there are {sorted(found)}")
        self.counts["revoked releases"] = count
        return count

    def _admit(self, client: str) -> None:
        self._run("client", "admit", str(self.stage.folder / f"{client}.json"))

    def _run(self, room: str, command: str, *options: str, study: bool = True) -> str:
        done = self.stage.run(room, command, *[self.stage.study] * study, *options)
        if done.returncode:
            raise RuntimeError(f"{room} {command}: {done.stderr.splitlines()[-1:]}")
        return done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200, help="how many times SIGKILL is sent")
    parser.add_argument("--minutes", type=float, default=math.inf, help="of blows, for each study")
    parser.add_argument("--seed", type=int, default=20261122)
    parser.add_argument("--only", nargs="*", choices=STUDIES, default=STUDIES)
    chosen = parser.parse_args()
    began, only = time.monotonic(), chosen.only
    kills = [(chosen.kills + part) // len(only) for part in range(len(only))]
    seeds = [chosen.seed + part for part in range(len(only))]
    # beside each other: most of the time they wait
    with ProcessPoolExecutor(len(only), mp_context=get_context("spawn")) as pool:
        struck = partial(struck_by, minutes=chosen.minutes)
        runs = dict(zip(only, pool.map(struck, only, kills, seeds), strict=True))
    faults = [f"{name}: {fault}" for name, (_, own) in runs.items() for fault in own]
    result = {
        "storm": chosen.kills, "seed": chosen.seed,
        **{name: counts for name, (counts, _) in runs.items()}, "faults": faults[:20],
        "held": not faults, "seconds": round(time.monotonic() - began),
    }  # fmt: skip
    print(json.dumps(result))
    return int(bool(faults))


def struck_by(name: str, kills: int, seed: int, minutes: float) -> tuple[Counter[str], list[str]]:
    """Run one study, on servers of its own, and return what happened, and what was wrong."""
    noised = study_text(f"storm-{name}", records=SLOTS).replace('"1d"', '"forever"')
    texts = {
        "noised": noised,
        "planted": PLANTED.format(name="storm-planted", records=SLOTS),
        "trusted": noised + TRUST,
    }
    kind = TrustedStorm if name == "trusted" else Storm
    with tempfile.TemporaryDirectory() as folder:
        runtime = LocalRuntime(Path(folder) / "runtime")
        with runtime as at, Stage(Path(folder) / name, at.kafka, at.redis, texts[name]) as stage:
            storm = kind(stage, runtime, random.Random(seed))
            try:
                storm.run(kills, minutes)
            except (RuntimeError, AssertionError) as error:
                storm.faults.append(str(error))
    return storm.counts, storm.faults


if __name__ == "__main__":
    sys.exit(main())
