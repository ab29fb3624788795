"""The pictures of paper ldp-sgd's figures from their numbers; what they are is in the caller."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.ticker import FuncFormatter

mpl.use("Agg")
import matplotlib.pyplot as plt

FOLDER = Path(__file__).parent.parent.parent / "docs" / "methods" / "figures"
#: Colours of Okabe and Ito, which the colour-blind can tell apart; lines say the same.
BLUE, ORANGE, GREEN, RED, PURPLE = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7"
STYLES = {
    "weights": (BLUE, "o", "-"), "weights, mu = 2": (BLUE, "s", "--"),
    "clipped": (RED, "o", "-"), "clipped, mu = 2": (RED, "s", "--"),
    "random scaling": (BLUE, "o", "-"), "PPI-0": (GREEN, "D", "-"),
    "batch means": (ORANGE, "^", "--"), "online batch means": (RED, "v", "--"),
}  # fmt: skip
NAMES = {
    "weights": "weights, no noise", "clipped": "clipped at 0.5, no noise",
    "clipped, mu = 2": "clipped at 0.5, mu = 2",
}  # fmt: skip
#: What a flight's coefficient means.
MEANINGS = {
    "gained": "minutes gained in the air",
    "late": "log-odds of a late arrival",
}
Numbers = dict[str, Any]
_THOUSANDS = FuncFormatter(lambda value, _: f"{value:,.0f}")


def draw(numbers: Numbers) -> None:
    """Draw all figures."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    mpl.rcParams.update({"font.size": 9, "axes.grid": True, "grid.color": "#e5e5e5",
                         "axes.spines.top": False, "axes.spines.right": False})  # fmt: skip
    clipping(numbers["clipping"])
    one_path(numbers["path"])
    coverage(numbers["coverage"])
    flights(4, "gained", numbers["gained"])
    flights(5, "late", numbers["late"])


def clipping(numbers: Numbers) -> None:
    """Draw the bias of clipping by its threshold, and errors by the number of records."""
    picture, (left, right) = plt.subplots(1, 2, figsize=(7.2, 3.5))
    found = numbers["limits"]
    left.plot(found["thresholds"], found["bias"], color=RED, marker="o", markersize=4,
              label="clipped gradients")  # fmt: skip
    left.axhline(0, color=BLUE, label="weighted gradients")
    left.set_xscale("log")
    left.set_xticks([0.2, 0.5, 1, 2], ["0.2", "0.5", "1", "2"])
    left.minorticks_off()
    left.set_xlabel("threshold of the gradient's norm")
    left.set_ylabel("distance of the limit to the truth")
    left.legend(frameon=False)
    for kind, values in numbers["errors"].items():
        colour, marker, line = STYLES[kind]
        mean, error = np.array(values).T
        right.errorbar(
            numbers["records"], mean, error, label=NAMES.get(kind, kind), color=colour,
            marker=marker, linestyle=line, markersize=4, linewidth=1.2, capsize=2,
        )  # fmt: skip
    right.set_xscale("log")
    right.set_yscale("log")
    right.set_xticks([2500, 10_000, 40_000, 160_000])
    right.xaxis.set_major_formatter(_THOUSANDS)
    right.minorticks_off()
    right.set_xlabel("records")
    right.set_ylabel("norm of the mean error")
    right.set_ylim(bottom=1e-4)
    right.legend(frameon=False, fontsize=7.5, loc="lower left")
    _save(picture, 1, f"right: {numbers['runs']} replications, bars: Monte Carlo error")


def one_path(numbers: Numbers) -> None:
    """Draw two coefficients of one path with both intervals."""
    picture, axes = plt.subplots(1, 2, figsize=(7.2, 3.3))
    records, every = np.array(numbers["records"]), numbers["every"]
    iterates, means = np.array(numbers["iterates"]), np.array(numbers["means"])
    at = every * np.arange(1, len(iterates) + 1)
    for axis, place, name in zip(axes, (0, 1), ("intercept", "first slope"), strict=True):
        axis.plot(at, iterates[:, place], color="#bbbbbb", linewidth=0.4, label="iterate")
        half = np.array(numbers["random scaling"])[:, place]
        axis.fill_between(records, means[:, place] - half, means[:, place] + half, color=BLUE,
                          alpha=0.25, linewidth=0, label="random scaling, 95 %")  # fmt: skip
        half = np.array(numbers["PPI-0"])[:, place]
        for side in (-1, 1):
            axis.plot(records, means[:, place] + side * half, color=GREEN, linewidth=1,
                      linestyle="--", label="PPI-0, 95 %" if side == 1 else None)  # fmt: skip
        axis.plot(records, means[:, place], color=BLUE, linewidth=1.4, label="average")
        axis.axhline(numbers["truth"][place], color="black", linewidth=0.9, linestyle=":",
                     label="truth")  # fmt: skip
        axis.set_xscale("log")
        axis.set_xlim(records[0], records[-1])
        axis.set_ylim(0.3, 1.7)
        axis.set_xticks([2000, 10_000, 50_000, 200_000])
        axis.xaxis.set_major_formatter(_THOUSANDS)
        axis.minorticks_off()
        axis.set_title(name, fontsize=9)
        axis.set_xlabel("records")
    _legend(picture, axes[0])
    _save(picture, 2, "mu = 1, d = 4, burn-in 1000", top=0.25)


def coverage(numbers: Numbers) -> None:
    """Draw how far coverage is from each level."""
    levels, curves = 100 * np.array(numbers["levels"]), numbers["curves"]
    picture, axes = plt.subplots(1, len(curves), figsize=(7.2, 3.5), sharey=True)
    places = np.arange(len(levels))
    for axis, (end, methods) in zip(axes, curves.items(), strict=True):
        axis.axhline(0, color="black", linewidth=0.9)
        for name, curve in methods.items():
            colour, marker, line = STYLES[name]
            axis.errorbar(
                places, np.array(curve["mean"]) - levels, curve["error"], label=name, color=colour,
                marker=marker, linestyle=line, markersize=4, linewidth=1.2, capsize=2,
            )  # fmt: skip
        axis.set_xticks(places, [f"{level:g}" for level in levels], rotation=45)
        axis.set_title(f"n = {int(end):,}", fontsize=9)
        axis.set_xlabel("level, %")
    axes[0].set_ylabel("coverage less level, points")
    _legend(picture, axes[0])
    _save(picture, 3, f"mu = 1, {numbers['runs']} replications, bars: Monte Carlo error", top=0.25)


def flights(figure: int, name: str, numbers: Numbers) -> None:
    """Draw the coefficients of a study along its stream."""
    curves = numbers["curves"]
    columns = 2
    rows = -(-len(curves) // columns)
    picture, axes = plt.subplots(
        rows, columns, figsize=(7.2, 2.35 * rows + 0.9), sharex=True, squeeze=False
    )
    records = np.array(numbers["records"]) / 1000
    for axis, (coefficient, curve) in zip(axes.ravel(), curves.items(), strict=True):
        low, high = _ends(curve["random-scaling"])
        axis.fill_between(records, low, high, color=BLUE, alpha=0.25, linewidth=0,
                          label="random scaling, 95 %")  # fmt: skip
        for ends, label in zip(_ends(curve["plug-in"]), ("PPI-0, 95 %", None), strict=True):
            axis.plot(records, ends, color=GREEN, linewidth=1, linestyle="--", label=label)
        axis.plot(records, curve["values"], color=BLUE, linewidth=1.4, label="estimate")
        axis.axhline(curve["target"], color="black", linewidth=0.9, linestyle=":",
                     label="whole year, no noise")  # fmt: skip
        axis.set_title(coefficient, fontsize=9)
    for axis in axes[-1]:
        axis.set_xlabel("flights, thousands")
    picture.supylabel(MEANINGS[name], fontsize=9)
    _legend(picture, axes[0][0])
    _save(picture, figure, "epsilon = 10, delta = 1e-6 for one flight; no interval until the path "
          "has mixed", top=0.25)  # fmt: skip


def _ends(pairs: Sequence[Sequence[float] | None]) -> tuple[Any, Any]:
    """Return lower and upper ends, NaN where no interval is shown."""
    found = np.array([(np.nan, np.nan) if pair is None else pair for pair in pairs])
    return found[:, 0], found[:, 1]


def _legend(picture: Any, axis: Any) -> None:
    handles, labels = axis.get_legend_handles_labels()
    picture.legend(handles, labels, loc="upper center", ncols=len(labels), frameon=False,
                   fontsize=8)  # fmt: skip


def _save(picture: Any, figure: int, note: str, *, top: float = 0.0) -> None:
    """Write a picture with a note at its foot and `top` inches for a legend."""
    picture.text(0.01, 0.005, note, fontsize=7)
    picture.tight_layout(rect=(0, 0.03, 1, 1 - top / picture.get_size_inches()[1]))
    picture.savefig(FOLDER / f"sgd{figure}.png", dpi=130)
    plt.close(picture)
