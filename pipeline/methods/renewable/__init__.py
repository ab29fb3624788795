"""Renewable estimation: sums of gradients and curvatures at stated points, and their common zero.

- `method`: what the rest knows of it. `task`: its public numbers.
- `client`, `summarise`: a window to its sums.
- `private_server`, `private_state`, `private_sums`, `private_estimate`, `solution`, `readiness`:
  studies with noise. `open`: studies without; the additive form.
- `design`, `expected`, `reference`, `facts`: what is expected of a study before it runs.
"""
