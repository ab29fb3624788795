"""From uploads to the value of a round: which round is over, weights, drift, expected loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pipeline.estimators.estimate import Estimate
from pipeline.methods.age_aware.client import AgedTask
from pipeline.methods.age_aware.state import KEPT, RoundState, Uploads
from pipeline.release.layout import identity
from pipeline.types import Integers, Vector

INTERVAL = "normal, from the expected loss of the plan"
#: Names of clients that an estimate lists at most.
_LISTED = 20


@dataclass(frozen=True, slots=True)
class Round:
    """One round: its number, which members have reported, and their sums, shapes (k,)."""

    number: int
    members: Integers
    sums: Integers


class Members:
    """The clients of a plan by the digests under which a state has them."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._numbers = {identity(name.encode()).hex(): i for i, name in enumerate(names)}

    def of(self, state: RoundState) -> dict[int, Uploads]:
        """Return what each member has sent; others are in no plan and do not count."""
        return {
            self._numbers[name]: uploads
            for name, uploads in sorted(state.clients.items())
            if name in self._numbers
        }


def newest(sent: Mapping[int, Uploads], members: int) -> Round | None:
    """Return the newest round that is over; None before the first.

    It is over when all members have reported, or when most of them have reported a later one:
    a single client whose clock is fast closes no round.
    """
    last = np.array([max(uploads.sums) for uploads in sent.values()])
    for number in sorted({n for uploads in sent.values() for n in uploads.sums}, reverse=True):
        found = {i: uploads.sums[number] for i, uploads in sent.items() if number in uploads.sums}
        if len(found) == members or 2 * int((last > number).sum()) > members:
            whole = np.array(list(found.values()), dtype=np.int64)
            return Round(number, np.array(list(found), dtype=np.int64), whole)
    return None


def estimate(task: AgedTask, state: RoundState, members: Members) -> Estimate:
    """Return the value of the newest round that is over, in encoded units."""
    plan, sent = task.plan, members.of(state)
    size = len(plan.names)
    found = newest(sent, size)
    if found is None:
        return _waiting(task, state, sent)
    who, (centre, unit) = found.members, task.response_scale
    # those that have not reported leave their weight to the others
    weight = 1.0 / len(who)
    means: Vector = centre + found.sums.astype(np.float64) * task.unit
    value, drift = _combined(task, who, means)
    noised = float(((weight * plan.gains[who] * task.deviations[who]) ** 2).sum())
    # plans reckon with continuous noise; what is added is that of the lattice
    planned = float(((weight * plan.gains[who] * plan.scales[who]) ** 2).sum() * 2)
    scaled = (weight * size) ** 2
    loss = float(plan.losses[who].sum()) * scaled - planned + noised
    alone = float(plan.alone[who].sum()) * scaled if plan.knows_level else None
    gone = {i for i, uploads in sent.items() if uploads.dropped(found.number)}
    late = [name for i, name in enumerate(plan.names) if i not in {*who.tolist(), *gone}]
    # releases that were never folded have been seen, too: numbers have no gaps
    rounds = {i: max(max(uploads.sums) + 1, uploads.releases) for i, uploads in sent.items()}
    # a model card is paid for before its clients send anything
    history = [
        float(plan.epsilons[i]) * rounds.get(i, 0) + plan.card(i).group.card_epsilon
        for i in range(size)
    ]
    details = {
        "round": found.number,
        "value": value,
        "noise_variance": noised,
        "expected_loss": loss,
        "loss_without_data": alone,
        "value_without_data": float(plan.mean_now[who].mean()) if plan.knows_level else None,
        "data_help": None if alone is None else loss < alone,
        "drift_correction": drift,
        "missing_values_count_as": "what its card expects" if plan.knows_level else centre,
        "clients_used": len(who),
        "clients_missing": len(late),
        "clients_too_far_ahead": len(gone),
        "missing": late[:_LISTED],
        "ahead": sum(max(uploads.sums) > found.number + 1 for uploads in sent.values()),
        "behind": sum(
            max(uploads.sums) < min(found.number, plan.last_round(i)) - 1
            for i, uploads in sent.items()
        ),
        "not_in_the_plan": len(state.clients) - len(sent),
        "epsilon_now": plan.spec.epsilon_now,
        "epsilon_when_collected": float(plan.epsilons[who].max()),
        "epsilon_at_any_time": task.at_any_time(max(rounds.values())),
        "epsilon_of_all_rounds": max(history),
    }
    return Estimate(
        coefficients=np.array([(value - centre) / unit]),
        covariance=np.array([[loss / unit**2]]),
        privacy_covariance=np.array([[noised / unit**2]]),
        status="ready",
        reason="",
        records=state.slots,
        releases=state.releases,
        interval=INTERVAL,
        # no client asks anything at a point
        point=np.zeros(1),
        details=details,
    )


def _combined(task: AgedTask, who: Integers, means: Vector) -> tuple[float, float]:
    """Return the value of a round, and which part of it is the drift that cards expect."""
    plan = task.plan
    now, then = plan.mean_now[who], plan.mean_then[who]
    if plan.spec.use == "debiased":
        return float((means + now - then).mean()), float((now - then).mean())
    value = float((now + plan.gains[who] * (means - then)).mean())
    return value, value - float(means.mean())


def _waiting(task: AgedTask, state: RoundState, sent: Mapping[int, Uploads]) -> Estimate:
    names = task.plan.names
    newest_of = {name: max(sent[i].sums) if i in sent else -1 for i, name in enumerate(names)}
    first = min(newest_of.values())
    late = [name for name, newest in newest_of.items() if newest == first]
    named = ", ".join(map(repr, late[:_LISTED])) + (", ..." if len(late) > _LISTED else "")
    behind = max(newest_of.values()) > first
    reason = (
        f"no round is over: {len(sent)} of {len(names)} clients have reported"
        + (f"; round {first + 1} waits for {named}" if behind else "")
        + (
            f"; of each client the newest {KEPT} rounds are kept"
            if first + KEPT < max(newest_of.values())
            else ""
        )
    )
    return Estimate(
        coefficients=np.zeros(1),
        status="warming" if state.releases else "empty",
        reason=reason,
        records=state.slots,
        releases=state.releases,
        interval=INTERVAL,
        point=np.zeros(1),
        details={"clients_used": 0, "clients_missing": len(names) - len(sent)},
    )
