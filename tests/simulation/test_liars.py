"""A client and a broker that lie: what counts is what was truly sent, once, whoever dies."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest

from pipeline.messages.authentic import Authenticator
from pipeline.messages.release import Incoming
from tests.simulation.byzantine import FORGERIES
from tests.simulation.lying import LIES
from tests.simulation.studies import Theatre
from tests.simulation.world import Scenario

#: Schedules of lies, deaths and losses.
SCHEDULES = 8


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(scope="module")
def theatre(tmp_path_factory: pytest.TempPathFactory) -> Theatre:
    return Theatre(tmp_path_factory.mktemp("liars"), "trusted")


def drawn(seed: int) -> Scenario:
    """Return a schedule of some deaths, every third time with a loss of Redis."""
    chance, steps = random.Random(seed), range(1, 900)
    losses = frozenset(chance.sample(steps, 1) if seed % 3 == 0 else ())
    return Scenario(seed, frozenset(chance.sample(steps, chance.randint(0, 5))), losses)


def play(theatre: Theatre, seeds: range) -> Counter[str]:
    """Play schedules, and return how often there was each lie, death and loss."""
    told = Counter[str]()
    for seed in seeds:
        world = theatre.play_among_liars(drawn(seed))
        assert world.faults == [], world.scenario
        told += world.forged + world.broker.lies
        told.update(deaths=world.kills, losses=world.losses)
    return told


@pytest.mark.takes("some runs of a whole stream")
def test_lies_of_clients_and_broker_change_nothing_that_counts(theatre: Theatre) -> None:
    told = play(theatre, range(1, 1 + SCHEDULES))
    # otherwise it would prove nothing
    acts = {"deaths", "losses", "rotations", "revocations"}
    assert told.keys() >= {*LIES, *(lie.__name__ for lie in FORGERIES), *acts}


@contextmanager
def without(fault: str) -> Iterator[None]:
    """A worker that passes over one kind of fault."""
    believed = Authenticator.believed

    def careless(self: Authenticator, incoming: Incoming, *given: Any) -> Incoming:
        found = believed(self, incoming, *given)
        let = [at for at, told in found.faults.items() if told.reason == fault]
        if not let:
            return found
        good = np.isin(incoming.places, [*found.places, *let])
        return replace(
            incoming, rows=incoming.rows[good], places=incoming.places[good],
            clients=incoming.clients[good],
            faults={at: told for at, told in found.faults.items() if at not in let},
        )  # fmt: skip

    with mock.patch.object(Authenticator, "believed", careless):
        yield


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param("forged", marks=pytest.mark.slow),
        "unpublished-model",
        "wrong-partition",
        "revoked",
        "not-admitted",
    ],
)
def test_a_worker_that_looks_less_closely_is_found(theatre: Theatre, fault: str) -> None:
    with without(fault), pytest.raises((AssertionError, TimeoutError)):
        play(theatre, range(1, 1 + SCHEDULES))


@pytest.mark.slow
def test_hundreds_of_schedules_of_lies_change_nothing_that_counts(theatre: Theatre) -> None:
    play(theatre, range(1 + SCHEDULES, 400))
