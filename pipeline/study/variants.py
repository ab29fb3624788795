"""Other versions of a study, to compare it with."""

from __future__ import annotations

import msgspec

from pipeline.errors import ConfigError
from pipeline.study.model import Study


def without_privacy(study: Study) -> Study:
    """Return the same study with its privacy off: what the noise costs is the difference."""
    tables = msgspec.to_builtins(study)
    # a name has at most 63 characters
    tables["study"]["name"] = f"{study.name[:58]}-open"
    tables["privacy"] = {"mechanism": "none"}
    return msgspec.convert(tables, Study)


def simulated(study: Study, seed: int) -> Study:
    """Return the same study with noise of the same size from a seed, which protects nobody.

    Raises
    ------
    ConfigError
        If its noise is not Gaussian, or there is none.
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


def with_epsilon(study: Study, epsilon: float) -> Study:
    """Return the same study at another budget; its delta stays."""
    return msgspec.structs.replace(
        study, privacy=msgspec.structs.replace(study.privacy, epsilon=epsilon)
    )
