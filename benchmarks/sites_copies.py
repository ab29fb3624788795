"""How often intervals of noisy copies hold the truth: in mid-stream and at the end of streams.

`python -m benchmarks.sites_copies [--draws N] [--bounds B ...]` (7 minutes): sites with equally
many windows, and with from one to twelve, and with more windows than each has records, where what
fits of few records err is more than chance; truths whose fits come near the bound of their norm, or
pass it, as well. Seeds are those of no test but the slow one. "ready": the share of streams whose
intervals were due; "spread": what estimates vary, over their standard errors.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass

import numpy as np

from benchmarks.sites_coverage import LEAST, MOST
from pipeline.estimators.estimate import Estimate
from pipeline.methods import task_of
from pipeline.stream.in_process import OfflineRun
from pipeline.study_file.load import parse_study
from tests.sites import TRUTH, study_text, truth_in, window

#: Where seeds begin, and how many windows each of the sites sends.
FIRST_SEED = 50_000
EQUAL, UNEQUAL = (4,) * 10, (1, 1, 1, 2, 2, 3, 4, 6, 8, 12)
#: More windows than each has records: intervals hold a bound of what fits of few records err.
MANY = (50,) * 10
SITES = {EQUAL: "equal", UNEQUAL: "1 to 12 windows", MANY: "many windows"}
RECORDS = 400
#: Bounds of the norm of linear fits, whose truth has one of 0.45: far from the fits, near them,
#: where intervals are those of estimates that chance drew inwards, and below.
BOUNDS = (1, 0.45, 0.42, 0.41, 0.4, 0.35, 0.3)
#: Standard deviation of whether a 95 % interval holds: four are no less sure than their mean.
ONE = math.sqrt(0.95 * 0.05)


@dataclass(frozen=True, slots=True)
class Cell:
    """Coverage of one kind of stream, with the Monte Carlo error of streams as wholes.

    ready: Share of the streams with intervals; without any, coverage, error and spread are NaN.
    spread: Root mean square of estimates less the truth, over that of their standard errors.
    """

    label: str
    moment: str
    ready: float
    coverage: float = math.nan
    error: float = math.nan
    spread: float = math.nan
    bounded: bool = False

    @property
    def holds(self) -> bool:
        """Whether coverage is where it should be, within three errors.

        Wherever streams have intervals, few or many of them. A bound of what fits err holds more
        often than it says.
        """
        reach = 3 * self.error
        above = self.bounded or self.coverage <= MOST + reach
        return math.isnan(self.coverage) or (LEAST - reach <= self.coverage and above)


def cells(loss: str, windows: tuple[int, ...], draws: int, bound: float = 1.0) -> list[Cell]:
    """Return the coverage in mid-stream and at the end of so many streams."""
    found = [_stream(loss, windows, FIRST_SEED + seed, bound) for seed in range(draws)]
    label = f"{loss}{f' {bound:g}' if loss == 'linear' else ''}, {SITES[windows]}"
    made = []
    for moment, told in zip(("middle", "end"), zip(*found, strict=True), strict=True):
        due = [one for one in told if one.status == "ready"]
        if not due:
            made.append(Cell(label, moment, 0.0))
            continue
        held = [float(np.mean(truth_in(estimate, TRUTH[loss]))) for estimate in due]
        error = max(float(np.std(held)), ONE / 2) / math.sqrt(len(held))
        away = np.array([estimate.coefficients - TRUTH[loss] for estimate in due])
        errors = np.array([np.diag(estimate.covariance) for estimate in due])  # type: ignore[arg-type]
        spread = math.sqrt(float(np.mean(away**2) / np.mean(errors)))
        made.append(Cell(label, moment, len(due) / draws, float(np.mean(held)), error, spread,
                         bounded=windows == MANY))  # fmt: skip
    return made


def _stream(loss: str, windows: tuple[int, ...], seed: int, bound: float) -> list[Estimate]:
    method = f"coefficient_bound = {bound}" if loss == "linear" else ""
    text = study_text(
        method, kind="noisy-copies", p=3, loss=loss, records=RECORDS, releases=len(windows),
        ridge=1e-3, epsilon=4.0, mechanism="insecure-simulation", norm_bound="typical", seed=seed,
        noise_scale=0.15 if loss == "linear" else None,
    )  # fmt: skip
    stream, rng = OfflineRun(task_of(parse_study(text))), np.random.default_rng(seed)
    order = np.repeat(np.arange(len(windows)), windows)
    rng.shuffle(order)
    found = []
    for number, site in enumerate(order.tolist(), start=1):
        stream.add(f"site-{site}", window(loss, RECORDS, rng))
        if number in (len(order) // 2, len(order)):
            found.append(stream.publish())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=400)
    parser.add_argument("--bounds", type=float, nargs="*", help="linear fits alone, with these")
    options = parser.parse_args()
    given = [("linear", bound, sites) for bound in options.bounds or BOUNDS
             for sites in (EQUAL, UNEQUAL)]  # fmt: skip
    if not options.bounds:
        given = [("logistic", 1.0, sites) for sites in (EQUAL, UNEQUAL, MANY)] + given
    for loss, bound, sites in given:
        draws = max(2, options.draws // 5) if sites == MANY else options.draws
        for cell in cells(loss, sites, draws, bound):
            print(f"{cell.label:28}{cell.moment:8} ready {cell.ready:5.2f}  holds "
                  f"{cell.coverage:.3f} +- {cell.error:.3f}  spread {cell.spread:.2f}"
                  f"{'' if cell.holds else '  outside'}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
