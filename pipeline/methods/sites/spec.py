"""What a study of sites says in `[estimator.method]`, whatever its sites release."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from pipeline.errors import ConfigError
from pipeline.study.model import Study

LOSSES = ("linear", "logistic")
#: Share of the records that one site can have in the estimate, unless the study says another.
LARGEST_SHARE = 0.5
#: Keys that only the worker reads.
SERVER_KEYS = {
    "estimator.method.largest_share": "how much one site may weigh",
    "estimator.method.sites": "what `study check` reckons with",
}


class SiteSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[estimator.method]` of any study of sites."""

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


def check(study: Study) -> None:
    """Refuse what goes with no method of sites.

    Raises ConfigError, naming the key, what is allowed and the way out.
    """
    kind = study.estimator.kind
    if study.estimator.class_weights is not None:
        raise ConfigError(
            f'estimator.class_weights: kind = "{kind}" does not use this key; remove it'
        )
    if study.largest_share is not None:
        raise ConfigError(
            f'trust.largest_share: kind = "{kind}" bounds what a site weighs, whatever it sends; '
            "use estimator.method.largest_share"
        )
