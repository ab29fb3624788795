"""The study file: one strict model, its errors, its revision and a template.

- `model`: every key with its range, meaning and example.
- `load`: reading and checking, from whatever a caller has.
- `families`: kinds, losses and responses; `tables`: strict tables, and what to say of a wrong one.
- `revision`: the hash that releases carry.
- `variants`: the file that `veilstream study init` writes; the same study without privacy, with
  seeded noise, or with other keys. `editing`: keys set in a file's text.
"""

from pipeline.study.editing import edited
from pipeline.study.families import require_live
from pipeline.study.load import (
    StudySource,
    check_key,
    load_study,
    parse_study,
    read_study,
    study_of,
)
from pipeline.study.model import LIVE, Study
from pipeline.study.release_tables import require_no_level_column
from pipeline.study.revision import revision_of
from pipeline.study.variants import (
    TEMPLATE,
    simulated,
    with_features,
    with_keys,
    with_tables,
    without_privacy,
)

__all__ = [
    "LIVE",
    "TEMPLATE",
    "Study",
    "StudySource",
    "check_key",
    "edited",
    "load_study",
    "parse_study",
    "read_study",
    "require_live",
    "require_no_level_column",
    "revision_of",
    "simulated",
    "study_of",
    "with_features",
    "with_keys",
    "with_tables",
    "without_privacy",
]
