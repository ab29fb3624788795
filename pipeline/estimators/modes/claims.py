"""What each kind of estimator keeps private, and the noise of those that have any.

None of the published methods keeps a guarantee in this program: some have none by design, the
others are simulated with floating-point noise of a seeded generator. Source: dwd, Theorem 2.
"""

from __future__ import annotations

import msgspec

from pipeline.estimators.modes.message_noise import MessageNoise
from pipeline.estimators.modes.result import FEDERATED, POOLED
from pipeline.estimators.modes.trusted_noise import GaussianNoise, LaplaceNoise
from pipeline.local.plan import Plan
from pipeline.privacy.policy import NO_PRIVACY, Guarantee
from pipeline.study.modes import LIVE_KINDS, MODES, Reproduction

#: Share of mu^2 for noised class counts, where there are class weights.
COUNTS_SHARE = 0.05
_SIMULATED = (
    "its noise is a simulation with floating-point numbers of a seeded generator, which protects "
    "nobody"
)
_COUNTS = {
    "pooled": "class counts and record counts: as they are, with the raw records",
    "federated": "class counts and record counts: sent as they are",
    "noised": "simulated noise, or none",
}


def reproduction_of(plan: Plan) -> Reproduction:
    """Return `[estimator.reproduction]`; an empty one where the study has none."""
    return plan.study.estimator.reproduction or Reproduction()


def guarantee_of_kind(plan: Plan, clients: int | None = None) -> Guarantee:
    """Return what a study's kind of estimator keeps private.

    Parameters
    ----------
    clients
        How many clients there are; None where nobody knows yet.

    Raises
    ------
    ConfigError, PrivacyError
        If the noise of the kind cannot be scaled with these parameters.
    """
    kind = plan.study.estimator.kind
    if kind in LIVE_KINDS:
        return plan.guarantee
    return msgspec.structs.replace(
        NO_PRIVACY, guarantee=_sentence(plan, kind, clients), counts=_COUNTS[_family(kind)]
    )


def trusted_noise(plan: Plan) -> LaplaceNoise | GaussianNoise:
    """Return the noise of Algorithm 2 as the study declares it.

    Raises
    ------
    ConfigError, PrivacyError
        If a parameter is outside its range.
    """
    given = reproduction_of(plan)
    l2_bound = given.l2_bound or plan.norm_bound
    step, held = given.step_bound or 0.0, given.stabiliser or 0.0
    epsilon = given.epsilon or 0.0
    if plan.study.estimator.kind == "online-newton-laplace":
        return LaplaceNoise(epsilon, given.l1_bound or plan.bounds.l1, l2_bound, step, held)
    return GaussianNoise(epsilon, given.delta or 0.0, l2_bound, step, held)


def shared_noise(plan: Plan, clients: int) -> MessageNoise:
    """Return the noise that `clients` clients add together in each round.

    Raises
    ------
    ConfigError, PrivacyError
        If a parameter is outside its range, or as many clients are tolerated as there are.
    """
    given = reproduction_of(plan)
    return MessageNoise(
        given.epsilon or 0.0,
        given.delta or 0.0,
        given.l2_bound or plan.norm_bound,
        clients=clients,
        placement="distributed",
        tolerated=given.tolerated or 0,
        counts_share=COUNTS_SHARE if plan.largest_weight > 1 else 0.0,
        largest_weight=plan.largest_weight,
    )


def _sentence(plan: Plan, kind: str, clients: int | None) -> str:
    if not MODES[kind].noised:
        return POOLED if _family(kind) == "pooled" else FEDERATED
    if kind != "online-newton-distributed":
        return f"{trusted_noise(plan).guarantee}; and {_SIMULATED}"
    design = f"none: {_SIMULATED}; the design, with exact noise, would be"
    if clients is not None:
        return f"{design} {shared_noise(plan, clients).guarantee}"
    tolerated = reproduction_of(plan).tolerated or 0
    return (
        f"{design} {shared_noise(plan, tolerated + 1).kept}; provided that secure aggregation "
        f"shows the server nothing but the sum of a round, and that all clients but {tolerated} "
        "add their noise and do not collude"
    )


def _family(kind: str) -> str:
    if MODES[kind].noised:
        return "noised"
    return "pooled" if kind.startswith("pooled") else "federated"
