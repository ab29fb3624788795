"""What a study of this method says of its own: `[estimator.method]`."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from pipeline.errors import ConfigError
from pipeline.study import Study
from pipeline.study.tables import strict

LOSSES = ("linear", "logistic")
#: Share of the records that one site can have in the estimate, unless the study says another.
LARGEST_SHARE = 0.5


class Spec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[estimator.method]` of noisy estimates from many sites."""

    release: Annotated[
        Literal["auto", "score", "sufficient"],
        Meta(
            description='"score" is taken at the newest model, "sufficient" (linear alone) at 0, '
            'so that no site waits for a model; "auto" chooses by public numbers',
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


def spec_of(study: Study) -> Spec:
    """Return the table of a study; ConfigError if it has a key or a value that is not allowed."""
    given = study.estimator.method or {}
    if given.get("release") == "copies":
        raise ConfigError(
            'estimator.method.release: "copies" of a site\'s own estimate are not offered: scores '
            'say more under the same budget; allowed: "auto", "score", "sufficient"'
        )
    return strict(given, Spec, at="estimator.method")


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
        raise ConfigError('estimator.class_weights: kind = "noisy-mle" has none; remove it')
    if study.privacy.personal is not None:
        raise ConfigError("privacy.personal: one noise covers a whole window; remove it")
    if spec.release == "sufficient" and estimator.loss != "linear":
        raise ConfigError(
            'estimator.method.release: "sufficient" sums say all only where loss = "linear"; use '
            '"score"'
        )
