"""What a page holds of a stream: thinned estimates, happenings, clients; without a browser."""

import csv
import io
import itertools
import math
import random
from types import SimpleNamespace

import msgspec
import pytest
from kafka import TopicPartition

from pipeline.messages.envelope import dlq_headers
from pipeline.messages.estimate import ProgressMessage
from pipeline.messages.spend import SourceSpends, Spend, SpendsMessage
from pipeline.messages.topics import Topics
from pipeline.page.content import (
    SHOWN,
    STRANGERS,
    UNKNOWN,
    Clients,
    Happenings,
    History,
    Point,
    Watched,
)
from pipeline.page.server import RELEASE, take
from pipeline.privacy.events import Gaussian
from pipeline.release.layout import identity
from tests.page.shown import TASK, Stream


def point(at):
    return Point(float(at), "ready", at, [1.0], [0.5], [1.5])


@pytest.mark.parametrize("count", [1, 9, 10, 11, 12, 21, 1000, 1023])
def test_a_long_stream_is_thinned_evenly_and_ends_with_the_newest(count):
    history = History(kept=10)
    for at in range(count):
        history.add(point(at))
    times = [p.at for p in history.points]
    assert times[0] == 0
    assert times[-1] == count - 1
    assert len(times) <= 11
    assert {b - a for a, b in itertools.pairwise(times[:-1])} <= {history.step}
    assert history.step == 1 or len(times) >= 5


def test_the_table_has_a_line_for_each_estimate_and_coefficient():
    watched, stream = Watched(TASK.study), Stream(size=2)
    first, second = stream.next(), stream.next(coefficients=stream.newest.coefficients)
    for message in (first, second):
        watched.estimate(message, live=False)
    rows = list(csv.DictReader(io.StringIO(watched.csv())))
    assert [row["coefficient"] for row in rows] == ["sensor_0", "sensor_1"] * 2
    assert float(rows[0]["value"]) == first.coefficients[0].value
    assert rows[0]["lower"] == ""


def kinds(*messages, rhythm=0.5):
    happenings = Happenings(rhythm)
    for message in messages:
        happenings.take(message)
    return [happening.kind for happening in happenings.found]


def test_a_worker_that_begins_again_is_a_recovery():
    stream = Stream()
    first = stream.next()
    again = stream.next(3.0, state_version=first.state_version)
    assert kinds(first, again) == ["status", "recovery"]


def test_what_happens_to_a_stream_is_told_once():
    stream = Stream()
    first, second = stream.next(), stream.next()
    assert kinds(first, second) == ["status"]
    assert kinds(first, stream.next(9.0)) == ["status", "pause"]
    # silence is short or long beside the rhythm of the study
    assert kinds(
        first,
        msgspec.structs.replace(second, published_at=stream.next(9.0).published_at),
        rhythm=60.0,
    ) == ["status"]
    assert kinds(second, first) == ["status", "rebuilt"]
    assert kinds(first, stream.next(0, study_revision="other"))[-1] == "revision"
    lost = msgspec.structs.replace(first.diagnostics, missing=2, dead_letters=3)
    more = msgspec.structs.replace(first.diagnostics, missing=2, dead_letters=9)
    one, two = (
        msgspec.structs.replace(second, diagnostics=d, state_version=n)
        for d, n in ((lost, 90), (more, 91))
    )
    assert kinds(first, one, two) == ["status", "loss", "letters"]


def test_gaps_that_are_usual_are_no_pauses():
    stream = Stream()
    bursts = [stream.next(gap) for gap in [0.5, 0.5, 3.0] * 8]
    found = kinds(*bursts)
    assert found.count("pause") <= 2
    assert kinds(*bursts, stream.next(20.0))[len(found) :] == ["pause"]


@pytest.mark.parametrize(("hours", "way"), [(1, "behind"), (-1, "ahead of"), (0, "")])
def test_a_clock_an_hour_off_is_said_and_changes_no_age(hours, way):
    stream = Stream()
    now = stream.at + 3600 * hours
    watched = Watched(TASK.study, clock=lambda: now, steady=lambda: 5.0)
    watched.estimate(stream.next(), live=True)
    around = watched.around()
    assert around["age"] == 0
    assert [way in line and "60 minutes" in line for line in around["warnings"]] == [True] * bool(
        way
    )


def test_a_page_that_is_opened_after_the_end_says_how_long_ago_that_was():
    stream = Stream()
    watched = Watched(TASK.study, clock=lambda: stream.at + 7200, steady=lambda: 5.0)
    progress = ProgressMessage(0.5, 6000, 10.0, 600.0)
    watched.estimate(stream.next(progress=progress), live=False)
    around = watched.around()
    assert around["age"] == 7200
    assert "no new estimate for 2 hours" in around["missing"]
    assert around["missing"] == watched.whole()["now"]["missing"]


def record(key, offset=0, value=RELEASE + b"...", headers=()):
    return SimpleNamespace(
        key=key, offset=offset, value=value, timestamp=1000, headers=list(headers)
    )


def letter(key, offset, reason, number=99):
    marks = {"reason": reason, "partition": "0", "offset": str(offset)}
    return record(
        key, number, headers=[(f"veil_dlq_{name}", text.encode()) for name, text in marks.items()]
    )


def taken(records, letters=(), clients=None):
    clients, topics = clients or Clients(), Topics.of(TASK.study)
    take(clients, topics, {TopicPartition(topics.releases.name, 0): list(records)})
    take(clients, topics, {TopicPartition(topics.dead_letters.name, 0): list(letters)})
    return clients


def test_lag_and_share_come_from_the_log_and_the_newest_estimate():
    clients = taken([record(b"a", 0), record(b"b", 1), record(b"a", 2), record(b"a", 3, b"{}")])
    assert clients.table({})["waiting"] == 3
    stream = Stream()
    clients.folded(stream.next(releases=2))
    rows = {row["name"]: row for row in clients.table({})["rows"]}
    assert clients.table({})["waiting"] == 0
    assert rows["a"]["releases"] == 2
    assert math.isclose(rows["a"]["share"], 2 / 3)
    taken([record(b"b", 4), record(b"b", 5)], clients=clients)
    assert {row["name"]: row["lag"] for row in clients.table({})["rows"]} == {"a": 0, "b": 2}


def test_those_that_need_a_look_come_first_and_then_the_largest():
    chance, names = random.Random(3), [f"c{n:03}" for n in range(SHOWN + 20)]
    releases, letters = ({name: chance.randint(0, 3) for name in names} for _ in range(2))
    flagged = {name: float(chance.random() < 0.1) for name in names}
    offsets = itertools.count()
    sent = [record(name.encode(), next(offsets)) for name in names for _ in range(releases[name])]
    bad = [
        letter(name.encode(), next(offsets), "gap") for name in names for _ in range(letters[name])
    ]
    clients = taken(sent, bad)
    known = [name for name in names if releases[name] or letters[name]]
    sites = {identity(name.encode()).hex(): {"flag": flagged[name]} for name in known}
    table = clients.table(sites)
    ranked = sorted(known, key=lambda n: (-flagged[n], -letters[n], -releases[n], n))
    assert [row["name"] for row in table["rows"]] == ranked[:SHOWN]
    assert table["count"] == len(known)


def test_a_dead_letter_that_was_repeated_counts_once():
    letters = [
        letter(b"a", 7, "gap"),
        letter(b"a", 7, "gap"),
        letter(b"a", 8, "forged"),
        record(b"a"),
    ]
    table = taken([record(b"a", 7), record(b"a", 8)], letters).table({})
    # what was set aside waits for nothing
    assert table["waiting"] == 0
    assert table["reasons"] == {"gap": 1, "forged": 1}
    assert table["rows"][0]["letters"] == {"gap": 1, "forged": 1}


def test_a_letter_of_a_log_that_was_made_anew_is_another_in_the_same_place():
    old = letter(b"a", 7, "revoked")
    marks = dlq_headers({"done": "dropped", "partition": 0, "offset": 7})
    note = record(b"a", value=None, headers=marks)
    new = letter(b"a", 7, "not-admitted")
    clients = taken([], [old, note, new, new])
    table = clients.table({})
    assert table["rows"][0]["letters"] == {"not-admitted": 1}
    # once more in the new log, for the same reason as in the old one
    taken([], [old], clients)
    assert clients.table({})["rows"][0]["letters"] == {"revoked": 1, "not-admitted": 1}
    # a note without a number is of all that have the place
    taken([], [note, note], clients)
    assert clients.table({})["rows"][0]["letters"] == {}


def test_a_dead_letter_that_is_done_with_counts_no_more():
    clients = taken([], [letter(b"a", 7, "revoked"), letter(b"a", 8, "revoked")])
    marks = dlq_headers({"done": "replayed", "partition": 0, "offset": 7})
    note, forged = record(b"a", value=None, headers=marks), letter(b"a", 8, "revoked")
    forged.headers[:0] = marks
    taken([], [forged], clients)
    taken([], [note, note], clients)
    table = clients.table({})
    assert table["reasons"] == {"revoked": 1}
    assert table["rows"][0]["letters"] == {"revoked": 1}


def admitting(*ids):
    clients = Clients()
    clients.admit(set(ids))
    return clients


def shown(clients):
    return {row["name"]: row for row in clients.table({})["rows"]}


def test_strangers_have_no_name_where_clients_are_admitted():
    clients = admitting("a")
    taken(
        [record(b"a", 0), record(b"<b>", 1), record(None, 2), record(b"\xff", 3)], clients=clients
    )
    assert {name: row["releases"] for name, row in shown(clients).items()} == {"a": 1, STRANGERS: 3}
    assert clients.table({})["count"] == 2


def test_what_a_client_sent_before_the_roll_was_read_again_is_its_own():
    clients = admitting("a")
    taken([record(b"b", n) for n in range(3)], [letter(b"b", 1, "gap")], clients)
    assert set(shown(clients)) == {STRANGERS}
    clients.admit({"a", "b"})
    row = shown(clients)["b"]
    assert (row["releases"], row["lag"], row["letters"]) == (3, 2, {"gap": 1})
    assert set(shown(clients)) == {"b"}


def test_many_strangers_take_no_memory_and_the_newest_may_still_get_a_name():
    clients = admitting("a")
    letters = [letter(f"s{n}".encode(), n, "forged") for n in range(UNKNOWN + 5)]
    taken([record(f"s{n}".encode(), n) for n in range(UNKNOWN + 5)], letters, clients)
    done = record(b"s", value=None, headers=dlq_headers({"done": "x", "partition": 0, "offset": 0}))
    taken([], [done], clients)
    assert len(clients._clients) == UNKNOWN + 1
    row = shown(clients)[STRANGERS]
    assert (row["releases"], row["letters"]) == (UNKNOWN + 5, {"forged": UNKNOWN + 4})
    clients.admit({"a", f"s{UNKNOWN + 4}"})
    assert shown(clients)[f"s{UNKNOWN + 4}"]["letters"] == {"forged": 1}


def test_the_budget_is_the_one_that_a_client_has_published():
    event = Gaussian(0.5)
    spend = Spend(
        "0" * 16, "shown", "discrete-gaussian", 2.0, 1e-5, None, "zero-out", False, 20, 3, event
    )
    other = msgspec.structs.replace(spend, study="other")
    source = SourceSpends("s", 5.0, 1e-5, 1, "zero-out", [spend, other])
    clients = taken([record(b"a")])
    clients.account(SpendsMessage("a", "0" * 16, [source]), "shown")
    budget = clients.table({})["rows"][0]["budget"]
    assert budget["limit"] == 5.0
    # two mu-GDP events are one of sqrt(2) mu
    alone = Clients()
    alone.release(0, 0, b"a", 1)
    wide = msgspec.structs.replace(spend, event=Gaussian(0.5 * math.sqrt(2)))
    alone.account(
        SpendsMessage("a", "0" * 16, [msgspec.structs.replace(source, spends=[wide])]), "shown"
    )
    assert math.isclose(
        budget["spent"], alone.table({})["rows"][0]["budget"]["spent"], rel_tol=1e-9
    )


def test_a_spreadsheet_computes_nothing_of_a_table():
    history = History()
    history.add(Point(1.0, "ready", 5, [-1.5] * 4, [None] * 4, [2.0] * 4))
    names = ["=cmd|x!A1", "@a", "-1e5", "-"]
    rows = list(csv.DictReader(io.StringIO("".join(history.csv(names)))))
    assert [row["coefficient"] for row in rows] == ["'=cmd|x!A1", "'@a", "-1e5", "-"]
    assert {row["value"] for row in rows} == {"-1.5"}
