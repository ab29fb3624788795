"""An estimate as a notebook asks for it: a table of text, intervals, a frame, a picture."""

from __future__ import annotations

import io
import json
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import ConfigError
from pipeline.messages.estimate import EstimateMessage, write_estimate
from pipeline.messages.results import FitMessage, write_fit
from pipeline.methods import task_of
from pipeline.prediction.estimators import LinearClassifier, LinearRegressor, rule_of
from pipeline.settings import extra
from pipeline.study.model import Study
from pipeline.study_file.load import StudySource, read_study

#: Characters of a line of a summary.
WIDTH = 100


class Result:
    """What one estimate of a study says.

    Parameters
    ----------
    study
        A study, the path of a study file, or its text (a string with a line break).
    message
        The estimate: of a fit, of the study's topic, or `estimate_` of a learner.
    like
        A label in the type in which `model` predicts labels; by default a text.

    Attributes
    ----------
    study, message
        The study, and everything that is known of the estimate: its status, the reason, the
        guarantee, diagnostics.

    Raises
    ------
    ConfigError
        If the estimate is of another study.
    """

    def __init__(
        self, study: StudySource, message: EstimateMessage | FitMessage, *, like: object = ""
    ) -> None:
        self.study: Study = read_study(study)
        self.message, self._like = message, like
        if message.study != self.study.name:
            raise ConfigError(
                f"the estimate is of study {message.study!r}, and not of {self.study.name!r}; the "
                "caller must give the study that it is of"
            )

    @property
    def coefficients(self) -> dict[str, float]:
        """Coefficients by name, the intercept first, in the unit that `summary` names."""
        return {row.name: row.value for row in self.message.coefficients}

    @property
    def status(self) -> str:
        """How far to trust it, such as "warming" or "ready"; why is in `reason`."""
        return self.message.status

    @property
    def reason(self) -> str:
        """Why it is not ready, in words; empty otherwise."""
        return self.message.reason

    @property
    def guarantee(self) -> str:
        """What it keeps private, in words."""
        return self.message.privacy.guarantee

    def summary(self) -> str:
        """Return coefficients, intervals, what they rest on and the guarantee as a text table."""
        from rich.console import Console  # noqa: PLC0415  an import takes a tenth of a second

        from pipeline.api.table import fit_table, table  # noqa: PLC0415  likewise

        message = self.message
        drawn = (
            fit_table(message, self.study)
            if isinstance(message, FitMessage)
            else table(message, self.study)
        )
        text = io.StringIO()
        Console(file=text, width=WIDTH, color_system=None, force_jupyter=False).print(drawn)
        return "\n".join(line.rstrip() for line in text.getvalue().splitlines())

    def conf_int(self, method: str | None = None) -> dict[str, tuple[float, float] | None]:
        """Return the interval of each coefficient at the study's level; None where there is none.

        Parameters
        ----------
        method
            One of `message.intervals`; default: the one that the study shows.

        Raises
        ------
        ConfigError
            If the estimate has no such interval.
        """
        message = self.message
        if method is None:
            return {row.name: row.interval for row in message.coefficients}
        known = message.intervals if isinstance(message, EstimateMessage) else {}
        if method not in known:
            raise ConfigError(
                f"method: the estimate has no interval {method!r}; allowed: "
                f"{', '.join(map(repr, known)) or 'none, leave it out for those that it shows'}"
            )
        names = (row.name for row in message.coefficients)
        return dict(zip(names, known[method], strict=True))

    def to_pandas(self) -> Any:
        """Return a data frame with one row for each coefficient, NaN where nothing is known.

        Its columns are estimate, standard_error, lower, upper, sampling_se and privacy_se. Where an
        interval has no sampling_se, the noise hides it.

        Raises
        ------
        ConfigError
            If pandas is not installed.
        """
        pd = extra("pandas", "to_pandas")
        rows = [
            {
                "estimate": row.value,
                "standard_error": row.standard_error,
                "lower": None if row.interval is None else row.interval[0],
                "upper": None if row.interval is None else row.interval[1],
                "sampling_se": row.sampling_se,
                "privacy_se": row.privacy_se,
            }
            for row in self.message.coefficients
        ]
        names = pd.Index([row.name for row in self.message.coefficients], name="coefficient")
        return pd.DataFrame(rows, index=names, dtype=float)

    def plot(self, axes: Any = None) -> Any:
        """Draw coefficients with their intervals, and return the matplotlib axes.

        Parameters
        ----------
        axes
            Where to draw; default: a figure of its own.

        Raises
        ------
        ConfigError
            If matplotlib is not installed.
        """
        rows = self.message.coefficients
        if axes is None:
            size = (7, 1 + 0.35 * len(rows))
            pyplot = extra("matplotlib.pyplot", "plot")
            axes = pyplot.subplots(figsize=size, layout="constrained")[1]
        heights = np.arange(len(rows))[::-1]
        known = [(height, row) for height, row in zip(heights, rows, strict=True) if row.interval]
        axes.axvline(0.0, color="0.7", linewidth=0.8, zorder=0)
        axes.hlines(
            [height for height, _ in known],
            [row.interval[0] for _, row in known if row.interval],
            [row.interval[1] for _, row in known if row.interval],
        )
        axes.plot([row.value for row in rows], heights, "o")
        axes.set_yticks(heights, [row.name for row in rows])
        message = self.message
        axes.set_xlabel(f"coefficient, {message.level:.0%} interval ({message.interval_method})")
        axes.set_title(f"{message.study} ({message.status})")
        return axes

    @cached_property
    def model(self) -> LinearClassifier | LinearRegressor:
        """The rule that predicts with it, and that can be saved as a model file.

        Labels of two classes are predicted as `fit` read them in its records: whole numbers of a
        column of such, and so from its model file. Those of a CSV file, which has texts alone, and
        of an estimate that was read are the texts that the study declares.

        Raises
        ------
        ConfigError
            If the study has changed since.
        NumericError
            If nothing has been folded yet.
        """
        return rule_of(task_of(self.study), self.message, self._like)

    def save(self, path: str | Path) -> None:
        """Write the model file, as `veilstream fit --save-model` does.

        Raises
        ------
        ConfigError
            As `model`, or if it cannot be written.
        """
        self.model.save(path)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data, as it is published."""
        message = self.message
        payload = write_fit(message) if isinstance(message, FitMessage) else write_estimate(message)
        found: dict[str, Any] = json.loads(payload)
        return found

    def __str__(self) -> str:
        return self.summary()

    def __repr__(self) -> str:
        message = self.message
        return (
            f"<Result of {message.study}: {len(message.coefficients)} coefficients from "
            f"{message.records} record slots, {message.status}; {self.guarantee}>"
        )
