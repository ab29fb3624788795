"""The picture of the sweeps of paper noisy-mle."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

from benchmarks.papers.cells import Cell

PICTURE = Path(__file__).parents[2] / "docs" / "methods" / "figures" / "noisy-mle-sweeps.png"
WORDS = {"epsilon": "epsilon", "n": "records of a site", "M": "sites"}


def draw_sweeps(cells: Sequence[Cell]) -> None:
    """Draw distances by epsilon, records and sites, a line for each method."""
    picture, axes = plt.subplots(2, 3, figsize=(9.5, 5.5), sharey="row", layout="constrained")
    for row, loss in enumerate(("linear", "logistic")):
        for column, key in enumerate(WORDS):
            axis, start = axes[row, column], f"{loss} {key} = "
            for name in dict.fromkeys(cell.column for cell in cells):
                own = [c for c in cells if c.column == name and c.row.startswith(start)]
                values = [float(c.row.removeprefix(start)) for c in own]
                axis.errorbar(
                    values, [c.ours for c in own], [2 * c.mc_error for c in own],
                    marker="o", markersize=3, linewidth=1.2, label=name,
                )  # fmt: skip
            axis.set_xscale("log", base=2)
            axis.set_xlabel(WORDS[key])
        axes[row, 0].set_ylabel(f"{loss}: mean log distance")
    axes[0, 0].legend(fontsize=8, frameon=False)
    PICTURE.parent.mkdir(exist_ok=True)
    picture.savefig(PICTURE, dpi=110)
    plt.close(picture)
