"""What a replay may set otherwise than the live study: keys of which clients know nothing.

A release is made of the records, the model and the keys that clients use; it stays what it is. Keys
that only the fold or the estimate reads may differ.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import Any

from pipeline.errors import ConfigError
from pipeline.methods import method_of
from pipeline.study.model import Study
from pipeline.study_file.edit import with_keys
from pipeline.study_file.load import check_key

#: The keys that may differ, with what reads them.
SERVER_SIDE = {
    "estimator.level": "the intervals",
    "estimator.ridge": "the estimate",
    "estimator.forgetting": "the buckets of the sums, and their weights",
}
#: Why others may not, by the longest beginning of the key.
REASONS = {
    "study": "it names the topics",
    "data": "clients encode records by it, so it is in every release",
    "privacy": "it decides the noise that is in every release",
    "window": "it decides which records make one release",
    "trust": "it decides which releases count, and what they carry to show whose they are",
    "stream": "it is about topics and their rhythm; --every sets how often estimates come",
    "estimator": "clients take their gradients by it, so it is in every release",
    "estimator.class_weights": "clients weigh classes by it, and it decides the noise",
    "estimator.noise_scale": "it decides what releases hold beside the gradient",
}


def parse_change(text: str) -> tuple[str, Any]:
    """Return key and value of a text such as `estimator.level=0.9`; None for "none".

    ConfigError if it is no such text.
    """
    key, equals, value = (part.strip() for part in text.partition("="))
    if not equals:
        raise ConfigError(
            f"--set: {text!r} is not a change of a key; for example estimator.level=0.9"
        )
    if value == "none":
        return key, None
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key, value


def parse_forgetting(text: str) -> dict[str, Any] | None:
    """Return the table that a text such as "50000 records" means; None for "none".

    ConfigError if it means none.
    """
    if text == "none":
        return None
    number, _, unit = text.partition(" ")
    try:
        return {"half_life": float(number), "of": unit.strip()}
    except ValueError:
        raise ConfigError(
            f"--forgetting: {text!r} is not a half-life; for example '50000 records', '3600 "
            "seconds' or none"
        ) from None


def altered(study: Study, changes: Mapping[str, Any]) -> Study:
    """Return a study with some keys set otherwise; None unsets one.

    changes: Key, as in `estimator.level`, to its value.

    Raises ConfigError if a key is not one of `SERVER_SIDE`, does not belong to this kind of study,
    or the value is not allowed.
    """
    method = method_of(study)
    allowed = {**SERVER_SIDE, **method.spec.server_keys}
    for key in changes:
        check_key(key)
        if key not in allowed and not key.startswith("estimator.forgetting."):
            reason = _reason(REASONS, key)
            raise ConfigError(
                f"{key}: a replay cannot change it: {reason}. It may change {', '.join(allowed)}"
            )
    return with_keys(study, changes, name="the study as the replay would have it")


def _reason(reasons: Mapping[str, str], key: str) -> str:
    while key and key not in reasons:
        key = key.rpartition(".")[0]
    return reasons[key]
