"""A storm: crashes of everything and restores of old backups, and no record noised twice.

`python -m benchmarks.storm [--kills 200] [--minutes M] [--seed S] [--only STUDY ...]`. Three
studies at once, each with a Kafka and a Redis of its own, four clients and two workers as
processes, windows in flight by default, half of the clients with times of 2013. At random, and at
once restarted: SIGKILL of clients, workers, Redis and Kafka; copies of client folders, taken while
they run, come back with or without their lock file, and whoever is refused with 44 goes on with
--skip-lost. K is how many processes SIGKILL ends while the others run; a third of them in a study
with noise, a third in one without privacy whose records can be told apart in its sums, and a third
in an authenticated one, where keys change, clients are revoked and taken back, and workers come and
go (`storm_trust`). Prints a line of JSON; ends with 1 on a fault.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.storm_blows import SLOTS, Storm
from benchmarks.storm_trust import TrustedStorm
from infra.local import LocalRuntime
from tests.log_checks import PLANTED
from tests.stage import Stage, study_text
from tests.trusted import TRUST

STUDIES = ("noised", "planted", "trusted")


def main() -> int:
    """Run all studies, print what happened, and say whether all held."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200, help="how many times SIGKILL is sent")
    parser.add_argument("--minutes", type=float, default=math.inf, help="of blows, for each study")
    parser.add_argument("--seed", type=int, default=20261122)
    parser.add_argument("--only", nargs="*", choices=STUDIES, default=STUDIES)
    chosen = parser.parse_args()
    began, counts, faults = time.monotonic(), dict[str, Any](), list[str]()
    if len(chosen.only) == 1:
        [name] = chosen.only
        storm = storm_of(name, chosen.kills, chosen.minutes, chosen.seed)
        counts, faults = {name: storm.counts}, [f"{name}: {fault}" for fault in storm.faults]
    else:
        for result in beside_each_other(chosen):
            counts |= {name: result[name] for name in STUDIES if name in result}
            faults += result["faults"]
    result = {
        "storm": chosen.kills, "seed": chosen.seed, **counts, "faults": faults[:20],
        "held": not faults, "seconds": round(time.monotonic() - began),
    }  # fmt: skip
    print(json.dumps(result))
    return int(bool(faults))


def storm_of(name: str, kills: int, minutes: float, seed: int) -> Storm:
    """Run one study, on servers of its own, and return what happened to it."""
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
    return storm


def beside_each_other(chosen: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Run each study as a process, and yield what it printed: most of the time they wait."""
    running = []
    for part, name in enumerate(chosen.only):
        words = ["--only", name, "--kills", (chosen.kills + part) // len(chosen.only)]
        words += ["--minutes", chosen.minutes, "--seed", chosen.seed + part]
        command = [sys.executable, "-m", "benchmarks.storm", *map(str, words)]
        running.append((name, subprocess.Popen(command, stdout=subprocess.PIPE, text=True)))
    for name, process in running:
        printed, _ = process.communicate()
        lines = printed.splitlines()
        yield (
            json.loads(lines[-1])
            if lines
            else {"faults": [f"{name}: it ended with {process.returncode}"]}
        )


if __name__ == "__main__":
    sys.exit(main())
