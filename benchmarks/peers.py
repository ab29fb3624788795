"""The worker's fold beside other stream processors of Python, on one topic in one run.

`make peers`, or `python -m benchmarks.peers [--releases N] [--rounds R] [--environment FOLDER]`.
Kafka, Redis, topic and worker are those of `benchmarks.fold`: one partition, releases of d = 10.
All contenders read it in turn in every round; rates are by the processor time of each. The worker
checks, folds and commits to Redis; others do less. Peers are no dependencies: they are installed
from the package registry into an environment of their own, which is kept in FOLDER. One that cannot
be installed is left out, and the table says so. Prints the table of docs/deploying.md and writes
`benchmarks/results/peers.json`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks import fold
from infra.local import LocalRuntime
from pipeline.messages.topics import Topics
from pipeline.methods import task_of
from pipeline.settings import Settings
from pipeline.study_file.load import parse_study

LOOPS = Path(__file__).with_name("peer_loops.py")
KEPT = LOOPS.parents[1] / "build" / "peers"
OURS = "veilstream worker"


@dataclass(frozen=True)
class Peer:
    """A loop of `peer_loops`, and what is installed for it; nothing: what this project has."""

    label: str
    work: str
    loop: str
    package: str = ""


PEERS = (
    Peer("bare kafka-python loop", "nothing", "kafka-python"),
    Peer("Quix Streams 3.28", "nothing", "quix", "quixstreams==3.28.1"),
    Peer("Quix Streams 3.28, stateful", "counts by key, in its store", "quix-stateful",
         "quixstreams==3.28.1"),
    Peer("Bytewax 0.21, stateful", "counts by key, in memory", "bytewax", "bytewax[kafka]==0.21.1"),
)  # fmt: skip
WORK = {
    OURS: "checks, folds, commits to Redis",
    "bare aiokafka loop": "nothing",
    **{peer.label: peer.work for peer in PEERS},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--releases", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--environment", type=Path, default=KEPT)
    parser.add_argument("--out", type=Path, default=fold.RESULTS / "peers.json",
                        help="where the JSON goes")  # fmt: skip
    options = parser.parse_args()
    python = options.environment.absolute() / "bin" / "python"
    there = {peer: installed(python, peer.package) for peer in PEERS}
    text = fold.study_of("renewable")
    task, count = task_of(parse_study(text)), options.releases
    topic, rounds = Topics.of(task.study).releases.name, list[dict[str, float]]()
    with tempfile.TemporaryDirectory() as name, LocalRuntime(Path(name)) as addresses:
        settings = Settings(kafka=addresses.kafka, redis=addresses.redis, folder=name)
        size = asyncio.run(fold.fill(task, settings, count))
        for _ in range(options.rounds):
            found = {OURS: fold.worker(task, text, settings, count)["worker"]}
            found["bare aiokafka loop"] = asyncio.run(fold.loop(task, settings, count))
            for peer in (peer for peer in PEERS if there[peer]):
                words = [python if peer.package else sys.executable, LOOPS, peer.loop]
                ran = subprocess.run([*words, settings.kafka, topic, str(count)],
                                     stdout=subprocess.PIPE, check=True)  # fmt: skip
                found[peer.label] = float(ran.stdout)
            rounds.append(found)
            print(json.dumps(found), flush=True)
    rows = {label: middle(rounds, label) for label in rounds[0]}
    print("| | does with a release | per processor second | worker over it |\n|---|---|---|---|")
    for label, work in WORK.items():
        own = rows.get(label)
        told = f"{own['rate']:,.0f} | {own['worker_over_it']:.2f}" if own else "not installed | "
        print(f"| {label} | {work} | {told} |")
    result = {"releases": count, "bytes_per_release": size, "rounds": len(rounds), "rows": rows}
    options.out.write_text(json.dumps(result, indent=1) + "\n")


def installed(python: Path, package: str) -> bool:
    """Return whether a package is in the peers' environment, into which it is put if it is not."""
    if not package:
        return True
    try:
        uv = [str(Path(sys.executable).with_name("uv"))]
        if not python.exists():
            make = [*uv, "venv", "--quiet", "--python", sys.executable, python.parents[1]]
            subprocess.run(make, check=True)
        subprocess.run([*uv, "pip", "install", "--quiet", "--python", python, package], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"{package} is left out, as it cannot be installed: {error}", flush=True)
        return False
    return True


def middle(rounds: list[dict[str, float]], label: str) -> dict[str, float]:
    """Return the median rate of a contender, and of the worker's over it in the same round."""
    return {
        "rate": round(statistics.median(one[label] for one in rounds)),
        "worker_over_it": round(statistics.median(one[OURS] / one[label] for one in rounds), 3),
    }


if __name__ == "__main__":
    main()
