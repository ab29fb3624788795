"""Copies of a client are found out by what it has claimed on the log, whatever was put back."""

from __future__ import annotations

import dataclasses
import random
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from kafka import TopicPartition
from kafka.admin import KafkaAdminClient

from pipeline.errors import LedgerBehind, VeilstreamError
from pipeline.messages.release import header_of, read
from pipeline.messages.spend import Claim, prefix, read_claim, write_claim
from pipeline.page.content import Watched
from pipeline.page.server import Reading
from pipeline.settings import Settings
from producers import start
from producers.client import Progress
from producers.database import RUNS, Runs
from producers.rollback import Claims
from producers.sender import Sender
from producers.start import Job, run_client
from producers.store import ClientStore
from tests.databases import sqlite_file
from tests.producers.test_following import following
from tests.stage import OPEN, PRIVATE, Stage, lines, read_topic, send, study_text, until

SLOTS = 10
SECRET = bytes(32)
CLAIM = Claim("site", "0" * 16, "1" * 16, 3, 30, ["b", "a"])


class Place:
    """Two studies, one behind the other, a client of its own and its folder."""

    def __init__(self, folder: Path, kafka: str, redis_url: str, privacy: str = OPEN) -> None:
        self.client = f"site-{uuid.uuid4().hex[:8]}"
        text = study_text(
            records=SLOTS, partitions=1, privacy=privacy, stream="max_in_flight_windows = 0"
        )
        self.old = Stage(folder / "stage", kafka, redis_url, text)
        name = self.old.task.study.name
        later = following(text, f"{name}-2", name)
        self.new = Stage(folder / "stage", kafka, redis_url, later)
        self.source, self.home = folder / "data.csv", Path(self.old.settings.folder)
        self.source.write_text("heat,load,failed,at\n")
        self.days = 0

    def grow(self, records: int) -> None:
        """Have more records come, none like another."""
        self.days += 1
        with self.source.open("a") as file:
            for number, line in enumerate(lines(records, self.days)):
                file.write(f"{line.rstrip()},{self.days}:{number}\n")

    def release(self, windows: int, stage: Stage | None = None, **options: Any) -> str:
        """Have as many windows of records come, and run the client on a study, else the old one."""
        self.grow(windows * SLOTS)
        return self.goes(stage or self.old, **options)

    def run(self, stage: Stage, **options: Any) -> tuple[int, str]:
        said: list[str] = []
        job = Job(self.client, str(self.source), **options)
        try:
            run_client(stage.task, stage.settings, job, report=silent, say=said.append)
        except VeilstreamError as error:
            return error.exit_code, str(error)
        return 0, "\n".join(said)

    def goes(self, stage: Stage, **options: Any) -> str:
        code, said = self.run(stage, **options)
        assert code == 0, said
        return said

    def refused(self, stage: Stage, **options: Any) -> str:
        code, said = self.run(stage, **options)
        assert code == 44, said
        return said

    def save(self, name: str) -> None:
        shutil.copytree(self.home, self.home.with_name(name))

    def put_back(self, name: str) -> None:
        shutil.rmtree(self.home)
        shutil.copytree(self.home.with_name(name), self.home)

    def numbers(self, stage: Stage) -> list[int]:
        return [header_of(record.value).seq for record in stage.releases()]

    def sums(self) -> list[bytes]:
        """The exact sums of all windows of both studies: no two hold the same records."""
        return [
            read(stage.task, record.value).parts["gradient"].tobytes()
            for stage in (self.old, self.new)
            for record in stage.releases()
        ]

    def once(self) -> bool:
        """Whether no two releases, but for one that was sent again, hold the same records."""
        numbers: dict[bytes, set[tuple[str, int]]] = {}
        for stage in (self.old, self.new):
            for record in stage.releases():
                gradient = read(stage.task, record.value).parts["gradient"].tobytes()
                number = header_of(record.value).seq
                numbers.setdefault(gradient, set()).add((stage.task.study.name, number))
        return all(len(some) == 1 for some in numbers.values())

    def claims(self) -> list[Claim]:
        with ClientStore(self.home / "clients" / f"{self.client}.db", self.client) as store:
            start, secret = prefix(self.client, store.ledger), store.secret
        records = read_topic(self.old.settings.kafka, self.old.settings.ledger_topic)
        own = [r.value for r in records if (r.key or b"").startswith(start)]
        return [claim for value in own if (claim := read_claim(value, secret))]


class Killed(BaseException):
    """Ends a client as a crash does: nothing is cleaned up but what the system does."""


@pytest.fixture
def place(tmp_path: Path, kafka: str, redis_url: str) -> Iterator[Place]:
    made = Place(tmp_path, kafka, redis_url)
    yield made
    made.old.remove()
    made.new.remove()


def silent(_: object) -> None:
    return None


def test_a_page_reads_accounts_beside_claims_and_says_which_it_cannot_read(place: Place) -> None:
    place.old.ensure_topics()
    place.release(2)
    study, settings = place.old.task.study, place.old.settings
    watched = Watched(study)
    Reading(study, settings, watched).stop()
    assert not any("claim" in text for text in watched.warnings.values())
    value = b'{"type":"spends/9"}'
    send(settings.kafka, settings.ledger_topic, [{"key": b"later", "value": value}])
    watched = Watched(study)
    Reading(study, settings, watched).stop()
    assert "which this version does not know" in watched.warnings[settings.ledger_topic]


@pytest.mark.parametrize("flag", ["old", pytest.param("new", marks=pytest.mark.slow)])
def test_a_whole_folder_from_before_a_change_of_the_study_is_found_out(
    place: Place, flag: str
) -> None:
    """The old study's own topic knows nothing of what the later one has released."""
    place.release(3)
    place.save("before")
    place.release(4, place.new)
    place.put_back("before")
    said = place.refused(place.old)
    assert "4 more releases" in said
    assert place.new.task.study.name in said
    assert "--skip-lost" in said
    assert len(place.sums()) == 7
    stage = place.old if flag == "old" else place.new
    place.release(2, stage, skip_lost=True)
    # what comes behind the four windows is released, and for one study
    assert len(place.sums()) == 9
    assert place.once()
    # and nothing is owed a second time
    place.release(1, stage, skip_lost=flag == "old")
    assert len(place.sums()) == 10
    assert place.once()


@pytest.mark.slow
def test_a_study_that_follows_is_not_begun_behind_an_old_copy_of_the_other(place: Place) -> None:
    """Both have released since: what is lost of the first is settled first, then of the second."""
    place.release(2)
    place.save("early")
    place.release(2)
    # the new study has released nothing yet
    place.put_back("early")
    place.refused(place.new)
    assert place.numbers(place.new) == []
    place.goes(place.old, skip_lost=True)
    place.release(2, place.new)
    assert place.numbers(place.new) == [0, 1]

    place.put_back("early")
    said = place.refused(place.new, skip_lost=True)
    assert "start that study once with --skip-lost" in said
    place.goes(place.old, skip_lost=True)
    released = len(place.old.releases())
    place.release(3, place.new, skip_lost=True)
    # nothing of the six windows is left, and no record behind them is passed over
    assert len(place.old.releases()) == released
    assert place.numbers(place.new) == [0, 1, 2, 3, 4]
    assert place.once()


def offline(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a client that noises what there is and has lost its network since."""
    with monkeypatch.context() as patch:
        patch.setattr(Sender, "pump", lambda self: None)
        patch.setattr(Sender, "drain", lambda self: None)
        place.goes(place.old)


def test_a_host_that_comes_back_sends_nothing_that_another_has_sent(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.release(3)
    place.save("other")
    place.grow(4 * SLOTS)
    offline(place, monkeypatch)
    [(waiting,)] = place.old.query(place.client, "SELECT waiting FROM streams")
    assert waiting == 4
    place.save("first")
    place.put_back("other")
    place.goes(place.old)
    assert place.numbers(place.old) == [*range(7)]
    place.put_back("first")
    assert "another copy" in place.refused(place.old)
    assert place.numbers(place.old) == [*range(7)]
    place.release(6, skip_lost=True)
    assert place.once()
    # claims say how far the other one came: what lies behind is passed over, and not a record more
    assert place.numbers(place.old) == [*range(13)]
    # the other one is over
    place.put_back("other")
    place.refused(place.old)


@pytest.mark.slow
@pytest.mark.parametrize("sent", ["some", "all"])
def test_a_copy_whose_outbox_waits_passes_over_what_was_claimed_behind_it_and_no_more(
    place: Place, monkeypatch: pytest.MonkeyPatch, sent: str
) -> None:
    place.release(3)
    if sent == "some":
        # two of those that wait have left, and nobody has heard of it
        place.grow(2 * SLOTS)
        with monkeypatch.context() as patch:
            patch.setattr(ClientStore, "sent", lambda *_: None)
            place.goes(place.old)
    place.grow(2 * SLOTS)
    offline(place, monkeypatch)
    [(waiting,)] = place.old.query(place.client, "SELECT waiting FROM streams")
    assert waiting == (4 if sent == "some" else 2)
    place.save("copy")
    if sent == "all":
        place.goes(place.old)
    place.release(3)
    there = len(place.sums())
    place.put_back("copy")
    place.refused(place.old)
    place.release(2, skip_lost=True)
    place.release(1)
    assert len(place.sums()) == there + 3
    assert place.once()


def test_slots_that_waiting_windows_left_empty_may_have_been_records_of_the_other_copy(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Claims say how many slots windows have; how many are empty is no one's business."""
    place.release(3)
    place.save("other")
    place.grow(SLOTS + 4)
    offline(place, monkeypatch)
    place.save("first")
    place.put_back("other")
    place.grow(SLOTS - 4)
    place.goes(place.old)
    assert place.numbers(place.old) == [*range(5)]
    place.put_back("first")
    place.refused(place.old)
    place.release(1, skip_lost=True)
    assert place.numbers(place.old) == [*range(6)]
    held = [read(place.old.task, r.value).header.records for r in place.old.releases()]
    assert held == [SLOTS] * 6
    assert place.once()


@pytest.mark.slow
@pytest.mark.parametrize("waits", [True, False])
def test_no_record_of_short_windows_that_have_left_is_in_two_releases(
    place: Place, monkeypatch: pytest.MonkeyPatch, *, waits: bool
) -> None:
    """The other copy has records of its own where these windows had empty slots."""
    place.release(3)
    place.save("other")
    for _ in range(2):
        place.grow(SLOTS // 2)
        place.goes(place.old)
    if waits:
        place.grow(SLOTS)
        offline(place, monkeypatch)
    place.save("first")
    place.put_back("other")
    place.refused(place.old)
    place.grow(SLOTS * (1 if waits else 2))
    place.goes(place.old, skip_lost=True)
    place.put_back("first")
    place.refused(place.old)
    place.release(1, skip_lost=True)
    assert place.once()


@pytest.mark.slow
def test_where_the_ledger_topic_is_another_one_the_bytes_on_the_releases_topic_tell(
    tmp_path: Path, kafka: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of equal bytes nobody need know who sent them; noise tells."""
    place = Place(tmp_path, kafka, redis_url, PRIVATE)
    place.release(3)
    place.save("other")
    place.grow(2 * SLOTS)
    offline(place, monkeypatch)
    place.save("first")
    place.put_back("other")
    place.goes(place.old)
    place.put_back("first")
    anew = f"veil.ledger.{uuid.uuid4().hex}"
    place.old.settings = dataclasses.replace(place.old.settings, ledger_topic=anew)
    assert "another copy" in place.refused(place.old)
    assert place.numbers(place.old) == [*range(5)]
    place.release(3, skip_lost=True)
    # as many windows as waited here may lie behind what the other one has released
    assert place.numbers(place.old) == [*range(6)]
    place.release(1)
    assert place.numbers(place.old) == [*range(7)]
    place.old.remove()
    place.new.remove()


class Late:
    """What reads the ledger topic, where Kafka shows nothing for a while."""

    def __init__(self, reader: Any) -> None:
        self._reader, self._asked = reader, 0

    def poll(self, **options: Any) -> Any:
        self._asked += 1
        return self._reader.poll(**options) if self._asked > 20 else {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)


def rename(place: Place) -> None:
    anew = f"veil.ledger.{uuid.uuid4().hex}"
    for stage in (place.old, place.new):
        stage.settings = dataclasses.replace(stage.settings, ledger_topic=anew)


def make_anew(place: Place) -> None:
    name = place.old.settings.ledger_topic
    with KafkaAdminClient(bootstrap_servers=place.old.settings.kafka) as admin:
        admin.delete_topics([name])
        until(lambda: name not in admin.list_topics(), "the topic is gone")


def cut(place: Place, stage: Stage) -> None:
    """Have a study's releases topic forget all that it has."""
    name = stage.topics.releases.name
    with KafkaAdminClient(bootstrap_servers=place.old.settings.kafka) as admin:
        admin.delete_records({TopicPartition(name, 0): -1})


def by_hand(change: str) -> Callable[[Place], None]:
    def edit(place: Place) -> None:
        path = place.old.database(place.client)
        with sqlite_file(path) as db:
            db.executescript(change)
            [(ledger,)] = db.execute("SELECT ledger FROM identity")
        # it knows the ledger's id, too
        lock = path.with_suffix(".lock")
        lock.write_text("\n".join([ledger, *lock.read_text().splitlines()[1:], ""]))

    return edit


@pytest.mark.parametrize(
    "hide",
    [
        make_anew,
        pytest.param(
            by_hand("UPDATE identity SET ledger = 'ffffffffffffffff'"), marks=pytest.mark.slow
        ),
        pytest.param(by_hand("UPDATE secrets SET secret = zeroblob(32)"), marks=pytest.mark.slow),
    ],
    ids=["anew", "ledger", "secret"],
)
def test_a_copy_that_does_not_see_its_own_claims_is_refused(
    place: Place, hide: Callable[[Place], None]
) -> None:
    """Folder and releases topic do not know either that it is a copy."""
    place.release(3)
    place.save("copy")
    place.release(4)
    place.put_back("copy")
    hide(place)
    cut(place, place.old)
    said = place.refused(place.old)
    assert f"{place.old.settings.ledger_topic} lacks what this client has claimed" in said
    assert "VEILSTREAM_LEDGER_TOPIC" in said
    place.refused(place.new)
    assert place.sums() == []


def test_a_copy_under_another_name_does_not_see_its_own_claims_either(place: Place) -> None:
    """The folder's register knows its records; where that is gone, too, claims are missing."""
    place.release(3)
    folder = place.home / "clients"
    for path in folder.glob(f"{place.client}.*"):
        path.rename(path.with_stem(f"{place.client}-2"))
    place.client += "-2"
    with sqlite_file(place.old.database(place.client)) as db:
        db.execute("UPDATE identity SET client = ?", (place.client,))
    code, said = place.run(place.old)
    assert (code, "has released these records" in said) == (10, True), said
    (folder / ".sources.sqlite").unlink()
    assert "lacks what this client has claimed" in place.refused(place.old)


@pytest.mark.slow
def test_a_claim_without_a_value_hides_none_that_is_there(place: Place) -> None:
    place.release(3)
    place.save("copy")
    place.release(2)
    record = {"key": place.claims()[-1].key, "value": None, "partition": 0}
    send(place.old.settings.kafka, place.old.settings.ledger_topic, [record])
    assert "it has not made" in place.goes(place.old)
    place.put_back("copy")
    cut(place, place.old)
    assert "knows 5" in place.refused(place.old)


@pytest.mark.parametrize(
    ("flag", "comes"), [pytest.param("old", False, marks=pytest.mark.slow), ("new", True)]
)
def test_a_client_whose_ledger_topic_is_gone_goes_on_when_told_and_claims_at_once(
    place: Place, flag: str, comes: bool
) -> None:
    place.release(3)
    rename(place)
    place.refused(place.old)
    stage = place.old if flag == "old" else place.new
    if comes:
        place.release(1, stage, skip_lost=True)
        assert len(place.sums()) == 4
        return
    # nothing has come that could be released
    place.goes(stage, skip_lost=True)
    assert [(claim.releases, claim.slots) for claim in place.claims()] == [
        (3, 3 * SLOTS) if flag == "old" else (0, 3 * SLOTS)
    ]
    place.goes(stage)
    place.save("copy")
    place.release(2, stage)
    assert len(place.sums()) == 5
    assert place.once()
    place.put_back("copy")
    place.refused(place.old)
    place.refused(place.new)


@pytest.mark.slow
def test_a_ledger_topic_that_was_given_more_partitions_says_the_same(place: Place) -> None:
    place.release(3)
    place.save("copy")
    name = place.old.settings.ledger_topic
    with KafkaAdminClient(bootstrap_servers=place.old.settings.kafka) as admin:
        admin.create_partitions({name: 3})
    place.release(2)
    place.put_back("copy")
    cut(place, place.old)
    place.refused(place.old)


@pytest.mark.parametrize(
    ("late", "anew"), [(False, False), pytest.param(True, True, marks=pytest.mark.slow)]
)
def test_of_two_copies_that_run_the_first_to_see_the_other_ends_before_it_sends(
    place: Place, monkeypatch: pytest.MonkeyPatch, late: bool, anew: bool
) -> None:
    place.release(3)
    place.save("other")
    other = Place.__new__(Place)
    other.__dict__.update(place.__dict__)
    other.old = Stage(
        place.home.with_name("elsewhere"), place.old.settings.kafka, place.old.settings.redis,
        place.old.study.read_text(), ledger=place.old.settings.ledger_topic,
    )  # fmt: skip
    shutil.copytree(place.home.with_name("other"), other.old.settings.folder)
    reports = 0

    def report(_progress: Progress) -> None:
        nonlocal reports
        reports += 1
        if reports == 1:
            # it runs and has released nothing; the other one takes what comes
            place.grow(SLOTS)
            other.goes(other.old)
        assert reports < 15, "it runs on"

    def claims(settings: Any, store: Any, found: Any, reader: Any, say: Any) -> Claims:
        # of this run alone, not of the other's
        monkeypatch.undo()
        if anew:
            # the topic was longer before it was made anew
            (place,) = reader.assignment()
            reader.seek(place, reader.position(place) + 1000)
        return Claims(settings, store, found, Late(reader) if late else reader, say)

    monkeypatch.setattr("producers.start.Claims", claims)
    job = Job(place.client, str(place.source), follow=True)
    with pytest.raises(LedgerBehind, match="another copy of this client's database runs"):
        run_client(place.old.task, place.old.settings, job, report=report)
    assert place.numbers(place.old) == [*range(4)]
    monkeypatch.undo()
    # the log forgets the other's claim once it is compacted
    noted = "SELECT study FROM runs WHERE NOT own AND NOT settled"
    assert place.old.query(place.client, noted) == [(place.old.task.study.name,)]
    # its own claim is the newest by now, and it has claimed as many as the other one
    assert "another copy" in place.refused(place.old)
    assert "another copy" in place.refused(place.old)
    place.release(2, skip_lost=True)
    place.goes(place.old)
    assert place.once()


@pytest.mark.slow
def test_no_restart_is_refused_that_any_kill_may_leave(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs that have begun and claimed nothing, or whose claim is not marked yet."""
    place.release(2)

    def killed(*_: object) -> None:
        raise Killed

    for _ in range(12):
        place.grow(SLOTS)
        with monkeypatch.context() as patch:
            patch.setattr(Runs, "claimed", killed)
            job = Job(place.client, str(place.source))
            with pytest.raises(Killed):
                run_client(place.old.task, place.old.settings, job, report=silent)
    place.goes(place.old)
    assert place.once()
    assert place.numbers(place.old) == [*range(14)]
    [(runs,)] = place.old.query(place.client, "SELECT count(*) FROM runs")
    assert runs == RUNS


def test_claims_that_this_ledger_has_not_made_are_passed_over(place: Place) -> None:
    place.release(2)
    [claim] = place.claims()[-1:]
    forged = write_claim(
        Claim(claim.client, claim.ledger, "f" * 16, 10**6, 10**9, claim.line), SECRET
    )
    settings = place.old.settings
    record = {"key": claim.key, "value": forged, "partition": 0}
    send(settings.kafka, settings.ledger_topic, [record])
    place.grow(2 * SLOTS)
    assert "it has not made" in place.goes(place.old)
    assert place.numbers(place.old) == [*range(4)]


def test_of_a_study_the_claim_counts_that_says_most_not_the_newest(tmp_path: Path) -> None:
    """A copy claims behind another one, which it sees then: what leaves was claimed before."""
    with ClientStore(tmp_path / "site.db", "site") as store:
        store.runs.begin("b", "b" * 16)
        other, own = (
            Claim("site", store.ledger, run * 16, count, 10 * count, ["b"])
            for run, count in (("a", 8), ("b", 5))
        )
        told = [write_claim(claim, store.secret) for claim in (own, other, own)]
        claims = Claims(Settings(), store, told, None, silent)
        assert claims.slots_behind("b") == 80
        assert claims.cover("b", range(5, 8))
        assert not claims.cover("b", range(5, 9))
        assert claims.tell_of_copies("b")
        assert not Claims(Settings(), store, told[2:], None, silent).tell_of_copies("b")


@pytest.mark.parametrize(
    "payload",
    [
        b"", b"{}", b"\n", write_claim(CLAIM, bytes([1] * 32)), write_claim(CLAIM, SECRET)[:-1],
        write_claim(CLAIM, SECRET).replace(b'"releases":3', b'"releases":4'),
        write_claim(CLAIM, SECRET).replace(b"\n", b"\nzz"),
    ],
)  # fmt: skip
def test_only_the_ledgers_own_words_are_claims(payload: bytes) -> None:
    assert read_claim(write_claim(CLAIM, SECRET), SECRET) == CLAIM
    assert read_claim(payload, SECRET) is None


def test_a_study_of_one_ledger_has_a_key_of_its_own() -> None:
    assert CLAIM.key == b"site\n0000000000000000\nb"
    assert CLAIM.key.startswith(prefix("site", "0" * 16))


def killed_at(calls: int) -> Callable[..., Any]:
    """Return a method that works so many times and kills then."""
    left, pump = calls, Sender.pump

    def one(self: Sender, *_: object, **__: object) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Killed
        pump(self)

    return one


@pytest.mark.slow
def test_a_study_that_rests_knows_its_own_claims_however_often_another_starts(
    place: Place,
) -> None:
    """The newest claim of each study is on the log for ever, and so is that of one that is over."""
    place.release(2)
    for _ in range(RUNS + 3):
        place.release(1, place.new)
    [(runs,)] = place.old.query(place.client, "SELECT count(*) FROM runs")
    assert runs == 1 + RUNS
    assert place.once()


@pytest.mark.slow
def test_a_copy_that_goes_on_with_a_study_that_is_over_is_passed_over_once(place: Place) -> None:
    place.release(3)
    place.save("other")
    place.release(2, place.new)
    place.save("first")
    place.put_back("other")
    place.release(3, skip_lost=True)
    assert place.numbers(place.old) == [*range(6)]
    place.put_back("first")
    place.refused(place.new)
    place.release(2, place.new, skip_lost=True)
    place.grow(SLOTS)
    # the old one is over here: nobody could settle it apart
    place.goes(place.new)
    assert place.numbers(place.new) == [*range(5)]
    assert place.once()


@pytest.mark.slow
def test_what_a_study_owes_that_has_released_nothing_is_owed_after_a_kill(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.release(3)
    place.save("early")
    place.release(2, place.new)
    place.put_back("early")
    name = place.old.task.study.name
    text = following(place.old.study.read_text(), f"{name}-3", name)
    kafka, redis_url = place.old.settings.kafka, place.old.settings.redis
    other = Stage(place.home.parent, kafka, redis_url, text)
    other.ensure_topics()
    place.refused(other)
    with monkeypatch.context() as patch:
        patch.setattr(start, "pass_over", killed_at(0))
        with pytest.raises(Killed):
            place.run(other, skip_lost=True)
    place.goes(other, skip_lost=True)
    assert place.numbers(other) == []
    place.release(1, other, skip_lost=True)
    assert place.numbers(other) == [0]
    assert len(place.sums()) == 5
    other.remove()


@pytest.mark.parametrize(
    ("steps", "seed"),
    [(14, 1), pytest.param(300, 2, marks=pytest.mark.slow)],
)
def test_whatever_is_killed_and_put_back_no_record_enters_two_releases(
    place: Place, monkeypatch: pytest.MonkeyPatch, steps: int, seed: int
) -> None:
    """And nobody is refused whose database knows all that was claimed."""
    rng = random.Random(seed)
    place.release(2)
    known, refusals, kills = len(place.claims()), 0, 0
    place.save("c0")
    copies = {"c0": known}
    for step in range(steps):
        what = rng.choice(("run", "run", "kill", "kill", "save", "back", "offline"))
        if what == "save":
            copies[f"c{step + 1}"] = known
            place.save(f"c{step + 1}")
            continue
        if what == "back":
            name = rng.choice([*copies])
            known = copies[name]
            place.put_back(name)
            continue
        place.grow(SLOTS * rng.randint(1, 3))
        behind = len(place.claims()) > known
        if what == "run" or behind:
            code, said = place.run(place.old)
            assert code == (44 if behind else 0), (step, said)
            if behind:
                refusals += 1
                place.goes(place.old, skip_lost=True)
        elif what == "offline":
            offline(place, monkeypatch)
        else:
            kills += 1
            with monkeypatch.context() as patch:
                patch.setattr(Sender, "pump", killed_at(rng.randint(0, 6)))
                with suppress(Killed):
                    place.goes(place.old)
        known = len(place.claims())
    behind = len(place.claims()) > known
    place.goes(place.old, skip_lost=behind)
    assert place.once()
    sent = [(r.partition, header_of(r.value).seq, r.value) for r in place.old.releases()]
    assert len({seq for _, seq, _ in sent}) == len({value for _, _, value in sent})
    # and no record is passed over that was in none
    [(releases, owed)] = place.old.query(place.client, "SELECT next_seq, owed FROM streams")
    assert releases * SLOTS - owed == len(place.source.read_text().splitlines()) - 1
    assert refusals > steps / 50
    assert kills > steps / 10
