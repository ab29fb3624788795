"""A round of a thousand clients: its plan, the clients and the worker, in processor time.

`python -m benchmarks.rounds` (two seconds; `benchmarks/results/rounds.json`). The round is
collected, noised and encoded as clients do it; decoded, folded and estimated as a worker does it.
It says what share of a core that takes where there is a round every minute. Numbers:
docs/methods/age-aware.md.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np

from pipeline.methods import task_of
from pipeline.records.encoder import Arrays
from pipeline.stream.in_process import OfflineRun
from pipeline.study_file.load import parse_study

RESULTS = Path(__file__).parent / "results" / "rounds.json"
MEMBERS, ROUNDS = 1000, 5
STUDY = f"""\
[study]
name = "rounds"
[data]
response = {{ name = "power", kind = "number", min = 0, max = 180 }}
features = {{}}
[estimator]
kind = "age-aware"
loss = "linear"
[estimator.method]
slots = 50
capacity = 20
epsilon_now = 0.3
[estimator.method.groups.all]
clients = ["m{{1..{MEMBERS}}}"]
mixing = "cyclic"
states = [0, 60, 120, 180]
q = 0.4
[privacy]
mechanism = "discrete-laplace"
epsilon = 8.0
neighbours = "replace-one"
[window]
records = 1000
"""


def a_round() -> dict[str, float]:
    """Return processor seconds of the plan, and of one round at client and worker."""
    study = parse_study(STUDY)
    started = time.process_time()
    task = task_of(study)
    run = OfflineRun(task)
    made = time.process_time()
    window = Arrays(np.zeros((task.slots, 0)), np.zeros(task.slots))
    clients = worker = 0.0
    for _ in range(ROUNDS):
        before = time.process_time()
        sent = [
            (name, run.release(name, window, run.model))
            for name in (f"m{number}" for number in range(1, MEMBERS + 1))
        ]
        between = time.process_time()
        run.fold_all(sent)
        found, _ = run.estimate(0.0)
        worker += time.process_time() - between
        clients += between - before
        assert found.details["clients_used"] == MEMBERS
    return {
        "plan_s": made - started,
        "client_ms_each": 1e3 * clients / ROUNDS / MEMBERS,
        "worker_s_a_round": worker / ROUNDS,
        # one core that does all of it: a plan, a thousand clients and the worker
        "share_of_a_minute": (made - started + (clients + worker) / ROUNDS) / 60,
    }


def main() -> None:
    """Measure, print one JSON object, and write it down."""
    found = {"clients": MEMBERS, "rounds": ROUNDS, **a_round()}
    print(json.dumps(found))
    RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
