"""One noised release of each site at a time, put together so that no site rules the others.

- `spec`, `client`: the study's keys, the public numbers, and a window's sums.
- `state`, `server`: sums of each site at the worker. `sums`: what they say.
- `robust`, `estimate`: how far each site is from the others, and all of them together.
- `plan`, `report`, `method`: what an operator is told of a study and of its sites.

Derived in docs/methods/noisy-mle.md.
"""
