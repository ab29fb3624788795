"""Backtests with delays: clients wait for models as live ones do, and nobody is lost on the way."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import numpy as np
import pytest

from pipeline.backtest import Options
from pipeline.backtest.engine import Engine
from pipeline.backtest.history import Reading
from pipeline.messages.release import header_of
from pipeline.methods import task_of
from pipeline.release.model import Model
from pipeline.stream.in_process import OfflineRun
from pipeline.study_file.load import parse_study
from tests.builders import study_text

CLIENTS, RECORDS = 3, 60


def text(stream: str = "", **study: Any) -> str:
    made = study_text(p=2, records=RECORDS, epsilon=4, mechanism="insecure-simulation", **study)
    return f"{made}partitions = 1\n{stream}\n"


def run(monkeypatch: pytest.MonkeyPatch, study: str, **options: Any) -> tuple[Engine, Counter[int]]:
    """Return what became of a history, and how many releases had how many of their client unseen.

    At the moment at which their window began: what the model that they are made at had not read.
    """
    task, rng = task_of(parse_study(study)), np.random.default_rng(3)
    offsets: dict[str, list[int]] = defaultdict(list)
    models: dict[str, list[Model]] = defaultdict(list)
    release, fold = OfflineRun.release, OfflineRun.fold

    def released(
        self: OfflineRun, client: str, rows: Any, model: Model, noise: Any = None
    ) -> bytes:
        models[client].append(model)
        return release(self, client, rows, model, noise)

    def arrived(self: OfflineRun, client: str, payload: bytes, milliseconds: int = 0) -> None:
        assert header_of(payload).seq == len(offsets[client])
        offsets[client].append(self.releases)
        fold(self, client, payload, milliseconds)

    monkeypatch.setattr(OfflineRun, "release", released)
    monkeypatch.setattr(OfflineRun, "fold", arrived)
    count = 9000
    x = rng.uniform(-1, 1, (count, 2))
    table = {
        "x0": x[:, 0], "x1": x[:, 1], "t": np.arange(count) / 10.0,
        "y": np.where(rng.random(count) < 1 / (1 + np.exp(-x[:, 0])), "1", "0").astype(object),
        "who": np.array([f"c{n % CLIENTS}" for n in range(count)], dtype=object),
    }  # fmt: skip
    chosen = Options(client_column="who", **options)
    reading = Reading(task.study, chosen, table, "csv")
    engine = Engine(
        task, timed=chosen.event_time is not None, names=reading.names, network=chosen.network,
        labels=chosen.labels,
    )  # fmt: skip
    for part in reading.parts():
        engine.feed(part)
    engine.finish()
    # every record is in one release
    assert engine.run.partition.head.slots == count
    unseen = Counter[int]()
    for client, made in models.items():
        for number, model in enumerate(made):
            read = model.offsets[0] if model.version else 0
            unseen[sum(offset >= read for offset in offsets[client][:number])] += 1
    return engine, unseen


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("delay", ["30", "900", "exponential:200"])
def test_a_window_begins_at_a_model_that_lacks_no_more_of_its_client_than_live(
    monkeypatch: pytest.MonkeyPatch, *, timed: bool, delay: str
) -> None:
    options: dict[str, Any] = {"delay": f"{delay} records"}
    if timed:
        options = {"delay": delay.replace("exponential:200", "exponential:20") + "s"}
        options["event_time"] = "t"
    engine, unseen = run(monkeypatch, text("max_in_flight_windows = 2"), **options)
    assert max(unseen) == 1
    assert engine.run.model.version > 10


def test_without_a_bound_no_client_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    _, unseen = run(monkeypatch, text("max_in_flight_windows = 0"), delay="900 records")
    assert max(unseen) > 3


def test_windows_that_stand_by_themselves_are_released_at_the_model_of_their_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    study = text("max_in_flight_windows = 1", growth=0, noise_memory=0)
    _, unseen = run(monkeypatch, study, delay="900 records")
    assert max(unseen) > 3
