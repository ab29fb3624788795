"""When windows leave: the rule of today, and methods that bring one of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest

from pipeline.errors import LedgerBehind
from pipeline.messages.release import read
from pipeline.methods import revision_of
from pipeline.methods.renewable.client import RenewableTask
from pipeline.release.model import Model, start_model
from pipeline.release.policy import (
    Decision,
    Directive,
    Discard,
    OpenWindow,
    ReleasePolicy,
    Send,
    Wait,
    WhenFull,
    ready,
)
from pipeline.release.task import Task
from pipeline.study_file.load import parse_study
from producers import client as loop
from producers.client import Client
from producers.rollback import Lost, owe
from producers.sources import open_source
from producers.store import ClientStore
from tests.builders import UNCLAIMED
from tests.databases import sqlite_file
from tests.stage import OPEN, study_text, write_csv

SOURCE, SLOTS = "csv:data.csv", 20
EMPTY, FULL = OpenWindow(0, 3), OpenWindow(3, 3, opened=10.0)
PART = OpenWindow(1, 3, opened=10.0)
START, AHEAD = Directive(0, 0), Wait("a newer model")


@pytest.mark.parametrize(
    ("policy", "window", "directive", "now", "decision"),
    [
        (WhenFull(), EMPTY, START, 99.0, Wait()),
        (WhenFull(), PART, START, 99.0, Wait()),
        (WhenFull(), FULL, START, 10.0, Send()),
        (WhenFull(2.0), EMPTY, START, 99.0, Wait()),
        (WhenFull(2.0), PART, START, 11.9, Wait()),
        (WhenFull(2.0), PART, START, 12.0, Send()),
        (WhenFull(), replace(PART, ended=True), START, 10.0, Send()),
        (WhenFull(), replace(EMPTY, ended=True), START, 10.0, Wait()),
        # what has begun leaves, however far ahead of the models it is by then
        (WhenFull(None, 2), FULL, Directive(5, 7), 10.0, Send()),
        (WhenFull(1.0, 2), replace(PART, ended=True), Directive(5, 7), 10.0, Send()),
        (WhenFull(None, 2), EMPTY, Directive(5, 1), 10.0, Wait()),
        (WhenFull(None, 2), EMPTY, Directive(5, 2), 10.0, AHEAD),
        (WhenFull(None, 0), EMPTY, Directive(5, 99, 99), 10.0, Wait()),
        # before the first model a client may have a number of its own, and others do not count
        (WhenFull(None, 2, 4), EMPTY, Directive(0, 3, 99), 10.0, Wait()),
        (WhenFull(None, 2, 4), EMPTY, Directive(0, 4), 10.0, AHEAD),
        # of all clients in its partition: 8 windows, or a tenth of what models have seen of it
        (WhenFull(None, 2), EMPTY, Directive(5, 1, 8, 30), 10.0, Wait()),
        (WhenFull(None, 2), EMPTY, Directive(5, 1, 9, 30), 10.0, AHEAD),
        (WhenFull(None, 2), EMPTY, Directive(5, 1, 9, 270), 10.0, Wait()),
        (WhenFull(None, 2), EMPTY, Directive(5, 1, 10, 270), 10.0, AHEAD),
        (WhenFull(None, 2), replace(EMPTY, size=9), Directive(5, 1, 10, 300), 10.0, AHEAD),
    ],
)
def test_a_window_begins_when_models_kept_up_and_leaves_when_it_is_full_old_or_last(
    policy: ReleasePolicy, window: OpenWindow, directive: Directive, now: float, decision: Decision
) -> None:
    assert policy.decide(window, directive, now) == decision


@pytest.mark.parametrize(
    ("policy", "in_flight", "most", "found"),
    [
        (WhenFull(), 7, 64, (64, "")),
        (WhenFull(1.0), 7, 0, (0, "")),
        # the first of them is on its way already
        (WhenFull(None, 8), 0, 64, (8, "a newer model")),
        (WhenFull(None, 8), 6, 64, (2, "a newer model")),
        (WhenFull(None, 8), 6, 2, (2, "")),
        (WhenFull(None, 8), 9, 64, (1, "a newer model")),
    ],
)
def test_how_many_windows_may_be_filled_is_what_the_policy_would_let_go(
    policy: ReleasePolicy, in_flight: int, most: int, found: tuple[int, str]
) -> None:
    assert ready(policy, PART, Directive(5, in_flight, in_flight), 11.0, most) == found


def test_a_window_that_may_not_begin_is_not_filled() -> None:
    assert ready(WhenFull(None, 2), EMPTY, Directive(5, 1), 11.0, 64) == (1, "a newer model")
    assert ready(WhenFull(None, 2), EMPTY, Directive(5, 2), 11.0, 64) == (0, "a newer model")


# --- a method with a rule of its own ------------------------------------------------------------


@dataclass(frozen=True)
class EveryThird:
    """Two windows are dropped for each that leaves, and each model sees one of them."""

    patient: bool = True
    discards: ClassVar[bool] = True

    def decide(self, window: OpenWindow, directive: Directive, now: float) -> Decision:
        if not window.full:
            return Wait()
        if window.discarded < 2:
            return Discard()
        return Wait("the next model") if self.patient and directive.in_flight else Send()


class ThinnedTask(RenewableTask):
    policy = EveryThird()


@dataclass
class Ends:
    """Stands for the two ends at Kafka: nothing is acknowledged, models come as a test says."""

    claiming = False

    newest: Model

    def pump(self) -> None: ...

    def drain(self) -> None: ...

    read_to: ClassVar[int] = 0

    def unseen(self, offset: int | None) -> tuple[int, int]:
        return 0, 0

    def wait(self, seconds: float) -> bool:
        return False

    def poll(self, seconds: float = 0.0) -> Model:
        return self.newest


@dataclass
class Run:
    """One client over a file of numbered records, which a study without privacy shows."""

    folder: Path
    task: Task
    store: ClientStore
    ends: Ends
    client: Client

    def sums(self) -> list[object]:
        with sqlite_file(f"file:{self.folder / 'site.db'}?mode=ro", uri=True) as db:
            rows = db.execute("SELECT payload FROM outbox ORDER BY seq").fetchall()
        return [read(self.task, payload).parts["gradient"].tolist() for (payload,) in rows]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []

    def start(policy: ReleasePolicy | None = None, privacy: str = OPEN) -> Run:
        while runs:
            runs.pop().store.close()
        text = study_text("one", privacy=privacy, stream="max_in_flight_windows = 0")
        study = parse_study(text)
        task = ThinnedTask(study, revision_of(study))
        if policy is not None:
            task.policy = policy  # type: ignore[misc]
        store, ends = ClientStore(tmp_path / "site.db", "site"), Ends(start_model(task.size))
        stream = store.open_stream(task, SOURCE)
        source = open_source(str(tmp_path / "data.csv"), stream.position, folder=tmp_path)
        client = Client(
            task, cast("Any", source), store, cast("Any", ends), cast("Any", ends),
            source_name=SOURCE,
        )  # fmt: skip
        runs.append(Run(tmp_path, task, store, ends, client))
        return runs[-1]

    yield start
    for one in runs:
        one.store.close()


def position(one: Run) -> tuple[int, int]:
    with sqlite_file(f"file:{one.folder / 'site.db'}?mode=ro", uri=True) as db:
        [found] = db.execute("SELECT next_seq, records FROM streams").fetchall()
    return found


def test_a_method_may_drop_windows_and_wait_for_a_model_of_its_own(
    run: Callable[..., Run], tmp_path: Path
) -> None:
    write_csv(tmp_path / "data.csv", 10 * SLOTS)
    one = run()
    assert one.client.turn()
    assert position(one) == (1, SLOTS)
    for _ in range(3):
        assert one.client.turn()
        assert one.client.progress.waiting_for == "the next model"
    # two more windows were dropped, and the next one waits in the source
    assert position(one) == (1, SLOTS)
    # a newer model that had not seen it is none to go on at
    one.ends.newest = replace(one.ends.newest, version=1)
    one.client.turn()
    assert position(one) == (1, SLOTS)
    one.store.sent("one", [0], (0, 0))
    one.client.turn()
    assert position(one) == (2, 2 * SLOTS)


def test_what_was_dropped_behind_the_last_release_is_asked_again_after_a_restart(
    run: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rule begins anew behind a release, so that a stop at any turn changes nothing."""
    write_csv(tmp_path / "data.csv", 12 * SLOTS)
    one = run(EveryThird(patient=False))
    while one.client.turn():
        pass
    whole = one.sums()
    assert len(whole) == 4
    one.store.close()
    (tmp_path / "site.db").unlink()
    (tmp_path / "site.lock").unlink()
    # a turn ends one dropped window behind a release
    monkeypatch.setattr(loop, "GROUP", 4)
    for releases in range(1, 5):
        one = run(EveryThird(patient=False))
        one.client.turn()
        assert one.sums() == whole[:releases]


def test_an_old_copy_of_a_database_does_not_go_on_where_windows_were_dropped(
    run: Callable[..., Run], tmp_path: Path
) -> None:
    """The lost release held the third window: one window passed over would release it again."""
    write_csv(tmp_path / "data.csv", 6 * SLOTS)
    one = run(EveryThird(patient=False))
    lost = Lost(range(1), None)
    with pytest.raises(LedgerBehind, match="drops windows"):
        owe(one.task, one.store, one.client._source, SOURCE, lost, 1e9, UNCLAIMED)
    assert one.store.peek("one").next_seq == 0
    again = run(WhenFull())
    owe(again.task, again.store, again.client._source, SOURCE, lost, 1e9, UNCLAIMED)
    assert again.store.peek("one").owed == SLOTS


@dataclass(frozen=True)
class Fickle:
    """Lets a window go when asked beforehand, and keeps the full one once."""

    asked: list[int]
    discards: ClassVar[bool] = False

    def decide(self, window: OpenWindow, directive: Directive, now: float) -> Decision:
        if not window.full:
            return Wait()
        self.asked.append(1)
        # every turn asks once for each window of a group before it reads, then once for each full
        return Wait("a second thought") if len(self.asked) == loop.GROUP + 2 else Send()


def test_a_full_window_that_must_wait_loses_no_slot(
    run: Callable[..., Run], tmp_path: Path
) -> None:
    write_csv(tmp_path / "data.csv", 6 * SLOTS)
    one = run(Fickle([]))
    while one.client.turn():
        pass
    assert position(one) == (6, 6 * SLOTS)
    again = run(WhenFull())
    assert not again.client.turn()
    assert position(again) == (6, 6 * SLOTS)
