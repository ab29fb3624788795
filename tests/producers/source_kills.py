"""Clients of every source under SIGKILL: no record is lost, and none is noised twice.

`python -m tests.producers.source_kills [--kills 200] [--seed S] [--only SOURCE ...]`. Each source
gets its share of the kills. Half of them fall at a random time of a client's life, half at a point
of its work, such as between the storing of a posted record and the answer (`dying_client`). Records
are added meanwhile. Half-way the study is changed into one that follows it. At the end every
release of both is read from the log: the study has no noise, so exact sums tell which records are
in it. Prints a line of JSON for each source; ends with 1 on a fault.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from infra.local import LocalRuntime
from pipeline.messages.release import read
from tests.log_checks import MARKS, PLANTED, noised_twice, payloads, shared_records
from tests.producers.dying_client import POINTS
from tests.producers.killed_sources import SOURCES, Kind
from tests.stage import Stage, until

SLOTS, CLIENT = 20, "c"
#: Records that are added at a time, and seconds in between.
PART, PAUSE = 20, 0.1
#: Longest life in seconds of one that is killed at a random time: a start takes a third of it.
LIFE = 2.0
#: The largest call at which a client dies, and how long it may take to come to it.
CALLS, WAIT = 15, 60.0


class Campaign:
    """A client of one source that dies again and again, in a study and in the one that follows it.

    kind: The source.
    stages: One or two studies of one folder.
    """

    def __init__(self, kind: Kind, stages: list[Stage], chance: random.Random) -> None:
        self._kind, self._stages, self._chance = kind, stages, chance
        self._stage = stages[0]
        self._input = self._stage.database(CLIENT).with_suffix(".input")
        self._input /= self._stage.task.study.name
        self._feeding, self._fed = threading.Lock(), threading.Event()
        #: How many records were added, and how many releases the ledger last had.
        self.added = self._known = 0
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []
        for stage in stages:
            stage.environment.update(kind.environment)

    def run(self, kills: int) -> None:
        """Kill a client so often, finish the source, and compare."""
        self._stage.worker()
        feeder = threading.Thread(target=self._feed)
        try:
            if not self._kind.ends and not self._kind.piped:
                # before the first subscription nobody keeps anything
                self._start()
                inbox = self._input / "inbox.db"
                until(lambda: self._kind.ready(inbox), "the client subscribes", WAIT)
                self._stage.kill(CLIENT)
            if not self._kind.resting:
                feeder.start()
            for number, stage in enumerate(self._stages):
                if number:
                    self._move(stage)
                share = (kills + number) // len(self._stages)
                while share > self.counts[f"kills_{number}"]:
                    self.counts[f"kills_{number}"] += self._life()
            self._finish(feeder)
        finally:
            self._fed.set()
            for stage in self._stages:
                if CLIENT in stage.processes:
                    stage.kill(CLIENT)
        self._compare()

    def _feed(self) -> None:
        while not self._fed.is_set() and self.added + PART < MARKS:
            with self._feeding, suppress(OSError):
                # a pipe may be broken: what it held is added again
                self._kind.add(range(self.added, self.added + PART))
                self.added += PART
            time.sleep(PAUSE)

    def _start(self, point: str | None = None, *options: str) -> None:
        kind, stage = self._kind, self._stage
        words = ["produce", stage.study, "--client", CLIENT, *kind.options, *options, "--quiet"]
        if point is None and not kind.piped:
            stage.start(CLIENT, *words)
            return
        calls = int(CALLS ** self._chance.random())
        process = stage.start(
            CLIENT, point or "never", calls, *words,
            module="tests.producers.dying_client",
            stdin=subprocess.PIPE if kind.piped else subprocess.DEVNULL,
        )  # fmt: skip
        kind.began(process.stdin)

    def _begin(self, point: str | None = None, *options: str) -> None:
        if not (self._kind.piped or self._kind.resting):
            self._start(point, *options)
            return
        with self._feeding:
            self.added = self._kind.between(self.added)
            self._start(point, *options)

    def _life(self) -> bool:
        """Let a client live and die; return whether it was killed."""
        before, chance = self._numbers(), self._chance
        done, points = (
            self.counts["kills_0"] + self.counts["kills_1"],
            (*self._kind.points, *POINTS),
        )
        point = points[done // 2 % len(points)] if done % 2 else None
        self._begin(point, *self._kind.follow)
        process = self._stage.processes[CLIENT]
        with suppress(subprocess.TimeoutExpired):
            process.wait(chance.uniform(0.02, LIFE) if point is None else WAIT)
        if process.poll() is None:
            # a point that is never reached, such as that of forgetting, is a random time
            point = None
            self._stage.kill(CLIENT)
        if (code := process.wait()) != -signal.SIGKILL:
            if code:
                raise RuntimeError(f"it ended with {code}: {self._stage.said(CLIENT)[-800:]}")
            return False
        after = self._numbers()
        self.counts[f"at_{point or 'random'}"] += 1
        self.counts["lives_with_releases"] += after > before
        return True

    def _numbers(self) -> int:
        """Return how many releases the ledger has; its records must be those of full windows."""
        if not self._stage.database(CLIENT).exists():
            return 0
        try:
            rows = self._stage.query(CLIENT, "SELECT next_seq, records, rejected FROM streams")
        except sqlite3.OperationalError as error:
            # of a database that is being made, or mended by who may write to it
            if not str(error).endswith(("no such table: streams", "a readonly database")):
                raise
            return self._known
        if any(records + rejected != SLOTS * seq for seq, records, rejected in rows):
            self.faults.append(f"the ledger has {rows} after a kill")
        self._known = sum(row[0] for row in rows)
        return self._known

    def _move(self, stage: Stage) -> None:
        """Change the study: nothing of the old one may wait to be sent."""
        before, old = self._numbers(), self._stage
        self._begin(None, *self._kind.follow)
        until(lambda: self._numbers() > before, "releases before the change", WAIT)
        if (code := old.stop(CLIENT)) != 0:
            raise RuntimeError(f"it stopped with {code}: {old.said(CLIENT)[-800:]}")
        done = old.run("study", "change", old.study, stage.study, "--apply")
        if done.returncode:
            raise RuntimeError(done.stderr)
        stage.worker()
        self._stage = stage

    def _finish(self, feeder: threading.Thread) -> None:
        """Add what makes the last window full, and read all of it."""
        self._fed.set()
        if self._kind.ends and not self._kind.piped:
            if feeder.ident:
                feeder.join()
            self._start()
        else:
            self._begin()
            feeder.join()
            # at least one window more: a client that releases hears a signal to stop
            end = self.added + SLOTS + -self.added % SLOTS
            self._kind.add(range(self.added, end))
            self.added = end
        if self._kind.piped:
            self._stage.processes[CLIENT].stdin.close()  # type: ignore[union-attr]
        process = self._stage.processes[CLIENT]
        self._come_to_rest(lambda: process.poll() is not None)
        code = self._stage.code(CLIENT) if self._kind.ends else self._stage.stop(CLIENT)
        if code:
            raise RuntimeError(f"it ended with {code}: {self._stage.said(CLIENT)[-800:]}")

    def _come_to_rest(self, ended: Callable[[], bool]) -> None:
        """Wait until all is released, as long as something is."""
        deadline, reached = time.monotonic() + WAIT, self._numbers()
        while not ended() and (self._kind.ends or reached * SLOTS < self.added):
            if reached < (now := self._numbers()):
                deadline, reached = time.monotonic() + WAIT, now
            if time.monotonic() > deadline:
                raise RuntimeError(f"{reached} releases of {self.added} records, and no more")
            time.sleep(0.1)

    def _compare(self) -> None:
        """Compare what is in the log with what was added, to the record."""
        # 1, mark, load, mark^2: exact, as all of them are dyadic
        sums, folded = [0.0] * 3, 0
        for stage in self._stages:
            log = stage.releases()
            found = payloads(log)
            self.counts.update(releases=len(found), sent_again=len(log) - len(found))
            self.faults += [f"{identity} has several bytes" for identity in noised_twice(found)]
            if self._kind.ordered:
                self.faults += shared_records(stage.task, found)
            for payload in (payload for held in found.values() for payload in held):
                parts = read(stage.task, payload).parts["curvature"]
                sums = [have + float(parts[at]) for have, at in zip(sums, (0, 1, 3), strict=True)]
            folded += stage.final_estimate().records if log else 0
        truth = [2 * mark / MARKS - 1 for mark in range(self.added)]
        if sums != [self.added, sum(truth), sum(x * x for x in truth)]:
            self.faults.append(f"sums of the log are {sums}, and {self.added} records were added")
        if folded != self.added:
            self.faults.append(f"{folded} records are folded, and {self.added} were added")
        if self._numbers() * SLOTS != self.added:
            self.faults.append(f"the ledger has {self._numbers()} releases")
        if self._stage.query(CLIENT, "SELECT count(*) FROM outbox") != [(0,)]:
            self.faults.append("releases were not sent")
        self.counts["records"] = self.added


def campaign(
    source: str, folder: Path, kafka: str, redis: str, kills: int, chance: random.Random
) -> dict[str, Any]:
    """Kill clients of a source, and return counts and faults."""
    began, name = time.monotonic(), f"kills-{source}-{uuid.uuid4().hex[:8]}"
    text = PLANTED.format(name=name, records=SLOTS)
    head = f'name = "{name}"'
    then = text.replace(head, f'name = "{name}-2"\nfollows = "{name}"', 1)
    folder.mkdir(exist_ok=True)
    with SOURCES[source](folder, kafka) as kind:
        stages = [Stage(folder, kafka, redis, each) for each in (text, then)]
        with stages[0], stages[1]:
            one = Campaign(kind, stages, chance)
            try:
                one.run(kills)
            except (RuntimeError, AssertionError, OSError, sqlite3.Error) as error:
                one.faults.append(str(error))
    counts = dict(sorted(one.counts.items()))
    done = counts.pop("kills_0", 0) + counts.pop("kills_1", 0)
    return {
        "source": source, "kills": done, **counts, "faults": one.faults[:20],
        "seconds": round(time.monotonic() - began),
    }  # fmt: skip


def main() -> int:
    """Run the campaigns, and say whether all held."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=200, help="of all sources together")
    parser.add_argument("--seed", type=int, default=20261122)
    parser.add_argument("--only", nargs="*", choices=list(SOURCES), help="default: all that can be")
    chosen = parser.parse_args()
    names, faults = chosen.only or list(SOURCES), 0
    with tempfile.TemporaryDirectory() as folder, LocalRuntime(Path(folder) / "runtime") as at:
        for part, name in enumerate(names):
            kills, chance = (chosen.kills + part) // len(names), random.Random(chosen.seed + part)
            found = campaign(name, Path(folder) / name, at.kafka, at.redis, kills, chance)
            print(json.dumps(found), flush=True)
            faults += len(found["faults"])
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
