"""Rounds of values of planned age, from meters to published values, on a real Kafka and Redis."""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pipeline.messages.release import header_of
from pipeline.stream.in_process import OfflineRun
from tests import ages
from tests.stage import Stage, lent, send
from tests.wire import numbers_of, valued

ROUNDS = 5
CLIENTS = ("north", "south", "west")
TEXT = ages.study_text(
    name=f"meters-{random.Random().getrandbits(48):x}",
    groups=ages.GROUPS.replace('"c", "a-{1..2}"', '"north", "south"').replace('"b"', '"west"'),
    method="capacity = 2",
    records=4,
)


@pytest.fixture
def stage(tmp_path: Path, kafka: str, redis_url: str) -> Iterator[Stage]:
    yield from lent(Stage(tmp_path, kafka, redis_url, TEXT))


def source(folder: Path, client: str, seed: int) -> Path:
    """Write five rounds and a part of a sixth, which is not over."""
    rows = ages.rounds_of(ages.task_of(TEXT), client, ROUNDS + 1, np.random.default_rng(seed))
    path = folder / f"{client}.csv"
    kept = rows.ravel()[: ROUNDS * rows.shape[1] + 7]
    path.write_text("power\n" + "\n".join(f"{value:g}" for value in kept) + "\n")
    return path


def test_rounds_live_through_crash_replay_and_backtest(stage: Stage, tmp_path: Path) -> None:
    """One runtime for all of it: it takes the seconds of a worker's two starts."""
    facts = json.loads(stage.run("study", "check", stage.study, "--json").stdout)
    assert facts["rounds"]["clients"] == 3
    stage.ensure_topics()
    stage.worker()
    sources = {name: source(tmp_path, name, seed) for seed, name in enumerate(CLIENTS)}
    stage.produce("north", sources["north"])
    stage.until(lambda: sum(stage.watermarks()) >= 3, "some rounds are folded")
    stage.kill("w0")
    for name in CLIENTS[1:]:
        stage.produce(name, sources[name])
    stage.ended(*CLIENTS)
    stage.worker()
    stage.caught_up()
    found = stage.final_estimate()
    assert found.status == "ready", found.reason
    assert (found.details["round"], found.details["clients_used"]) == (ROUNDS - 1, 3)
    assert found.releases == 3 * ROUNDS
    [value] = found.coefficients
    assert value.value == pytest.approx(found.details["value"])
    assert value.interval is not None
    assert stage.verified()

    # each round is charged by itself, at what its slot costs
    task = ages.task_of(TEXT)
    for name in CLIENTS:
        spends = stage.query(name, "SELECT scope, event FROM spends ORDER BY seq")
        epsilon = task.of_client(name).budget.per_record
        assert [(scope, json.loads(event)["epsilon"]) for scope, event in spends] == [
            ("individual", epsilon)
        ] * ROUNDS

    seen = stage.run("watch", stage.study, "--json", "--from", "beginning", "--count", 1)
    assert json.loads(seen.stdout)["estimator"] == "age-aware"
    # the newest: a worker may publish before it has read all rounds
    seen = stage.run("watch", stage.study, "--count", 1)
    assert "without any data the value would be" in seen.stdout
    stage.ran("replay", stage.study, "--check", "--json")
    whole = tmp_path / "all.csv"
    each = [sources[name].read_text().splitlines()[1:] for name in CLIENTS]
    rows = [f"{name},{row}" for name, one in zip(CLIENTS, each, strict=True) for row in one]
    whole.write_text("meter,power\n" + "\n".join(rows) + "\n")
    tested = stage.ran(
        "backtest", stage.study, "--input", whole, "--client-column", "meter", "--json"
    )
    # all records are of all slots, and no fit of them is what an estimate aims at
    result = json.loads(tested.stdout)
    assert (result["budget"]["scope"], result["pooled"]["coefficients"]) == ("individual", None)
    assert "end of a round" in result["pooled"]["reason"]

    # who is refused has sent all that it has paid for
    ended = tmp_path / "ended.toml"
    ended.write_text(
        TEXT.replace('"meters-', '"ended-', 1).replace("q = 0.4", "q = 0.4\nlast_round = 1")
    )
    refused = stage.run("produce", ended, "--client", "west", "--source", sources["west"])
    assert (refused.returncode, "up to round 1" in refused.stderr) == (31, True)
    assert stage.query("west", "SELECT count(*) FROM outbox") == [(0,)]
    assert stage.query("west", "SELECT seq FROM spends WHERE study LIKE 'ended-%'") == [(0,), (1,)]

    # whoever is in no group has no slot, and what the owner does not allow is not spent
    other = stage.run("produce", stage.study, "--client", "east", "--source", sources["west"])
    assert other.returncode != 0
    assert "--client" in other.stderr


@pytest.mark.slow
def test_a_client_that_dies_after_it_paid_and_a_worker_that_is_away(
    stage: Stage, tmp_path: Path
) -> None:
    """What was paid for leaves once, in its first bytes, and counts once, however often it comes.

    A worker that was away while rounds were closed says what one says that was not.
    """
    late, early = CLIENTS[0], CLIENTS[1:]
    stage.ensure_topics()
    sources = {name: source(tmp_path, name, seed) for seed, name in enumerate(CLIENTS)}
    made_at = tmp_path / "made"
    # round 2 is charged, and not sent
    dying = ("after COMMIT", stage.study, sources[late], made_at, late)
    stage.start("dying", *dying, module="tests.dying_release")
    assert stage.code("dying") == -signal.SIGKILL, stage.said("dying")
    made = {int(n): bytes.fromhex(data) for n, data in json.loads(made_at.read_text()).items()}
    kept = dict(stage.query(late, "SELECT seq, payload FROM outbox"))
    assert {number: kept[number] for number in made} == made
    assert min(made) == 2
    for name in early:
        stage.produce(name, sources[name])
    assert [stage.code(name) for name in early] == [0, 0]
    stage.worker()
    stage.caught_up()
    found = stage.final_estimate().details
    # round 4 is not over: it is the newest that any of them has reported
    assert (found["round"], found["clients_used"], found["missing"]) == (3, 2, [late])
    stage.kill("w0")

    stage.produced(late, sources[late])
    sent = stage.releases()
    # what had left before it died, and was not known to have, left again in the same bytes
    whole = len(CLIENTS) * ROUNDS
    assert len({one.value for one in sent}) == whole
    mine = [one.value for one in sent if one.key == late.encode()]
    by_number = {header_of(payload).seq: payload for payload in mine}
    assert sorted(by_number) == list(range(ROUNDS))
    assert {number: by_number[number] for number in made} == made
    assert stage.query(late, "SELECT count(*) FROM spends WHERE scope = 'individual'") == [
        (ROUNDS,)
    ]
    # all of it once more, and another value for a round that has one
    sums = [int(numbers_of(stage.task, one.value)[-1]) for one in sent]
    # no integer is its own: a fixed value would now and then be what the noise came to
    others = [
        valued(stage.task, one.value, "sum", -1 - it) for one, it in zip(sent, sums, strict=True)
    ]
    assert all(one.value != other for one, other in zip(sent, others, strict=True))
    repeated = [
        {"key": one.key, "value": value, "partition": one.partition, "headers": one.headers}
        for one, other in zip(sent, others, strict=True)
        for value in (one.value, other)
    ]
    send(stage.settings.kafka, stage.topics.releases.name, repeated)
    stage.worker()
    stage.caught_up()
    found = stage.final_estimate()
    assert (found.releases, found.diagnostics.duplicates) == (
        whole,
        len(sent) + len(repeated) - whole,
    )
    assert (found.details["round"], found.details["clients_used"]) == (ROUNDS - 1, len(CLIENTS))

    # as a worker that was never away has it
    awake = OfflineRun(stage.task)
    awake.fold_all([(one.key.decode(), one.value) for one in sent])
    assert awake.estimate(0.0)[0].details == found.details
    assert stage.verified()
