"""The study file: one strict model, its errors, its revision and a template.

- `model`: every key with its range, meaning and example.
- `load`: reading and checking.
- `revision`: the hash that releases carry.
- `template`: the file that `veilstream study init` writes.
- `variants`: the same study without privacy.
"""

from pipeline.study.load import load_study, parse_study
from pipeline.study.model import Study
from pipeline.study.revision import revision_of
from pipeline.study.template import TEMPLATE
from pipeline.study.variants import without_privacy

__all__ = ["TEMPLATE", "Study", "load_study", "parse_study", "revision_of", "without_privacy"]
