"""Record losses by name: `gdwd` (generalised DWD) and `logistic`.

A loss is a value, a slope and a curvature in the linear predictor, with the public bounds that
the sensitivity of a release needs; a `Likelihood` gives probabilities as well. To add one: one file
with a class like `base.Loss`, and one line in `build`.
"""

from __future__ import annotations

from pipeline.errors import ConfigError
from pipeline.losses.base import Likelihood, Loss
from pipeline.losses.gdwd import GeneralisedDWD
from pipeline.losses.logistic import Logistic

NAMES = ("gdwd", "logistic")


def build(
    name: str, *, q: float = 1.0, smoothing: float | None = None, noised: bool = True
) -> Loss:
    """Return the loss called `name`; the other arguments belong to gdwd alone.

    Parameters
    ----------
    noised
        Whether the curvature will carry noise: smoothing lowers that noise, and without any a
        sharper curvature is the better default.
    """
    if name == "gdwd":
        if smoothing is None and not noised:
            smoothing = GeneralisedDWD(q).smoothing / 5
        return GeneralisedDWD(q, smoothing)
    if name == "logistic":
        return Logistic()
    raise ConfigError(f"estimator.loss must be one of {', '.join(NAMES)}")


def likelihood(name: str) -> Likelihood | None:
    """Return the loss called `name` if it gives probabilities, else None.

    Raises
    ------
    ConfigError
        If no loss has this name.
    """
    loss = build(name)
    return loss if isinstance(loss, Likelihood) else None


__all__ = ["NAMES", "GeneralisedDWD", "Likelihood", "Logistic", "Loss", "build", "likelihood"]
