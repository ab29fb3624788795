"""`veilstream study change`: the state stays, or clients move behind their records."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infra import admissions
from infra.topics import administrator, announce, configuration, known_revision
from pipeline.methods import task_of
from pipeline.study_file.load import load_study, parse_study
from producers.database import vault_path
from producers.store import ClientStore, Outgoing, Tally
from tests.stage import Stage, lent, lines, study_text, write_csv
from tests.trusted import TRUST


@pytest.fixture
def stage(tmp_path: Path, kafka: str, redis_url: str) -> Iterator[Stage]:
    yield from lent(Stage(tmp_path, kafka, redis_url, study_text() + TRUST))


def after(stage: Stage, *changes: tuple[str, str]) -> Stage:
    """Return the study with some of its text replaced, in the same folder."""
    text = stage.study.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    name = stage.task.study.name
    if f'name = "{name}"' in text:
        made = Stage.__new__(Stage)
        made.__dict__ |= stage.__dict__ | {"study": stage.folder / "changed.toml"}
        made.study.write_text(text)
        made.task = task_of(parse_study(text))
        return made
    return Stage(stage.folder, stage.settings.kafka, stage.settings.redis, text)


def follower(stage: Stage, *changes: tuple[str, str]) -> Stage:
    """Return a changed study that follows, under a name of its own."""
    name = stage.task.study.name
    return after(stage, (f'name = "{name}"', f'name = "{name}-2"\nfollows = "{name}"'), *changes)


def change(one: Stage, other: Stage, *options: str) -> dict[str, Any]:
    done = one.ran("study", "change", one.study, other.study, "--json", *options)
    return json.loads(done.stdout)


def enrol(stage: Stage, *clients: str) -> None:
    for client in clients:
        given = stage.folder / f"{client}.json"
        given.write_text(stage.run("client", "enrol", "--client", client).stdout)
        stage.ran("client", "admit", stage.study, given)


def begin(stage: Stage, *clients: str) -> None:
    for arguments in (("topics", stage.study), ("study", "keys", stage.study)):
        assert stage.run(*arguments).returncode == 0
    enrol(stage, *clients)


def stored(stage: Stage) -> dict[bytes, dict[bytes, bytes]]:
    return {key: stage.redis.hgetall(key) for key in stage.stored_keys() if b":state" in key}


def retention(stage: Stage) -> str:
    with administrator(stage.settings) as admin:
        return configuration(admin, stage.topics.releases.name)["retention.ms"]["value"]


def test_a_change_that_keeps_the_state_goes_on_bit_by_bit(stage: Stage) -> None:
    begin(stage, "north")
    stage.worker()
    source = write_csv(stage.folder / "data.csv", 100)
    stage.produced("north", source)
    stage.caught_up()
    assert stage.stop("w0") == 0
    before = stored(stage)
    assert before
    other = after(
        stage,
        ('loss = "logistic"', 'loss = "logistic"\nlevel = 0.8'),
        ('retention = "1d"', 'retention = "2d"'),
        ("releases = 4", "releases = 2"),
    )
    plan = change(stage, other)
    assert not plan["new_study"]
    assert {one["key"]: one["effect"] for one in plan["changes"]} == {
        "estimator.level": "restart",
        "stream.publish.releases": "restart",
        "stream.retention": "topics",
    }
    assert retention(stage) == "86400000"
    assert len(change(stage, other, "--apply")["done"]) == 2
    assert change(stage, other, "--apply")["done"] == []
    assert retention(stage) == "172800000"
    other.worker()
    other.caught_up()
    assert stored(stage) == before
    with source.open("a") as file:
        file.writelines(lines(40, 1))
    other.produced("north", source)
    other.caught_up()
    assert other.verified()
    assert stage.verified()
    estimate = other.final_estimate()
    assert estimate.level == 0.8
    assert estimate.records == 140


@pytest.mark.slow
def test_a_new_study_goes_on_behind_the_records_of_the_old_one(stage: Stage) -> None:
    begin(stage, "north")
    stage.worker()
    source = write_csv(stage.folder / "data.csv", 110)
    stage.produce("north", source, "--follow")
    stage.until(lambda: len(stage.releases()) == 6, "5 releases and an admission")
    assert stage.stop("north") == 0
    other = follower(stage, ("load = { min = -1, max = 1 }\n", ""))
    plan = change(stage, other)
    effects = {one["key"]: one["effect"] for one in plan["changes"]}
    assert set(effects.values()) == {"new study"}
    [cost] = plan["clients"]
    assert (cost["client"], cost["releases"], cost["fits"], cost["has_moved"]) == (
        "north", 5, False, False,
    )  # fmt: skip
    then = cost["epsilon"]["after"]
    assert then > 1.4 * cost["epsilon"]["spent"]
    [advised] = [step for step in plan["then"] if "--epsilon-limit" in step]
    limit = ("--epsilon-limit", advised.split("--epsilon-limit ")[1].split(",")[0])
    same_name = after(stage, ("epsilon = 2.0", "epsilon = 1.0"))
    refused = stage.run("study", "change", stage.study, same_name.study)
    assert refused.returncode == 10
    assert "client north" not in refused.stdout
    # killed at each word that it says to Kafka, and run again
    said, whole = [], admissions.Writer.send

    def send(self: object, *arguments: object, **more: object) -> object:
        said.append(arguments)
        if len(said) in (1, 3, 6):
            raise KeyboardInterrupt
        found = whole(self, *arguments, **more)
        if len(said) == 4:
            raise KeyboardInterrupt
        return found

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(admissions.Writer, "send", send)
        codes = []
        while not codes or codes[-1]:
            done = stage.run("study", "change", stage.study, other.study, "--apply")
            codes.append(done.returncode)
            assert known_revision(other.task, stage.settings) in (
                (None,) if codes[-1] else (other.task.revision,)
            )
    assert codes[:-1] == [130] * 4
    assert change(stage, other, "--apply")["done"][1:] == []
    made = "SELECT next_seq FROM streams WHERE follows IS NOT NULL"
    other.worker("w1")
    other.produce("north", source, "--follow", *limit)
    with source.open("a") as file:
        file.writelines(lines(70, 1))
    other.until(lambda: other.query("north", made) == [(4,)], "4 releases")
    assert other.stop("north") == 0
    counted = "SELECT study, records FROM streams ORDER BY study"
    names = stage.task.study.name, other.task.study.name
    assert stage.query("north", counted) == [(names[0], 100), (names[1], 80)]
    [cost] = change(stage, other)["clients"]
    assert cost["has_moved"]
    assert cost["epsilon"]["after"] == cost["epsilon"]["spent"] == pytest.approx(then)
    # whoever starts the old one again is told
    stage.produce("north", source)
    assert stage.code("north") == 10
    assert "is over for this client" in stage.said("north")
    other.caught_up()
    assert other.verified()
    other.remove()


def test_what_cannot_be_done_is_refused_before_anything_is_made(stage: Stage) -> None:
    same_name = after(stage, ("epsilon = 2.0", "epsilon = 1.0"))
    done = stage.run("study", "change", stage.study, same_name.study, "--apply")
    assert done.returncode == 10
    assert "study.name" in done.stderr
    other = follower(stage, ("epsilon = 2.0", "epsilon = 3.0"))
    stage.ensure_topics()
    announce(same_name.task, stage.settings, overrule=True, say=lambda _: None)
    done = stage.run("study", "change", stage.study, other.study, "--apply")
    assert done.returncode == 10
    assert f"runs under revision {same_name.task.revision}" in done.stderr
    with administrator(stage.settings) as admin:
        assert other.topics.releases.name not in admin.list_topics()


def plain(stage: Stage, name: str, *follows: str, epsilon: str = "2.0") -> Path:
    """Write a study that follows others, and return its file."""
    old = stage.task.study.name
    given = f"\nfollows = {json.dumps(follows)}" if follows else ""
    text = stage.study.read_text().replace(f'name = "{old}"', f'name = "{name}"{given}')
    path = stage.folder / f"{name}.toml"
    path.write_text(text.replace("epsilon = 2.0", f"epsilon = {epsilon}"))
    return path


def test_a_plan_knows_clients_that_were_away_and_never_goes_back(stage: Stage) -> None:
    """Nobody is asked: databases in the folder, and two files."""
    for client, name in (("away", "a"), ("there", "b")):
        path = vault_path(stage.settings.home, client)
        text = plain(stage, name, *(["a"] if name == "b" else []))
        with ClientStore(path, client) as store:
            task = task_of(load_study(text))
            store.open_stream(task, "csv:x")
            store.release(
                task, "csv:x", [Outgoing(0, b"noised", [])], position=b"20",
                tally=Tally(20, {}, 0), now=1.0,
            )  # fmt: skip
    second = plain(stage, "b", "a")
    done = stage.ran("study", "change", second, plain(stage, "c", "b", "a"))
    assert "client away: 1 release for a" in done.stdout
    assert "client there: 1 release for b" in done.stdout
    assert "in this folder not yet: away, there" in done.stderr
    refused = [
        (plain(stage, "c", "b"), 'follows = ["b", "a"]'),
        (plain(stage, "c", "a", "b"), 'follows = ["b", "a"]'),
        (plain(stage, "a"), "study.name: OLD took the place of study 'a'"),
        (plain(stage, "a", "b"), "study.name: OLD took the place of study 'a'"),
    ]
    for path, said in refused:
        done = stage.run("study", "change", second, path)
        assert done.returncode == 10
        assert said in done.stderr, path
        assert ("client away" in done.stdout) == (path.stem != "a")
    shown = stage.run("client", "show", "away").stdout
    assert "follows: -" in shown
    assert "None" not in shown


def test_keys_that_no_file_sets_are_said_to_change_with_others(stage: Stage) -> None:
    first, second = plain(stage, "a"), plain(stage, "b", "a", epsilon="1.0")
    for path in (first, second):
        # a loss whose ridge follows from the budget
        path.write_text(path.read_text().replace('loss = "logistic"', 'loss = "gdwd"'))
    done = stage.run("study", "change", first, second)
    assert "estimator.ridge: " in done.stdout
    assert "neither file sets it: it is derived from other keys" in done.stdout
    assert done.stdout.count("begins a study of its own") == 1
    found = json.loads(
        stage.run("study", "change", first, stage.folder / "b.toml", "--json").stdout
    )
    assert [one["key"] for one in found["changes"] if one["derived"]] == ["estimator.ridge"]
