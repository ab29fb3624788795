"""Other versions of a study: without privacy, with seeded noise, with other keys.

Types alone are checked here: whether the keys go together is `study_file.load`'s to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from pipeline.errors import ConfigError
from pipeline.study.model import Study
from pipeline.study.tables import strict


def without_privacy(study: Study) -> Study:
    """Return the same study with its privacy off: what the noise costs is the difference."""
    tables = msgspec.to_builtins(study)
    # a name has at most 63 characters
    tables["study"]["name"] = f"{study.name[:58]}-open"
    tables["privacy"] = {"mechanism": "none"}
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
