"""Rounds of planned age on real data: how late daily flights are, with a card of earlier months.

`python -m benchmarks.flight_rounds [--repeats R]`. Records are flights that left New York City
nearly every day of 2013 (one airline, number and airport), clients its three airports, slots days,
rounds weeks. What is wanted is the mean delay on the last day of a week. The model card is how a
flight's delay changes from day to day, of all of them together, in the first twelve weeks: the
regulator publishes these, flight by flight, some months later, and whether a flight is late today
is of little use tomorrow. Each card is slowed, since the slowest flight counts. The other forty
weeks are collected, and each published value is set beside the flights' own. Prints a table and
writes `benchmarks/results/flight_rounds.json`; what follows from it: docs/methods/age-aware.md.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from datetime import date
from pathlib import Path

import numpy as np

from pipeline.methods import task_of
from pipeline.methods.age_aware.client import AgedTask
from pipeline.records.encoder import Arrays
from pipeline.stream.in_process import OfflineRun
from pipeline.study_file.load import parse_study
from pipeline.types import Matrix, Vector
from producers.sources.samples import flights

RESULTS = Path(__file__).parent / "results" / "flight_rounds.json"
AIRPORTS, EACH, WEEK, DAYS = ("EWR", "JFK", "LGA"), 40, 7, 364
#: Weeks that the card is made of; the others are collected.
BEFORE = 12
STATES = np.array([0.0, 15.0, 40.0, 90.0])
#: Share of a card that stays as it was, beyond what was counted.
SLOWER = 0.2
#: Minutes that are late, and how many late days say something of a flight.
LATE, OFTEN = 30.0, 30
#: What a study says beside the card: (its name, its keys).
WAYS = (
    ("planned, debiased", 'use = "debiased"'),
    ("planned, wiener", 'use = "wiener"'),
    ("last day alone, debiased", 'use = "debiased"\nclosed = [0, 1, 2, 3, 4, 5]'),
)
STUDY = """\
[study]
name = "late"
[data]
response = {{ name = "delay", kind = "number", min = 0, max = 90 }}
features = {{}}
[estimator]
kind = "age-aware"
loss = "linear"
[estimator.method]
slots = {slots}
epsilon_now = {epsilon}
{way}
[estimator.method.groups.airports]
clients = ["EWR", "JFK", "LGA"]
mixing = "matrix"
states = [0, 15, 40, 90]
matrix = {matrix}
[privacy]
mechanism = "discrete-laplace"
epsilon = 8.0
neighbours = "replace-one"
[window]
records = {records}
"""


def delays() -> dict[str, Matrix]:
    """Return the delays of each airport's flights in minutes, shape (days, flights); NaN: none."""
    found: dict[tuple[str, str, str], Vector] = defaultdict(lambda: np.full(DAYS, np.nan))
    first = date(2013, 1, 1)
    for row in flights():
        at = (date(2013, int(str(row["month"])), int(str(row["day"]))) - first).days
        if at < DAYS and row["dep_delay"] not in {"", "NA"}:
            key = str(row["origin"]), str(row["carrier"]), str(row["flight"])
            found[key][at] = float(str(row["dep_delay"]))
    series: dict[str, list[Vector]] = {name: [] for name in AIRPORTS}
    # which flights leave daily says their timetable
    for key in sorted(found, key=lambda key: (-int((~np.isnan(found[key])).sum()), key)):
        series[key[0]].append(np.clip(found[key], STATES[0], STATES[-1]))
    return {name: np.array(series[name][:EACH]).T for name in AIRPORTS}


def card(told: Matrix) -> Matrix:
    """Return how often a flight's delay goes from state to state in a day, slowed."""
    states = np.abs(told[:, :, None] - STATES).argmin(axis=2)
    known = ~np.isnan(told[:-1]) & ~np.isnan(told[1:])
    counts = np.ones((len(STATES), len(STATES)))
    np.add.at(counts, (states[:-1][known], states[1:][known]), 1.0)
    shares = counts / counts.sum(axis=1, keepdims=True)
    return np.asarray((1 - SLOWER) * shares + SLOWER * np.eye(len(STATES)))


def measured(series: dict[str, Matrix], way: str, epsilon: float, repeats: int) -> dict[str, float]:
    """Return the errors of the collected weeks in minutes, root mean square, and what was expected.

    repeats: How often each week is collected, with other noise.
    """
    first = BEFORE * WEEK
    matrix = card(np.hstack([found[:first] for found in series.values()]))
    text = STUDY.format(
        slots=WEEK, epsilon=epsilon, way=way, matrix=matrix.tolist(), records=WEEK * EACH
    )
    task = task_of(parse_study(text))
    assert isinstance(task, AgedTask)
    centre, unit = task.response_scale
    weeks = range(BEFORE, DAYS // WEEK)
    truth = np.array([
        np.mean([np.nanmean(found[(week + 1) * WEEK - 1]) for found in series.values()])
        for week in weeks
    ])  # fmt: skip
    missed = []
    for _ in range(repeats):
        run = OfflineRun(task)
        for week, true in zip(weeks, truth, strict=True):
            for name, found in series.items():
                values = (found[week * WEEK : (week + 1) * WEEK].ravel() - centre) / unit
                window = Arrays(np.zeros((len(values), 0)), values)
                run.fold_all([(name, run.release(name, window, run.model))])
            missed.append(run.estimate(0.0)[0].details["value"] - true)
    plan = task.plan
    return {
        "error": float(np.sqrt(np.mean(np.square(missed)))),
        "expected": float(np.sqrt(plan.losses.sum())),
        "no_data": float(np.sqrt(np.mean((plan.mean_now.mean() - truth) ** 2))),
        "no_data_expected": float(np.sqrt(plan.alone.sum())),
        "oldest_age": int(plan.ages.max()),
        "delta_of_a_day": float(next(iter(plan.cards.values())).backward[1]),
    }


def slowest(series: dict[str, Matrix]) -> dict[str, float]:
    """Return how much oftener a flight is late after a late day than after one in time.

    Late: half an hour or more. Of all flights of the collected weeks, and of the most extreme one
    that was late often enough to say so.
    """
    late = np.hstack([found[BEFORE * WEEK :] for found in series.values()])
    known = ~np.isnan(late[:-1]) & ~np.isnan(late[1:])
    before, after = late[:-1] >= LATE, late[1:] >= LATE
    pairs = [(known & before, after), (known & ~before, after)]
    whole = [float((then & now).sum() / then.sum()) for then, now in pairs]
    often = (known & before).sum(0) >= OFTEN
    each = [(then & now).sum(0)[often] / then.sum(0)[often] for then, now in pairs]
    # a storm makes all late at once: what no card of single records says
    shared = np.nanvar(np.nanmean(late, axis=1)) / (np.nanvar(late) / late.shape[1])
    return {
        "late_after_late": whole[0],
        "late_after_in_time": whole[1],
        "most_of_one_flight": float((each[0] / each[1]).max()),
        "variance_of_a_day_over_that_of_independent_flights": float(shared),
    }


def main() -> None:
    """Measure, print a table, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=20)
    repeats, series = parser.parse_args().repeats, delays()
    rows = [
        {"epsilon_now": epsilon, "way": name, **measured(series, way, epsilon, repeats)}
        for epsilon in (0.1, 0.5)
        for name, way in WAYS
    ]
    for row in rows:
        print(json.dumps(row))
    told = {"repeats": repeats, "rows": rows, "mixing": slowest(series)}
    print(json.dumps(told["mixing"]))
    RESULTS.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
