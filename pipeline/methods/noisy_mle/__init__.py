"""One noised release of each site at a time, put together so that no site rules the others.

- `spec`, `task`, `client`: the study's keys, the public numbers, and a window's sums.
- `state`, `server`: sums of each site at the worker.
- `sites`, `guards`, `estimate`: what sites say, how far each is from the others, all together.
- `facts`, `method`: what an operator is told of a study; the registry's part.

Derived in docs/methods/noisy-mle.md.
"""
