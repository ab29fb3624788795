"""How far sites that agree on a lie move an estimate, and when they are flagged.

`python -m benchmarks.sites_lies [--streams 8] [--release score]`: logistic sites of equal size send
four windows of 1,500 records at epsilon 4; liars answer by a coefficient that is shifted. A row for
each number of liars has the shift that moves the estimate most, from that of the same records and
noise without a lie, in its standard errors, in the mean of the streams; the shift from which on all
liars are flagged in all of them; and how many honest sites were flagged in all.

Then one honest site with 99 % of the records, beside 4 and 7 small ones: in how many streams it is
flagged, and the mean square of its distance, which is 1 of an honest site.
"""

from __future__ import annotations

import argparse

import numpy as np

from benchmarks.sites_coverage import kind_of
from pipeline.estimators.estimate import Estimate
from pipeline.methods import task_of
from pipeline.records.encoder import Arrays
from pipeline.release.layout import identity
from pipeline.stream.in_process import OfflineRun
from pipeline.study_file.load import parse_study
from pipeline.types import Vector

TRUTH = np.array([0.2, 0.5, -0.4, 0.3])
SHIFTS = (0.2, 0.3, 0.5, 0.7, 1.0, 2.0, 3.0)
DESIGNS = ((1, 9), (2, 9), (4, 20), (3, 9), (4, 9), (8, 20))
WINDOWS, LARGE = 4, 396
STUDY = """\
[study]
name = "lies"
[data]
response = {{ name = "y", positive = "1", negative = "0" }}
[data.features]
a = {{ min = -1, max = 1 }}
b = {{ min = -1, max = 1 }}
c = {{ min = -1, max = 1 }}
[estimator]
{kind}
loss = "logistic"
ridge = 0.0
norm_bound = "typical"
[privacy]
mechanism = "insecure-simulation"
epsilon = {epsilon}
delta = 1e-5
seed = {seed}
[window]
records = {records}
[stream]
publish = {{ releases = {every} }}
"""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--release", default="score", choices=["score", "sufficient", "copies"])
    options = parser.parse_args()
    print("liars of sites  worst shift  moves it by  all flagged from  honest flagged")
    for liars, sites in DESIGNS:
        row = agreed(options.release, liars, sites, options.streams)
        print(f"{liars:5d} of {sites:2d} {row}", flush=True)
    print("small sites beside a large one  flagged  mean square of its distance")
    for small in (4, 7):
        print(f"{small:5d} {large(options.release, small, 3 * options.streams)}", flush=True)


def agreed(release: str, liars: int, sites: int, streams: int) -> str:
    """Return a row of the first table."""
    moved, named = np.zeros((len(SHIFTS), streams)), np.zeros((len(SHIFTS), streams), dtype=bool)
    accused = 0
    for seed in range(streams):
        honest = stream(release, seed, sites)
        assert honest.covariance is not None, honest.reason
        for number, shift in enumerate(SHIFTS):
            found = stream(release, seed, sites, liars, shift)
            away = found.coefficients - honest.coefficients
            moved[number, seed] = np.sqrt(away @ np.linalg.solve(honest.covariance, away))
            flagged = set(found.details["flagged"])
            lying = {name(site) for site in range(liars)}
            named[number, seed], accused = lying <= flagged, accused + len(flagged - lying)
    means, all_named = moved.mean(axis=1), named.all(axis=1)
    worst = int(np.argmax(means))
    from_there = [shift for k, shift in enumerate(SHIFTS) if all_named[k:].all()]
    least = f"{min(from_there):g}" if from_there else "-"
    return f"{SHIFTS[worst]:14g} {means[worst]:12.1f} {least:>17} {accused:15d}"


def stream(release: str, seed: int, sites: int, liars: int = 0, shift: float = 0.0) -> Estimate:
    """Return the estimate of a stream, whose records depend on the seed and the lie alone."""
    text = STUDY.format(kind=kind_of(release), epsilon=4.0, seed=seed, records=1500, every=sites)
    run, rng = OfflineRun(task_of(parse_study(text))), np.random.default_rng(seed)
    for _ in range(WINDOWS):
        for site in range(sites):
            false = np.array([0.0, 0.0, 0.0, shift if site < liars else 0.0])
            run.add(f"site-{site}", window(rng, 1500, TRUTH + false))
    return run.publish()


def large(release: str, small: int, streams: int) -> str:
    """Return a row of the second table."""
    flags, squares = 0, []
    for seed in range(streams):
        text = STUDY.format(kind=kind_of(release), epsilon=8.0, seed=seed, records=400, every=10**6)
        run, rng = OfflineRun(task_of(parse_study(text))), np.random.default_rng(seed)
        for site in [0] * LARGE + list(range(1, small + 1)):
            run.add(f"site-{site}", window(rng, 400, TRUTH))
        (row,) = (one for one in run.publish().details["sites"] if one["site"] == name(0))
        flags, squares = flags + row["flag"], [*squares, row["distance"] ** 2]
    return f"{flags:30d} of {streams} {np.mean(squares):10.2f}"


def window(rng: np.random.Generator, records: int, truth: Vector) -> Arrays:
    """Return records whose classes follow coefficients, the intercept first."""
    features = rng.uniform(-1, 1, (records, 3))
    chance = 1 / (1 + np.exp(-truth[0] - features @ truth[1:]))
    return Arrays(features, np.where(rng.random(records) < chance, 1.0, -1.0))


def name(site: int) -> str:
    """Return what estimates call a site."""
    return identity(f"site-{site}".encode()).hex()


if __name__ == "__main__":
    main()
