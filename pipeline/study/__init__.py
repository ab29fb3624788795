"""The study file: one strict model, its errors, its revision and a template.

- `model`: every key with its range, meaning and example.
- `load`: reading and checking.
- `modes`, `mode_checks`: the kinds of estimator and what goes with each.
- `revision`: the hash that releases carry.
- `template`: the file that `veilstream study init` writes.
- `variants`: the same study without privacy, with seeded noise, or with other keys.
"""

from pipeline.study.load import check_key, load_study, parse_study, study_of
from pipeline.study.mode_checks import require_live
from pipeline.study.model import Study
from pipeline.study.modes import LIVE, LIVE_KINDS, MODES
from pipeline.study.path_checks import require_no_level_column
from pipeline.study.revision import revision_of
from pipeline.study.template import TEMPLATE
from pipeline.study.variants import simulated, with_keys, without_privacy

__all__ = [
    "LIVE",
    "LIVE_KINDS",
    "MODES",
    "TEMPLATE",
    "Study",
    "check_key",
    "load_study",
    "parse_study",
    "require_live",
    "require_no_level_column",
    "revision_of",
    "simulated",
    "study_of",
    "with_keys",
    "without_privacy",
]
