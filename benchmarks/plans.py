"""Do plans say what streams give? First intervals and lengths, at sizes that differ much.

`python -m benchmarks.plans [--streams N] [DESIGN ...]`. For each design `study design`'s formulas
predict, from public numbers alone, when the first interval comes (half of all streams have had an
estimate with one for every second slope) and half the length of a slope's at the end. Beside them
stand simulated streams of the doctor: windows that grow, the product's own noise, fold, estimates
and models. Designs whose names begin with "sgd" release gradients of single records, and are looked
at whenever they have grown by a thirtieth. Prints both, and the ratio of what was predicted to what
came.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import ndtri

from benchmarks.sgd_intervals import GradientStream
from pipeline.estimators.estimate import Estimate
from pipeline.estimators.population import Population
from pipeline.methods import method_of
from pipeline.methods.ldp_sgd.client import GradientTask
from pipeline.simulate.coverage import Releases, simulated
from pipeline.study.model import Study
from pipeline.study.reference import Seen, narrowed
from pipeline.study_file.load import parse_study
from pipeline.types import Vector
from tests.sites import study_text

#: A stream is looked at again when it has grown by so much.
LOOK = 31 / 30


@dataclass(frozen=True)
class Planned:
    """A study and its size; part: of their ranges, which values fill."""

    loss: str
    features: int
    epsilon: float
    clients: int
    records: int
    rarer: float = 0.5
    window: int = 250
    kind: str = "renewable"
    part: float = 1.0

    @property
    def seen(self) -> Seen | None:
        """Records that fill a part of their ranges; None where they fill all."""
        return None if self.part == 1 else narrowed(self.study, self.part)

    @property
    def study(self) -> Study:
        sums = self.kind == "renewable"
        text = study_text(
            kind=self.kind, p=self.features, loss=self.loss, epsilon=self.epsilon, delta=1e-6,
            ridge=None if sums else 0.0, norm_bound="typical" if sums else None,
            residual_bound=0.4 if self.loss == "linear" else None, records=self.window,
            most=12.0 if self.loss == "poisson" else 1.0,
            neighbours="zero-out" if sums else "replace-one",
        )  # fmt: skip
        guess = f'negative = "0", typical = {self.rarer} }}'
        return parse_study(text.replace('negative = "0" }', guess) + "partitions = 1\n")


DESIGNS = {
    "few": Planned("logistic", 3, 1, 8, 100_000),
    "two": Planned("logistic", 2, 0.5, 2, 100_000),
    "plain": Planned("logistic", 7, 1, 8, 100_000),
    "alone": Planned("logistic", 7, 0.5, 1, 50_000),
    "rare": Planned("logistic", 7, 2, 8, 100_000, rarer=0.1),
    "wide": Planned("logistic", 20, 1, 8, 200_000),
    "many": Planned("logistic", 7, 1, 64, 200_000),
    "numbers": Planned("linear", 10, 4, 32, 100_000),
    "counts": Planned("poisson", 7, 1, 8, 200_000),
    "half": Planned("logistic", 6, 1, 4, 100_000, part=0.5),
    "half-counts": Planned("poisson", 4, 2, 4, 200_000, part=0.5),
    "third-gdwd": Planned("gdwd", 5, 1, 4, 200_000, part=0.35),
    "fifth": Planned("logistic", 4, 1, 3, 400_000, part=0.2),
    "narrow": Planned("logistic", 4, 1, 3, 200_000, part=0.25),
    "narrow-rare": Planned("logistic", 4, 2, 3, 200_000, rarer=0.05, part=0.3),
    "gdwd": Planned("gdwd", 5, 1, 8, 100_000),
    "sgd": Planned("logistic", 3, 2, 1, 400_000, window=100, kind="ldp-sgd"),
    "sgd-many": Planned("logistic", 7, 10, 8, 100_000, window=100, kind="ldp-sgd"),
    "sgd-rare": Planned("logistic", 3, 8, 2, 300_000, 0.15, window=50, kind="ldp-sgd"),
    "sgd-lax": Planned("logistic", 2, 4, 4, 100_000, window=50, kind="ldp-sgd"),
    "sgd-numbers": Planned("linear", 3, 2, 4, 100_000, window=50, kind="ldp-sgd"),
    "sgd-wide": Planned("linear", 7, 6, 4, 100_000, window=50, kind="ldp-sgd"),
    "sgd-late": Planned("logistic", 3, 15, 4, 100_000, window=500, kind="ldp-sgd"),
}


def stream(planned: Planned, number: int) -> tuple[float, float]:
    """Return when the first interval came, and half the median length of a slope's at the end."""
    population, first = _population(planned), np.inf
    releases = Releases(population, planned.clients, 1, number)
    estimate, looks = releases.estimate, releases.models(planned.records)
    if isinstance(population.task, GradientTask):
        run = GradientStream(population.task, np.random.default_rng([1, number]))
        estimate, looks = run.estimate, _looks(planned, population, run, number)
    for records in looks:
        if not np.isfinite(first) and np.isfinite(_slopes(estimate())).mean() >= 0.5:
            first = records
    return first, float(np.nanmedian(_slopes(estimate())) * ndtri(0.975))


def _looks(
    planned: Planned, population: Population, run: GradientStream, number: int
) -> Iterator[int]:
    """Yield how many records have come, of a stream without rounds, where it is looked at."""
    task, rng = population.task, np.random.default_rng([2, number])
    records, waiting, due = 0, 0, 0.0
    while records < planned.records:
        run.fold(*population.draw(rng, planned.clients * task.slots), planned.clients)
        records, waiting = records + planned.clients * task.slots, waiting + planned.clients
        if waiting >= task.study.stream.publish.releases:
            run.publish()
            waiting = 0
        if records >= due:
            due = records * LOOK
            yield records


def _slopes(estimate: Estimate) -> Vector:
    """Return the standard errors of the slopes by now, shape (p,); NaN where there are none."""
    errors = estimate.standard_errors()
    return np.full(1, np.nan) if errors is None else errors[0][1:]


@lru_cache(maxsize=1)
def _population(planned: Planned) -> Population:
    return Population.of(simulated(planned.study), seen=planned.seen)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("designs", nargs="*", default=[*DESIGNS])
    parser.add_argument("--streams", type=int, default=40)
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    print("design     first: predicted  streams  ratio   +- at the end: predicted  streams  ratio")
    for name in options.designs:
        planned = DESIGNS[name]
        study = planned.study
        found = method_of(study).plan(
            method_of(study).task(study), planned.records, planned.clients, planned.seen
        )
        with ProcessPoolExecutor(options.processes) as pool:
            runs = list(pool.map(stream, [planned] * options.streams, range(options.streams)))
        predicted = found.first or found.usual
        first, half = np.median([run[0] for run in runs]), np.nanmedian([run[1] for run in runs])
        print(
            f"{name:12} {predicted:14,} {first:8,.0f} {predicted / first:6.2f}   "
            f"{found.usual_half or 0:24.4f} {half:8.4f} {(found.usual_half or 0) / half:6.2f}   "
            f"{planned}",
            flush=True,
        )


if __name__ == "__main__":
    main()
