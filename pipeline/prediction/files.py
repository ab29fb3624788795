"""Model files and estimates to the rule that they hold, whichever of the two it is."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

from pipeline.messages.estimate import EstimateMessage
from pipeline.messages.fit import FitMessage
from pipeline.messages.model_file import ModelFile, compose_model_file
from pipeline.prediction.classifier import LinearClassifier
from pipeline.prediction.linear import read_rule
from pipeline.prediction.regressor import LinearRegressor
from pipeline.release.task import Task

Rule: TypeAlias = LinearClassifier | LinearRegressor


def load_model(path: str | Path) -> Rule:
    """Read a model file: a `LinearClassifier` of classes, a `LinearRegressor` of all else.

    Raises
    ------
    ConfigError
        If it cannot be read, or is no model file of this version.
    """
    return read_rule(path, rule_of_file)


def rule_of(task: Task, message: EstimateMessage | FitMessage) -> Rule:
    """Return the rule of an estimate or a fit, by the kind of response of its study.

    Raises ConfigError if the estimate belongs to another study or revision; NumericError if nothing
    has been folded yet.
    """
    return rule_of_file(compose_model_file(task, message))


def rule_of_file(file: ModelFile) -> Rule:
    """Return the rule of a model file that has been read."""
    return LinearClassifier(file) if file.response.kind == "class" else LinearRegressor(file)
