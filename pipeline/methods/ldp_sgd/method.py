"""Locally private gradient descent, as the registry knows it."""

from __future__ import annotations

from collections.abc import Container

from pipeline.methods.base import Method, Spec
from pipeline.methods.ldp_sgd import beginning, refusals
from pipeline.methods.ldp_sgd import facts as plans
from pipeline.methods.ldp_sgd import spec as keys
from pipeline.methods.ldp_sgd.server import GradientServer
from pipeline.methods.ldp_sgd.task import GradientTask
from pipeline.study.model import Study


class LdpSgd(Method[GradientTask]):
    """A path of gradients that are noised one by one."""

    spec = Spec(
        kind="ldp-sgd",
        title="gradient descent on locally private gradients of records",
        losses=keys.LOSSES,
        table="path",
        penalised=False,
        personal_levels=True,
        server_keys={
            "estimator.path.interval": "which intervals are shown",
            "estimator.path.burn_in": "where the average of the path begins",
        },
        interval_key="estimator.path.interval",
        template=beginning.TABLES,
    )

    def intervals(self, study: Study) -> tuple[str, ...]:
        """As `Method.intervals`."""
        return keys.spec_of(study).intervals

    def resolve(self, study: Study, given: Container[str]) -> Study:
        """As `Method.resolve`."""
        del given
        refusals.check(study)
        return study

    enter = staticmethod(keys.enter)
    task = GradientTask
    server = GradientServer
    plan = staticmethod(plans.plan)
    propose = staticmethod(plans.propose)


METHOD = LdpSgd()
