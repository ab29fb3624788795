"""The methods of estimation, each a package of its own behind one seam.

- `base`: what a method is to the rest. `layout`: the form of what a release holds.
- `renewable`, `ldp_sgd`: methods that run live.

A method is loaded when a study asks for it, and nothing outside its package knows it by name.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from typing import Any

from pipeline.local.plan import Plan
from pipeline.methods.base import Server

#: Methods by `estimator.kind`: where to find what makes their part of a worker.
METHODS = {
    "renewable": "pipeline.methods.renewable:server_of",
    "ldp-sgd": "pipeline.methods.ldp_sgd:server_of",
}


@lru_cache(maxsize=64)
def server_of(plan: Plan) -> Server[Any, Any]:
    """Return the worker's part of a study's method."""
    module, _, name = METHODS[plan.study.estimator.kind].partition(":")
    made: Server[Any, Any] = getattr(import_module(module), name)(plan)
    return made
