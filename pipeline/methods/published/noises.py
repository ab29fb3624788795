"""The simulated noise of a study's published method, and the sentences of what each one keeps.

None of these methods keeps a guarantee in this program: some have none by design, the others are
simulated with floating-point noise of a seeded generator. Source: dwd, Theorem 2.
"""

from __future__ import annotations

from collections.abc import Callable

from pipeline.methods.published.message_noise import MessageNoise
from pipeline.methods.published.spec import Distributed, Gaussian, Laplace, Trusted, spec_of
from pipeline.methods.published.trusted_noise import GaussianNoise, LaplaceNoise
from pipeline.release.task import Task

POOLED = "no privacy: the raw records of all clients lie in one place"
FEDERATED = (
    "no differential privacy: clients send exact sums, and from the sums of a single record its "
    "features can be computed"
)
#: Share of mu^2 for noised class counts, where there are class weights.
COUNTS_SHARE = 0.05
_SIMULATED = (
    "its noise is a simulation with floating-point numbers of a seeded generator, which protects "
    "nobody"
)


def trusted_noise(task: Task, keys: Trusted) -> LaplaceNoise | GaussianNoise:
    """Return the noise of Algorithm 2 as the study declares it."""
    l2_bound = keys.l2_bound or task.norm_bound
    step, held = keys.step_bound, keys.stabiliser
    if isinstance(keys, Gaussian):
        return GaussianNoise(keys.epsilon, keys.delta, l2_bound, step, held)
    l1_bound = (keys.l1_bound if isinstance(keys, Laplace) else None) or task.bounds.l1
    return LaplaceNoise(keys.epsilon, l1_bound, l2_bound, step, held)


def shared_noise(task: Task, keys: Distributed, clients: int) -> MessageNoise:
    """Return the noise that `clients` clients add together; PrivacyError as `MessageNoise`."""
    return MessageNoise(
        keys.epsilon,
        keys.delta,
        keys.l2_bound or task.norm_bound,
        clients=clients,
        tolerated=keys.tolerated,
        counts_share=COUNTS_SHARE if task.largest_weight > 1 else 0.0,
        largest_weight=task.largest_weight,
    )


def of_trusted(kind: type[Trusted]) -> Callable[[Task, int | None], str]:
    """Return what says what an aggregator's noise keeps."""

    def said(task: Task, clients: int | None) -> str:
        return f"{trusted_noise(task, spec_of(task.study, kind)).guarantee}; and {_SIMULATED}"

    return said


def of_distributed(task: Task, clients: int | None) -> str:
    """Say what shared noise would keep; `clients` is None where nobody knows their number yet."""
    keys = spec_of(task.study, Distributed)
    design = f"none: {_SIMULATED}; the design, with exact noise, would be"
    if clients is not None:
        return f"{design} {shared_noise(task, keys, clients).guarantee}"
    return (
        f"{design} {shared_noise(task, keys, keys.tolerated + 1).kept}; provided that secure "
        "aggregation shows the server nothing but the sum of a round, and that all clients but "
        f"{keys.tolerated} add their noise and do not collude"
    )
