"""Private streams whose intervals are of real coefficients: how often they hold, how long they are.

`python -m benchmarks.real_coefficients DESIGN [--epsilon E] [--clients K] [--streams N] [--records
N] [--ridge R] [--former] [--store]`, and `--draw`. Records of a design, dealt to clients, go
through the product's own steps: windows that grow, one release each, the fold, the estimate, and a
model when the worker would make one. Noise is the simulation's, of the same law. Prints, at some
sizes, which share of the streams is ready, how many coefficients have intervals, how often these
hold the coefficients of the population (with a ridge the penalised ones), the least of one
coefficient, and the length over that of all records without privacy.
`--former`: windows of 250 records, independent noise, and a budget that is split as if a record
used up each part. `--store` keeps the row in `benchmarks/results/real_coefficients.json`, and
`--draw` makes `docs/methods/figures/less-noise.png` of the rows there.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.polynomial.hermite_e import hermegauss
from scipy.signal import lfilter
from scipy.special import expit, ndtr, ndtri
from scipy.stats import poisson

from pipeline.methods import task_of
from pipeline.methods.renewable.client import RenewableTask
from pipeline.privacy.randomness import SeededStream
from pipeline.records.encoder import Arrays
from pipeline.release.task import clipped_to_norm
from pipeline.stream.in_process import OfflineRun
from pipeline.study_file.load import parse_study
from pipeline.types import Matrix, Vector
from tests.builders import study_text

DESIGNS = (
    "plain", "strong", "few", "rare", "turns", "wide", "close", "closer", "linear", "poisson",
    "differ", "steep", "gdwd", "gdwd-even", "gdwd-levels", "gdwd-weak",
)  # fmt: skip
SLOPES = [0.8, -0.6, 0.4, 0.0, 0.9, -0.3, 0.5]
#: The largest count; a number's deviation from its mean; records that stand for a population.
COUNTS, DEVIATION, DRAWN = 4, 0.2, 100_000
NODES, WEIGHTS = hermegauss(21)
SIZES = (10_000, 20_000, 50_000, 100_000, 300_000, 1_000_000)
REACH = float(ndtri(0.975))
RESULTS = Path(__file__).parent / "results" / "real_coefficients.json"
FIGURE = Path(__file__).parents[1] / "docs" / "methods" / "figures" / "less-noise.png"


@dataclass(frozen=True)
class Plan:
    """What is simulated; see the module's text."""

    design: str
    epsilon: float = 1.0
    clients: int = 8
    records: int = 300_000
    ridge: float | None = None
    former: bool = False

    @property
    def sizes(self) -> list[int]:
        """Numbers of records at which is looked."""
        if self.design == "turns":
            return [self.records // self.clients * (k + 1) for k in range(self.clients)]
        return [size for size in SIZES if size <= self.records]


class Population:
    """Records of one design."""

    def __init__(self, plan: Plan) -> None:
        self.plan, name = plan, plan.design
        self.rho = {"close": 0.8, "closer": 0.95}.get(name, 0.0)
        count = 20 if name == "wide" else 8 if name.startswith("gdwd") else 7
        times = {"strong": 3.0, "linear": 0.1, "poisson": 0.4, "gdwd-weak": 0.25}.get(name, 1.0)
        slopes = times * np.resize(SLOPES, count)
        if name == "steep":
            slopes = 25 * slopes[:4]
        # counts have means up to the largest that the study allows
        intercepts = {
            "few": -3.2, "steep": 0.0, "gdwd": -2.0, "gdwd-even": 0.0, "gdwd-weak": 0.0,
            "linear": 0.0,
            "poisson": np.log(COUNTS) - np.abs(slopes).sum(),
        }  # fmt: skip
        self.beta = np.append(intercepts.get(name, -0.5), slopes)
        self.correlation = np.linalg.cholesky(
            0.5 ** np.abs(np.subtract.outer(range(len(slopes)), range(len(slopes))))
        )
        if name == "rare":
            # a level in one of 500 records, and an exact copy of a column
            self.beta = np.append(self.beta, [0.7, 0.0])
        rng = np.random.default_rng(0)
        drawn = self.features(rng, 200_000)
        self.bound = float(np.quantile(np.hypot(1, np.linalg.norm(drawn, axis=1)), 0.99))
        self.apart = 0.5 * rng.standard_normal((plan.clients, len(self.beta)))

    def series(self, rng: np.random.Generator, shape: tuple[int, int]) -> Matrix:
        """Return standard normal columns, each a first-order autoregression."""
        drawn = rng.standard_normal(shape)
        if self.rho:
            drawn = lfilter([np.sqrt(1 - self.rho**2)], [1, -self.rho], drawn, axis=0)
        return drawn

    def features(self, rng: np.random.Generator, count: int, site: int = 0) -> Matrix:
        """Return features in [-1, 1], shape (count, p)."""
        width = len(self.correlation)
        drawn = 2 * ndtr(self.series(rng, (count, width)) @ self.correlation.T) - 1
        if self.plan.design == "turns":
            drawn = np.clip(0.7 * drawn + 0.25 * (site - 1), -1, 1)
        if self.plan.design == "steep":
            drawn /= 4
        if self.plan.design == "gdwd-levels":
            drawn = np.sign(drawn)
        if self.plan.design == "rare":
            return np.column_stack([drawn, rng.random(count) < 0.002, drawn[:, 0]])
        return drawn

    def at(self, features: Matrix, site: int) -> Vector:
        """Return the predictors of records of one client, shape (n,)."""
        beta = self.beta + (self.apart[site] if self.plan.design == "differ" else 0.0)
        found: Vector = beta[0] + features @ beta[1:]
        return found

    def records(self, rng: np.random.Generator, count: int, site: int = 0) -> Arrays:
        """Return records of one client."""
        features = self.features(rng, count, site)
        at = self.at(features, site)
        if self.plan.design == "linear":
            return Arrays(features, np.clip(at + DEVIATION * rng.standard_normal(count), -1, 1))
        if self.plan.design == "poisson":
            return Arrays(features, np.minimum(rng.poisson(np.exp(at)), COUNTS).astype(float))
        chance = ndtr(self.series(rng, (count, 1))[:, 0]) if self.rho else rng.random(count)
        return Arrays(features, np.where(chance < expit(at), 1.0, -1.0))

    def outcomes(self, at: Vector) -> Iterator[tuple[Vector, Vector]]:
        """Yield responses of records with these predictors, and how probable each is, (n,) each."""
        if self.plan.design == "linear":
            for node, weight in zip(NODES, WEIGHTS / WEIGHTS.sum(), strict=True):
                yield np.clip(at + DEVIATION * node, -1, 1), np.full(len(at), weight)
        elif self.plan.design == "poisson":
            for count in range(COUNTS):
                yield np.full(len(at), float(count)), np.asarray(poisson.pmf(count, np.exp(at)))
            most = np.asarray(poisson.sf(COUNTS - 1, np.exp(at)))
            yield np.full(len(at), float(COUNTS)), most
        else:
            yield np.ones(len(at)), expit(at)
            yield -np.ones(len(at)), expit(-at)

    @property
    def study(self) -> str:
        plan, name = self.plan, self.plan.design
        loss = name.partition("-")[0] if name.startswith("gdwd") else name
        loss = loss if loss in ("linear", "poisson", "gdwd") else "logistic"
        features = [f"x{i} = {{ min = -1, max = 1 }}" for i in range(len(self.beta) - 1)]
        if name == "rare":
            features[-2] = f'x{len(features) - 2} = {{ kind = "category", levels = ["no", "yes"] }}'
        former: dict[str, Any] = {
            "noise_memory": 0, "growth": 0.0,
            "split": "gradient = 0.665, curvature = 0.285, counts = 0.05",
        }  # fmt: skip
        return study_text(
            declared=features, loss=loss, norm_bound=self.bound, ridge=plan.ridge, records=250,
            most=float(COUNTS) if loss == "poisson" else 1.0, releases=1,
            residual_bound=0.6 if loss == "linear" else None, mechanism="insecure-simulation",
            epsilon=plan.epsilon, delta=1e-6, **(former if plan.former else {}),
        )  # fmt: skip


@dataclass(frozen=True)
class Truth:
    """What all records together would give.

    coefficients, deviation: Where each site has as many, and the deviation of one record, (d,).
    scores, curvatures: Mean of a record of each site there, and the curvature, (k, d), (k, d, d).
    """

    coefficients: Vector
    deviation: Vector
    scores: Matrix
    curvatures: Matrix

    def of(self, slots: Vector) -> Vector:
        """Return the coefficients where each site has so many records, shape (d,)."""
        shares = slots[: len(self.scores)] / max(slots[: len(self.scores)].sum(), 1)
        curvature = np.tensordot(shares, self.curvatures, 1)
        found: Vector = self.coefficients - np.linalg.pinv(curvature, rcond=1e-9) @ (
            shares @ self.scores
        )
        return found


@lru_cache(maxsize=4)
def truth(plan: Plan) -> Truth:
    """Return what the records of a population give.

    Responses enter by their probabilities, so that hardly any chance is left.
    """
    population = Population(plan)
    task, rng = task_of(parse_study(population.study)), np.random.default_rng(11)
    assert isinstance(task, RenewableTask)
    sites = plan.clients if plan.design in ("differ", "turns") else 1
    theta, loss = population.beta.copy(), task.loss
    size, penalty = len(theta), np.diag(task.penalty)
    draws = []
    for _ in range(4):
        features = population.features(rng, DRAWN)
        for site in range(sites):
            if plan.design == "turns":
                features = population.features(rng, DRAWN, site)
            rows = np.column_stack([np.ones(DRAWN), clipped_to_norm(features, task)])
            draws.append((site, rows, list(population.outcomes(population.at(features, site)))))
    for _ in range(8):
        scores = np.tile(penalty @ theta, (sites, 1))
        curvatures, middle = np.tile(penalty, (sites, 1, 1)), np.zeros((size, size))
        for site, rows, outcomes in draws:
            at = rows @ theta
            slopes, squares, bends = np.zeros((3, len(rows)))
            for response, chance in outcomes:
                slope = loss.slope(at, response)
                slopes += chance * slope
                squares += chance * slope**2
                bends += chance * loss.curvature(at, response)
            scores[site] += rows.T @ slopes / (4 * DRAWN)
            curvatures[site] += (rows.T * bends) @ rows / (4 * DRAWN)
            middle += (rows.T * squares) @ rows / (len(draws) * DRAWN)
        before, inverse = theta, np.linalg.pinv(curvatures.mean(axis=0), rcond=1e-9)
        theta = theta - inverse @ scores.mean(axis=0)
    pulled = penalty @ before
    deviation = np.sqrt(np.diag(inverse @ (middle - np.outer(pulled, pulled)) @ inverse))
    return Truth(before, deviation, scores, curvatures)


@dataclass(frozen=True)
class Seen:
    """An estimate: whether it is ready, by how many errors coefficients are off, and these."""

    ready: bool
    off: Vector
    errors: Vector
    design_effect: float


def stream(plan: Plan, seed: int) -> tuple[float | None, list[Seen | None]]:
    """Return when the first interval came, and what was estimated at each size."""
    population, rng = Population(plan), np.random.default_rng([seed, plan.clients])
    task, true = task_of(parse_study(population.study)), truth(plan)
    in_row = plan.design == "turns"
    part = np.ones(plan.clients) if in_row else rng.uniform(0.7, 1.3, plan.clients)
    part /= part.sum()
    data = [population.records(rng, int(plan.records * q), k) for k, q in enumerate(part)]
    run, at, sizes = OfflineRun(task), [0] * plan.clients, plan.sizes
    # where clients differ, what is estimated depends on how many records of each count
    counted = np.zeros(plan.clients)
    found: list[Seen | None] = []
    first, seen = None, None

    def next_end(client: int) -> float:
        """Return when the next window of a client is full, in records of all."""
        end = at[client] + (run.room(f"c{client}") or task.slots)
        if end > len(data[client].responses):
            return np.inf
        before = sum(len(one.responses) for one in data[:client]) if in_row else 0
        return before + end / (1.0 if in_row else part[client])

    while True:
        ends = [next_end(client) for client in range(plan.clients)]
        client = int(np.argmin(ends))
        while len(found) < len(sizes) and ends[client] > sizes[len(found)]:
            found.append(seen)
        if ends[client] == np.inf:
            return first, found
        name = f"c{client}"
        block = slice(at[client], at[client] + (run.room(name) or task.slots))
        rows = Arrays(data[client].features[block], data[client].responses[block])
        noise = SeededStream(seed, name, at[client])
        run.fold(name, run.release(name, rows, run.model, noise))
        at[client] = block.stop
        counted[client] += len(rows.responses) if run.model.version else 0
        if run.wait() is not None:
            estimate = run.publish()
            errors = estimate.standard_errors()
            own = np.full(task.size, np.nan) if errors is None else errors[0]
            effect = float(estimate.details.get("design_effect", np.nan))
            off = (estimate.coefficients - true.of(counted)) / own
            seen = Seen(errors is not None, off, own, effect)
            if first is None and seen.ready:
                first = ends[client]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("design", choices=DESIGNS, nargs="?", default="plain")
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--clients", type=int, help="by default 8, and 3 that take turns")
    parser.add_argument("--streams", type=int, default=60)
    parser.add_argument("--records", type=float, default=3e5)
    parser.add_argument("--ridge", type=float)
    parser.add_argument("--former", action="store_true")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--store", action="store_true")
    parser.add_argument("--draw", action="store_true")
    options = parser.parse_args()
    if options.draw:
        draw()
        return
    plan = Plan(
        options.design, options.epsilon,
        options.clients or (3 if options.design == "turns" else 8), int(options.records),
        options.ridge, options.former,
    )  # fmt: skip
    truth(plan)
    with ProcessPoolExecutor(options.processes) as pool:
        runs = list(pool.map(stream, [plan] * options.streams, range(options.streams)))
    rows = report(plan, runs)
    if options.store:
        stored = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        stored[str(plan)] = {"plan": asdict(plan), "streams": len(runs), "rows": rows}
        RESULTS.write_text(json.dumps(stored, indent=1, sort_keys=True) + "\n")


def report(
    plan: Plan, runs: list[tuple[float | None, list[Seen | None]]]
) -> list[dict[str, float]]:
    warnings.simplefilter("ignore")
    firsts = [first for first, _ in runs if first is not None]
    print(
        f"{plan}\nfirst interval at {np.median(firsts) if firsts else np.nan:,.0f} records (median "
        f"of {len(firsts)} of {len(runs)} streams)"
    )
    deviation, rows = truth(plan).deviation, []
    for place, size in enumerate(plan.sizes):
        seen = [run[place] for _, run in runs if place < len(run)]
        ready = [one for one in seen if one is not None and one.ready]
        if not ready:
            print(f"{size:10,}: none ready")
            continue
        off = np.array([one.off for one in ready])
        lengths = np.array([one.errors for one in ready]) / (deviation / np.sqrt(size))
        known = ~np.isnan(off)
        held = np.where(known, np.abs(off) < REACH, np.nan)
        effects = [one.design_effect for one in ready]
        rows.append({
            "records": size, "ready": len(ready) / len(seen), "given": float(known.mean()),
            "coverage": float(np.nanmean(held)),
            "length": float(np.nanmean(np.nanmedian(lengths, 0))),
        })  # fmt: skip
        print(
            f"{size:10,}: ready {len(ready) / len(seen):.2f}, given {known.mean():.2f}, "
            f"coverage {np.nanmean(held):.3f} (least {np.nanmin(np.nanmean(held, 0)):.2f}), "
            f"length {np.nanmean(np.nanmedian(lengths, 0)):.2f}, "
            f"design effect {np.nanmean(effects):.2f}",
            flush=True,
        )
    return rows


def draw() -> None:
    """Draw how much longer intervals are than without privacy, now and with the former noise."""
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.add_subplot()
    colours: dict[tuple[int, float], str] = {}
    for one in json.loads(RESULTS.read_text()).values():
        plan = Plan(**one["plan"])
        if plan.design != "plain":
            continue
        key = plan.clients, plan.epsilon
        colour = colours.setdefault(key, f"C{len(colours)}")
        name = f"{plan.clients} client{'s' * (plan.clients > 1)}, epsilon {plan.epsilon:g}"
        axes.plot(
            [row["records"] for row in one["rows"]], [row["length"] for row in one["rows"]],
            color=colour, marker="o", linestyle="--" if plan.former else "-",
            label=f"{name}, {'fixed windows, independent noise' if plan.former else 'now'}",
        )  # fmt: skip
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set(xscale="log", xlabel="records of all clients", ylim=(0.9, None))
    axes.set_ylabel("length over that of all records without privacy")
    axes.legend(fontsize=8)
    FIGURE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(FIGURE, dpi=110)


if __name__ == "__main__":
    main()
