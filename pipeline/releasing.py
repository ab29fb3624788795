"""One window to one payload: summarise at a model, privatise, write.

Clients and offline runs share this function; nothing else turns records into bytes.
"""

from __future__ import annotations

from pipeline.local.encode import Rows, stack
from pipeline.local.gradients import bounded_gradients, open_gradients
from pipeline.local.model import Model
from pipeline.local.plan import Plan
from pipeline.local.privatise import disclose, privatise
from pipeline.local.summarise import Summary, local_fit, summarise, summarise_bounded
from pipeline.messages.release import seal
from pipeline.privacy.randomness import SecureStream
from pipeline.privacy.simulation import SeededStream
from pipeline.types import Matrix, Vector


def release_of(
    plan: Plan,
    rows: Rows,
    model: Model,
    stream: SecureStream | None = None,
    *,
    client: str,
    ledger: str,
    seq: int,
) -> bytes:
    """Make the release of one window; call it once for a window, as it draws noise.

    Parameters
    ----------
    rows
        The encoded records, at most `plan.slots`; None, and fewer of them, mean empty slots.
    model
        The newest model that the client knows.
    stream
        Where noise comes from; by default a stream of the release's own: under a fresh key, so
        that a resumed copy of a process cannot repeat its noise, or under the study's seed in a
        simulation.
    client, ledger, seq
        The identity that goes into the payload.

    Raises
    ------
    PrivacyError
        If a sum does not fit its lattice.
    """
    slots = stack(rows, plan.size - 1)
    # gradients of single records keep their slots: one that cannot be used would else move all
    # behind it, and the release would tell neighbours apart by far more than one gradient
    window = slots if plan.by_record and plan.study.noised else slots.sound
    features, responses, levels = window
    if plan.study.noised:
        stream = stream or _stream(plan, client, seq)
        sums = (
            bounded_gradients(plan, features, responses, model, levels)
            if plan.by_record
            else summarise_bounded(plan, features, responses, model)
        )
        noised = privatise(plan, sums, stream)
        return seal(plan, noised, client=client, ledger=ledger, seq=seq)
    summary = _open_summary(plan, features, responses, model)
    opened = disclose(plan, summary, model.version, model.seen, model.place)
    return seal(plan, opened, client=client, ledger=ledger, seq=seq)


def _open_summary(plan: Plan, features: Matrix, responses: Vector, model: Model) -> Summary:
    """Sum a window without privacy, at a fit of its own where the client knows no model yet."""
    if plan.by_record:
        return open_gradients(plan, features, responses, model)
    point = model.coefficients
    if model.version == 0 and len(responses):
        point = local_fit(plan.loss, features, responses, plan.study.estimator.ridge)
    return summarise(plan, features, responses, point, model.class_weights)


def _stream(plan: Plan, client: str, seq: int) -> SecureStream:
    seed = plan.study.privacy.seed
    return SecureStream() if seed is None else SeededStream(seed, client, seq)
