"""Time of one noise sample: exact integer samplers beside numpy's floats and OpenDP's vectors.

`python -m benchmarks.noise [--rounds R]`. One thread, and its processor time: on a shared machine
the clock on the wall counts what others do. In each round every sampler runs for each count, and
numpy's right before it; a ratio is one of two neighbours in time. The tables are warm: a client
makes them once for a study. Prints a table and writes `benchmarks/results/noise.json`.

A sample of numpy is a float of a generator that is not cryptographic: the least that noise of any
kind takes, and no noise that protects (`pipeline.privacy.randomness`). OpenDP's is an exact integer
from the operating system's randomness, as ours is.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import opendp.prelude as dp

from pipeline.privacy.randomness import SecureStream
from pipeline.privacy.samplers import DiscreteGaussian, DiscreteLaplace

RESULTS = Path(__file__).parent / "results"
SCALES = (1000.0, 23_000.0)
#: In bulk, the sums of a release with a hundred features, and of one with nine.
COUNTS = (1_000_000, 5_000, 65)
#: OpenDP takes long, and as long for each sample of a larger vector.
OPENDP_COUNT = 10_000
#: A measurement is repeated within a round until it has made so many samples.
LEAST = 100_000
AT_MOST_NUMPY, AT_LEAST_OPENDP = 2.0, 300.0
Draw = Callable[[int], object]
#: Sampler, and how many samples it made at a time.
Times = dict[tuple[str, int], list[float]]


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=25)
    options = parser.parse_args()
    ours, foreign, baseline = samplers(), opendp_samplers(), numpy_sampler()
    times: Times = {}
    ratios: Times = {}
    for number in range(-1, options.rounds):
        found = [
            *(((name, n), *pair(baseline, draw, n)) for n in COUNTS for name, draw in ours.items()),
            *(((name, OPENDP_COUNT), nanoseconds(draw, OPENDP_COUNT, 1), None)
              for name, draw in foreign.items()),
        ]  # fmt: skip
        if number < 0:
            continue  # the first round warms up
        for key, own, numpy_s in found:
            times.setdefault(key, []).append(own)
            if numpy_s is not None:
                times.setdefault(("numpy normal", key[1]), []).append(numpy_s)
                ratios.setdefault(key, []).append(own / numpy_s)
    report(times, ratios, options.rounds)


def pair(baseline: Draw, draw: Draw, count: int) -> tuple[float, float]:
    """Return the times of a sampler and of numpy's right before it."""
    repeats = max(1, LEAST // count)
    numpy_s = nanoseconds(baseline, count, repeats)
    return nanoseconds(draw, count, repeats), numpy_s


def numpy_sampler() -> Draw:
    """Return numpy's normal sampler."""
    generator = np.random.default_rng(1)
    return lambda count: generator.normal(0.0, SCALES[0], count)


def samplers() -> dict[str, Draw]:
    """Return our samplers, warm."""
    stream = SecureStream()
    found: dict[str, Draw] = {}
    for scale in SCALES:
        gaussian, laplace = DiscreteGaussian(scale), DiscreteLaplace(scale)
        for kind, noise in (("gaussian", gaussian), ("laplace", laplace)):
            found[f"{kind} {scale:g}"] = lambda count, noise=noise: noise.draw(count, stream)  # type: ignore[misc]
            noise.draw(COUNTS[0], stream)
    return found


def opendp_samplers() -> dict[str, Draw]:
    """Return OpenDP's mechanisms on integer vectors of zeros."""
    dp.enable_features("contrib")
    vectors = dp.vector_domain(dp.atom_domain(T=int))
    found: dict[str, Draw] = {}
    zeros = [0] * OPENDP_COUNT
    for scale in SCALES:
        gaussian = dp.m.make_gaussian(vectors, dp.l2_distance(T=float), scale=scale)
        laplace = dp.m.make_laplace(vectors, dp.l1_distance(T=float), scale=scale)
        for kind, measurement in (("gaussian", gaussian), ("laplace", laplace)):
            found[f"opendp {kind} {scale:g}"] = lambda count, of=measurement: of(zeros[:count])  # type: ignore[misc]
    return found


def nanoseconds(draw: Draw, count: int, repeats: int) -> float:
    """Return the time of one sample."""
    began = time.thread_time_ns()
    for _ in range(repeats):
        draw(count)
    return (time.thread_time_ns() - began) / count / repeats


def report(times: Times, ratios: Times, rounds: int) -> None:
    """Print times and ratios, and write them down."""
    numpy_ratios = {f"{name}, {count}": spread(found) for (name, count), found in ratios.items()}
    opendp_ratios = {}
    for name, count in ratios:
        theirs = times[f"opendp {name}", OPENDP_COUNT]
        both = zip(theirs, times[name, count], strict=True)
        opendp_ratios[f"{name}, {count}"] = spread([b / a for b, a in both])
    result = {
        "rounds": rounds,
        "machine": {"cores": os.cpu_count(), "architecture": platform.machine()},
        "versions": {"python": platform.python_version(), "numpy": np.__version__},
        "nanoseconds_per_sample": {f"{n}, {c}": spread(v) for (n, c), v in sorted(times.items())},
        "ours_over_numpy": numpy_ratios,
        "opendp_over_ours": opendp_ratios,
        "targets": {"ours_over_numpy": AT_MOST_NUMPY, "opendp_over_ours": AT_LEAST_OPENDP},
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "noise.json").write_text(json.dumps(result, indent=1) + "\n")
    print(f"{rounds} rounds; min, median and max of each")
    print("  sampler, samples at a time        ns per sample")
    for (name, count), values in sorted(times.items()):
        print(f"  {name + ', ' + str(count):32}  {three(spread(values))}")
    print(f"\n  ours / numpy's floats, target <= {AT_MOST_NUMPY:g}")
    for name, ratio in numpy_ratios.items():
        print(f"  {name:32}  {three(ratio)}  {met(ratio[1] <= AT_MOST_NUMPY)}")
    print(f"\n  OpenDP / ours, target >= {AT_LEAST_OPENDP:g}")
    for name, ratio in opendp_ratios.items():
        print(f"  {name:32}  {three(ratio)}  {met(ratio[1] >= AT_LEAST_OPENDP)}")


def spread(values: list[float]) -> list[float]:
    """Return the least, the median and the largest value."""
    return [min(values), statistics.median(values), max(values)]


def three(values: list[float]) -> str:
    """Return three numbers in columns."""
    return "".join(f"{value:10.2f}" for value in values)


def met(reached: bool) -> str:
    """Say whether the median reaches a target."""
    return "reached" if reached else "MISSED"


if __name__ == "__main__":
    main()
