"""Renewable estimation: sums of gradients and curvatures at stated points, and their common zero.

- `private_server`, `private_state`, `private_sums`, `private_estimate`: studies with noise;
  `exact`: their integer sums, without overflow.
- `open_server`, `open_state`, `open_estimate`: studies without; the additive form.
"""

from __future__ import annotations

from pipeline.local.plan import Plan
from pipeline.methods.renewable.open_server import OpenServer
from pipeline.methods.renewable.private_server import PrivateServer


def server_of(plan: Plan) -> PrivateServer | OpenServer:
    """Return the worker's part, for a study with noise or without."""
    return PrivateServer(plan) if plan.study.noised else OpenServer(plan)
