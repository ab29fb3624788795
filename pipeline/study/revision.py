"""The study revision: a hash of all that changes what a release or an estimate means."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import msgspec

from pipeline.study.data_tables import Feature
from pipeline.study.model import Study
from pipeline.study.reference import typical_norm_bound
from pipeline.study.release_tables import Split

#: Raised whenever the meaning of a release changes without a change of the study file.
RELEASE_SEMANTICS = 3


def revision_of(study: Study, enter: Callable[[dict[str, Any], Study], None] | None) -> str:
    """Return 16 hexadecimal digits; names, topics and rhythm do not enter, feature order does.

    enter: `Method.enter` of the study's method; None where it runs over a file alone.
    """
    tables: dict[str, Any] = msgspec.to_builtins(study)
    tables["data"].pop("features")
    if not study.data.interactions:
        tables["data"].pop("interactions")
    # keys that are not given stay out: one that comes later must not change every older study
    estimator = {k: v for k, v in tables["estimator"].items() if k != "level" and v is not None}
    if study.estimator.norm_bound == "typical":
        # the number, not the word: whoever finds another one must not fold these releases
        estimator["norm_bound"] = typical_norm_bound(study.encoding)
    # whether noise remembers is the method's to say
    tables["privacy"].pop("noise_memory")
    tables["privacy"]["split"] = (study.privacy.split or Split()).filled().shares
    response = tables["data"]["response"]
    # a guess of how frequent a class is, for plans alone, may be made better while a study runs
    tables["data"]["response"] = {
        k: v for k, v in response.items() if k != "typical" and v is not None
    }
    meaning: dict[str, Any] = {
        "semantics": RELEASE_SEMANTICS,
        "features": [_declared(name, one) for name, one in study.data.features.items()],
        "data": tables["data"],
        "estimator": estimator,
        "privacy": {k: v for k, v in tables["privacy"].items() if k != "personal" or v},
        "window": tables["window"]["records"],
    }
    if before := study.study.before:
        # a client whose file lacks it would release the same records again
        meaning["follows"] = before[0] if len(before) == 1 else before
    if study.authenticated:
        # a client that puts no MAC on its releases must hear of it before it spends
        meaning["trust"] = "authenticated"
    if study.trust is not None and study.trust.rate is not None:
        # whoever has another rate would fold the same log to another state
        meaning["rate"] = msgspec.to_builtins(study.trust.rate)
    if study.largest_share is not None:
        # clients keep to it, and workers refuse what is above it
        meaning["largest_share"] = msgspec.to_builtins(study.largest_share)
    if enter is not None:
        enter(meaning, study)
    text = json.dumps(meaning, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _declared(name: str, feature: Feature) -> list[Any]:
    """Return what a feature declares; a plain number says name and ends alone, as it always has."""
    given = msgspec.to_builtins(feature)
    if feature.missing == "drop":  # a text that equals a default need not be left out
        given.pop("missing", None)
    found = [name, given.pop("min", None), given.pop("max", None)]
    return [*found, given] if given else found
