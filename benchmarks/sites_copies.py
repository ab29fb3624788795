"""How often intervals of noisy copies hold the truth: in mid-stream and at the end of streams.

`python -m benchmarks.sites_copies` (7 minutes; --draws, --bounds): sites with equally many windows,
and with from one to twelve, and with more windows than each has records, where what fits of few
records err is more than chance; truths whose fits come near the bound of their norm, or pass it, as
well. Seeds are those of no test but the slow one. "ready": the share of streams whose intervals
were due; "spread": what estimates vary, over their standard errors. Writes
results/sites_copies.json, or with --bounds nothing.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import numpy as np

from pipeline.estimators.estimate import Estimate
from pipeline.methods import task_of
from pipeline.stream.in_process import OfflineRun
from pipeline.study_file.load import parse_study
from tests.sites import TRUTH, study_text, truth_in, window

RESULTS = Path(__file__).parent / "results" / "sites_copies.json"
#: Where seeds begin, and how many windows each of the sites sends.
FIRST_SEED = 50_000
EQUAL, UNEQUAL = (4,) * 10, (1, 1, 1, 2, 2, 3, 4, 6, 8, 12)
#: More windows than each has records: intervals hold a bound of what fits of few records err.
MANY = (50,) * 10
RECORDS = 400
#: What coverage of 95 % intervals may be.
LEAST, MOST = 0.93, 0.975
#: Bounds of the norm of linear fits, whose truth has one of 0.45: far from the fits, near them,
#: where intervals are those of estimates that chance drew inwards, and below.
BOUNDS = "1,0.45,0.42,0.41,0.4,0.35,0.3"
#: Standard deviation of whether a 95 % interval holds: four are no less sure than their mean.
ONE = math.sqrt(0.95 * 0.05)


@dataclass(frozen=True, slots=True)
class Cell:
    """Coverage of one kind of stream, with the Monte Carlo error of streams as wholes.

    bound: Of the coefficients of linear fits; NaN of logistic ones.
    ready: Share of the streams with intervals.
    spread: Root mean square of estimates less the truth, over that of their standard errors.
    """

    loss: str
    sites: str
    moment: str
    bound: float
    coverage: float
    error: float
    ready: float
    spread: float

    @property
    def holds(self) -> bool:
        """Whether coverage is where it should be, within three errors.

        Wherever streams have intervals, few or many of them. A bound of what fits err holds more
        often than it says.
        """
        reach = 3 * self.error
        if self.sites == "many windows":
            return self.coverage >= LEAST - reach
        if math.isnan(self.coverage):
            return True
        return LEAST - reach <= self.coverage <= MOST + reach


def cells(loss: str, windows: tuple[int, ...], draws: int, bound: float = 1.0) -> list[Cell]:
    """Return the coverage in mid-stream and at the end of so many streams."""
    found = [_stream(loss, windows, FIRST_SEED + seed, bound) for seed in range(draws)]
    sites = "equal" if len(set(windows)) == 1 else "1 to 12 windows"
    sites = "many windows" if windows == MANY else sites
    made = []
    for place, moment in enumerate(("middle", "end")):
        due = [one[place] for one in found if one[place].status == "ready"]
        held = [float(np.mean(truth_in(estimate, TRUTH[loss]))) for estimate in due]
        limit = bound if loss == "linear" else math.nan
        if not due:
            made.append(Cell(loss, sites, moment, limit, math.nan, math.nan, 0.0, math.nan))
            continue
        away = np.array([estimate.coefficients - TRUTH[loss] for estimate in due])
        errors = np.array([np.diag(estimate.covariance) for estimate in due])  # type: ignore[arg-type]
        made.append(
            Cell(
                loss,
                sites,
                moment,
                limit,
                float(np.mean(held)),
                max(float(np.std(held)), ONE / 2) / math.sqrt(len(held)),
                len(due) / draws,
                math.sqrt(float(np.mean(away**2) / np.mean(errors))),
            )
        )
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


@click.command()
@click.option("--draws", type=click.IntRange(2), default=400, show_default=True)
@click.option("--bounds", default="", help="linear fits alone, with these (0.4,0.41); no record")
def main(draws: int, bounds: str) -> None:
    """Print the grid."""
    print("loss     sites            moment   bound  coverage         ready  spread")
    given = [("linear", float(bound)) for bound in (bounds or BOUNDS).split(",")]
    if not bounds:
        given = [("logistic", 1.0), *given]
    found = [
        cell
        for loss, bound in given
        for windows in (EQUAL, UNEQUAL)
        for cell in cells(loss, windows, draws, bound)
    ]
    if not bounds:
        found += cells("logistic", MANY, max(2, draws // 5))
    for cell in found:
        outside = "" if cell.holds else "  outside"
        print(
            f"{cell.loss:9}{cell.sites:17}{cell.moment:8}{cell.bound:6.2f}{cell.coverage:8.3f} "
            f"+- {cell.error:.3f}{cell.ready:7.2f}{cell.spread:7.2f}{outside}"
        )
    if bounds:
        return
    shown = [
        {
            key: None if isinstance(value, float) and math.isnan(value) else value
            for key, value in asdict(cell).items()
        }
        for cell in found
    ]
    RESULTS.write_text(json.dumps(shown, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
