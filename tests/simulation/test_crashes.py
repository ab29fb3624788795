"""Crash schedules by the hundred: each ends as if nobody had died."""

from __future__ import annotations

import logging
import random
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.errors import VeilstreamError
from pipeline.messages.topics import Topics
from pipeline.settings import Settings
from tests.simulation.planted import PLANTED, Plant
from tests.simulation.real import RealServers
from tests.simulation.studies import FORMS, Theatre
from tests.simulation.world import Scenario, World

#: Of the steps of a run, each of so many dies alone; `slow` tests take each one.
EVERY = 200
#: Schedules of several deaths, for each form of the study.
SCHEDULES = 4
#: Schedules that have found something, by the form of the study.
FOUND = {
    # Redis lost a model and no state: the next one had its version, and clients passed it over
    "private": [Scenario(90, kills=frozenset({493}), losses=frozenset({731}))],
    # Redis lost what was folded, and the log ends with repeats, of which no estimate is made
    "alike": [
        Scenario(126, frozenset({90, 127, 234, 242, 331}), losses=frozenset({296}), held=True)
    ],
}
#: Schedules within which a planted fault must show.
WITHIN = 40
#: Before which none is looked at: a worker mends most of what another has written over.
FIRST = {"commits_whatever_is_stored": 90}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("simulation")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Do not write down what workers say of batches that went astray."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


class Runs:
    """A theatre and its uninterrupted run."""

    def __init__(self, folder: Path, form: str) -> None:
        (folder / form).mkdir()
        self.theatre = Theatre(folder / form, form)
        self.alone = self.theatre.play(self.scenario(0))
        assert self.alone.faults == []

    def scenario(self, seed: int, *kills: int, losses: frozenset[int] = frozenset()) -> Scenario:
        return Scenario(seed, frozenset(kills), losses, held=self.theatre.form == "alike")

    def drawn(self, seed: int) -> Scenario:
        """Return a schedule of up to six deaths, every third of them with a loss of Redis."""
        chance, steps = random.Random(seed), range(1, self.alone.steps)
        losses = frozenset(chance.sample(steps, chance.randint(1, 2)) if seed % 3 == 0 else ())
        return self.scenario(seed, *chance.sample(steps, chance.randint(1, 6)), losses=losses)

    def check(self, world: World) -> None:
        assert world.faults == [], world.scenario
        if self.theatre.form == "alike":
            assert world.outcome == self.alone.outcome, world.scenario


@pytest.fixture(scope="module", params=FORMS)
def runs(folder: Path, request: pytest.FixtureRequest) -> Runs:
    return Runs(folder, request.param)


@pytest.mark.takes("some thirty runs of a whole stream")
def test_a_death_at_any_step_changes_nothing(runs: Runs) -> None:
    kills = 0
    for step in range(1 + FORMS.index(runs.theatre.form), runs.alone.steps, EVERY):
        world = runs.theatre.play(runs.scenario(0, step))
        runs.check(world)
        kills += world.kills
    assert kills > runs.alone.steps / EVERY / 2


@pytest.mark.slow
def test_a_death_at_each_step_changes_nothing(runs: Runs) -> None:
    for step in range(1, runs.alone.steps):
        runs.check(runs.theatre.play(runs.scenario(0, step)))


@pytest.mark.takes("some runs of a whole stream")
def test_schedules_of_deaths_and_losses_change_nothing(runs: Runs) -> None:
    kills = losses = 0
    for seed in range(1, SCHEDULES):
        world = runs.theatre.play(runs.drawn(seed))
        runs.check(world)
        kills, losses = kills + world.kills, losses + world.losses
    # otherwise it would prove nothing
    assert kills > SCHEDULES
    assert losses > SCHEDULES / 6


@pytest.mark.slow
def test_a_thousand_schedules_of_deaths_and_losses_change_nothing(runs: Runs) -> None:
    for seed in range(SCHEDULES, 1000):
        runs.check(runs.theatre.play(runs.drawn(seed)))


def test_schedules_that_have_found_something_end_well(runs: Runs) -> None:
    for scenario in FOUND.get(runs.theatre.form, []):
        world = runs.theatre.play(scenario)
        runs.check(world)
        assert world.losses == 1


def test_the_same_seed_is_the_same_run(runs: Runs) -> None:
    one, two = (runs.theatre.play(runs.drawn(3)) for _ in range(2))
    assert (one.steps, one.kills, one.clock.time()) == (two.steps, two.kills, two.clock.time())


@pytest.fixture(scope="module")
def alike(folder: Path) -> Runs:
    (folder / "again").mkdir()
    return Runs(folder / "again", "alike")


@pytest.mark.takes("up to forty runs of a whole stream")
@pytest.mark.parametrize("plant", PLANTED, ids=[plant.__name__ for plant in PLANTED])
def test_a_planted_fault_is_found(plant: Plant, alike: Runs) -> None:
    first = FIRST.get(plant.__name__, 1)
    with plant():
        assert any(found(alike, seed) for seed in range(first, first + WITHIN - 1))


def found(runs: Runs, seed: int) -> bool:
    """Whether a schedule shows that something is wrong."""
    try:
        runs.check(runs.theatre.play(runs.drawn(seed)))
    except (AssertionError, TimeoutError, VeilstreamError):
        return True
    return False


@pytest.mark.kafka
@pytest.mark.redis
@pytest.mark.parametrize("seed", [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (0, 8))])
def test_real_servers_end_where_the_stand_ins_do(
    seed: int, alike: Runs, tmp_path: Path, kafka: str, redis_url: str
) -> None:
    """The same deaths and losses; where in the stream they fall is for the real ones to say."""
    theatre = Theatre(tmp_path, "alike", name=f"t-{uuid.uuid4().hex[:12]}")
    settings = Settings(kafka=kafka, redis=redis_url, folder=str(tmp_path))
    servers = RealServers(settings, Topics.of(theatre.task.study))
    try:
        world = theatre.play(alike.drawn(seed) if seed else alike.scenario(0), servers)
    finally:
        servers.close()
    assert world.faults == []
    assert bool(world.kills) == bool(seed)
    # names and ledgers differ, and the sums do not
    assert sums(world) == sums(alike.alone)


def sums(world: World) -> list[object]:
    return [state for state, _ in world.outcome]
