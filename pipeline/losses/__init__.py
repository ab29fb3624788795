"""The families by name: `gdwd`, `logistic`, `linear`, `expectile`, `poisson`.

A loss is a value, a slope and a curvature in the linear predictor, with the public bounds that
the sensitivity of a release needs. A `Likelihood` of classes gives probabilities as well, a
`Regression` the expected response. To add one: a class like `base.Loss`, and its line in
`FAMILIES`.
"""

from __future__ import annotations

from collections.abc import Callable

from pipeline.errors import ConfigError
from pipeline.losses.base import Bends, Kind, Likelihood, Loss, Regression, Terms, joint_bounds
from pipeline.losses.classes import GeneralisedDWD, Logistic
from pipeline.losses.regression import Expectile, Linear, Poisson

FAMILIES: dict[str, Callable[[Terms], Loss]] = {
    "gdwd": GeneralisedDWD.of,
    "logistic": Logistic.of,
    "linear": Linear.of,
    "expectile": Expectile.of,
    "poisson": Poisson.of,
}
NAMES = tuple(FAMILIES)
#: What the coefficients of each say, for people who meet its name first.
MEANINGS = {
    "gdwd": "distance-weighted discrimination, a line between two classes as support vector "
    "machines draw it: signs and sizes beside each other, no log odds and no probabilities",
    "logistic": "log odds of the positive class, and its probability",
    "linear": "the mean of a number",
    "expectile": "an expectile of a number: between its mean and its extremes, as tau says",
    "poisson": "the logarithm of the mean of a count",
}


def build(name: str, terms: Terms | None = None) -> Loss:
    """Return the loss called `name` for a study with these terms.

    Raises ConfigError if no loss has this name, or a term is outside its range.
    """
    if name not in FAMILIES:
        raise ConfigError(f"estimator.loss must be one of {', '.join(NAMES)}")
    return FAMILIES[name](terms or Terms())


__all__ = [
    "FAMILIES",
    "MEANINGS",
    "NAMES",
    "Bends",
    "Expectile",
    "GeneralisedDWD",
    "Kind",
    "Likelihood",
    "Linear",
    "Logistic",
    "Loss",
    "Poisson",
    "Regression",
    "Terms",
    "build",
    "joint_bounds",
]
