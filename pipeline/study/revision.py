"""The study revision: a hash of all that changes what a release or an estimate means."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import msgspec

from pipeline.study.model import Study

#: Raised whenever the meaning of a release changes without a change of the study file.
RELEASE_SEMANTICS = 2
#: Raised instead where that of gradients of single records alone changes.
GRADIENT_SEMANTICS = 2
#: The same for the noised releases at the public start, by loss; a loss that is not here has 1.
START_SEMANTICS = {"logistic": 2}


def revision_of(study: Study) -> str:
    """Return 16 hexadecimal digits; names, topics and rhythm do not enter, feature order does."""
    tables: dict[str, Any] = msgspec.to_builtins(study)
    features = tables["data"].pop("features")
    # keys that are not given stay out: one that comes later must not change every older study
    estimator = {k: v for k, v in tables["estimator"].items() if k != "level" and v is not None}
    if study.estimator.path is not None:
        # which intervals are shown changes no release
        given = {k: v for k, v in estimator["path"].items() if k != "interval" and v is not None}
        if not study.estimator.path.matrices:
            del given["releases"]
        estimator["path"] = given
    tables["privacy"]["split"] = msgspec.to_builtins(study.split)
    response = tables["data"]["response"]
    tables["data"]["response"] = {k: v for k, v in response.items() if v is not None}
    meaning = {
        "semantics": RELEASE_SEMANTICS,
        "features": [[name, bounds["min"], bounds["max"]] for name, bounds in features.items()],
        "data": tables["data"],
        "estimator": estimator,
        "privacy": {k: v for k, v in tables["privacy"].items() if k != "personal" or v},
        "window": tables["window"]["records"],
    }
    if study.path is not None:
        meaning["gradients"] = GRADIENT_SEMANTICS
    elif study.noised and study.estimator.loss in START_SEMANTICS:
        meaning["start"] = START_SEMANTICS[study.estimator.loss]
    text = json.dumps(meaning, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
