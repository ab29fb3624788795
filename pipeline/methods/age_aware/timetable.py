"""The plan of a round as a table, and beside it what other schedules and noises would give."""

from __future__ import annotations

import math

import numpy as np

from pipeline.errors import ConfigError
from pipeline.methods.age_aware.assignment import FEW, NEAR
from pipeline.methods.age_aware.facts import loss_of, loss_without_data, rounds_that_fit, warnings
from pipeline.methods.age_aware.plan import round_of
from pipeline.methods.age_aware.schemes import compare
from pipeline.methods.age_aware.task import AgedTask
from pipeline.methods.base import Timetable

#: Random schedules that are drawn, and their seed.
DRAWS, SEED = 200, 1
#: Costs of the largest table that is compared: it is solved some fifty times.
LARGEST = 10**6

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
    "gap: how much better another plan may be at most, as a share; 0: none is better",
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
        "lower_bound": plan.schedule.lower_bound,
        "gap": plan.schedule.gap,
        "epsilon_at_any_time": task.at_any_time(number + 1),
        "rounds_that_fit": rounds_that_fit(task),
    }
    expired = [
        f"round {number} is one of those that are refused to group {name!r}"
        for name, card in plan.cards.items()
        if (last := card.group.last_round) is not None and number > last
    ]
    return Timetable(rows, SHOWN, facts, [*warnings(task), *expired], WHY)


def compared(task: AgedTask) -> Timetable:
    """As `Method.compared`: the paper's six schemes without the drift that the cards expect."""
    given = round_of(task.study)
    size = given.deltas.size
    if size > LARGEST:
        raise ConfigError(
            f"estimator.method.capacity: {size} pairs of client and place are too many to compare "
            f"schemes, {LARGEST} are allowed; give a smaller capacity, or a study of fewer clients"
        )
    found = compare(given, np.random.default_rng(SEED), DRAWS)
    alone, mine = loss_without_data(task), loss_of(task)
    rows: list[dict[str, object]] = [
        {"plan": f"{number}. {name}", "loss": loss}
        for number, (name, loss) in enumerate(
            {
                "random slots, one noise": found.random_constant,
                "random slots, noise by age": found.random_adaptive,
                "slots by the paper's bound, one noise": found.bound_constant,
                "slots by the paper's bound, noise by age": found.bound_adaptive,
                "slots best without noise, one noise": found.best_constant,
                "best slots, noise by age": found.best_adaptive,
            }.items(),
            start=1,
        )
    ]
    rows.append({"plan": f"this study ({task.plan.spec.use})", "loss": mine})
    rows.append({"plan": "no data, model cards alone", "loss": alone})
    literal = "slots by equation (12) as it is printed, noise by age"
    rows.append({"plan": literal, "loss": found.printed_adaptive})
    notes = [
        "loss: expected squared error of the published mean, in squared units of the response",
        "one noise: that of the freshest client's age, for all; noise by age: each its own",
        "the paper's bound: equation (12) with its slips corrected; the last line has them",
        "lines 1 to 6 take uploads as they are; this study's own line corrects them by the cards",
    ]
    if alone is None:
        notes.append("what no data give cannot be said: a card of constant mixing knows no level")
    elif alone <= mine:
        notes.append(
            f"data do not help: the model cards alone give {alone:.4g}, and the uploads "
            f"{mine:.4g}; collect nothing, or ask whether the cards are as certain as that"
        )
    else:
        notes.append(f"data help: the loss is {mine / alone:.2g} of that without any")
    facts = {
        "study": task.study.name,
        "revision": task.revision,
        "best_is": "the optimum" if found.best.gap == 0 else "within its gap of the optimum",
        "lower_bound": found.best.lower_bound,
        "gap": found.best.gap,
        "search": "for the best"
        if len(given.reporters) <= FEW
        else f"to within {NEAR:g} of the best",
        "data_help": None if alone is None else mine < alone,
    }
    return Timetable(rows, ("plan", "loss"), facts, notes)
