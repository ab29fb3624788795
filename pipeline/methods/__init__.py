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
from pipeline.methods.base import Method, Server
from pipeline.study import Study

#: Methods by `estimator.kind`, with where to find them.
METHODS = {
    "renewable": "pipeline.methods.renewable.method:METHOD",
    "ldp-sgd": "pipeline.methods.ldp_sgd.method:METHOD",
}


def method_of(study: Study) -> Method:
    """Return the method of a study."""
    module, _, name = METHODS[study.estimator.kind].partition(":")
    found: Method = getattr(import_module(module), name)
    return found


def plan_of(study: Study, level: str | None = None) -> Plan:
    """Return what clients and workers of a study share; for `level` see `Plan`.

    Raises
    ------
    PrivacyError, ConfigError
        As `Plan`.
    """
    return method_of(study).plan(study, level)


@lru_cache(maxsize=64)
def server_of(plan: Plan) -> Server[Any, Any]:
    """Return the worker's part of a study's method."""
    return method_of(plan.study).server(plan)
