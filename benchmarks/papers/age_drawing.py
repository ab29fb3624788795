"""The pictures of paper age: loss by age, and losses and noise by epsilon."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

from benchmarks.papers.cells import Cell
from pipeline.types import Vector

FOLDER = Path(__file__).parents[2] / "docs" / "methods" / "figures"


def draw_ages(curves: Mapping[str, Vector]) -> None:
    """Draw Figure 2: the bound and the exact loss of each client alone, by age."""
    picture, axes = plt.subplots(1, 3, figsize=(9.5, 3), layout="constrained")
    for number, axis in enumerate(axes, 1):
        for name, style in (("bound", "--"), ("loss", "-")):
            axis.plot(curves[f"client {number}, {name}"], style, label=name)
        axis.set_yscale("log")
        axis.set_xlabel(f"client {number}: age in slots")
    axes[0].set_ylabel("Wh^2")
    axes[0].legend(fontsize=8, frameon=False)
    picture.savefig(FOLDER / "age-aware-ages.png", dpi=110)
    plt.close(picture)


def draw_schemes(
    cells: Sequence[Cell], epsilons: Sequence[float], noises: tuple[Vector, Vector]
) -> None:
    """Draw Figure 3: losses of all schemes, and noise of both kinds at the best slots."""
    picture, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.8), layout="constrained")
    for name in dict.fromkeys(cell.column for cell in cells):
        left.plot(epsilons, [c.ours for c in cells if c.column == name], marker="o", markersize=3,
                  linewidth=1.2, label=name)  # fmt: skip
    left.set_ylabel("expected loss, Wh^2")
    for name, values in zip(("adaptive", "constant"), noises, strict=True):
        right.plot(epsilons, values, marker="o", markersize=3, label=name)
    right.set_ylabel("noise variance of the mean, Wh^2")
    for axis in (left, right):
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
        axis.minorticks_off()
        axis.set_xlabel("epsilon about the present")
        axis.legend(fontsize=7, frameon=False)
    picture.savefig(FOLDER / "age-aware-schemes.png", dpi=110)
    plt.close(picture)
