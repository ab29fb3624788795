"""What a study of this method says of its own: `[estimator.method]`."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from pipeline.errors import ConfigError
from pipeline.study.model import Study
from pipeline.study.tables import strict

LOSSES = ("linear", "logistic")
#: Share of the records that one site can have in the estimate, unless the study says another.
LARGEST_SHARE = 0.5
#: Copies that a release stands for: more need a larger ridge, fewer say less of their own spread.
COPIES = 40


class Spec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[estimator.method]` of noisy estimates from many sites."""

    release: Annotated[
        Literal["auto", "score", "sufficient", "copies"],
        Meta(
            description='"score" is taken at the newest model, "sufficient" (linear alone) at 0, '
            'so that no site waits for a model; "auto" chooses between them by public numbers; '
            '"copies" are noisy copies of a site\'s own fit',
            examples=["score"],
        ),
    ] = "auto"
    sites: Annotated[
        int,
        Meta(ge=1, le=10**6, description="about how many sites there are, public", examples=[20]),
    ] = 10
    largest_share: Annotated[
        float,
        Meta(
            gt=0,
            le=1,
            description="the most that one site can weigh, as a share of all, in (0, 1]",
            examples=[LARGEST_SHARE],
        ),
    ] = LARGEST_SHARE
    copies: Annotated[
        int,
        Meta(
            ge=2,
            le=10**4,
            description="how many copies of its fit a site's release stands for, public",
            examples=[COPIES],
        ),
    ] = COPIES
    site_ridge: (
        Annotated[
            float,
            Meta(
                gt=0,
                le=1e12,
                description="ridge of a site's own fit, in units of its information; default: "
                "twice the least that the budget allows",
                examples=[30.0],
            ),
        ]
        | None
    ) = None
    psi: (
        Annotated[
            float,
            Meta(
                gt=0,
                le=1e12,
                description="variance of a copy, in units of a site's inverse information; "
                "default: the least that the budget allows",
                examples=[50.0],
            ),
        ]
        | None
    ) = None
    coefficient_bound: (
        Annotated[
            float,
            Meta(
                gt=0,
                le=1e3,
                description="largest norm of a linear site's coefficients, encoded",
                examples=[1.0],
            ),
        ]
        | None
    ) = None


#: Keys that belong to copies alone.
OF_COPIES = ("copies", "site_ridge", "psi", "coefficient_bound")


def spec_of(study: Study) -> Spec:
    """Return the table of a study; ConfigError if it has a key or a value that is not allowed."""
    return strict(study.estimator.method or {}, Spec, at="estimator.method")


def check(study: Study) -> None:
    """Refuse what does not go with the method.

    Raises ConfigError, naming the key, what is allowed and the way out.
    """
    estimator, spec = study.estimator, spec_of(study)
    if not study.noised:
        raise ConfigError(
            'privacy.mechanism: kind = "noisy-mle" weighs sites by their noise, so that it needs '
            'some; choose "discrete-gaussian", or kind = "renewable" without privacy'
        )
    if estimator.class_weights is not None:
        raise ConfigError(
            'estimator.class_weights: kind = "noisy-mle" does not use this key; remove it'
        )
    if study.largest_share is not None:
        raise ConfigError(
            'trust.largest_share: kind = "noisy-mle" bounds what a site weighs, whatever it sends; '
            "use estimator.method.largest_share"
        )
    if study.privacy.personal is not None:
        raise ConfigError(
            'privacy.personal: kind = "noisy-mle" noises the sums of a whole window at '
            "once, so its records cannot have levels of their own; remove "
            "privacy.personal"
        )
    if study.privacy.split is not None and study.privacy.split.middle is not None:
        raise ConfigError(
            'privacy.split.middle: kind = "noisy-mle" releases no middle of the sandwich; remove it'
        )
    if spec.release == "sufficient" and estimator.loss != "linear":
        raise ConfigError(
            'estimator.method.release: "sufficient" is allowed only with loss = '
            '"linear", where X\'y and X\'X determine the fit; set release = "score"'
        )
    if spec.release == "copies":
        _check_copies(study, spec)
        return
    for key in OF_COPIES:
        if key in (estimator.method or {}):
            raise ConfigError(f'estimator.method.{key}: belongs to release = "copies"; remove it')


def _check_copies(study: Study, spec: Spec) -> None:
    estimator, size = study.estimator, len(study.encoding.columns) + 1
    if study.privacy.mechanism == "discrete-laplace":
        raise ConfigError(
            'privacy.mechanism: release = "copies" has Gaussian noise, and a delta with '
            'it; set mechanism = "discrete-gaussian"'
        )
    if study.privacy.split is not None:
        raise ConfigError(
            'privacy.split: release = "copies" spends the whole budget on one part, so '
            "there is nothing to split; remove privacy.split"
        )
    if estimator.residual_bound is not None:
        raise ConfigError(
            "estimator.residual_bound: copies cut no residuals; remove it, "
            "estimator.method.coefficient_bound says how large they can be"
        )
    if estimator.loss == "linear" and estimator.noise_scale is None:
        raise ConfigError(
            "estimator.noise_scale: copies of linear fits need the public deviation of the "
            'residuals; give it, or use release = "sufficient"'
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
