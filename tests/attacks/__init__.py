"""Distinguishing attacks: how much an adversary learns, as a lower bound of epsilon.

The adversary knows everything but the one record: all other records, the study, the models, and
which two values the record may have. It sees releases, and guesses. Its error rates bound epsilon
from below at a stated error probability, whatever the law of the noise is.

- `bounds`: error rates to a lower bound of mu or of (epsilon, delta).
- `studies`: worst-case neighbours for every kind of release.
- `windows`: many draws of a release, and what an adversary makes of them.
- `streams`: the same for whole streams with models that depend on earlier releases.
- `chains`: releases whose noise remembers those before them.
- `bugs`: faults that an implementation could have, to show that the attacks find them.

`python -m benchmarks.attacks` prints what they measure, and the tests use the same code.
"""
