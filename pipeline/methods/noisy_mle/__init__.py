"""One noised release of each site at a time, put together so that no site rules the others.

- `client`: the study's keys, the public numbers, and a window's sums.
- `sums`, `estimate`: what the sums of sites say, and all sites together.
- `plan`, `method`: what an operator is told of a study.

Derived in docs/methods/noisy-mle.md.
"""
