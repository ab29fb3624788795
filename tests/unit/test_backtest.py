"""A backtest is the offline run with time between its steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from pipeline.backtest import Options
from pipeline.backtest.engine import Engine
from pipeline.backtest.history import Reading
from pipeline.errors import RecordError
from pipeline.learning.stream import study_of
from pipeline.local.encode import Encoder, Row
from pipeline.local.plan import Plan
from pipeline.offline import OfflineRun
from pipeline.reducer import differences
from pipeline.study import Study

CLASSES = """
[study]
name = "classes"
[data]
response = { name = "y", positive = "yes", negative = "no" }
[data.features]
a = { min = -1, max = 1 }
b = { min = -2, max = 2 }
[estimator]
loss = "logistic"
"""
NUMBERS = """
[study]
name = "numbers"
[data]
response = { name = "y", kind = "number", min = -5, max = 5 }
[data.features]
a = { min = -1, max = 1 }
b = { min = -2, max = 2 }
[estimator]
loss = "linear"
"""
COUNTS = """
[study]
name = "counts"
[data]
response = { name = "y", kind = "count", max = 40 }
[data.features]
a = { min = -1, max = 1 }
b = { min = -2, max = 2 }
[estimator]
loss = "poisson"
"""
SGD = """
kind = "ldp-sgd"
ridge = 0
"""
NOISED = """
[privacy]
mechanism = "insecure-simulation"
epsilon = 2
delta = 1e-6
seed = 5
"""
OPEN = """
[privacy]
mechanism = "none"
"""
WINDOW = """
[window]
records = 50
[stream]
partitions = 1
publish = { releases = 3 }
"""
STUDIES = {
    "classes": CLASSES + NOISED + WINDOW,
    "classes, open": CLASSES + OPEN + WINDOW,
    "numbers": NUMBERS + NOISED + WINDOW,
    "numbers, open": NUMBERS + OPEN + WINDOW,
    "counts": COUNTS + NOISED + WINDOW,
    "by record": CLASSES + SGD + NOISED + 'neighbours = "replace-one"' + WINDOW,
    "by record, open": CLASSES + SGD + OPEN + WINDOW,
    "forgets": CLASSES + 'forgetting = { half_life = 500, of = "records" }' + NOISED + WINDOW,
}


def history(study: Study, count: int = 2_000, seed: int = 1) -> dict[str, np.ndarray[Any, Any]]:
    """Records of five clients, some with faults."""
    rng = np.random.default_rng(seed)
    a, b = rng.normal(0, 0.6, count), rng.normal(0, 1, count)
    eta = 0.3 + a - 0.5 * b
    kind = study.data.response.kind
    if kind == "class":
        y = np.where(rng.random(count) < 1 / (1 + np.exp(-eta)), "yes", "no").astype(object)
        y[::97] = "perhaps"
    elif kind == "number":
        y = np.where(rng.random(count) < 0.02, np.nan, eta + rng.normal(0, 1, count))
    else:
        y = rng.poisson(np.exp(eta)).astype(float)
        y[::97] = -1
    a[5::211] = np.inf
    who = np.array([f"c{k}" for k in rng.integers(0, 5, count)], dtype=object)
    return {"a": a, "b": b, "y": y, "who": who}


def records_of(table: dict[str, np.ndarray[Any, Any]]) -> Iterator[dict[str, object]]:
    for row in zip(*(column.tolist() for column in table.values()), strict=True):
        yield dict(zip(table, row, strict=True))


def offline(plan: Plan, table: dict[str, np.ndarray[Any, Any]]) -> OfflineRun:
    """Run windows as `veilstream fit` does, record by record."""
    encoder, run = Encoder(plan.study), OfflineRun(plan)
    windows: dict[str, list[Row | None]] = {}
    for record in records_of(table):
        window = windows.setdefault(str(record["who"]), [])
        try:
            window.append(encoder.encode(record))
        except RecordError:
            window.append(None)
        if len(window) == plan.slots:
            run.add(str(record["who"]), [row for row in window if row is not None])
            windows[str(record["who"])] = []
    for client, window in windows.items():
        if window:
            run.add(client, [row for row in window if row is not None])
    return run


def engine_of(study: Study, table: Any, options: Options) -> Engine:
    plan = Plan(options.study_of(study))
    reading = Reading(plan.study, options, table, "csv")
    engine = Engine(
        plan, timed=options.event_time is not None, names=reading.names,
        network=options.network, labels=options.labels, seed=options.seed,
    )  # fmt: skip
    for part in reading.parts():
        engine.feed(part)
    engine.finish()
    return engine


@pytest.mark.parametrize("name", STUDIES)
def test_without_delay_it_is_the_offline_run_bit_by_bit(name: str) -> None:
    study = study_of(STUDIES[name])
    table = history(study)
    expected = offline(Plan(study), table)
    engine = engine_of(study, table, Options(client_column="who"))
    assert differences(engine.run.partition, expected.partition) == []
    assert engine.run.model.version == expected.model.version > 5
    assert engine.run.model.lattice.tolist() == expected.model.lattice.tolist()
