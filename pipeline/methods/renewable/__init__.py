"""Renewable estimation: sums of gradients and curvatures at stated points, and their common zero.

- `spec`, `method`: the study's keys, and what the rest knows of the method.
- `client`: public numbers of a study, and a window to its sums.
- `state`: integer sums of studies with noise, and what they say in real units.
- `estimate`, `solution`: their estimate, and why it has no interval. `open`: studies without noise.
- `plan`, `expected`: what is expected of a study before it runs.
"""
