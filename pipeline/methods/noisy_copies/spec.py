"""What a study of noisy copies says of its own: `[estimator.method]`."""

from __future__ import annotations

from typing import Annotated

from pipeline.errors import ConfigError
from pipeline.methods.sites.client import SiteSpec, check_sites
from pipeline.study.data import key
from pipeline.study.model import Study
from pipeline.study.tables import strict

#: Copies that a release stands for: more need a larger ridge, fewer say less of their own spread.
COPIES = 40


class Spec(SiteSpec, frozen=True, kw_only=True):
    """`[estimator.method]` of noisy copies of sites' own fits."""

    copies: Annotated[
        int,
        key(
            "how many copies of its fit a site's release stands for, public", COPIES, ge=2, le=10**4
        ),
    ] = COPIES
    site_ridge: (
        Annotated[
            float,
            key(
                "ridge of a site's own fit, in units of its information; default: "
                "twice the least that the budget allows",
                30.0,
                gt=0,
                le=1e12,
            ),
        ]
        | None
    ) = None
    psi: (
        Annotated[
            float,
            key(
                "variance of a copy, in units of a site's inverse information; "
                "default: the least that the budget allows",
                50.0,
                gt=0,
                le=1e12,
            ),
        ]
        | None
    ) = None
    coefficient_bound: (
        Annotated[
            float,
            key("largest norm of a linear site's coefficients, encoded", 1.0, gt=0, le=1e3),
        ]
        | None
    ) = None


#: Keys that decide what is drawn.
DRAWN = ("copies", "site_ridge", "psi", "coefficient_bound")


def spec_of(study: Study) -> Spec:
    """Return the table of a study; ConfigError if it has a key or a value that is not allowed."""
    return strict(study.estimator.method or {}, Spec, at="estimator.method")


def check(study: Study) -> None:
    """Refuse what does not go with the method.

    Raises ConfigError, naming the key, what is allowed and the way out.
    """
    spec = spec_of(study)
    check_sites(study)
    estimator, size = study.estimator, len(study.encoding.columns) + 1
    if study.privacy.mechanism == "discrete-laplace":
        raise ConfigError(
            'privacy.mechanism: kind = "noisy-copies" has Gaussian noise, and a delta with it; set '
            'mechanism = "discrete-gaussian"'
        )
    if study.privacy.split is not None:
        raise ConfigError(
            'privacy.split: kind = "noisy-copies" spends the whole budget on one part, so there is '
            "nothing to split; remove privacy.split"
        )
    if estimator.residual_bound is not None:
        raise ConfigError(
            "estimator.residual_bound: copies cut no residuals; remove it, "
            "estimator.method.coefficient_bound says how large they can be"
        )
    if estimator.loss == "linear" and estimator.noise_scale is None:
        raise ConfigError(
            "estimator.noise_scale: copies of linear fits need the public deviation of the "
            'residuals; give it, or use kind = "noisy-mle"'
        )
    if estimator.loss != "linear" and spec.coefficient_bound is not None:
        raise ConfigError(
            'estimator.method.coefficient_bound: belongs to loss = "linear"; remove it'
        )
    if spec.copies <= size + 1:
        raise ConfigError(
            f"estimator.method.copies: must be larger than {size + 1}, one more than there are "
            "coefficients, so that the copies show their own spread"
        )
