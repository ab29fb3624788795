"""The newest rounds of each client, and from uploads to the value of a round.

Which rounds of a client are kept depends on those that have come, not on their order, so that any
order gives the same bits. The estimate says which round is over, weights, drift and expected loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from pipeline.errors import StateError
from pipeline.estimators.estimate import Estimate
from pipeline.estimators.forgetting import State
from pipeline.methods.age_aware.client import AgedTask
from pipeline.release.layout import Rows, identity
from pipeline.types import Integers, Vector

#: Rounds that are kept of a client. A round that waits for others longer than that is lost, and
#: which rounds are over, no partition knows alone.
KEPT = 64
HEAD = "head"


@dataclass(slots=True)
class Uploads:
    """What a client has sent: how many releases, and the newest sums by round."""

    releases: int = 0
    sums: dict[int, int] = field(default_factory=dict)

    def dropped(self, number: int) -> bool:
        """Return whether a round is older than those that are kept."""
        return len(self.sums) == KEPT and number < min(self.sums)

    def put(self, number: int, total: int) -> None:
        """Add the sum of a round, and drop one that is too old."""
        self.sums[number] = total
        if len(self.sums) > KEPT:
            del self.sums[min(self.sums)]


@dataclass(slots=True)
class RoundState(State):
    """Sums of rounds, client by client.

    clients: By the digest of the client's id, 32 hexadecimal digits.
    slots: Record slots of all releases.
    dirty: Names of the fields that changed since they were last stored.
    """

    clients: dict[str, Uploads] = field(default_factory=dict)
    releases: int = 0
    slots: int = 0
    dirty: set[str] = field(default_factory=set)

    @property
    def names(self) -> list[str]:
        return [HEAD, *sorted(self.clients)]

    def fold(self, rows: Rows) -> None:
        """Add releases: a client's number of a release is the round that it is of."""
        numbers, sums = rows["seq"].tolist(), rows["sums"][:, 0].tolist()
        for digest, number, total in zip(rows["client"], numbers, sums, strict=True):
            name = digest.tobytes().hex()
            uploads = self.clients.setdefault(name, Uploads())
            uploads.releases += 1
            uploads.put(number, total)
            self.dirty.add(name)
        if len(rows):
            self.dirty.add(HEAD)
        self.releases += len(rows)
        self.slots += int(rows["records"].sum())

    def add(self, other: RoundState) -> None:
        """Add the sums of another partition, which stays as it is."""
        for name, theirs in other.clients.items():
            uploads = self.clients.setdefault(name, Uploads())
            uploads.releases += theirs.releases
            for number, total in theirs.sums.items():
                uploads.put(number, total)
        self.releases += other.releases
        self.slots += other.slots

    def encode_field(self, name: str) -> bytes:
        """Return one field as little-endian int64."""
        if name == HEAD:
            return np.array([self.releases, self.slots, len(self.clients)], "<i8").tobytes()
        uploads = self.clients[name]
        pairs = [number for pair in sorted(uploads.sums.items()) for number in pair]
        return np.array([uploads.releases, *pairs], dtype="<i8").tobytes()

    @classmethod
    def decode(cls, fields: dict[str, bytes]) -> RoundState:
        """Rebuild a state from all fields that `encode` gave.

        Raises StateError if a field is missing, unknown or of the wrong length.
        """
        state = cls()
        head = fields.get(HEAD, b"")
        if len(head) != 24:
            raise _broken()
        state.releases, state.slots, clients = np.frombuffer(head, dtype="<i8").tolist()
        for name, data in fields.items():
            if name == HEAD:
                continue
            if len(name) != 32 or not set(name) <= set("0123456789abcdef"):
                raise StateError(
                    f"the stored state has a field {name!r}, which this version does not know; "
                    "the operator must start the version that wrote it, or run `veilstream state "
                    "rebuild`"
                )
            if len(data) % 16 != 8 or len(data) > 8 * (1 + 2 * KEPT):
                raise _broken()
            releases, *pairs = np.frombuffer(data, dtype="<i8").tolist()
            sums = dict(zip(pairs[::2], pairs[1::2], strict=True))
            state.clients[name] = Uploads(releases, sums)
        held = sum(uploads.releases for uploads in state.clients.values())
        if (clients, state.releases) != (len(state.clients), held):
            raise _broken()
        return state


def _broken() -> StateError:
    return StateError(
        "the stored sums of rounds lack something, or cannot be read; run `veilstream state "
        "rebuild`"
    )


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
