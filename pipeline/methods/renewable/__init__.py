"""Renewable estimation: sums of gradients and curvatures at stated points, and their common zero.

- `method`: what the rest knows of it. `task`: its public numbers.
- `client`, `summarise`: a window to its sums.
- `private_server`, `private_state`, `private_sums`, `private_estimate`: studies with noise;
  `exact`: their integer sums, without overflow.
- `open_server`, `open_state`, `open_estimate`: studies without; the additive form.
"""
