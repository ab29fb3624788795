"""What a client's newest release in the log is, whatever stands beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import LedgerBehind
from pipeline.messages.release import seal
from pipeline.privacy.randomness import SecureStream
from pipeline.records.encoder import Arrays
from pipeline.release.privatise import privatise
from producers.rollback import Lost, lost_releases
from producers.store import ClientStore
from tests.stage import Stage, lent, send, study_text

pytestmark = [pytest.mark.kafka, pytest.mark.redis]


@pytest.fixture
def stage(tmp_path: Path, kafka: str, redis_url: str) -> Iterator[Stage]:
    yield from lent(Stage(tmp_path, kafka, redis_url, study_text(partitions=1)))


def lost(stage: Stage, store: ClientStore, releases: list[tuple[str, int]]) -> Lost:
    """Return what a new database has lost of a log with these releases, by ledger and number."""
    stage.ensure_topics()
    task = stage.task
    rows = Arrays(np.zeros((task.slots, task.size - 1)), np.ones(task.slots))
    answer = privatise(task, task.query(rows, task.first_model), SecureStream())
    made = [seal(task, answer, client="north", ledger=ledger, seq=seq) for ledger, seq in releases]
    topic = stage.topics.releases.name
    send(stage.settings.kafka, topic, ({"key": b"north", "value": one} for one in made))
    return lost_releases(task, stage.settings, store, store.peek(task.study.name), print)


def test_the_newest_release_is_found_whatever_stands_beside_it(stage: Stage) -> None:
    """Releases can stand twice in the log."""
    with ClientStore(stage.folder / "north.db", "north") as store:
        found = lost(stage, store, [(store.ledger, seq) for seq in (3, 4, 5, 4)])
    assert (found.seqs, found.sent, found.copied) == (range(6), (0, 2), False)


def test_releases_of_another_ledger_are_none_of_its_own(stage: Stage) -> None:
    with ClientStore(stage.folder / "north.db", "north") as store:
        mine = [(store.ledger, seq) for seq in (3, 4)]
        with pytest.raises(LedgerBehind, match="another ledger has released"):
            lost(stage, store, [*mine, ("theirs", 900)])
