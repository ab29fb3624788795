"""Plans of many clients, and a round of a thousand of them at the worker: processor time.

`python -m benchmarks.rounds [--clients M] [--slots K] [--seed S] [--kind KIND] [--minute] [--all]`

A plan of M clients in K slots of which each takes one, with uploads taken as they are: the hard
case, whose drift couples all clients; and beside it one assignment of random costs, to see how fast
the machine is. Then a round of a thousand clients: collected, noised and encoded as they do it;
decoded, folded and estimated as a worker does it. `--minute` measures that round alone, and says
what share of a core it takes where there is one every minute. `--all` takes all kinds and seeds, a
process on one thread, and writes `benchmarks/results/rounds.json`. Numbers:
docs/methods/age-aware.md.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import numpy as np
from scipy.optimize import linear_sum_assignment

from pipeline.methods import task_of
from pipeline.methods.age_aware.assignment import schedule
from pipeline.methods.age_aware.chains import cyclic
from pipeline.methods.age_aware.mixing import deltas
from pipeline.methods.age_aware.objective import Reporter
from pipeline.methods.age_aware.schemes import Round
from pipeline.offline import OfflineRun
from pipeline.records.encode import Arrays
from pipeline.study_file.load import parse_study

RESULTS = Path(__file__).parent / "results" / "rounds.json"
KINDS, SEEDS = ("alike", "mixed", "places"), range(1, 6)
STATES = np.array([0.0, 60.0, 120.0, 180.0])
RATES = (0.1, 0.3, 0.4)
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


def planned(clients: int, slots: int, seed: int, kind: str) -> dict[str, float]:
    """Return processor seconds and gap of a plan whose clients have laws of their own.

    kind: "alike": chains of three speeds; "mixed": each client has a speed, a number of records and
        closed slots of its own; "places": the same, in a fifth of the slots with five places each.
    """
    rng, ages = np.random.default_rng(seed), np.arange(slots)
    if kind == "places":
        ages = np.repeat(ages[: slots // 5], 5)
    if kind != "alike":
        rates = rng.choice(np.linspace(0.1, 0.6, 50), size=clients)
        records = rng.integers(50, 200, size=clients)
    else:
        rates, records = rng.choice(RATES, size=clients), np.full(clients, 100)
    chains = {q: cyclic(STATES, q) for q in np.unique(rates)}
    left = {q: deltas(chain, ages, "spectral") for q, chain in chains.items()}
    reporters = [
        Reporter(chains[q], rng.dirichlet(np.ones(4)), int(n), 1 / clients)
        for q, n in zip(rates, records, strict=True)
    ]
    given = Round(reporters, ages, np.array([left[q] for q in rates]), 180 / records, 0.1, 50.0)
    started = time.process_time()
    table = given.costs(given.scales())
    if kind != "alike":
        table.cost[rng.random(table.cost.shape) < 0.1] = np.inf
    tables = time.process_time()
    found = schedule(table)
    over = time.process_time()
    linear_sum_assignment(np.random.default_rng(0).random((clients, slots)))
    return {
        "tables_s": tables - started,
        "schedule_s": over - tables,
        "one_assignment_s": time.process_time() - over,
        "gap": found.gap,
        "assignments": found.assignments,
    }


def a_round() -> dict[str, float]:
    """Return processor seconds of the plan, and of one round at client and worker."""
    started = time.process_time()
    task = task_of(parse_study(STUDY))
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
    """Measure, and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--slots", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", choices=KINDS, default="alike")
    parser.add_argument("--minute", action="store_true", help="a round of a thousand clients alone")
    parser.add_argument("--all", action="store_true", help="all kinds and seeds, into the results")
    asked = parser.parse_args()
    size = {"clients": asked.clients, "slots": asked.slots}
    if asked.minute:
        print(json.dumps({"clients": MEMBERS, "rounds": ROUNDS, **a_round()}))
        return
    if asked.all:
        rows = []
        for kind in KINDS:
            for seed in SEEDS:
                found = planned(asked.clients, asked.slots, seed, kind)
                rows.append({"kind": kind, "seed": seed, **found})
                print(json.dumps(rows[-1]), flush=True)
        told = {**size, "threads": os.environ.get("OMP_NUM_THREADS"), "plans": rows} | a_round()
        RESULTS.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
        return
    plan = planned(asked.clients, asked.slots, asked.seed, asked.kind)
    print(json.dumps({**size, **plan, **a_round()}))


if __name__ == "__main__":
    main()
