"""The ledger of studies whose releases cost a Renyi curve."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from pipeline.errors import ConfigError
from pipeline.methods import task_of
from pipeline.privacy.events import Renyi, compose, parts
from pipeline.release.task import Task
from pipeline.study_file.load import parse_study
from producers import report
from producers.budget import Limit
from producers.store import ClientStore
from tests.producers.test_ledger import SOURCE, refused, start
from tests.sites import study_text


def copies(name: str) -> Task:
    given = {"p": 2, "loss": "logistic", "records": 3000, "epsilon": 4.0}
    return task_of(parse_study(study_text(kind="noisy-copies", name=name, **given)))


def test_a_curve_that_another_machine_finds_a_hair_apart_stops_no_study(path: Path) -> None:
    first, again = copies("one"), copies("one")
    moved = {
        Renyi(one.orders, (*one.epsilons[:5], math.nextafter(one.epsilons[5], 0),
                           *one.epsilons[6:])) if isinstance(one, Renyi) else one: times
        for one, times in parts(first.budget.event)
    }  # fmt: skip
    again.budget.__dict__["event"] = compose(moved)
    assert again.budget.event != first.budget.event
    with ClientStore(path, "site") as store:
        start(store, first)
        before = report.ledger(path)[SOURCE]["spent"]
        start(store, again)
    assert report.ledger(path)[SOURCE]["spent"] == before


def test_a_third_study_is_told_that_its_delta_is_used_up(path: Path) -> None:
    with ClientStore(path, "site") as store:
        start(store, copies("one"))
        assert "raise it with --epsilon-limit if" in refused(store, copies("two"), path)
        start(store, copies("two"), Limit(epsilon=8.0))
        # what floating point can tell is more than delta allows, however large the epsilon
        for limit in (Limit(), Limit(epsilon=1e6)):
            store.open_stream(copies("three"), SOURCE, limit)
            said = refused(store, copies("three"), path)
            assert "delta is used up; raise it with --delta-limit 2e-05 if the data owner" in said
        start(store, copies("three"), Limit(epsilon=9.0, delta=2e-5))
        with pytest.raises(ConfigError, match=r"^--delta-limit: at delta 1e-06, what studies"):
            store.open_stream(copies("three"), SOURCE, Limit(delta=1e-6))
