"""Loader of the HARTH recordings: two accelerometers on each person, motion against rest.

HARTH (Human Activity Recognition Trondheim, UCI 779, CC BY 4.0) is one CSV file per person, such
as S006.csv, with a header and at least the columns back_x, back_y, back_z, thigh_x, thigh_y,
thigh_z (accelerations in g, 50 a second) and label. Other columns are passed over: some of its
files have an index of rows. The data are not part of this project.
"""

from __future__ import annotations

import csv
import warnings
from pathlib import Path

import numpy as np

from pipeline.errors import DataError
from pipeline.types import Matrix, Vector

FEATURES = ("back_x", "back_y", "back_z", "thigh_x", "thigh_y", "thigh_z")
#: Walking, running, shuffling, stairs up and down, cycling in four forms.
MOTION = (1, 2, 3, 4, 5, 13, 14, 130, 140)
#: Standing, sitting, lying.
REST = (6, 7, 8)
#: The sensors measure up to 8 g: the public range of every feature.
RANGE = 8.0


def read_person(path: Path) -> tuple[Matrix, Vector]:
    """Return one person's features (n, 6) in [-1, 1] and responses (n,), +1 for motion.

    Raises
    ------
    DataError
        If a column is missing, a value is not a number or a label is unknown.
    """
    with path.open(newline="", encoding="utf-8") as file:
        header = next(csv.reader(file), [])
        if missing := [name for name in (*FEATURES, "label") if name not in header]:
            raise DataError(f"{path.name} has no column {missing[0]}: HARTH's layout is needed")
        columns = [header.index(name) for name in (*FEATURES, "label")]
        try:
            with warnings.catch_warnings():
                # of a file without rows we say so ourselves
                warnings.simplefilter("ignore", UserWarning)
                table = np.loadtxt(file, delimiter=",", usecols=columns, ndmin=2)
        except ValueError as error:
            raise DataError(f"{path.name} holds a value that is not a number") from error
    if len(table) == 0:
        raise DataError(f"{path.name} holds no row below its header")
    labels = table[:, -1]
    motion, rest = np.isin(labels, MOTION), np.isin(labels, REST)
    if not np.all(motion | rest):
        known = ", ".join(map(str, sorted((*MOTION, *REST))))
        raise DataError(f"{path.name} has a label that is none of {known}")
    if not np.all(np.isfinite(table)):
        raise DataError(f"{path.name} holds a value that is not finite")
    return np.clip(table[:, :-1] / RANGE, -1.0, 1.0), np.where(motion, 1.0, -1.0)


def read_folder(folder: Path) -> dict[str, tuple[Matrix, Vector]]:
    """Return the records of every person in a folder, by the name of the file.

    Raises
    ------
    DataError
        If the folder holds no CSV file, or one that cannot be read.
    """
    paths = sorted(folder.glob("*.csv"))
    if not paths:
        raise DataError(f"{folder} holds no CSV file; HARTH has one for each person")
    return {path.stem: read_person(path) for path in paths}
