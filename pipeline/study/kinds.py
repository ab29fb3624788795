"""The kinds of estimator that a study can name: those that run live, and those of rooms.

What a room needs and allows is its own to say; here it is only asked.
"""

from __future__ import annotations

from pipeline.errors import ConfigError
from pipeline.methods import OFFLINE, load
from pipeline.study.model import LDP_SGD, LIVE, Study

#: Kinds that run live, in the field's words.
LIVE_KINDS = {
    LIVE: "renewable estimation from releases",
    LDP_SGD: "gradient descent on locally private gradients of records",
}


def check_kind(study: Study) -> None:
    """Refuse an unknown kind, and keys that do not go with a known one.

    Raises
    ------
    ConfigError
        Naming the key, what is allowed and the way out.
    """
    kind = study.estimator.kind
    if kind in OFFLINE:
        load(kind).check(study)
        return
    if kind not in LIVE_KINDS:
        raise ConfigError(
            f"estimator.kind: unknown kind; allowed: {', '.join(LIVE_KINDS)}, which run live, and "
            f'for `veilstream fit` {", ".join(OFFLINE)}; example: kind = "{LIVE}"'
        )
    if study.estimator.method is not None:
        raise ConfigError(
            f'estimator.method: kind = "{kind}" has no keys in this table; remove it, or choose a '
            f"kind that has: {', '.join(OFFLINE)}"
        )


def require_live(study: Study, doing: str) -> None:
    """Refuse to stream a study whose kind needs what a stream of releases cannot give.

    Parameters
    ----------
    doing
        Who asks, such as "a worker".

    Raises
    ------
    ConfigError
        Saying why, and what to use instead.
    """
    kind = study.estimator.kind
    if kind in OFFLINE:
        raise ConfigError(
            f'estimator.kind = "{kind}" needs {load(kind).needs}, so {doing} cannot use it: set '
            f'kind = "{LIVE}" for a live stream, or run `veilstream fit` for this kind'
        )
