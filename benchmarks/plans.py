"""Do plans say what streams give? First intervals and lengths, at sizes that differ much.

`python -m benchmarks.plans [--streams N] [DESIGN ...]`. For each design `study design`'s formulas
predict, from public numbers alone, when the first interval comes (half of all streams have had an
estimate with one for every second slope) and half the length of a slope's at the end. Beside them
stand simulated streams of the doctor: windows that grow, the product's own noise, fold, estimates
and models. Prints both, and the ratio of what was predicted to what came.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import ndtri

from pipeline.estimators.population import Population
from pipeline.methods import method_of
from pipeline.simulate.coverage import Releases, simulated
from pipeline.study.model import Study
from pipeline.study_file.load import parse_study
from pipeline.types import Vector

STUDY = """
[study]
name = "planned"
[data]
response = {response}
[data.features]
{features}
[estimator]
loss = "{loss}"
norm_bound = "typical"
{bound}
[privacy]
mechanism = "discrete-gaussian"
epsilon = {epsilon}
delta = 1e-6
[window]
records = {window}
"""
RESPONSES = {
    "linear": '{ name = "y", kind = "number", min = -1, max = 1 }',
    "poisson": '{ name = "y", kind = "count", max = 12 }',
}
CLASSES = '{{ name = "y", positive = "1", negative = "0", typical = {} }}'


@dataclass(frozen=True)
class Planned:
    """A study and its size."""

    loss: str
    features: int
    epsilon: float
    clients: int
    records: int
    rarer: float = 0.5
    window: int = 250

    @property
    def study(self) -> Study:
        """The study."""
        names = "\n".join(f"x{i} = {{ min = -1, max = 1 }}" for i in range(self.features))
        text = STUDY.format(
            response=RESPONSES.get(self.loss, CLASSES.format(self.rarer)), features=names,
            loss=self.loss, bound="residual_bound = 0.4" if self.loss == "linear" else "",
            epsilon=self.epsilon, window=self.window,
        )  # fmt: skip
        return parse_study(text)


DESIGNS = {
    "few": Planned("logistic", 3, 1, 8, 100_000),
    "plain": Planned("logistic", 7, 1, 8, 100_000),
    "alone": Planned("logistic", 7, 0.5, 1, 50_000),
    "rare": Planned("logistic", 7, 2, 8, 100_000, rarer=0.1),
    "wide": Planned("logistic", 20, 1, 8, 200_000),
    "many": Planned("logistic", 7, 1, 64, 200_000),
    "numbers": Planned("linear", 10, 4, 32, 100_000),
    "counts": Planned("poisson", 7, 1, 8, 200_000),
    "gdwd": Planned("gdwd", 5, 1, 8, 100_000),
}


def stream(planned: Planned, number: int) -> tuple[float, float]:
    """Return when the first interval came, and half the median length of a slope's at the end."""
    releases = Releases(_population(planned), planned.clients, 1, number)
    first = np.inf
    for records in releases.models(planned.records):
        if not np.isfinite(first) and np.isfinite(_slopes(releases)).mean() >= 0.5:
            first = records
    return first, float(np.nanmedian(_slopes(releases)) * ndtri(0.975))


def _slopes(releases: Releases) -> Vector:
    """Return the standard errors of the slopes by now, shape (p,); NaN where there are none."""
    errors = releases.estimate().standard_errors()
    return np.full(1, np.nan) if errors is None else errors[0][1:]


@lru_cache(maxsize=1)
def _population(planned: Planned) -> Population:
    return Population.of(simulated(planned.study))


def main() -> None:
    """Print a row for each design."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("designs", nargs="*", default=[*DESIGNS])
    parser.add_argument("--streams", type=int, default=40)
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    print("design    first: predicted  streams  ratio   +- at the end: predicted  streams  ratio")
    for name in options.designs:
        planned = DESIGNS[name]
        study = planned.study
        found = method_of(study).plan(
            method_of(study).task(study), planned.records, planned.clients
        )
        with ProcessPoolExecutor(options.processes) as pool:
            runs = list(pool.map(stream, [planned] * options.streams, range(options.streams)))
        first, half = np.median([run[0] for run in runs]), np.nanmedian([run[1] for run in runs])
        print(
            f"{name:9} {found.first or 0:16,} {first:8,.0f} {(found.first or 0) / first:6.2f}   "
            f"{found.usual_half or 0:24.4f} {half:8.4f} {(found.usual_half or 0) / half:6.2f}   "
            f"{planned}",
            flush=True,
        )


if __name__ == "__main__":
    main()
