"""A soak before a release: an hour of work with a kill every minute, and memory that stays.

`make soak`, or `python -m benchmarks.soak [--seconds 3600] [--seed S] [--picture F] [--out F]`. An
authenticated study with noise, a Kafka and a Redis of its own; sixteen clients and two workers as
processes, 2,000 records a second in all. A worker, a client, Redis and Kafka in turn are ended by
SIGKILL and started again, one a minute; in a short run each twice. Then clients finish their
sources, and what `storm` looks at must hold: state and log agree bit by bit, no number has two
noises, and the windows of each client are those of its records, once each. Memory (RSS) of workers
and clients is read all the time. Prints a line of JSON; ends with 1 on a fault.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from benchmarks.fold import memory
from benchmarks.storm import WORKERS, TrustedStorm
from infra.local import LocalRuntime
from tests.stage import Stage, study_text
from tests.trusted import TRUST

HOUR = 3600.0
#: Records a second of all clients together, and slots of a window.
RATE, SLOTS = 2000.0, 100
#: Seconds between two kills, and how many there are at least.
PAUSE, FEWEST = 60.0, 8
#: A process is looked at if it lives so many seconds; its memory is compared from when it is warm.
LIFE, WARM = 300.0, 120.0
#: What memory may grow by from the first to the last third of such a life: a share, and MiB. SQLite
#: fills its cache over the first thousand releases of a client, and then memory stays.
SHARE, MIB = 0.1, 8.0


class Sample(NamedTuple):
    """Memory of a process at a time since the start, in seconds and MiB."""

    at: float
    name: str
    pid: int
    mib: float


class Own(Stage):
    """Processes that share no memory with each other: each is started as users start it."""

    _forks = False


class Soak(TrustedStorm):
    """Sixteen clients at a steady rate, and one kill after the other."""

    clients = tuple(f"site-{number:02}" for number in range(16))
    timed = clients[::2]
    weights = MappingProxyType(dict.fromkeys(("worker", "client", "redis", "kafka"), 1))

    def __init__(self, stage: Stage, runtime: LocalRuntime, chance: random.Random) -> None:
        super().__init__(stage, runtime, chance)
        self.samples: list[Sample] = []
        self.kills: list[tuple[float, str]] = []
        self._began = self._looked = time.monotonic()

    def soak(self, seconds: float) -> None:
        """Let it work for so long, with all blows in turn; rest, and look."""
        pause = min(PAUSE, seconds / (FEWEST + 1))
        self.begin()
        self._began = time.monotonic()
        for number, kind in enumerate(itertools.cycle(self.weights), 1):
            self.let_pass(self._began + number * pause - time.monotonic())
            if time.monotonic() - self._began > seconds - pause / 2:
                break
            self.kills.append((time.monotonic() - self._began, kind))
            self.counts[kind] += 1
            self.strike(kind)
            print(f"\r{number} kills", end="", file=sys.stderr, flush=True)
        self.counts["seconds"] = round(time.monotonic() - self._began)
        self.rest()

    def due(self, client: str) -> int:
        """Return what is due by the clock: full windows."""
        reached = int((time.monotonic() - self._began) * RATE / len(self.clients))
        return max(reached // SLOTS * SLOTS - self.rows[client], 0)

    def tend(self) -> None:
        """Look at memory once a second, too."""
        super().tend()
        if (now := time.monotonic()) - self._looked < 1.0:
            return
        self._looked = now
        for name, process in self.stage.processes.items():
            if process.poll() is None and (mib := memory(process.pid)):
                self.samples.append(Sample(now - self._began, name, process.pid, mib))


def grown(samples: list[Sample]) -> list[dict[str, Any]]:
    """Return of each life that is long enough its memory in its first and in its last third."""
    lives: dict[tuple[str, int], list[Sample]] = {}
    for sample in samples:
        lives.setdefault((sample.name, sample.pid), []).append(sample)
    found = []
    for (name, _), life in lives.items():
        at, mib = np.array([s.at for s in life]), np.array([s.mib for s in life])
        if at[-1] - at[0] < LIFE:
            continue
        at, mib = at[at > at[0] + WARM], mib[at > at[0] + WARM]
        third = (at[-1] - at[0]) / 3
        first, last = mib[at <= at[0] + third].mean(), mib[at >= at[-1] - third].mean()
        found.append(
            {"name": name, "seconds": round(at[-1] - at[0]), "first": first, "last": last,
             "flat": bool(last <= first * (1 + SHARE) + MIB)}
        )  # fmt: skip
    return found


def summary(soak: Soak, seed: int) -> dict[str, Any]:
    """Return what the run came to, with a fault for memory that grows."""
    roles: dict[str, Any] = {}
    for role, names in (("workers", WORKERS), ("clients", Soak.clients)):
        own = [sample for sample in soak.samples if sample.name in names]
        lives = grown(own)
        most = max(lives, key=lambda life: life["last"] - life["first"], default=None)
        roles[role] = {
            "largest_mib": round(max((s.mib for s in own), default=0.0), 1),
            "long_lives": len(lives),
            "most_grown_mib": None if most is None else round(most["last"] - most["first"], 1),
        }
        soak.faults += [f"{life['name']} grows: {life}" for life in lives if not life["flat"]]
    counts, seconds = Counter(soak.counts), soak.counts["seconds"]
    kills = {kind: counts.pop(kind, 0) for kind in Soak.weights}
    return {
        "soak": seconds, "seed": seed, "clients": len(Soak.clients), "kills": kills,
        "records_a_second": round(counts["records"] / max(seconds, 1)),
        **{name: counts[name] for name in ("records", "releases", "sent_again")},
        "memory": roles, "faults": soak.faults[:20], "held": not soak.faults,
    }  # fmt: skip


def draw(soak: Soak, path: Path) -> None:
    """Draw memory over time, with the kills."""
    from matplotlib.figure import Figure  # noqa: PLC0415  an extra

    figure = Figure(figsize=(8, 5), layout="constrained")
    panels = figure.subplots(2, 1, sharex=True)
    colours = {"worker": "#0072b2", "client": "#009e73", "redis": "#d55e00", "kafka": "#cc79a7"}
    for axes, (role, names) in zip(
        panels, (("workers", WORKERS), ("clients", Soak.clients)), strict=True
    ):
        for at, kind in soak.kills:
            axes.axvline(at / 60, color=colours[kind], linewidth=0.6, alpha=0.6)
        lives: dict[int, list[Sample]] = {}
        for sample in soak.samples:
            if sample.name in names:
                lives.setdefault(sample.pid, []).append(sample)
        for life in lives.values():
            axes.plot(
                [s.at / 60 for s in life], [s.mib for s in life], color="#333333", linewidth=0.8
            )
        axes.set_ylabel(f"{role}, MiB each")
        axes.set_ylim(bottom=0)
        axes.spines[["top", "right"]].set_visible(False)
    for kind, colour in colours.items():
        panels[0].plot([], [], color=colour, label=f"SIGKILL: {kind}")
    figure.legend(ncols=4, fontsize=8, frameon=False, loc="outside upper center")
    panels[-1].set_xlabel("minutes")
    figure.savefig(path, dpi=110)


def main(words: list[str] | None = None) -> int:
    """Soak, print what it came to, and say whether all held."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=HOUR)
    parser.add_argument("--seed", type=int, default=20261127)
    parser.add_argument("--picture", type=Path, help="where to draw memory: a .png file")
    parser.add_argument("--out", type=Path, help="where to write the result: a .json file")
    chosen = parser.parse_args(words)
    text = study_text("soak", records=SLOTS, releases=8).replace('"1d"', '"forever"') + TRUST
    with tempfile.TemporaryDirectory() as folder:
        runtime = LocalRuntime(Path(folder) / "runtime")
        with runtime as at:
            stage = Own(Path(folder) / "soak", at.kafka, at.redis, text)
            soak = Soak(stage, runtime, random.Random(chosen.seed))
            with stage:
                try:
                    soak.soak(chosen.seconds)
                except (RuntimeError, AssertionError) as error:
                    soak.faults.append(str(error))
    result = summary(soak, chosen.seed)
    print(json.dumps(result))
    if chosen.out:
        chosen.out.write_text(json.dumps(result, indent=1) + "\n")
    if chosen.picture:
        draw(soak, chosen.picture)
    return int(bool(soak.faults))


if __name__ == "__main__":
    sys.exit(main())
