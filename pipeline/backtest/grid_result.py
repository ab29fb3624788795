"""What many backtests of one history came to: runs, their means over draws, settings.

Standard errors are over draws of the noise on this one history; they say nothing about another
history.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.backtest.axes import Axis, Setting
from pipeline.backtest.result import BacktestResult
from pipeline.errors import VeilstreamError

#: Scores of a run that are averaged, and other numbers of its last estimate.
MEASURES = (
    "accuracy", "balanced_accuracy", "auc", "log_loss", "mean_absolute_error",
    "root_mean_square_error", "width", "intervals", "coverage", "privacy_share", "ready",
    "releases", "seconds",
)  # fmt: skip


#: Balanced accuracy that is no further from a half tells no setting from one that predicts the same
#: class for every record.
SAME_CLASS = 0.005
#: A setting has intervals if at least this share of its coefficients does, in every draw.
MOST = 0.8


@dataclass(frozen=True, slots=True)
class Run:
    """One backtest of a grid.

    setting, label: Number of its setting, and the same in words.
    draw: Number of its draw of the noise; None for the run without privacy.
    """

    setting: int
    label: str
    draw: int | None
    result: BacktestResult

    @property
    def measures(self) -> dict[str, float | None]:
        """The numbers that are averaged, by name; widths are those of the last estimate."""
        result = self.result
        found = dataclasses.asdict(result.scores)
        diagnostics = result.estimate.diagnostics
        widths = sorted(c.interval[1] - c.interval[0] for c in result.estimate.coefficients
                        if c.interval is not None)  # fmt: skip
        found |= {
            "width": widths[len(widths) // 2] if widths else None,
            "intervals": len(widths) / len(result.estimate.coefficients),
            "coverage": result.pooled.coverage,
            "privacy_share": diagnostics.privacy_share if widths else None,
            "ready": float(result.estimate.status == "ready"),
            "releases": float(result.estimate.releases),
            "seconds": result.seconds,
        }
        return {name: found[name] for name in MEASURES}


@dataclass(frozen=True, slots=True)
class Failed:
    """A backtest of a grid that came to no result; its attributes are as those of `Run`.

    error: Why.
    """

    setting: int
    label: str
    draw: int | None
    error: VeilstreamError

    @property
    def name(self) -> str:
        """Which run it is, in words."""
        return f"{self.label}, {named(self.draw)}"


def named(draw: int | None) -> str:
    """Return what a draw of the noise is called, counted from 1; None is the run without it."""
    return "without privacy" if draw is None else f"draw {draw + 1}"


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean over draws of the noise, with its standard error; None of one draw alone."""

    value: float
    error: float | None
    draws: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Mean:
        """Return the mean of at least one value."""
        count = len(values)
        centre = math.fsum(values) / count
        if count == 1:
            return cls(centre, None, 1)
        spread = math.fsum((value - centre) ** 2 for value in values) / (count - 1)
        return cls(centre, math.sqrt(spread / count), count)


@dataclass(frozen=True, slots=True)
class Cell:
    """A setting with what its runs came to.

    runs: One for each draw that did not fail.
    open: The run without privacy; None where the study itself keeps none, its kind has no stream
        without noise, or that run failed.
    """

    setting: Setting
    runs: tuple[Run, ...]
    open: Run | None

    @property
    def means(self) -> dict[str, Mean]:
        """Means over the draws, by measure; those that no run has are left out."""
        found = {}
        for name in MEASURES:
            values = [v for run in self.runs if (v := run.measures[name]) is not None]
            if values:
                found[name] = Mean.of(values)
        return found

    @property
    def has_intervals(self) -> bool:
        """Whether every draw ended with an interval for most of the coefficients."""
        return bool(self.runs) and all(
            (run.measures["intervals"] or 0.0) >= MOST for run in self.runs
        )


@dataclass(frozen=True, slots=True)
class GridResult:
    """What a grid came to.

    axes: The keys and their values.
    cells: One for each setting, in the order of the axes.
    seconds: How long all took.
    failed: Runs that came to no result, in the same order.
    no_open: Why settings have no run without privacy beside them, each reason once.
    """

    axes: tuple[Axis, ...]
    cells: tuple[Cell, ...]
    seconds: float
    failed: tuple[Failed, ...] = ()
    no_open: tuple[str, ...] = ()

    @property
    def shown(self) -> Cell | None:
        """The first setting with a result; None if every run failed."""
        return next((cell for cell in self.cells if cell.runs), None)

    @property
    def reasons(self) -> dict[str, list[Failed]]:
        """Why runs failed, each reason once with its runs."""
        found: dict[str, list[Failed]] = {}
        for run in self.failed:
            found.setdefault(str(run.error), []).append(run)
        return found

    @property
    def main_score(self) -> str:
        """Name of the score that says most in one number, of all settings alike.

        Of classes that no setting tells apart it is the AUC: a rare class hardly ever has the
        larger probability, and the order of the probabilities still says something.

        Raises what failed the first run if none came to a result.
        """
        if self.shown is None:
            raise self.failed[0].error
        result = self.shown.runs[0].result
        return result.ranking_score if self.predicts_one_class else result.main_score[0]

    @property
    def predicts_one_class(self) -> bool:
        """Whether all settings score as if they predicted the same class for every record."""
        name = "balanced_accuracy"
        means = [mean for cell in self.cells if (mean := cell.means.get(name)) is not None]
        without = [v for cell in self.cells if cell.open and (v := cell.open.measures[name])]
        centres = [*(mean.value for mean in means), *without]
        errors = [*((mean.error or 0.0) for mean in means), *(0.0 for _ in without)]
        return bool(means) and all(
            abs(centre - 0.5) <= max(error, SAME_CLASS)
            for centre, error in zip(centres, errors, strict=True)
        )
