"""Age-aware collection, as the registry knows it, and uploads of rounds at the worker."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any, Final

import msgspec

from pipeline.estimators.estimate import Estimate
from pipeline.methods.age_aware import card
from pipeline.methods.age_aware import plan as plans
from pipeline.methods.age_aware import spec as keys
from pipeline.methods.age_aware.client import AgedTask
from pipeline.methods.age_aware.estimate import Members, RoundState, estimate
from pipeline.methods.age_aware.plan import RoundReport
from pipeline.methods.base import Method, Rounds, Server, Spec
from pipeline.release.layout import Rows
from pipeline.study.model import Study


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
        self,
        parts: Sequence[tuple[float, RoundState]],
        partitions: Sequence[int],
        *,
        missing: int = 0,
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

    timetable = staticmethod(plans.timetable)
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
        keys.check(study)
        estimator = msgspec.structs.replace(study.estimator, ridge=0.0)
        return msgspec.structs.replace(study, estimator=estimator)

    def enter(self, meaning: dict[str, Any], study: Study) -> None:
        """As `Method.enter`: of plans that are equally good, another one noises other slots."""
        if keys.spec_of(study).capacity is not None:
            meaning["plan"] = PLAN_SEMANTICS

    task = AgedTask
    server = RoundServer
    plan = staticmethod(plans.plan)


METHOD = AgeAware()
