"""What a kind, a response and a loss must say of each other, and which keys belong to which.

What a method needs and allows is its own to say; here it is only asked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from pipeline import losses
from pipeline.errors import ConfigError
from pipeline.methods import METHODS, OFFLINE, load, load_live, method_of
from pipeline.study.data_tables import Response
from pipeline.study.features import WIDEST, check_range
from pipeline.study.growth import growth_of
from pipeline.study.model import LIVE, Study
from pipeline.study.tables import near

if TYPE_CHECKING:
    from pipeline.methods.base import Method

#: Beyond it a count is not told from its neighbours, and its noise hides everything.
LARGEST_COUNT = 10**6
#: No residual bound is larger, in widths of the response's range: it only adds noise.
WIDTHS = 10
_EXAMPLES = {
    "class": '{ name = "anomaly", positive = "1", negative = "0" }',
    "number": '{ name = "power", kind = "number", min = 0, max = 100 }',
    "count": '{ name = "visits", kind = "count", max = 50 }',
}
#: Keys of a response that each kind needs; it takes no others.
_KEYS = {"class": {"positive", "negative"}, "number": {"min", "max"}, "count": {"max"}}
#: Keys of the estimator that belong to one loss or one kind of response.
_OWNERS = {
    "smoothing": ("gdwd",),
    "residual_bound": ("linear", "expectile"),
    "tau": ("expectile",),
    "noise_scale": ("linear",),
}


def check_response(study: Study) -> None:
    """Refuse a response and a loss that do not fit, and keys that belong to another.

    Raises ConfigError, naming the keys and the way out.
    """
    response, estimator = study.data.response, study.estimator
    check_keys(response)
    if estimator.loss not in losses.NAMES:
        raise ConfigError(
            f"estimator.loss: unknown loss{near(estimator.loss, losses.NAMES)}; allowed: "
            f'{", ".join(losses.NAMES)}; example: loss = "{losses.NAMES[0]}"'
        )
    kind = losses.build(estimator.loss).responses
    if kind != response.kind:
        raise ConfigError(
            f'estimator.loss: "{estimator.loss}" explains a {kind}, and data.response.kind is '
            f'"{response.kind}"; example: response = {_EXAMPLES[kind]}'
        )
    for key, owners in _OWNERS.items():
        if getattr(estimator, key) is not None and estimator.loss not in owners:
            named = " or ".join(f'"{owner}"' for owner in owners)
            raise ConfigError(f"estimator.{key}: belongs to loss = {named}; remove it")
    if estimator.class_weights is not None and response.kind != "class":
        raise ConfigError("estimator.class_weights: this response has no classes; remove it")
    _check_smoothing(estimator.q, estimator.smoothing)
    width = response.ends[1] - response.ends[0]
    bound, scale = estimator.residual_bound, estimator.noise_scale
    most = WIDTHS * width
    if bound is not None and not 1e-6 * width <= bound <= most:
        raise ConfigError(
            "estimator.residual_bound: must be at least a millionth of the width of the response's "
            f"range, and at most {WIDTHS} times it, here {most:g}"
        )
    if scale is not None and not 1 / WIDEST <= scale <= width:
        raise ConfigError(
            f"estimator.noise_scale: must be at least {1 / WIDEST:g}, and at most the width of the "
            f"response's range, here {width:g}: no response in it deviates by more"
        )


def check_keys(response: Response) -> None:
    """Refuse a response whose keys do not go with its kind.

    Raises ConfigError, naming the key, with an example.
    """
    given = {
        key for key in ("positive", "negative", "min", "max") if getattr(response, key) is not None
    }
    needed = _KEYS[response.kind]
    example = f"example: response = {_EXAMPLES[response.kind]}"
    if missing := sorted(needed - given):
        raise ConfigError(
            f'data.response.{missing[0]}: is required with kind = "{response.kind}"; {example}'
        )
    if response.typical is not None and response.kind != "class":
        raise ConfigError(
            "data.response.typical: is a guess of the share of one of two classes, and does not go "
            f'with kind = "{response.kind}"; remove it'
        )
    if extra := sorted(given - needed):
        raise ConfigError(
            f'data.response.{extra[0]}: does not go with kind = "{response.kind}"; {example}'
        )
    if response.kind == "class" and response.positive == response.negative:
        raise ConfigError("data.response: positive and negative must be different values")
    if response.kind == "number":
        check_range("data.response", *response.ends)
    if response.kind == "count":
        most = response.ends[1]
        if not 1 <= most <= LARGEST_COUNT or most != math.floor(most):
            raise ConfigError(
                f"data.response.max: must be a whole number from 1 to {LARGEST_COUNT}; {example}"
            )


def _check_smoothing(q: float, smoothing: float | None) -> None:
    knee = q / (q + 1)
    if smoothing is not None and not 0 < smoothing <= knee:
        raise ConfigError(
            f"estimator.smoothing: belongs to gdwd and lies in (0, q / (q + 1)], here "
            f"(0, {knee:.6g}]"
        )


def check_kind(study: Study) -> None:
    """Refuse an unknown kind, and keys that do not go with a known one.

    Raises ConfigError, naming the key, what is allowed and the way out.
    """
    kind, estimator = study.estimator.kind, study.estimator
    if not study.data.features and not (kind in METHODS and not load_live(kind).features):
        raise ConfigError(
            "data.features: needs at least one entry with its public range, or its levels; "
            "example: sensor_1 = { min = 20, max = 120 }"
        )
    if kind in OFFLINE:
        load(kind).check(study)
        return
    if kind not in METHODS:
        meant = near(kind, [*METHODS, *OFFLINE])
        raise ConfigError(
            f"estimator.kind: unknown kind{meant}; allowed: {', '.join(METHODS)}, which run live, "
            f'and for `veilstream fit` {", ".join(OFFLINE)}; example: kind = "{LIVE}"'
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
    growth_of(study.window, grows=method.grows(study))
    if study.privacy.noise_memory and not method.remembers(study):
        raise ConfigError(
            "privacy.noise_memory: the noise of a release can remember those before it where it is "
            'Gaussian, nothing is forgotten, and kind = "renewable"; remove it, or set '
            "noise_memory = 0"
        )
    method.check(study)


def unpenalised(study: Study, given: Container[str]) -> Study:
    """Return a study without the default ridge where its kind has none; `given` as `completed`."""
    kind = study.estimator.kind
    if "ridge" in given or kind not in METHODS or load_live(kind).penalised:
        return study
    return msgspec.structs.replace(
        study, estimator=msgspec.structs.replace(study.estimator, ridge=0.0)
    )


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
