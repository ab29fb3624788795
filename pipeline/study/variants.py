"""Other versions of a study, to compare it with."""

from __future__ import annotations

import msgspec

from pipeline.study.model import Study


def without_privacy(study: Study) -> Study:
    """Return the same study with its privacy off: what the noise costs is the difference."""
    tables = msgspec.to_builtins(study)
    # a name has at most 63 characters
    tables["study"]["name"] = f"{study.name[:58]}-open"
    tables["privacy"] = {"mechanism": "none"}
    return msgspec.convert(tables, Study)


def with_epsilon(study: Study, epsilon: float) -> Study:
    """Return the same study at another budget; its delta stays."""
    return msgspec.structs.replace(
        study, privacy=msgspec.structs.replace(study.privacy, epsilon=epsilon)
    )
