"""A study on simulated records: whether its intervals cover as often as they say, at its size.

- `population`: the records that are drawn, from public numbers alone, and the exact target.
- `streams`: one stream of them through the study's own noise, steps and estimator.
- `coverage`: what many streams say together, with Monte Carlo errors.
- `sizes`: the rule of thumb that stands beside it.
- `verdict`: both in words.

Nothing is read and nothing is protected: noise comes from a seeded generator.
"""

from pipeline.doctor.coverage import Coverage, IntervalCoverage, StreamResult, result_of, sum_up
from pipeline.doctor.population import Population, Target, default_truth, target_of
from pipeline.doctor.streams import Size, simulated, stream
from pipeline.doctor.verdict import Verdict, judge
from pipeline.methods.facts import Sizes

__all__ = [
    "Coverage",
    "IntervalCoverage",
    "Population",
    "Size",
    "Sizes",
    "StreamResult",
    "Target",
    "Verdict",
    "default_truth",
    "judge",
    "result_of",
    "simulated",
    "stream",
    "sum_up",
    "target_of",
]
