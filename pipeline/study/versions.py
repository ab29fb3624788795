"""The revision of a study, and other versions of it: without privacy, with a seed, with other keys.

The revision is a hash of all that changes what a release or an estimate means. Of other versions
types alone are checked: whether the keys go together is `study_file.load`'s to say.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from pipeline.errors import ConfigError
from pipeline.study.data import Feature
from pipeline.study.model import Split, Study
from pipeline.study.reference import typical_norm_bound
from pipeline.study.tables import strict

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


def without_privacy(study: Study) -> Study:
    """Return the same study with its privacy off: what the noise costs is the difference."""
    tables = msgspec.to_builtins(study)
    # a name has at most 63 characters
    tables["study"]["name"] = f"{study.name[:58]}-open"
    tables["privacy"] = {"mechanism": "none"}
    # windows grow against noise, and a study without any may not say that they do
    tables["window"].pop("growth", None)
    return msgspec.convert(tables, Study)


def simulated(study: Study, seed: int) -> Study:
    """Return the same study with noise of the same size from a seed, which protects nobody.

    Raises ConfigError if its noise is not Gaussian, or there is none.
    """
    if study.privacy.mechanism not in ("discrete-gaussian", "insecure-simulation"):
        raise ConfigError(
            f'a simulation needs Gaussian noise, and privacy.mechanism is "'
            f'{study.privacy.mechanism}"; leave the seed out'
        )
    tables = msgspec.to_builtins(study)
    tables["study"]["name"] = f"{study.name[:53]}-simulated"
    tables["privacy"] |= {"mechanism": "insecure-simulation", "seed": seed}
    return msgspec.convert(tables, Study)


def replace_keys(study: Study, changes: Mapping[str, Any]) -> Study:
    """Return a study with some keys set otherwise, each by itself allowed; None unsets one.

    changes: Key with its tables, as in `privacy.epsilon`, to its value.

    Raises ConfigError if a study has no such key, or its value is not allowed.
    """
    return strict(tables_with(study, changes), Study)


def tables_with(study: Study, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tables of a study with some keys set otherwise, unchecked, as `replace_keys`.

    Raises ConfigError if a key is in no table.
    """
    tables: dict[str, Any] = msgspec.to_builtins(study)
    for key, value in changes.items():
        *steps, last = key.split(".")
        table: Any = tables
        for step in steps:
            if not isinstance(table, dict):
                break
            if table.get(step) is None:
                table[step] = {}
            table = table[step]
        if not isinstance(table, dict) or not last:
            raise ConfigError(f"{key}: a study has no such key")
        if value is None:
            table.pop(last, None)
        else:
            table[last] = value
    return tables
