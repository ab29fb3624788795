"""What a study of this method says of its own: `[estimator.method]`."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from pipeline.errors import ConfigError
from pipeline.methods.sites import spec as sites
from pipeline.study.model import Study
from pipeline.study.tables import strict


class Spec(sites.SiteSpec, frozen=True, kw_only=True):
    """`[estimator.method]` of noised sums from many sites."""

    release: Annotated[
        Literal["auto", "score", "sufficient"],
        Meta(
            description='"score" is taken at the newest model, "sufficient" (linear alone) at 0, '
            'so that no site waits for a model; "auto" chooses between them by public numbers',
            examples=["score"],
        ),
    ] = "auto"


def spec_of(study: Study) -> Spec:
    """Return the table of a study; ConfigError if it has a key or a value that is not allowed."""
    return strict(study.estimator.method or {}, Spec, at="estimator.method")


def check(study: Study) -> None:
    """Refuse what does not go with the method.

    Raises ConfigError, naming the key, what is allowed and the way out.
    """
    if (study.estimator.method or {}).get("release") == "copies":
        raise ConfigError(
            "estimator.method.release: noisy copies are a kind of their own; remove this key and "
            'set estimator.kind = "noisy-copies"'
        )
    spec = spec_of(study)
    sites.check(study)
    if study.privacy.split is not None and study.privacy.split.middle is not None:
        raise ConfigError(
            'privacy.split.middle: kind = "noisy-mle" releases no middle of the sandwich; remove it'
        )
    if spec.release == "sufficient" and study.estimator.loss != "linear":
        raise ConfigError(
            'estimator.method.release: "sufficient" is allowed only with loss = '
            '"linear", where X\'y and X\'X determine the fit; set release = "score"'
        )
