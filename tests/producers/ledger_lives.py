"""Clients that die at random points: does a database ever repeat, lose or double a release?

A campaign is one
client with two studies on one source. It has many lives, each a process that dies at a random
instruction of SQLite's machine, at a random point between two calls, by SIGKILL at a random time,
or ends in order. After each, its database is compared with everything that was ever published.
Nothing here needs Kafka: an acknowledgement is a line that is on disk.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import math
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
import traceback
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.errors import BudgetExceeded
from pipeline.methods import task_of as make_task
from pipeline.privacy.events import encode
from pipeline.release.task import Task
from pipeline.study_file.load import parse_study
from producers.budget import Limit
from producers.store import ClientStore, Outgoing, Tally
from tests.builders import study_text

SOURCE, SLOTS, CLIENT = "csv:data.csv", 5, "site"
STUDIES = ("one", "two")
#: Reads the source too, and is refused at every attempt.
REFUSED = "greedy"
#: Records of the source in a campaign.
RECORDS = 150
#: How lives end and how often; and the largest point at which they do, drawn on a log scale.
ENDS = {"start": (2, 6e3), "step": (6, 4e3), "call": (3, 80.0), "kill": (3, 80.0), "end": (1, 80.0)}
DIED = 9
VAULT = "producers.store:ClientStore"


@cache
def task_of(name: str) -> Task:
    """Return a study; two of them fit the limit of the source, the third does not."""
    return make_task(parse_study(study_text(name=name, epsilon=9.0 if name == REFUSED else 1.0)))


class Life:
    """What a client does from its start until everything is released and sent, or it dies.

    Parameters
    ----------
    folder
        Where its database is, and the file that stands for the releases topic.
    store
        Module and name of the store's class.
    records
        How many the source has.
    kind, at
        How it ends: "start", dead at this instruction of SQLite from its start on; "step", the
        same from its first work on; "call", dead at this point between two calls; "end", in order
        at such a point; anything else: not by itself.
    """

    def __init__(
        self, folder: str, store: str, records: int, kind: str, at: float, seed: int
    ) -> None:
        module, name = store.split(":")
        self._store: type[ClientStore] = getattr(importlib.import_module(module), name)
        self._path, self._records = Path(folder) / f"{CLIENT}.db", records
        self._kind, self._left, self._random = kind, int(at), random.Random(seed)
        self._counts = kind == "start"
        file = Path(folder) / "published"
        self._published = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        # a line that a dead process has begun was never acknowledged
        os.write(self._published, b"\n")

    def run(self) -> None:
        if self._kind in {"start", "step"}:
            connect = sqlite3.connect

            def watched(*arguments: Any, **options: Any) -> sqlite3.Connection:
                database = connect(*arguments, **options)
                database.set_progress_handler(self._step, 1)
                return database

            sqlite3.connect = watched  # type: ignore[assignment]
        with self._store(self._path, CLIENT) as store:
            # the write-ahead log is emptied often, so that deaths fall into that, too
            store._db.row("PRAGMA wal_autocheckpoint = 30")
            self._here()
            work = [self._study(store, task_of(name)) for name in STUDIES]
            self._greed(store)
            self._counts = self._kind in {"start", "step"}
            while work and self._here():
                one = self._random.choice(work)
                if not next(one, False):
                    work.remove(one)

    def _step(self) -> None:
        self._left -= self._counts
        if self._left < 0:
            os._exit(DIED)

    def _here(self) -> bool:
        """Pass a point between two calls; false: end in order."""
        if self._kind not in {"call", "end"}:
            return True
        self._left -= 1
        if self._left < 0 and self._kind == "call":
            os._exit(DIED)
        return self._left >= 0

    def _greed(self, store: ClientStore) -> None:
        for name in (*STUDIES, REFUSED):
            store.open_stream(task_of(name), SOURCE, Limit(2.0))
        with contextlib.suppress(BudgetExceeded):
            store.release(
                task_of(REFUSED), SOURCE, [Outgoing(0, b"never", [])], position=b"1",
                tally=Tally(1, {}, 0), now=time.time(),
            )  # fmt: skip

    def _study(self, store: ClientStore, task: Task) -> Iterator[bool]:
        """Release groups, publish and acknowledge in random order until all is done."""
        study, choose = task.study.name, self._random
        stream = store.open_stream(task, SOURCE)
        at, seq, handed = int(stream.position or b"0"), stream.next_seq, -1
        flying: deque[tuple[int, int]] = deque()
        while at < self._records or store.waiting(study):
            yield True
            act = choose.choice(("release", "publish", "publish", "sent"))
            if act == "release" and at < self._records:
                begin, group = at, []
                for _ in range(choose.randint(1, 6)):
                    end = min(at + choose.randint(1, SLOTS), self._records)
                    # what noise is in truth: never the same bytes for a window that is made again
                    noise = os.urandom(6).hex() * choose.choice((1, 1, 1, 200))
                    payload = json.dumps([study, seq, at, end, noise]).encode()
                    group.append(Outgoing(seq, payload, [("ce_id", b"x")]))
                    at, seq = end, seq + 1
                    if at == self._records:
                        break
                tally = Tally(at - begin, {"a reason": 1}, 0)
                store.release(
                    task, SOURCE, group, position=b"%d" % at, tally=tally, now=time.time()
                )
            elif act == "publish":
                for outgoing in store.unsent(study, handed, choose.randint(1, 12)):
                    os.write(self._published, outgoing.payload + b"\n")
                    self._here()
                    flying.append((outgoing.seq, os.fstat(self._published).st_size))
                    handed = outgoing.seq
                os.fsync(self._published)
            elif act == "sent" and flying:
                some = [flying.popleft() for _ in range(choose.randint(1, len(flying)))]
                store.sent(study, [number for number, _ in some], (0, some[-1][1]))


def serve(modules: list[str]) -> None:
    """Fork a life for each line of standard input; answer with its pid, then with how it ended."""
    for name in modules:
        importlib.import_module(name)
    # what each life would do again
    for study in (*STUDIES, REFUSED):
        task_of(study)
    gc.freeze()
    for line in sys.stdin:
        job = json.loads(line)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                Life(**job).run()
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        print(pid, flush=True)
        if job["kind"] == "kill":
            time.sleep(job["at"] / 1000)
            os.kill(pid, signal.SIGKILL)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


class Forks:
    """A prepared process that forks lives: a fork takes milliseconds, an interpreter a second."""

    def __init__(self, *modules: str) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-m", __name__, *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            cwd=Path(__file__).parents[2],
            text=True,
        )

    def __enter__(self) -> Forks:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.communicate(timeout=60)

    def begin(self, **life: Any) -> int:
        """Start a life and return its pid."""
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps(life) + "\n")
        self._server.stdin.flush()
        return self.answer()

    def answer(self) -> int:
        """Wait for the life and return its exit code, negative for a signal."""
        assert self._server.stdout is not None
        return int(self._server.stdout.readline())


class Witness:
    """Knows the bytes that every number ever had, and says what is wrong with a database."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.made: dict[tuple[str, int], bytes] = {}
        self._places: dict[int, tuple[str, int]] = {}
        self._ledger = ""
        self._read = 0

    def faults(self, image: Path | None = None) -> list[str]:
        """Say what is wrong after a death, or with an image, which may be older than the topic."""
        found = list(self._read_on())
        if not ((image or self._folder) / f"{CLIENT}.db").exists():
            return found + ["published before there was a database"] * bool(self.made)
        with contextlib.closing(_reader(image or self._folder)) as db:
            if not _whole(db):
                return found + ["published before there was a database"] * bool(self.made)
            [ledger] = _column(db, "SELECT ledger FROM identity") or [""]
            if self._ledger not in ("", ledger):
                found.append("the ledger has a new identity")
            self._ledger = ledger
            for study in STUDIES:
                found += self._study(db, study)
                known = len(_column(db, "SELECT 1 FROM ledger WHERE study = ?", study))
                more = [n for name, n in self._places.values() if name == study and n >= known]
                if more and image is None:
                    found.append(f"{study}: published, but not in the ledger: {more}")
            for statement in LEFT:
                if _column(db, statement, REFUSED):
                    found.append(f"of a study that was refused: {statement}")
        return found

    def finished(self) -> bool:
        """Whether all of the source is released, and all releases are acknowledged."""
        with contextlib.closing(_reader(self._folder)) as db:
            ends = _column(db, "SELECT position FROM streams WHERE next_seq > 0")
            return ends == [b"%d" % RECORDS] * 2 and not _column(db, "SELECT 1 FROM outbox")

    def _read_on(self) -> Iterator[str]:
        """Read what was published since the last time."""
        data = (self._folder / "published").read_bytes()
        while (end := data.find(b"\n", self._read)) >= 0:
            line, self._read = data[self._read : end], end + 1
            # lines that a dead process has begun are empty or torn
            with contextlib.suppress(ValueError):
                study, seq, *_ = json.loads(line)
                self._places[end + 1] = study, seq
                yield from self._same(study, seq, line)

    def _same(self, study: str, seq: int, payload: bytes) -> Iterator[str]:
        if self.made.setdefault((study, seq), payload) != payload:
            yield f"{study} {seq} has two payloads"

    def _study(self, db: sqlite3.Connection, study: str) -> Iterator[str]:
        """Say what disagrees within the rows of one study, and with all bytes ever made."""
        [(count, position, records, place)] = db.execute(
            "SELECT next_seq, position, records, sent_offset FROM streams WHERE study = ?", (study,)
        ).fetchall() or [(0, None, 0, None)]
        ledger = _column(db, "SELECT seq FROM ledger WHERE study = ?", study)
        if ledger != list(range(count)):
            yield f"{study}: the ledger has not the numbers below {count}, but {ledger}"
        kept = _column(db, "SELECT seq FROM outbox WHERE study = ?", study)
        if kept != list(range(count - len(kept), count)):
            yield f"{study}: the outbox has {kept}, the next number is {count}"
        for payload in _column(db, "SELECT payload FROM outbox WHERE study = ?", study):
            yield from self._same(study, json.loads(payload)[1], payload)
        spends = _column(db, "SELECT event FROM spends WHERE study = ?", study)
        if spends != [encode(task_of(study).budget.event)] * (count > 0):
            yield f"{study}: spent {spends} for {count} releases"
        sent = count - len(kept)
        if self._places.get(place or -1) != ((study, sent - 1) if sent else None):
            yield f"{study}: {sent} are acknowledged, the last of them at {place}"
        published = set(self._places.values())
        if missing := [n for n in range(sent) if (study, n) not in published]:
            yield f"{study}: neither published nor kept: {missing}"
        at = 0
        for seq in range(count):
            _, _, begin, end, _ = json.loads(self.made.get((study, seq), b"[0, 0, -1, -1, 0]"))
            if begin != at:
                yield f"{study}: release {seq} begins at record {begin}, not at {at}"
            at = end
        if (records, position) != (at, b"%d" % at if count else None):
            yield f"{study}: {records} of {at} records, and the next is at {position!r}"


TABLES = ("spends", "charged", "ledger", "outbox")
LEFT = [f"SELECT 1 FROM {name} WHERE study = ?" for name in TABLES]  # noqa: S608


def _reader(folder: Path) -> sqlite3.Connection:
    # read only: the next life must find what a death has left as it is
    return sqlite3.connect(f"file:{folder / CLIENT}.db?mode=ro", uri=True)


def _whole(db: sqlite3.Connection) -> bool:
    """Whether the first life has made all tables."""
    with contextlib.suppress(sqlite3.OperationalError):
        return "rejects" in _column(db, "SELECT name FROM sqlite_master")
    return False


def _column(db: sqlite3.Connection, statement: str, *values: str) -> list[Any]:
    return [row[0] for row in db.execute(statement, values)]


@dataclass
class Outcome:
    """What campaigns have shown."""

    deaths: Counter[str] = field(default_factory=Counter)
    campaigns: int = 0
    releases: int = 0
    faults: list[str] = field(default_factory=list)


def campaign(
    forks: Forks, folder: Path, chance: random.Random, outcome: Outcome, store: str = VAULT
) -> None:
    """Let one client live and die until its source is finished, or a fault is found."""
    witness, kinds = Witness(folder), list(ENDS)
    # a life that is killed at once has not made it
    (folder / "published").touch()
    while not outcome.faults:
        [kind] = chance.choices(kinds, [ENDS[kind][0] for kind in kinds])
        at, seed = math.exp(chance.uniform(0, math.log(ENDS[kind][1]))), chance.getrandbits(32)
        forks.begin(folder=str(folder), store=store, records=RECORDS, kind=kind, at=at, seed=seed)
        code = forks.answer()
        outcome.deaths[kind] += code in {DIED, -signal.SIGKILL}
        if code not in {0, DIED, -signal.SIGKILL}:
            outcome.faults.append(f"a start ended with {code}")
        outcome.faults += [f"{fault} ({kind} {at:.0f})" for fault in witness.faults()]
        if code == 0 and witness.finished():
            outcome.campaigns += 1
            outcome.releases += len(witness.made)
            return


if __name__ == "__main__":
    serve(sys.argv[1:])
