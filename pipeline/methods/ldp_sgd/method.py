"""Locally private gradient descent, as the registry knows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pipeline.methods.base import Method
from pipeline.methods.ldp_sgd import beginning, refusals, spec
from pipeline.methods.ldp_sgd import facts as known
from pipeline.methods.ldp_sgd.server import GradientServer
from pipeline.methods.ldp_sgd.simulation import GradientStream
from pipeline.methods.ldp_sgd.task import GradientTask
from pipeline.study import Study


class LdpSgd(Method[GradientTask]):
    """As `methods.base.Method`."""

    title = "gradient descent on locally private gradients of records"
    tables = ("path",)
    losses = spec.LOSSES
    levels = True
    penalised = False
    server_side: ClassVar = {
        "estimator.path.interval": "which intervals are shown",
        "estimator.path.burn_in": "where the average of the path begins",
    }
    client_side: ClassVar = {
        "estimator.path": "the live steps decided where clients took their gradients: other steps "
        "would lead elsewhere, and gradients of those places do not exist",
        "estimator.path.full": "it changes no number that is published",
    }

    def beginning(self, clients: int) -> Mapping[str, str]:
        """As `Method.beginning`."""
        del clients
        return beginning.TABLES

    def intervals(self, study: Study) -> tuple[str, ...]:
        """As `Method.intervals`."""
        return spec.spec_of(study).intervals

    check = staticmethod(refusals.check)
    enter = staticmethod(spec.enter)
    task = GradientTask
    server = GradientServer
    facts = staticmethod(known.facts)
    warnings = staticmethod(known.warnings)
    sizes = staticmethod(known.sizes)
    outlook = staticmethod(known.outlook)
    design = staticmethod(known.design)
    better = staticmethod(known.better)
    simulation = GradientStream

    def whole_log(self, task: GradientTask) -> str:
        """As `Method.whole_log`."""
        del task
        return (
            'kind = "ldp-sgd" moves one path from the public start through all records in their '
            "order, and each gradient was taken where that path had led"
        )


METHOD = LdpSgd()
