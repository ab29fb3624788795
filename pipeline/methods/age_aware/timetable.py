"""The plan of a round as a table."""

from __future__ import annotations

import math

from pipeline.methods.age_aware.facts import loss_of, loss_without_data, rounds_that_fit, warnings
from pipeline.methods.age_aware.task import AgedTask
from pipeline.methods.base import Timetable

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
    """As `Method.timetable`."""
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
