"""Studies and rounds for tests of age-aware collection."""

from __future__ import annotations

import numpy as np

from pipeline.methods import task_of as make_task
from pipeline.methods.age_aware.client import AgedTask
from pipeline.study_file.load import parse_study

GROUPS = """
[estimator.method.groups.fast]
clients = ["c", "a-{1..2}"]
mixing = "birth-death"
states = [0, 60, 120, 180]
q = 0.9
[estimator.method.groups.slow]
clients = ["b"]
mixing = "cyclic"
states = [0, 60, 120, 180]
q = 0.4
"""
ALONE = """
[estimator.method.groups.all]
clients = ["c"]
mixing = "constant"
rate = 0.4
spread = 40.0
"""


def study_text(
    *, groups: str = GROUPS, method: str = "", slots: int = 12, records: int = 20,
    epsilon: float = 8.0, name: str = "meters", privacy: str = "", stream: str = "",
) -> str:  # fmt: skip
    """Return a study of rounds; `records` are those of a slot."""
    return f"""\
[study]
name = "{name}"
[data]
response = {{ name = "power", kind = "number", min = 0, max = 180 }}
features = {{}}
[estimator]
kind = "age-aware"
loss = "linear"
[estimator.method]
slots = {slots}
epsilon_now = 0.3
{method}
{groups}
[privacy]
mechanism = "discrete-laplace"
epsilon = {epsilon}
neighbours = "replace-one"
{privacy}
[window]
records = {slots * records}
[stream]
partitions = 2
{stream}
publish = {{ releases = 4, seconds = 0.2, pause = 0.05 }}
"""


def task_of(text: str) -> AgedTask:
    """Return the task of a study text."""
    task = make_task(parse_study(text))
    assert isinstance(task, AgedTask)
    return task


def rounds_of(task: AgedTask, client: str, rounds: int, rng: np.random.Generator) -> np.ndarray:
    """Return the records of a client over so many rounds, in real units, shape (rounds, slots)."""
    plan = task.plan
    card = plan.card(plan.number(client))
    states, matrix = card.chain.states, card.chain.matrix
    at = rng.choice(len(states), size=plan.records, p=card.law)
    found = []
    steps = np.cumsum(matrix, axis=1)
    for _ in range(rounds * plan.spec.slots):
        found.append(states[at])
        at = (rng.random(plan.records)[:, None] > steps[at]).sum(axis=1)
    return np.array(found).reshape(rounds, plan.spec.slots * plan.records)
