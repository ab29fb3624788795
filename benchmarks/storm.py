"""A storm: crashes of everything and restores of old backups, and no record noised twice.

`python -m benchmarks.storm [--kills 200] [--minutes M] [--seed S] [--only STUDY ...]`. A Kafka and
a Redis of its own, four clients and two workers as processes, windows in flight by default, half of
the clients with times of 2013. At random, and at once restarted: SIGKILL of clients, workers, Redis
and Kafka; copies of client folders, taken while they run, come back with or without their lock
file, and whoever is refused with 44 goes on with --skip-lost. K is how many processes SIGKILL ends
while the others run; a third of them in a study with noise, a third in one without privacy whose
records can be told apart in its sums, and a third in an authenticated one, where keys change,
clients are revoked and taken back, and workers come and go (`storm_trust`). Prints a line of JSON;
ends with 1 on a fault.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.storm_blows import SLOTS, Storm
from benchmarks.storm_checks import PLANTED
from benchmarks.storm_trust import TrustedStorm
from infra.local import LocalRuntime
from tests.stage import Stage, study_text
from tests.trusted import TRUST


def main() -> int:
    """Run all studies, print what happened, and say whether all held."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200, help="how many times SIGKILL is sent")
    parser.add_argument("--minutes", type=float, default=math.inf, help="of blows, for each study")
    parser.add_argument("--seed", type=int, default=20261122)
    parser.add_argument("--only", nargs="*", help="noised, planted, trusted; default: all three")
    chosen = parser.parse_args()
    began, chance, faults = time.monotonic(), random.Random(chosen.seed), list[str]()
    counts: dict[str, Counter[str]] = {}
    noised = study_text("storm-noised", records=SLOTS).replace('"1d"', '"forever"')
    studies: dict[str, tuple[type[Storm], str]] = {
        "noised": (Storm, noised),
        "planted": (Storm, PLANTED.format(name="storm-planted", records=SLOTS)),
        "trusted": (TrustedStorm, noised.replace("storm-noised", "storm-trusted") + TRUST),
    }
    chosen.only = chosen.only or list(studies)
    with tempfile.TemporaryDirectory() as folder:
        runtime = LocalRuntime(Path(folder) / "runtime")
        with runtime as at:
            for part, name in enumerate(chosen.only):
                kind, text = studies[name]
                stage = Stage(Path(folder) / name, at.kafka, at.redis, text)
                storm = kind(stage, runtime, chance)
                with stage:
                    try:
                        storm.run((chosen.kills + part) // len(chosen.only), chosen.minutes)
                    except (RuntimeError, AssertionError) as error:
                        storm.faults.append(str(error))
                counts[name] = storm.counts
                faults += [f"{name}: {fault}" for fault in storm.faults]
    result: dict[str, Any] = {
        "storm": chosen.kills, "seed": chosen.seed, **counts, "faults": faults[:20],
        "held": not faults, "seconds": round(time.monotonic() - began),
    }  # fmt: skip
    print(json.dumps(result))
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
