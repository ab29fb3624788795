"""`trust.largest_share`: no admitted client has more of the releases, whatever it sends."""

from __future__ import annotations

import math
import random
from pathlib import Path

import msgspec
import numpy as np
import pytest

from pipeline.api.check import warnings_of
from pipeline.errors import ConfigError
from pipeline.methods import server_of, task_of
from pipeline.release.budget import above_share, least_clients, most_releases, standstill
from pipeline.release.model import Model, round_model
from pipeline.release.task import Task
from pipeline.stream.fold import OFFLINE, Reducer
from pipeline.stream.partition import Partition, differences
from pipeline.study.model import Study
from pipeline.study_file.load import load_study, parse_study
from tests.builders import LogEntry
from tests.stage import study_text
from tests.trusted import TRUST, World

SHARE, AFTER = 0.4, 10


def limited(share: float = SHARE, after: int = AFTER, **settings: object) -> Task:
    limit = f"largest_share = {{ share = {share}, after = {after} }}\n"
    text = study_text("shared", partitions=1, **settings) + TRUST + limit  # type: ignore[arg-type]
    return task_of(parse_study(text))


def published(world: World, came: int) -> Model:
    """Return the model that a worker publishes after so many releases."""
    if not came:
        return world.task.first_model
    point = np.array([0.25, -0.5, 0.125])
    return world.authority.ticketed(round_model(came, point, (1.0, 1.0), came * world.task.slots))


def refused(world: World, *sizes: int) -> set[int]:
    _, letters = world.folded(*sizes)
    assert {reason for _, reason in letters} <= {"share"}
    return {offset for offset, _ in letters}


def test_a_client_alone_has_its_share_of_the_beginning_and_then_waits_for_others() -> None:
    world = World(limited())
    for name in ("greedy", "other"):
        world.admit(name)
    for seq in range(6):
        world.send("greedy", seq)
    assert refused(world) == {2 + 4, 2 + 5}
    # what it made at an old model stays above, and at a new one it goes on
    for seq in range(4):
        world.send("other", seq)
    world.send("greedy", 4)
    late = len(world.log) - 1
    assert refused(world) == {6, 7, late}
    world.send("greedy", 4, published(world, 13))
    assert refused(world) == {6, 7, late}
    world.send("greedy", 5, published(world, 13))
    assert late + 2 in refused(world)


def test_no_client_has_more_at_any_time_and_batches_change_nothing() -> None:
    world, chance = World(limited()), random.Random(5)
    names = [f"c{n}" for n in range(4)]
    for name in names:
        world.admit(name)
    # one sends as it likes, at the newest model; it also leaves out numbers, and repeats some
    seqs = dict.fromkeys(names, 0)
    state, reducer = (
        Partition.empty(world.task, number=0),
        Reducer(world.task, trust=world.authority),
    )
    reducer.fold(state, world.log)
    most, above = 0.0, 0
    for _ in range(150):
        name = chance.choices(names, [12, 1, 1, 1])[0]
        came = state.head.folded
        entry = world.send(name, seqs[name], published(world, came))
        letters = reducer.fold(state, [entry])
        above += len(letters)
        if not letters or chance.random() < 0.1:
            seqs[name] += 1
        total = state.head.folded
        largest = state.head.largest / world.task.slots
        assert largest <= SHARE * max(total, AFTER)
        most = max(most, largest / total if total >= AFTER else 0.0)
    assert above > 30
    assert most > SHARE - 0.1
    for sizes in ((), (1,) * 40, (7, 30, 50)):
        again, letters = world.folded(*sizes)
        assert differences(again, state) == []
        assert len(letters) == above


def test_a_stored_state_and_one_without_an_erased_client_refuse_the_same() -> None:
    world = World(limited())
    for name in ("north", "south", "east"):
        world.admit(name)
    for seq in range(9):
        for name in ("north", "south", "east"):
            world.send(name, seq, published(world, seq * 2))
    wanted = refused(world)
    assert wanted
    reducer = Reducer(world.task, trust=world.authority)
    half = Partition.empty(world.task, number=0)
    reducer.fold(half, world.log[:11])
    stored = half.fields(everything=True), half.client_fields(everything=True)
    again = Partition.decode(world.task, *stored, number=0)
    reducer.fold(again, world.log[11:])
    assert differences(again, world.folded()[0]) == []
    without = Partition.empty(world.task, frozenset({"south"}), number=0)
    letters = reducer.fold(without, world.log)
    # nobody else loses a release with the one that was taken out
    assert {letter.offset for letter in letters} == wanted


def test_its_own_word_for_what_has_come_is_not_believed() -> None:
    world = World(limited())
    world.admit("north")
    liar = round_model(1, np.array([0.25, -0.5, 0.125]), (1.0, 1.0), 2**40)
    world.send("north", 50, liar)
    assert world.folded()[1] == [(1, "unpublished-model")]


def test_what_a_process_makes_itself_is_not_limited() -> None:
    world = World(limited())
    log = [
        LogEntry(seq, b"north", world.bare("north", seq), timestamp=1000) for seq in range(AFTER)
    ]
    state = Partition.empty(world.task)
    assert Reducer(world.task, trust=OFFLINE).fold(state, log) == []


@pytest.mark.parametrize(
    ("share", "after", "came", "most"),
    [
        (0.29, 100, 0, 29),
        (0.29, 100, 99, 29),
        (0.29, 100, 104, 30),
        (0.5, 3, 0, 1),
        (0.1, 10, 9, 1),
    ],
)
def test_how_many_releases_a_client_may_make(
    share: float, after: int, came: int, most: int
) -> None:
    study = limited(share, after).study
    watermark = came * study.window.records
    assert most_releases(study, watermark) == most_releases(study, watermark + 1) == most
    slots, marks = study.window.records, np.array([watermark, watermark])
    ends = slots * np.array([most, most + 1])
    assert above_share(study, ends, marks).tolist() == [1]


def test_without_a_limit_any_number_is_right() -> None:
    study = msgspec.structs.replace(limited().study, trust=None)
    assert most_releases(study, 0) is None
    assert above_share(study, np.array([2**40]), np.array([0])).tolist() == []


def test_another_share_is_another_revision() -> None:
    found = {one.revision for one in (limited(), limited(0.5), limited(after=11))}
    assert len(found) == 3


def test_a_first_model_does_not_wait_for_what_clients_may_not_send() -> None:
    task = limited(0.5, 6, releases=100, stream="max_in_flight_windows = 0")
    server = server_of(task)
    assert not server.start_is_over([server.empty()], 2)
    assert server.start_is_over([server.empty()], 3)


NOISED = TRUST + "largest_share = { share = 0.4, after = 10 }\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (study_text().rstrip() + NOISED.replace("authenticated", "open"), "authenticated"),
        (study_text(privacy='mechanism = "none"') + NOISED, "privacy.mechanism"),
        (study_text() + NOISED.replace("10", "2"), "trust.largest_share.after"),
        (study_text() + NOISED.replace("0.4", "1.0"), "share"),
        (
            study_text().replace(
                "[privacy]", 'forgetting = { half_life = 1000, of = "records" }\n\n[privacy]'
            )
            + NOISED,
            "trust.rate",
        ),
        (
            study_text().replace("[estimator]", '[estimator]\nkind = "noisy-mle"') + NOISED,
            "estimator.method.largest_share",
        ),
    ],
)
def test_a_share_that_bounds_nothing_is_refused_and_says_why(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=r"trust\.largest_share") as found:
        parse_study(text)
    assert said in str(found.value)


def stands_still(study: Study, clients: int, most: int) -> bool:
    """Whether clients that release in turn, at a model of all that came, end before `most`."""
    made = [0] * clients
    while sum(made) < most:
        allowed = most_releases(study, sum(made) * study.window.records)
        waiting = [n for n in range(clients) if made[n] < (allowed or 0)]
        if not waiting:
            return True
        # whoever is furthest behind leaves the least room to all
        made[min(waiting, key=made.__getitem__)] += 1
    return False


@pytest.mark.parametrize(
    ("share", "after", "least"),
    [(0.34, 10, 4), (0.34, 1000, 3), (0.25, 40, 5), (0.4, 10, 4), (0.4, 20, 3), (0.1, 10, 20)],
)
def test_a_study_stands_still_with_fewer_clients_than_it_needs(
    share: float, after: int, least: int
) -> None:
    study = limited(share, after).study
    assert least_clients(study) == least
    for clients in range(2, least + 3):
        assert stands_still(study, clients, 3 * after + 100) == (clients < least)
        assert bool(standstill(study, clients)) == (clients < least)
    # with one client more than the share asks for it should do
    assert bool(standstill(study)) == (least > math.floor(1 / share) + 1)


def test_a_tight_share_is_told_before_the_study_runs(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text(study_text() + NOISED)
    warned = "trust.largest_share: with 3 clients the study can stand still for ever"
    assert any(one.startswith(warned) for one in warnings_of(task_of(load_study(path))))
    path.write_text(study_text() + NOISED.replace("10", "20"))
    assert not any("largest_share" in one for one in warnings_of(task_of(load_study(path))))
