"""What a response and a loss must say of each other, and which keys belong to which."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pipeline import losses
from pipeline.errors import ConfigError
from pipeline.study.data_tables import Response
from pipeline.study.features import WIDEST, check_range
from pipeline.study.model import Study
from pipeline.study.tables import near

if TYPE_CHECKING:
    pass

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
