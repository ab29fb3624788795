"""Age-aware collection, as the registry knows it, and uploads of rounds at the worker.

What a study of rounds needs and promises, from public numbers alone; the plan of a round as a
table; and what an estimate says to who watches: round, who is late, what no data give.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec
import numpy as np
from msgspec import Meta
from scipy.special import ndtri

from pipeline.estimators.estimate import Estimate
from pipeline.estimators.forgetting import Weighed
from pipeline.methods.age_aware import card
from pipeline.methods.age_aware.client import AgedTask
from pipeline.methods.age_aware.estimate import Members, RoundState, estimate
from pipeline.methods.age_aware.markov import odds
from pipeline.methods.age_aware.spec import Group, check, clients_of, spec_of
from pipeline.methods.age_aware.spec import Spec as Keys
from pipeline.methods.base import Method, Plan, Report, Rounds, Server, Spec, Timetable
from pipeline.release.layout import Rows
from pipeline.study.model import Study
from pipeline.study.reference import Seen
from pipeline.words import counted

_Count = Annotated[int, Meta(ge=0, le=2**53)]
_Size = Annotated[float, Meta(ge=0)]


class Said(msgspec.Struct, frozen=True):
    """What is read of an estimate's details; in an open study anybody may have written them."""

    round: _Count
    clients_used: _Count
    clients_missing: _Count
    missing: list[str]
    expected_loss: _Size
    loss_without_data: _Size | None
    value_without_data: float | None
    data_help: bool | None
    epsilon_now: _Size
    epsilon_when_collected: _Size
    epsilon_at_any_time: _Size
    epsilon_of_all_rounds: _Size
    behind: _Count = 0


class RoundReport(Report):
    """As `methods.base.Report`: round, who is late, what no data give."""

    def lines(self, study: Study, details: Mapping[str, Any]) -> list[str]:
        """As `Report.lines`; nothing of details that are none of a round."""
        try:
            said = msgspec.convert(dict(details), Said)
        except msgspec.ValidationError:
            return []
        spec = spec_of(study)
        last, following = (said.round + 1) * spec.slots - 1, said.round + 1
        of = clients_of(spec)
        without = "unknown: a card of constant mixing knows no level"
        if said.loss_without_data is not None and said.value_without_data is not None:
            alone = math.sqrt(said.loss_without_data)
            helped = "" if said.data_help else ": data do not help"
            without = f"{said.value_without_data:.5g}, error {alone:.4g}{helped}"
        due = (
            f"round {following} is due after slot {last + spec.slots} of each source; who reports "
            f"which slot: `veilstream schedule --round {following}`"
        )
        if all(_ended(spec, group, following) for group in spec.groups):
            due = (
                "no later round comes: all model cards have ended (last_round). Check them again, "
                "and start a study with a new name"
            )
        which = (
            f"round {said.round} (slots {last - spec.slots + 1} to {last} of each source): "
            f"{said.clients_used} of {len(of)} clients{_missing(spec, of, said)}"
        )
        error = (
            f"expected error {math.sqrt(said.expected_loss):.4g}; without any data the value would "
            f"be {without}"
        )
        spent = (
            f"epsilon of a round: {said.epsilon_now:.4g} about a value at its end, "
            f"{said.epsilon_when_collected:.4g} when it was collected; of all rounds: "
            f"{said.epsilon_at_any_time:.4g} about any one time, {said.epsilon_of_all_rounds:.4g} "
            "about the history"
        )
        return [which, error, due, spent]


def _missing(spec: Keys, of: Mapping[str, str], said: Said) -> str:
    """Return who has not reported, apart by whether that can still come."""
    more, names = said.clients_missing - len(said.missing), said.missing
    ended = [name for name in names if name in of and _ended(spec, of[name], said.round)]
    late = [repr(name) for name in names if name not in ended]
    late += [f"{more} more"] if more > 0 else []
    found = f"; not yet of {', '.join(late)}" if late else ""
    if ended:
        found += f"; no more of {', '.join(map(repr, ended))}, whose model card has ended"
    if said.behind:
        found += (
            f"; {counted(said.behind, 'client')} more than a round behind: a client that goes on "
            "pays for rounds that no longer count, so all sources must begin together"
        )
    return found


def _ended(spec: Keys, group: str, number: int) -> bool:
    last = spec.groups[group].last_round
    return last is not None and number > last


#: Rounds that stand for ever: what they cost together grows no more, or without an end.
FOR_EVER = 10_000


def _facts(task: AgedTask) -> dict[str, object]:
    """Return what `study check` prints of a study."""
    plan, spec = task.plan, task.plan.spec
    loss, alone = loss_of(task), loss_without_data(task)
    return {
        "rounds": {
            "clients": len(plan.names),
            "slots": spec.slots,
            "records_of_a_client": plan.records,
            "ages": {str(age): n for age, n in sorted(Counter(plan.ages.tolist()).items())},
            "one_release_moves_at_most": largest_move(task),
        },
        "noise": {
            "mean_sd_least": math.sqrt(2) * float(plan.scales.min()),
            "mean_sd_most": math.sqrt(2) * float(plan.scales.max()),
        },
        "loss": {
            "expected": loss,
            "without_data": alone,
            "data_help": None if alone is None else loss < alone,
        },
        "epsilons": {
            "now": spec.epsilon_now,
            "when_collected": float(plan.epsilons.max()),
            "at_any_time": task.study.privacy.epsilon,
            "rounds_that_fit": rounds_that_fit(task),
        },
    }


def largest_move(task: AgedTask) -> float:
    """Return how far a client's release can move a round that all have reported, in real units.

    Whatever number within its bounds it sends, in the place of any other.
    """
    [field] = task.layout.later
    # where a card expects the opposite by the end of the round, a gain is below 0
    gain = float(np.abs(task.plan.gains).max())
    return 2 * gain * field.largest * task.unit / len(task.plan.names)


def warnings(task: AgedTask) -> tuple[str, ...]:
    """Return what the operator should know, in words."""
    plan = task.plan
    found = [
        f"age saves no noise in group {name!r}: by its model card nothing of a value is "
        "forgotten within a round, so each release has the noise of a fresh one. Use longer "
        "rounds, or another kind of study for records that change so slowly"
        for name in plan.no_age_credit
    ]
    if plan.capped.any():
        found.append(
            f"estimator.method.cap decides the noise of {int(plan.capped.sum())} of "
            f"{len(plan.names)} clients; their age alone would allow less noise"
        )
    found += [
        f"group {name!r}: rate {rate:g} promises that one slot later no value is more than "
        f"{odds(rate):.4g} times as likely after one value as after another. A record that often "
        'stays exactly the same breaks this promise: describe it with mixing = "matrix"'
        for name, card in plan.cards.items()
        if (rate := card.group.rate) is not None
    ]
    if not plan.knows_level:
        found.append(
            "a card of constant mixing has no level, so a value that is missing or set aside "
            f"counts as {task.response_scale[0]:g}, the middle of the range. Clients that set "
            "aside many values pull the mean towards it, and no interval shows that: have them "
            'clean their values, or give them a card with a level, as mixing = "matrix"'
        )
    alone = loss_without_data(task)
    if alone is not None and loss_of(task) >= alone:
        found.append(
            "data do not help: by the model cards alone, without any upload, the expected loss "
            f"is {alone:.4g}; with uploads it is {loss_of(task):.4g}"
        )
    rounds = rounds_that_fit(task)
    if rounds is not None:
        found.append(
            f"after {counted(rounds, 'round')} the first client's releases reach privacy.epsilon, "
            "and it stops: use longer rounds, a smaller estimator.method.cap, or a larger "
            "privacy.epsilon"
        )
    for name, of_group in plan.cards.items():
        found += _of_group(f"group {name!r}", of_group.group)
    return tuple(found)


def _of_group(name: str, group: Group) -> Iterator[str]:
    """Yield what to know of the model card of a group."""
    if group.card_epsilon:
        yield (
            f"the model card of {name} has been estimated: check its lower bound of mixing, "
            "because a card that mixes too fast breaks the promise of privacy"
        )
    elif group.error:
        yield (
            f"the model card of {name} has an error and no card_epsilon. That is right if it was "
            "estimated from public records, or from others than these. If `veilstream schedule "
            "card` estimated it from these records, set the card_epsilon that it printed"
        )
    if (last := group.last_round) is not None:
        yield (
            f"the model card of {name} ends with round {last} (last_round): from round "
            f"{last + 1} on its clients release nothing and spend nothing. Check the card again "
            "before that, and start a study with a new name"
        )


def loss_of(task: AgedTask) -> float:
    """Return the expected squared error of a round in which all report, in squared units."""
    return float(task.plan.losses.sum())


def loss_without_data(task: AgedTask) -> float | None:
    """Return the same of the model cards alone; None where they know no level."""
    return float(task.plan.alone.sum()) if task.plan.knows_level else None


def rounds_that_fit(task: AgedTask) -> int | None:
    """Return how many rounds the study's epsilon allows; None: any number."""
    limit = task.study.privacy.epsilon or 0.0
    if task.worst(FOR_EVER) <= limit:
        return None
    low, high = 0, FOR_EVER
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if task.worst(middle) <= limit else (low, middle)
    return low


def plan(task: AgedTask, records: int, clients: int, seen: Seen | None = None) -> Plan:
    """As `Method.plan`: one round of all clients is enough, whatever comes."""
    del records, clients, seen
    needed = len(task.plan.names) * task.slots
    reach = float(ndtri((1 + task.study.estimator.level) / 2))
    return Plan(
        latest=needed,
        usual=needed,
        usual_half=reach * math.sqrt(loss_of(task)),
        remedies=("model cards that are nearer to how records change",),
        facts=_facts(task),
        warnings=warnings(task),
    )


#: What fits a terminal.
SHOWN = ("client", "slot_of_source", "age", "delta", "epsilon_then", "noise_sd", "loss")
WHY = (
    "slot_of_source: whose values are released, counted from the beginning of a client's source",
    "age: how many slots the values are old at the end of the round, when they are published",
    "delta: how much of a value is left by then: 1 all of it, 0 nothing",
    "epsilon_then = min(cap, ln(1 + (e^epsilon_now - 1) / delta)): classical, of the value then",
    "noise_sd = sqrt(2) (high - low) / (records epsilon_then): of the client's mean",
    "loss: expected squared error of a client's share; the plan has the least sum there is",
    "loss_without_data: the same by the model card alone; - where it knows no level",
    "epsilon_at_any_time: of all rounds so far, about a record's value at any one time",
    "rounds_that_fit: after so many a client stops; -: it never has to",
    "the plan follows from the study file alone: worker and clients have the same one",
)


def timetable(task: AgedTask, number: int) -> Timetable:
    """As `Rounds.timetable`."""
    plan = task.plan
    first = number * plan.spec.slots
    rows = [
        {
            "client": name,
            "group": plan.groups[i],
            "slot": int(plan.slots[i]),
            "slot_of_source": first + int(plan.slots[i]),
            "age": int(plan.ages[i]),
            "delta": float(plan.deltas[i]),
            "epsilon_then": float(plan.epsilons[i]),
            "capped": bool(plan.capped[i]),
            "noise_sd": math.sqrt(2) * float(plan.scales[i]),
            "weight": 1 / len(plan.names),
            "loss": float(plan.losses[i]),
            "loss_without_data": float(plan.alone[i]) if plan.knows_level else None,
        }
        for i, name in enumerate(plan.names)
    ]
    facts = {
        "study": task.study.name,
        "revision": task.revision,
        "round": number,
        "published_after_slot_of_source": first + plan.spec.slots - 1,
        "epsilon_now": plan.spec.epsilon_now,
        "cap": plan.spec.cap,
        "delta_kind": plan.spec.delta,
        "use": plan.spec.use,
        "expected_loss": loss_of(task),
        "loss_without_data": loss_without_data(task),
        "epsilon_at_any_time": task.at_any_time(number + 1),
        "rounds_that_fit": rounds_that_fit(task),
    }
    expired = [
        f"round {number} is one of those that are refused to group {name!r}"
        for name, card in plan.cards.items()
        if (last := card.group.last_round) is not None and number > last
    ]
    return Timetable(rows, SHOWN, facts, [*warnings(task), *expired], WHY)


class RoundServer(Server[RoundState]):
    """As `methods.base.Server`."""

    def __init__(self, task: AgedTask) -> None:
        self._task, self._members = task, Members(task.plan.names)

    def empty(self) -> RoundState:
        return RoundState()

    def read(self, fields: dict[str, bytes]) -> RoundState:
        return RoundState.decode(fields)

    def fold(self, state: RoundState, rows: Rows) -> None:
        """As `Server.fold`; any order gives the same bits."""
        state.fold(rows)

    def estimate(
        self, parts: Weighed[RoundState], partitions: Sequence[int], *, missing: int = 0
    ) -> Estimate:
        """As `Server.estimate`: nothing is forgotten, so that there is one bucket."""
        del partitions, missing
        [(_, state)] = parts
        return estimate(self._task, state, self._members)


TABLES: Final = {
    "data": """\
# What is collected: one number of each record in each slot of time, such as the load of a flat in
# half an hour. The range is public. The study is of its mean over all clients; it has no features.
response = { name = "load", kind = "number", min = 0, max = 180 }
features = {}
""",
    "data.features": "",
    "estimator": """\
kind = "age-aware"            # an older value needs less noise: read docs/methods/age-aware.md
loss = "linear"
level = 0.95

[estimator.method]
slots = 24                    # of a round; after each round clients release one planned slot of it
epsilon_now = 0.3             # of one round, about a record's value when the round ends
cap = 1.0                     # the most of one round, about its value when it was collected
use = "wiener"                # weigh uploads and cards; "debiased" where their level may be wrong
# capacity = 2                # the most clients that collect in one slot

# How records of some clients change from slot to slot: public, and part of the promise. Where they
# change more slowly than this says, values are protected less: take the slowest that you know.
[estimator.method.groups.all]
clients = ["client-{1..$clients}"]
mixing = "birth-death"        # one state up or down, with probability q; "cyclic": always up, from
                              # the last state to the first; or "matrix", "constant"
states = [0, 60, 120, 180]
q = 0.4
""",
    "privacy": """\
mechanism = "discrete-laplace"
epsilon = 4.0                 # about a record's value at any one time, all rounds together
unit = "record"
neighbours = "replace-one"
""",
    "window": """\
records = 2400                # a round: its slots times the records of a client, here 24 * 100
""",
    "stream": """\
partitions = 2
retention = "30d"
max_in_flight_windows = 0     # rounds need no model, so nobody waits for one
""",
}


class PlannedRounds(Rounds):
    """Which slot each client releases in a round, and the cards behind it."""

    timetable = staticmethod(timetable)
    model_card = staticmethod(card.model_card)


#: Raised whenever the plan of the same study becomes another where slots take so many clients.
PLAN_SEMANTICS = 2


class AgeAware(Method[AgedTask]):
    """One planned value of each client a round, with less noise the older it is."""

    spec = Spec(
        kind="age-aware",
        title="values of planned age, noised for their present",
        losses=("linear",),
        table="method",
        features=False,
        template=TABLES,
        needs_noise=(
            'kind = "age-aware" plans how old values are by the noise that they need, so that '
            "without noise it has no stream; leave --without-privacy out"
        ),
        no_reference_fit=(
            "an estimate is of the end of a round, and all records are of all its slots"
        ),
    )
    report = RoundReport()
    rounds = PlannedRounds()

    def resolve(self, study: Study, given: Container[str]) -> Study:
        """As `Method.resolve`: there is nothing to penalise."""
        del given
        check(study)
        estimator = msgspec.structs.replace(study.estimator, ridge=0.0)
        return msgspec.structs.replace(study, estimator=estimator)

    def enter(self, meaning: dict[str, Any], study: Study) -> None:
        """As `Method.enter`: of plans that are equally good, another one noises other slots."""
        if spec_of(study).capacity is not None:
            meaning["plan"] = PLAN_SEMANTICS

    task = AgedTask
    server = RoundServer
    plan = staticmethod(plan)


METHOD = AgeAware()
