"""Figure 2 of paper noisy-mle: insurance charges, split at random among sites.

insurance.csv of "Medical Cost Personal" is not part of this project (its licence is unclear), and
stands in a folder that the caller names. Columns and the charges are standardised, which is not
private; an intercept and eight columns. The figure prints no numbers: ours stand beside those of an
independent implementation, and nothing is gated.
"""

from __future__ import annotations

import csv
import math
import sys
from pathlib import Path

import numpy as np

from benchmarks.papers.cells import Cell, mean_cell
from benchmarks.papers.noisy_runs import Setting, estimates, fit
from pipeline.types import Matrix, Vector

REGIONS = ("northwest", "southeast", "southwest")
#: Public bounds of standardised rows and residuals.
NORM, CUT = 3.6, 1.25
#: By the number of sites: Site1, AVG, INFEM, SCORE.
REFERENCE = {
    4: (-2.58, -2.93, -3.10, -3.74), 8: (-2.11, -2.58, -2.76, -3.42),
    12: (-1.91, -2.46, -2.69, -3.15), 16: (-1.66, -2.32, -2.56, -3.05),
}  # fmt: skip
NAMES = ("Site1", "AVG", "INFEM", "SCORE")


def insurance(folder: Path, count: int) -> list[Cell]:
    """Return the mean log distance to the fit of all records, by sites and method."""
    rows, charges = read(folder / "insurance.csv")
    left = charges - rows @ np.linalg.lstsq(rows, charges, rcond=None)[0]
    scale = float(np.std(left))
    whole, cells = fit("linear", rows, charges, scale).theta, []
    for sites, figures in REFERENCE.items():
        each, logs = len(charges) // sites, dict[str, list[float]]()
        for run in range(count):
            rng = np.random.default_rng([13, sites, run])
            order = rng.permutation(len(charges))[: each * sites].reshape(sites, each)
            data = [(rows[own], charges[own]) for own in order]
            found = estimates(
                "linear", data, Setting(), rng, names=NAMES, norms=[NORM] * sites, scale=scale,
                cut=CUT,
            )  # fmt: skip
            for name in NAMES:
                logs.setdefault(name, []).append(
                    math.log(float(np.linalg.norm(found[name] - whole)))
                )
        cells += [
            mean_cell(("insurance", f"{sites} sites", name), logs[name], reference=figure,
                      others=100, rounding=0.005)
            for name, figure in zip(NAMES, figures, strict=True)
        ]  # fmt: skip
    return cells


def read(path: Path) -> tuple[Matrix, Vector]:
    """Return standardised rows (1, eight columns) and charges; without the file it ends here."""
    if not path.is_file():
        sys.exit(f"{path}: no such file; --data names a folder that has insurance.csv")
    with path.open(encoding="utf-8", newline="") as file:
        found = list(csv.DictReader(file))
    columns = [
        *([float(row[name]) for row in found] for name in ("age", "bmi", "children")),
        [float(row["sex"] == "male") for row in found],
        [float(row["smoker"] == "yes") for row in found],
        *([float(row["region"] == region) for row in found] for region in REGIONS),
    ]
    features = np.array(columns).T
    features = (features - features.mean(axis=0)) / features.std(axis=0)
    charges = np.array([float(row["charges"]) for row in found])
    rows = np.column_stack([np.ones(len(found)), features])
    return rows, (charges - charges.mean()) / charges.std()
