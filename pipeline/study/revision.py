"""The study revision: a hash of all that changes what a release or an estimate means."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import msgspec

from pipeline.methods import METHODS, method_of
from pipeline.study.model import Study
from pipeline.study.release_tables import Split

#: Raised whenever the meaning of a release changes without a change of the study file.
RELEASE_SEMANTICS = 2


def revision_of(study: Study) -> str:
    """Return 16 hexadecimal digits; names, topics and rhythm do not enter, feature order does."""
    tables: dict[str, Any] = msgspec.to_builtins(study)
    features = tables["data"].pop("features")
    # keys that are not given stay out: one that comes later must not change every older study
    estimator = {k: v for k, v in tables["estimator"].items() if k != "level" and v is not None}
    split = study.privacy.split or Split()
    tables["privacy"]["split"] = msgspec.to_builtins(split)
    response = tables["data"]["response"]
    tables["data"]["response"] = {k: v for k, v in response.items() if v is not None}
    meaning: dict[str, Any] = {
        "semantics": RELEASE_SEMANTICS,
        "features": [[name, bounds["min"], bounds["max"]] for name, bounds in features.items()],
        "data": tables["data"],
        "estimator": estimator,
        "privacy": {k: v for k, v in tables["privacy"].items() if k != "personal" or v},
        "window": tables["window"]["records"],
    }
    if study.estimator.kind in METHODS:
        method_of(study).enter(meaning, study)
    text = json.dumps(meaning, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
