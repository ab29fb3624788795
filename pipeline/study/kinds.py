"""The kinds of estimator that a study can name: those that run live, and those of rooms.

What a method needs and allows is its own to say; here it is only asked.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import TYPE_CHECKING, Any

from pipeline.errors import ConfigError
from pipeline.methods import METHODS, OFFLINE, load, load_live, method_of
from pipeline.study.model import LIVE, Study

if TYPE_CHECKING:
    from pipeline.methods.base import Method


def check_kind(study: Study) -> None:
    """Refuse an unknown kind, and keys that do not go with a known one.

    Raises ConfigError, naming the key, what is allowed and the way out.
    """
    kind, estimator = study.estimator.kind, study.estimator
    if kind in OFFLINE:
        load(kind).check(study)
        return
    if kind not in METHODS:
        raise ConfigError(
            f"estimator.kind: unknown kind; allowed: {', '.join(METHODS)}, which run live, and "
            f'for `veilstream fit` {", ".join(OFFLINE)}; example: kind = "{LIVE}"'
        )
    method = method_of(study)
    for table in ("method", "path"):
        if getattr(estimator, table) is not None and table not in method.tables:
            raise ConfigError(
                f'estimator.{table}: kind = "{kind}" has no keys in this table; remove it, or '
                f"choose the kind that it belongs to{_with(table, lambda m: m.tables)}"
            )
    if estimator.loss not in method.losses:
        raise ConfigError(
            f'estimator.loss: kind = "{kind}" has {", ".join(method.losses)}; choose one of them, '
            f"or a kind that has this one{_with(estimator.loss, lambda m: m.losses)}"
        )
    if study.privacy.personal is not None and not method.levels:
        raise ConfigError(
            "privacy.personal: records can have levels of their own where each is noised by "
            f'itself, and kind = "{kind}" noises sums of them; remove it, or choose another '
            f"estimator.kind{_with(True, lambda m: (m.levels,))}"
        )
    method.check(study)


def completed(study: Study, given: Container[str]) -> Study:
    """Return a checked study with what its method fills in; `given` are its estimator's keys."""
    kind = study.estimator.kind
    return method_of(study).complete(study, given) if kind in METHODS else study


def _with(wanted: object, of: Callable[[Method[Any]], Sequence[object]]) -> str:
    """Return the kinds whose method has what is wanted, in brackets; nothing if there is none."""
    kinds = [kind for kind in METHODS if wanted in of(load_live(kind))]
    return f" ({', '.join(kinds)})" if kinds else ""


def require_live(study: Study, doing: str) -> None:
    """Refuse to stream a study whose kind needs what a stream of releases cannot give.

    doing: Who asks, such as "a worker".

    Raises ConfigError, saying why, and what to use instead.
    """
    kind = study.estimator.kind
    if kind in OFFLINE:
        raise ConfigError(
            f'estimator.kind = "{kind}" needs {load(kind).needs}, so {doing} cannot use it: set '
            f'kind = "{LIVE}" for a live stream, or run `veilstream fit` for this kind'
        )
