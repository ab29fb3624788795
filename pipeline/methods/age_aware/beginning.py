"""What the file of a new study of this kind says in other words than the template."""

from __future__ import annotations

from typing import Final

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
