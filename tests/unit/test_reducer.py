"""Folding a log into sums: any batches, bad releases, what is stored, heads and erased clients."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from pipeline.errors import OffsetGap, StateError
from pipeline.messages.envelope import Marks, dlq_headers, marks_of, without_marks
from pipeline.messages.estimate import write_estimate
from pipeline.messages.release import MAX_RELEASE_BYTES, MOST_LOST, SEQ_LIMIT, read
from pipeline.methods import task_of as make_task
from pipeline.records.encoder import Arrays
from pipeline.release.layout import Field, Layout, identity
from pipeline.release.model import COEFFICIENT_LIMIT
from pipeline.release.task import Task
from pipeline.stream.fold import LATEST, Reducer
from pipeline.stream.in_process import OfflineRun
from pipeline.stream.merge import combine, estimate_of, start_is_over
from pipeline.stream.partition import Partition, Snapshot, differences
from pipeline.study_file.load import parse_study
from tests.builders import (
    LogEntry,
    SeededStream,
    folded,
    payload_of,
    relogged,
    sample_log,
    simulate,
    some_model,
    study_text,
    task_of,
)
from tests.wire import described, edited, valued

PRIVATE = task_of(p=2, records=30)
#: Of one size, with noise of each release by itself: the other form of a release.
APART = task_of(p=2, records=30, growth=0, noise_memory=0)
OPEN = task_of(p=2, records=30, private=False)
OTHER = task_of(p=2, records=31)
TASKS = {"private": PRIVATE, "apart": APART, "open": OPEN}


@functools.cache
def log_of(kind: str) -> list[LogEntry]:
    """Return a log of a kind: none is made before a test needs it."""
    return sample_log(TASKS[kind])


def payload_edit(change: Callable[[bytes], bytes]) -> Callable[[LogEntry], LogEntry]:
    """Return an edit of a record's payload."""
    return lambda entry: dataclasses.replace(entry, value=change(entry.value or b""))


def fields(task: Task = PRIVATE, **changes: object) -> Callable[[LogEntry], LogEntry]:
    """Return an edit of fields of a payload."""
    return payload_edit(lambda payload: edited(task, payload, **changes))


def number(part: str, value: float, task: Task = PRIVATE) -> Callable[[LogEntry], LogEntry]:
    """Return an edit that sets the last number of a part."""
    return payload_edit(lambda payload: valued(task, payload, part, value))


def header_bytes(start: int, new: bytes) -> Callable[[LogEntry], LogEntry]:
    """Return an edit that writes over bytes of a payload."""
    return payload_edit(lambda payload: payload[:start] + new + payload[start + len(new) :])


def claim_with(**changes: object) -> str:
    """Return the claim of a policy that differs from the study's."""
    return msgspec.structs.replace(PRIVATE.budget.guarantee, **changes).claim


def with_another_unit(layout: Layout) -> dict[str, Layout]:
    """Return layouts of which one field has twice the unit of the study's."""

    def twice(fields: tuple[Field, ...], i: int) -> tuple[Field, ...]:
        return tuple(f._replace(exponent=f.exponent + (i == k)) for k, f in enumerate(fields))

    [point] = twice((layout.point,), 0)
    found = {"point": dataclasses.replace(layout, point=point)}
    for i, field in enumerate(layout.later):
        found[field.name] = dataclasses.replace(layout, later=twice(layout.later, i))
    for i, field in enumerate(layout.start):
        found[f"start {field.name}"] = dataclasses.replace(layout, start=twice(layout.start, i))
    return found


# --- order and splits ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TASKS)
def test_any_mixture_in_a_batch_is_what_it_is_one_by_one(kind: str) -> None:
    """Repeats, jumps, foreign ledgers, erased clients, new ones and bad payloads of every kind."""
    task = TASKS[kind]
    log = sample_log(task, releases=40, clients=4, start=3)
    edits = [
        fields(task, ledger="another"),
        fields(task, seq=2**40),
        fields(task, mac=1),
        number("point", 2**30, task),
        payload_edit(lambda payload: payload[:-8]),
        lambda entry: dataclasses.replace(entry, key=b"client-7"),
        lambda entry: dataclasses.replace(entry, value=None),
    ]
    rng, reasons = np.random.default_rng(6), set[str]()
    for trial in range(5):
        # mostly in order, with some repeated or left out
        places = np.sort(rng.integers(0, len(log), 40) + rng.integers(0, 1 + trial % 3, 40))
        picked = [log[min(i, 39)] for i in places]
        mixed = relogged([
            edits[int(rng.integers(len(edits)))](entry) if rng.random() < 0.2 else entry
            for entry in picked
        ])  # fmt: skip
        found = []
        for size in (len(mixed), 1, 7):
            state = Partition.empty(task, frozenset({"client-3"}) if trial % 2 else frozenset())
            state.midway = trial % 5 == 0
            reducer, letters = Reducer(task), []
            for start in range(0, len(mixed), size):
                letters += reducer.fold(state, mixed[start : start + size])
            found.append((state, [(letter.offset, letter.fault.reason) for letter in letters]))
        (whole, said), *others = found
        reasons.update(reason for _, reason in said)
        for state, letters in others:
            assert differences(whole, state) == []
            assert letters == said
            assert state.changed == whole.changed
    assert reasons >= {"foreign-ledger", "undecodable", "wrong-shape", "wrong-key", "empty"}


def test_numbers_that_a_client_leaves_out_are_missing_although_no_slot_is() -> None:
    """Where windows have grown, so few numbers less are what an honest client can have."""
    run, log, rng = OfflineRun(PRIVATE), list[LogEntry](), np.random.default_rng(1)
    for k in range(27):
        size = run.room("client-0")
        rows = Arrays(
            rng.uniform(-1, 1, (size, 2)), rng.choice([-1.0, 1.0], size), np.zeros(size, int)
        )
        payload = run.release("client-0", rows, run.model)
        run.fold("client-0", payload)
        if run.wait() is not None:
            run.move()
        log.append(LogEntry(k, b"client-0", payload))
    assert size > PRIVATE.slots
    log[25:] = [fields(seq=26)(log[25]), fields(seq=28)(log[26])]
    for sizes in ((24,), (24, 1, 1, 1)):
        state = folded(PRIVATE, log, sizes)
        assert state.clients["client-0"].gaps == [(25, 25), (27, 27)]


def test_missing_releases_are_counted_and_late_ones_fill_the_holes() -> None:
    log = sample_log(PRIVATE, releases=10, clients=1)
    late = [log[i] for i in (0, 1, 5, 9, 7)]
    state = folded(PRIVATE, relogged(late))
    assert state.clients["client-0"].gaps == [(2, 4), (6, 6), (8, 8)]
    _, message = combine(PRIVATE, {0: state}, topic="t", model_version=None, published_at=0.0)
    assert message.diagnostics.missing == 5
    rest = [log[i] for i in (8, 3, 2, 6, 4)]
    Reducer(PRIVATE).fold(state, relogged([*late, *rest])[5:])
    assert state.clients["client-0"].missing == 0
    assert state.sums.encode() == folded(PRIVATE, log).sums.encode()


# --- the log ---------------------------------------------------------------------------------


@pytest.mark.parametrize("picked", [[1], [0, 2], [0, 1, 1], [0, 2, 1, 4]])
def test_a_log_with_a_hole_is_refused_and_nothing_changes(picked: list[int]) -> None:
    state = Partition.empty(PRIVATE)
    with pytest.raises(OffsetGap):
        Reducer(PRIVATE).fold(state, [log_of("private")[i] for i in picked])
    assert differences(state, Partition.empty(PRIVATE)) == []


def test_records_below_the_watermark_are_passed_over() -> None:
    log = log_of("private")
    state = folded(PRIVATE, log[:10])
    assert Reducer(PRIVATE).fold(state, log[4:9]) == []
    assert state.head.next_offset == 10
    Reducer(PRIVATE).fold(state, log[6:])
    assert differences(state, folded(PRIVATE, log)) == []


def test_the_newest_time_is_that_of_folded_releases_alone() -> None:
    log = log_of("private")
    bad = LogEntry(2, b"x", b"junk", timestamp=10**9)
    state = folded(PRIVATE, [*log[:2], bad])
    assert state.head.newest == 1001 * 1000


def test_times_that_no_calendar_has_are_held_at_its_ends() -> None:
    entry = log_of("private")[0]
    for timestamp, newest in ((2**63 - 1, LATEST * 1000), (-(2**63), 0), (-1, 0)):
        state = folded(PRIVATE, [dataclasses.replace(entry, timestamp=timestamp)])
        assert state.fields(everything=True)
        assert state.head.newest == newest
        _, message = combine(PRIVATE, {0: state}, topic="t", model_version=None, published_at=0.0)
        assert (message.event_time or "").startswith("9999-12-31T23:59:59") is bool(newest)


@pytest.mark.parametrize(("seq", "dead"), [(MOST_LOST, 0), (2**62 - 1, 5)])
def test_gaps_of_several_clients_can_be_counted_and_stored(seq: int, dead: int) -> None:
    log = relogged(sample_log(PRIVATE, releases=5, clients=5))
    state = Partition.empty(PRIVATE)
    far = fields(seq=seq, held=min(seq * PRIVATE.slots, 2**52))
    letters = Reducer(PRIVATE).fold(state, [far(entry) for entry in log])
    assert [letter.fault.reason for letter in letters] == ["undecodable"] * dead
    assert state.head.missing == (5 - dead) * seq
    assert state.fields(everything=True)
    assert (
        differences(
            state,
            Partition.decode(
                PRIVATE, state.fields(everything=True), state.client_fields(everything=True)
            ),
        )
        == []
    )


# --- bad payloads ----------------------------------------------------------------------------

Fault = tuple[str, Callable[[LogEntry], LogEntry]]
PRIVATE_FAULTS: dict[str, Fault] = {
    "empty": ("empty", lambda e: dataclasses.replace(e, value=None)),
    "no-bytes": ("undecodable", payload_edit(lambda _: b"")),
    "a-header-alone-cut": ("undecodable", payload_edit(lambda payload: payload[:127])),
    "random": ("undecodable", payload_edit(lambda _: np.random.default_rng(0).bytes(500))),
    "random-of-its-length": (
        "undecodable",
        payload_edit(lambda payload: np.random.default_rng(0).bytes(len(payload))),
    ),
    "text": ("undecodable", payload_edit(lambda payload: b"VEIL" * (len(payload) // 4))),
    "another-form": ("undecodable", fields(form=4)),
    "the-other-form": ("undecodable", fields(form=2)),
    "reserved-bits": ("undecodable", fields(reserved=1)),
    "a-ticket": ("undecodable", fields(ticket=1)),
    "a-mac": ("undecodable", fields(mac=1)),
    "too-large": ("too-large", payload_edit(lambda _: bytes(MAX_RELEASE_BYTES + 1))),
    "study": ("wrong-study", fields(study="another")),
    "revision": ("wrong-revision", fields(revision=OTHER.revision)),
    "revision-of-another-length": (
        "wrong-revision",
        payload_edit(lambda payload: edited(PRIVATE, payload, revision=OTHER.revision)[:-8]),
    ),
    "no-key": ("wrong-key", lambda e: dataclasses.replace(e, key=None)),
    "key": ("wrong-key", lambda e: dataclasses.replace(e, key=b"client-9")),
    "key-of-no-text": ("wrong-key", lambda e: dataclasses.replace(e, key=b"\xff")),
    "key-too-long": (
        "wrong-key",
        lambda e: fields(client="x" * 201)(dataclasses.replace(e, key=b"x" * 201)),
    ),
    "no-client": (
        "wrong-key",
        lambda e: header_bytes(48, bytes(16))(dataclasses.replace(e, key=None)),
    ),
    "client": ("wrong-key", fields(client="client-9")),
    "negative-seq": ("undecodable", fields(seq=-1)),
    "seq-beyond": ("undecodable", fields(seq=SEQ_LIMIT + 1)),
    "negative-version": ("undecodable", fields(version=-1)),
    "version-beyond": ("undecodable", fields(version=2**40)),
    "negative-watermark": ("undecodable", fields(model_watermark=-1)),
    "watermark-beyond": ("undecodable", fields(partition_watermark=2**53)),
    "slots": ("wrong-place", fields(records=31)),
    "slots-beyond": ("wrong-claim", fields(records=PRIVATE.growth.largest + 30)),
    "partitions": ("wrong-claim", fields(partitions=7)),
    "mechanism": ("wrong-claim", fields(claim="none None None None None")),
    "epsilon": ("wrong-claim", fields(claim=claim_with(epsilon=8.0))),
    "delta": ("wrong-claim", fields(claim=claim_with(delta=1e-3))),
    "unit": ("wrong-claim", fields(claim=claim_with(unit="user", unit_records=3))),
    "neighbours": ("wrong-claim", fields(claim=claim_with(neighbours="replace-one"))),
    "start-with-curvature": ("wrong-shape", fields(version=0, number=0)),
    "a-number-at-the-start": ("wrong-place", fields(version=0)),
    "a-window-that-is-too-large": ("wrong-place", fields(records=60)),
    "no-whole-blocks": ("wrong-place", fields(records=45)),
    "more-in-its-chain-than-in-all": ("wrong-place", fields(before=2**40)),
    "a-number-below-one": ("wrong-place", fields(number=0)),
    "an-epoch-behind-the-release": ("wrong-place", fields(number=1, starts=2)),
    "truncated": ("wrong-shape", payload_edit(lambda payload: payload[:-5])),
    "with-a-tail": ("wrong-shape", payload_edit(lambda payload: payload + b"\0")),
    "short-data": ("wrong-shape", payload_edit(lambda payload: payload[:-8])),
    "long-data": ("wrong-shape", payload_edit(lambda payload: payload + bytes(8))),
    "floats": (
        "wrong-unit",
        fields(layout=dataclasses.replace(PRIVATE.layout, number="<f8").text),
    ),
    **{
        f"unit-{name}": ("wrong-unit", fields(layout=layout.text))
        for name, layout in with_another_unit(PRIVATE.layout).items()
    },
    **{
        f"range-{part}-{value}": ("out-of-range", number(part, value))
        for part in ("gradient", "curvature", "counts")
        for value in (2**62, -(2**62), 2**63 - 1, -(2**63))
    },
    "point-beyond": ("out-of-range", number("point", COEFFICIENT_LIMIT + 1)),
    "point-least": ("out-of-range", number("point", -(2**63))),
    "other-ledger": ("foreign-ledger", fields(ledger="somebody else's")),
}


def release_of(kind: str, task: Task) -> Callable[[LogEntry], LogEntry]:
    """Return an edit that puts a release of another kind of study in one's place."""
    edit = fields(TASKS[kind], revision=task.revision)
    return lambda _: edit(dataclasses.replace(log_of(kind)[9], offset=9))


# the form tells, or the claim: a release of another kind may be as long
PRIVATE_FAULTS |= {
    f"{kind}-release": ("undecodable", release_of(kind, PRIVATE)) for kind in ("apart", "open")
}
APART_FAULTS: dict[str, Fault] = {
    "another-form": ("undecodable", fields(APART, form=3)),
    "slots": ("wrong-claim", fields(APART, records=31)),
    "two-windows": ("wrong-claim", fields(APART, records=60)),
    "start-with-curvature": ("wrong-shape", fields(APART, version=0)),
    "open-release": ("wrong-claim", release_of("open", APART)),
    "private-release": ("undecodable", release_of("private", APART)),
}


OPEN_FAULTS: dict[str, Fault] = {
    **{
        f"{part}-{value}": ("out-of-range", number(part, value, OPEN))
        for part in ("point", "gradient", "curvature", "scores", "counts")
        for value in (float("nan"), float("inf"), float("-inf"), 1e99)
    },
    "records": ("wrong-claim", fields(OPEN, records=31)),
    "private-release": ("undecodable", release_of("private", OPEN)),
    "apart-release": ("wrong-claim", release_of("apart", OPEN)),
    "shape": ("wrong-shape", payload_edit(lambda payload: payload[:-8])),
}


FAULTS = {"private": PRIVATE_FAULTS, "apart": APART_FAULTS, "open": OPEN_FAULTS}


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        # of an open study those that no private one has
        pytest.param(k, name, marks=[pytest.mark.slow] * (k == "open" and name in PRIVATE_FAULTS))
        for k, some in FAULTS.items()
        for name in some
    ],
)
def test_a_bad_release_is_set_aside_with_its_reason_and_the_others_are_folded(
    kind: str, name: str
) -> None:
    """It alone, in a batch and one by one."""
    (reason, edit), task, log = FAULTS[kind][name], TASKS[kind], list(log_of(kind))
    log[9] = dataclasses.replace(edit(log[9]), offset=9)
    for batches in (1, len(log)):
        state, reducer, letters = Partition.empty(task), Reducer(task), []
        for part in np.array_split(np.arange(len(log)), batches):
            letters += reducer.fold(state, [log[i] for i in part])
        assert [(letter.offset, letter.fault.reason) for letter in letters] == [(9, reason)]
        assert letters[0].value == log[9].value
        assert letters[0].key == log[9].key
        assert state.head.dead_letters == 1
        assert state.head.next_offset == len(log)
        clean = folded(task, relogged([entry for entry in log if entry.offset != 9]))
        assert state.sums.encode() == clean.sums.encode()


def test_finite_numbers_whose_products_overflow_do_not_poison_an_open_state() -> None:
    log = list(log_of("open"))
    log[9] = number("gradient", 1e200, OPEN)(number("point", 1e200, OPEN)(log[9]))
    state = Partition.empty(OPEN)
    letters = Reducer(OPEN).fold(state, log)
    assert [letter.fault.reason for letter in letters] == ["out-of-range"]
    assert all(np.isfinite(np.frombuffer(data)).all() for data in state.sums.encode().values())


@pytest.mark.parametrize("loss", ["gdwd", "logistic", "linear", "poisson"])
def test_the_largest_numbers_that_pass_leave_an_open_study_its_estimates(loss: str) -> None:
    """Who may send can spoil sums without privacy, but not keep everybody from an estimate."""
    task = task_of(private=False, loss=loss, most=9.0 if loss == "poisson" else 1.0)
    rng, point = np.random.default_rng(3), some_model(task, 1)
    features, responses = simulate(rng, task.slots, task.size - 1)
    responses = np.abs(responses) if loss == "poisson" else responses
    honest = payload_of(task, features, responses, point, SeededStream(1))
    bounds = {field.name: field.largest for field in (task.layout.point, *task.layout.later)}
    for name, largest in bounds.items():
        for value in (largest, -largest):
            forged = valued(task, honest, name, value, at=0)
            beyond = valued(task, honest, name, value * 1.001, at=0)
            log = [LogEntry(0, b"a", honest), LogEntry(1, b"a", edited(task, forged, seq=1))]
            state = folded(task, log)
            assert state.head.dead_letters == 0
            assert np.isfinite(estimate_of(task, [state]).coefficients).all()
            [letter] = Reducer(task).fold(state, [LogEntry(2, b"a", edited(task, beyond, seq=2))])
            assert letter.fault.reason == "out-of-range"


def test_no_mutation_of_a_payload_raises_anything_but_becomes_a_dead_letter() -> None:
    """Many hundreds of byte flips, cuts and insertions: each is folded or set aside."""
    rng = np.random.default_rng(5)
    reducer = Reducer(PRIVATE)
    for i in range(700):
        value = bytearray(log_of("private")[int(rng.integers(24))].value or b"")
        for _ in range(int(rng.integers(1, 4))):
            place = int(rng.integers(len(value)))
            action = int(rng.integers(3))
            if action == 0:
                value[place] = int(rng.integers(256))
            elif action == 1:
                del value[place : place + int(rng.integers(1, 9))]
            else:
                value[place:place] = rng.bytes(int(rng.integers(1, 5)))
            value = value or bytearray(b"\0")
        state = Partition.empty(PRIVATE)
        letters = reducer.fold(state, [LogEntry(0, b"client-0", bytes(value))])
        assert state.head.next_offset == 1
        if not letters:
            sums = state.sums.encode()
            assert all(len(data) % 16 == 0 for data in sums.values()), i


def test_dead_letters_say_where_they_come_from_and_never_what_they_hold() -> None:
    secret = "s3cr3t-value"  # noqa: S105
    entry = LogEntry(7, b"k", b"VEIL" + secret.encode(), headers=(("ce_id", b"1"), ("null", None)))
    state = Partition.empty(PRIVATE).starting_at(7)
    (letter,) = Reducer(PRIVATE).fold(state, [entry])
    headers = letter.annotated("topic", 3)
    assert ("ce_id", b"1") in headers
    assert ("veil_dlq_reason", b"undecodable") in headers
    assert ("veil_dlq_topic", b"topic") in headers
    assert ("veil_dlq_partition", b"3") in headers
    assert ("veil_dlq_offset", b"7") in headers
    assert ("null", None) in headers
    assert all(secret.encode() not in (content or b"") for _, content in headers)
    assert secret not in str(letter.fault)


def test_headers_that_a_sender_names_like_ours_are_in_no_dead_letter() -> None:
    forged = (
        ("veil_dlq_done", b"dropped"), ("veil_dlq_partition", b"0"), ("veil_dlq_offset", b"0"),
        ("veil_dlq_reason", b"forged"), ("ce_id", b"1"),
    )  # fmt: skip
    entry = LogEntry(7, b"k", None, headers=forged)
    (letter,) = Reducer(PRIVATE).fold(Partition.empty(PRIVATE).starting_at(7), [entry])
    headers = letter.annotated("topic", 3)
    names = [name for name, _ in headers]
    assert len(names) == len(set(names))
    assert "veil_dlq_done" not in names
    assert without_marks(headers) == [("ce_id", b"1")]
    for kept in (headers, [*forged, *headers]):
        # a worker from before has kept the sender's: those behind them are its own
        marks = marks_of(kept, None)
        assert marks is not None
        assert (marks[:2], marks.reason, marks.done) == ((3, 7), "empty", "")


def test_only_what_has_no_value_is_a_note_and_a_place_is_digits() -> None:
    note = dlq_headers({"done": "replayed", "partition": 0, "offset": 7})
    assert marks_of(note, None) == Marks(0, 7, "", "", "replayed")
    for marks in (marks_of(note, b""), marks_of([*note, ("veil_dlq_reason", b"gap")], None)):
        assert marks is not None
        assert marks.done == ""
    for offset in ("\u0663", "\u00b2", "-1", "", "1" * 19):
        assert marks_of([*note, ("veil_dlq_offset", offset.encode())], None) is None
    shown = marks_of([*note, ("veil_dlq_detail", b"\x1b[2J\xff")], None)
    assert shown is not None
    assert shown.detail == "\N{REPLACEMENT CHARACTER}[2J\N{REPLACEMENT CHARACTER}"


# --- the stored form -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TASKS)
def test_storing_only_what_changed_keeps_the_stored_form_complete(kind: str) -> None:
    task, log = TASKS[kind], log_of(kind)
    state, reducer, whole = Partition.empty(task), Reducer(task), folded(task, log)
    fields, clients = state.fields(everything=True), {}
    for start in range(0, len(log), 5):
        reducer.fold(state, log[start : start + 5])
        fields |= state.fields(everything=False)
        clients |= state.client_fields(everything=False)
        state.stored()
        again = Partition.decode(task, fields, clients)
        assert differences(state, again) == []
        # a worker that starts goes on with what it reads
        reducer.fold(again, log[start + 5 :])
        assert differences(again, whole) == []
    reducer.fold(state, log[-3:])
    assert not state.changed


def test_state_of_another_schema_or_revision_is_refused() -> None:
    state = folded(PRIVATE, log_of("private"))
    fields, clients = state.fields(everything=True), state.client_fields(everything=True)
    with pytest.raises(StateError, match="revision"):
        Partition.decode(OTHER, fields, clients)
    head = msgspec.msgpack.encode(msgspec.structs.replace(state.head, schema=99))
    with pytest.raises(StateError, match="schema 99"):
        Partition.decode(PRIVATE, {**fields, "head": head}, clients)


@pytest.mark.parametrize(
    ("kind", "damage"),
    [
        ("private", {"head": b"\xc1"}),
        ("private", {"sums.0.counts": b"123"}),
        ("private", {"sums.0.what": b""}),
        ("private", {"sums.what": b""}),
        ("private", {"sums.0.epoch.0": bytes(16)}),
        ("private", {"sums.0.epoch.x": bytes(16)}),
        ("open", {"sums.0.sums": b"12345678"}),
    ],
)
def test_damaged_state_is_refused(kind: str, damage: dict[str, bytes]) -> None:
    state = folded(TASKS[kind], log_of(kind))
    fields = {**state.fields(everything=True), **damage}
    with pytest.raises(StateError):
        Partition.decode(TASKS[kind], fields, state.client_fields(everything=True))


def test_state_without_a_head_is_refused() -> None:
    with pytest.raises(StateError, match="head"):
        Partition.decode(PRIVATE, {}, {})


@pytest.mark.parametrize("kind", TASKS)
def test_a_store_that_lost_the_progress_of_clients_is_found_out(kind: str) -> None:
    """Without it, releases that were folded already would be folded again."""
    state = folded(TASKS[kind], log_of(kind))
    fields, clients = state.fields(everything=True), state.client_fields(everything=True)
    clients.popitem()
    with pytest.raises(StateError, match="lost a part"):
        Partition.decode(TASKS[kind], fields, clients)
    with pytest.raises(StateError, match="lost a part"):
        Partition.decode(TASKS[kind], fields, {})


def test_a_release_is_read_as_it_was_written() -> None:
    model = some_model(PRIVATE, 1)
    release = read(PRIVATE, log_of("private")[9].value or b"")
    assert (release.header.seq, release.header.version) == (3, 2)
    assert release.header.revision == PRIVATE.revision
    assert release.header.client == identity(b"client-0").hex()
    assert release.header.partition_watermark is None
    assert release.point.tolist() == model.lattice.tolist()
    assert [(name, len(part)) for name, part in release.parts.items()] == [
        ("gradient", 3), ("curvature", 6), ("middle", 6), ("counts", 2),
    ]  # fmt: skip
    shown = described(PRIVATE, log_of("private")[9].value or b"")
    assert shown["point"] == model.coefficients.tolist()
    assert json.dumps(shown)


TASK = make_task(parse_study(study_text(p=2, records=8)))


@functools.cache
def short_log() -> list[LogEntry]:
    """Return a log of three clients."""
    return sample_log(TASK, releases=30, clients=3)


def torn(seed: int) -> list[LogEntry]:
    """Return a log with gaps, late releases, repeats, and records that are none."""
    rng = np.random.default_rng(seed)
    log = short_log()
    kept = [log[i] for i in rng.permutation(30)[: rng.integers(5, 30)]]
    again = [kept[i] for i in rng.integers(0, len(kept), 6)]
    bad = [LogEntry(0, b"client-0", b"none"), LogEntry(0, b"client-9", log[1].value)]
    mixed = [*kept, *again, *bad]
    return relogged([mixed[i] for i in rng.permutation(len(mixed))])


@pytest.mark.parametrize("seed", range(8))
def test_a_head_counts_what_its_clients_say_however_the_log_is_cut(seed: int) -> None:
    log = torn(seed)
    one, by_record = folded(TASK, log), folded(TASK, log, [1] * len(log))
    assert differences(one, by_record) == []
    head, progress = one.head, one.clients.values()
    assert head.clients == len(one.clients)
    assert head.missing == sum(entry.missing for entry in progress)
    assert head.furthest == max(entry.highest for entry in progress)
    assert head.largest == max(entry.counted for entry in progress)
    assert head.folded * TASK.slots == sum(entry.counted for entry in progress)
    assert head.folded == sum(state.releases for state in one.sums.states.values())


def test_the_logs_of_these_tests_have_holes_and_repeats() -> None:
    heads = [folded(TASK, torn(seed)).head for seed in range(8)]
    assert all(head.missing and head.dead_letters == 2 for head in heads)
    assert all(head.duplicates == 6 for head in heads)


@pytest.mark.parametrize("seed", range(2))
def test_an_estimate_of_sums_alone_is_that_of_whole_states_to_the_last_bit(seed: int) -> None:
    log = torn(seed)
    keys = sorted({entry.key for entry in log if entry.key is not None})
    parts = [[entry for entry in log if entry.key == key] for key in keys]
    whole = {n: folded(TASK, relogged(part)) for n, part in enumerate(parts)}
    bare = {n: alone(state) for n, state in whole.items()}
    written = [
        write_estimate(
            combine(TASK, states, topic="t", model_version=2, published_at=1.0)[1]  # type: ignore[arg-type]
        )
        for states in (whole, bare)
    ]
    assert written[0] == written[1]
    message = msgspec.json.decode(written[0])
    assert message["clients"] == len({c for state in whole.values() for c in state.clients})
    assert message["diagnostics"]["missing"] == sum(
        entry.missing for state in whole.values() for entry in state.clients.values()
    )
    assert start_is_over(TASK, whole.values()) is start_is_over(TASK, bare.values())


def test_a_head_that_its_clients_do_not_bear_out_is_refused() -> None:
    state = folded(TASK, torn(0))
    state.head = msgspec.structs.replace(state.head, missing=state.head.missing + 1)
    with pytest.raises(StateError, match="state rebuild"):
        Partition.decode(TASK, state.fields(everything=True), state.client_fields(everything=True))


def test_a_stream_that_is_folded_from_its_middle_misses_nothing_before_it() -> None:
    state = Partition.empty(TASK).starting_at(12)
    state.midway = True
    Reducer(TASK).fold(state, short_log()[12:])
    assert (state.head.missing, state.head.furthest) == (0, 9)


def alone(state: Partition) -> Snapshot:
    """Return what is stored of a state, without its clients."""
    return Snapshot.decode(TASK, state.fields(everything=True))


def test_the_largest_share_of_a_client_is_counted_over_all_partitions() -> None:
    """One client of three sends as much as the two others together, in another partition."""
    shares = []
    for busy in (10, 5, 20):
        logs = [
            sample_log(TASK, releases=busy, clients=1),
            sample_log(TASK, releases=10, clients=2),
        ]
        states = {n: folded(TASK, log) for n, log in enumerate(logs)}
        _, message = combine(TASK, states, topic="t", model_version=1, published_at=1.0)
        shares.append(message.diagnostics.largest_client_share)
    assert shares == [10 / 20, 5 / 15, 20 / 30]
    _, empty = combine(TASK, {}, topic="t", model_version=None, published_at=1.0)
    assert empty.diagnostics.largest_client_share is None


ERASED = {
    f"{kind}-{how}": task_of(p=2, records=30, private=kind == "private", forgetting=forgetting)
    for kind in ("private", "open")
    for how, forgetting in (("plain", None), ("forgetting", 'half_life = 90, of = "records"'))
}


def without(kind: str, entries: list[LogEntry], sizes: tuple[int, ...] = ()) -> Partition:
    """Fold a log with the second client erased."""
    task = ERASED[kind]
    state, at = Partition.empty(task, frozenset({"client-1"})), 0
    for size in (*sizes, len(entries)):
        assert Reducer(task).fold(state, entries[at : at + size]) == []
        at += size
    return state


@pytest.mark.parametrize("kind", ERASED)
def test_the_sums_are_those_of_a_fold_that_never_saw_the_client(kind: str) -> None:
    task, log = ERASED[kind], sample_log(ERASED[kind])
    never = folded(task, relogged([e for e in log if e.key != b"client-1"]))
    found = without(kind, log)
    assert found.sums.encode() == never.sums.encode()
    assert found.client_fields(everything=True) == never.client_fields(everything=True)
    one, two = estimate_of(task, [found]), estimate_of(task, [never])
    assert one.coefficients.tobytes() == two.coefficients.tobytes()
    assert differences(found, without(kind, log, (1, 4, 7))) == []
    assert found.head.erased == sum(e.key == b"client-1" for e in log)


@pytest.mark.parametrize("kind", ERASED)
def test_late_and_repeated_releases_of_the_client_are_counted_and_nothing_else(kind: str) -> None:
    task, log = ERASED[kind], sample_log(ERASED[kind])
    mine = [e for e in log if e.key == b"client-1"]
    state, before = without(kind, log), without(kind, log).sums.encode()
    again = relogged([*log, *mine, *mine])[len(log) :]
    assert Reducer(task).fold(state, again) == []
    assert state.sums.encode() == before
    assert state.head.erased == 3 * len(mine)
    assert (state.head.duplicates, state.head.dead_letters) == (0, 0)
    assert state.head.next_offset == len(log) + 2 * len(mine)
