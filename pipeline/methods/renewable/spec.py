"""What a study of this method says of its own: `[estimator.method]`."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from pipeline.errors import ConfigError
from pipeline.study import Study
from pipeline.study.data_tables import key
from pipeline.study.tables import strict

#: Losses whose curvature jumps: theirs is released over a width, of others at the predictor itself.
JUMPS = ("gdwd",)
#: Raised where the rule for the default width changes, or what a width means.
WIDTH_SEMANTICS = {"gdwd": 2}


class Spec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[estimator.method]` of renewable estimation."""

    secant_width: Annotated[
        Annotated[float, Meta(ge=0, le=100)] | None,
        key(
            "the curvature of a record is averaged over this distance to either side of the "
            "predictor, in [0, 100], and for gdwd at most 1 / (2 width), its peak spread out; 0 "
            "is the curvature at the predictor itself; default for gdwd 0.5, 1 or 2: the larger "
            "the noise, the wider",
            1.0,
        ),
    ] = None
    reexpand: Annotated[
        bool,
        key(
            "without privacy: clients keep their encoded records, and send their sums again at "
            "newer models; these replace all that they sent before",
            True,
        ),
    ] = False


def check(study: Study) -> None:
    """Refuse keys that do not go together; ConfigError, naming them and the way out."""
    if reexpands(study) and study.noised:
        raise ConfigError(
            "estimator.method.reexpand: sums that are sent again at another model are another "
            'release of the same records; it is for privacy.mechanism = "none" alone. Remove it'
        )
    if reexpands(study) and study.estimator.forgetting is not None:
        raise ConfigError(
            "estimator.method.reexpand and estimator.forgetting: sums that are sent again have no "
            "age; remove one of them"
        )
    if _spec_of(study).secant_width and study.estimator.smoothing is not None:
        raise ConfigError(
            "estimator.method.secant_width and estimator.smoothing: both smooth the curvature; "
            "remove one of them"
        )


def secant_width_of(study: Study) -> float | None:
    """Return the width over which a record's curvature is taken, >= 0; None: as the noise asks.

    Raises ConfigError if the table has a key that is not allowed.
    """
    given = _spec_of(study).secant_width
    if given is not None:
        return given
    jumps = study.estimator.loss in JUMPS and study.estimator.smoothing is None
    return None if jumps and study.noised else 0.0


def remembers(study: Study) -> bool:
    """Whether noise can depend on releases before: Gaussian noise of sums that are all kept."""
    gaussian = study.privacy.mechanism in ("discrete-gaussian", "insecure-simulation")
    return gaussian and study.estimator.forgetting is None


def reexpands(study: Study) -> bool:
    """Whether clients send their sums again at newer models."""
    return _spec_of(study).reexpand


def _spec_of(study: Study) -> Spec:
    return strict(study.estimator.method or {}, Spec, at="estimator.method")
