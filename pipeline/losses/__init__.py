"""Record losses by name: `gdwd` (generalised DWD) and `logistic`.

A loss is a value, a slope and a curvature in the linear predictor, with the public bounds that
the sensitivity of a release needs. To add one: one file with a class like `base.Loss`, and one
line in `build`.
"""

from __future__ import annotations

from pipeline.errors import ConfigError
from pipeline.losses.base import Loss
from pipeline.losses.gdwd import GeneralisedDWD
from pipeline.losses.logistic import Logistic

NAMES = ("gdwd", "logistic")


def build(name: str, *, q: float = 1.0, smoothing: float | None = None) -> Loss:
    """Return the loss called `name`; `q` and `smoothing` belong to gdwd alone."""
    if name == "gdwd":
        return GeneralisedDWD(q, smoothing)
    if name == "logistic":
        return Logistic()
    raise ConfigError(f"estimator.loss must be one of {', '.join(NAMES)}")


__all__ = ["NAMES", "GeneralisedDWD", "Logistic", "Loss", "build"]
