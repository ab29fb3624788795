"""Replays without Kafka: ranges, order, rhythm, what may differ."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import ConfigError
from pipeline.messages.estimate import write_estimate
from pipeline.messages.release import header_of
from pipeline.methods import method_of
from pipeline.methods import task_of as make_task
from pipeline.methods.ldp_sgd.spec import Path
from pipeline.records.encoder import Row
from pipeline.release.task import Task
from pipeline.stream.fold import Reducer
from pipeline.stream.in_process import OfflineRun
from pipeline.stream.merge import combine
from pipeline.stream.partition import Partition
from pipeline.stream.release import release_of
from pipeline.stream.replay import (
    REASONS,
    SERVER_SIDE,
    Extent,
    Moment,
    Offsets,
    Replay,
    Rhythm,
    Span,
    altered,
    check_order,
    difference,
    in_order,
    parse_bound,
    parse_change,
    parse_forgetting,
    parse_rhythm,
    resolve,
)
from pipeline.study.model import Study
from pipeline.study_file.load import parse_study
from tests.builders import LogEntry, study_text, task_of
from tests.sgd import study_text as sgd_text
from tests.wire import edited

NOW = 1_700_000_000.0
MARCH = 1_772_366_400_000  # 2026-03-01T12:00:00Z, by `date -u -d ... +%s`
RELEASES = 60


# --- times and ranges ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("beginning", None),
        ("-2h", Moment(round(NOW * 1000) - 7_200_000)),
        ("2026-03-01T12:00:00Z", Moment(MARCH)),
        ("1:9,0:4", Offsets(((0, 4), (1, 9)))),
    ],
)
def test_a_bound_is_a_time_or_an_offset_of_each_partition(text: str, wanted: object) -> None:
    assert parse_bound(text, "--from", now=NOW, partitions=2) == wanted


@pytest.mark.parametrize("text", ["0:4", "12", "0:1,0:2", "0:1,2:3", "noon", "-2w", "end", ""])
def test_a_text_that_is_no_bound_is_refused_by_its_option(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^--from: "):
        parse_bound(text, "--from", now=NOW, partitions=2)
    assert parse_bound("12", "--from", now=NOW, partitions=1) == Offsets(((0, 12),))


def test_a_range_that_ends_before_it_begins_is_refused() -> None:
    with pytest.raises(ConfigError, match="is not before --to"):
        check_order(Moment(5), Moment(5))
    with pytest.raises(ConfigError, match="offset 7 of partition 0 is behind --to, 6"):
        check_order(Offsets(((0, 7),)), Offsets(((0, 6),)))
    check_order(Moment(4), Moment(5))
    check_order(None, Offsets(((0, 0),)))


def test_a_range_becomes_offsets_and_says_what_the_log_has_lost() -> None:
    extents = {0: Extent(10, 50, 1000), 1: Extent(0, 20, 500)}

    def at(milliseconds: int) -> dict[int, int]:
        return {0: 30, 1: 15} if milliseconds >= 2000 else {0: 10, 1: 0}

    assert resolve(Moment(2000), None, extents, at) == ({0: Span(30, 50), 1: Span(15, 20)}, [])
    spans, lost = resolve(None, None, extents, at)
    assert spans == {0: Span(10, 50), 1: Span(0, 20)}
    assert lost == [
        "offsets 0 to 9 of partition 0 (what is left is of 1970-01-01T00:00:01.000000Z)"
    ]
    assert resolve(Moment(600), None, extents, at)[1] == lost
    assert resolve(Moment(1000), None, extents, at)[1] == []
    spans, lost = resolve(Offsets(((0, 4), (1, 3))), Offsets(((0, 7), (1, 5))), extents, at)
    assert spans == {0: Span(10, 10), 1: Span(3, 5)}
    assert [text[:31] for text in lost] == ["offsets 4 to 6 of partition 0 ("]
    with pytest.raises(ConfigError, match="--to: partition 1 ends at offset 20, before 21"):
        resolve(None, Offsets(((0, 7), (1, 21))), extents, at)


@pytest.mark.parametrize("text", ["0", "0s", "-1", "10 s", "1.5", "ten", "10ms"])
def test_a_rhythm_is_a_number_or_a_time(text: str) -> None:
    assert parse_rhythm("10s") == Rhythm(milliseconds=10_000)
    assert parse_rhythm("1000") == Rhythm(releases=1000)
    with pytest.raises(ConfigError, match="--every"):
        parse_rhythm(text)


# --- order ---------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50)), max_size=60))
def test_partitions_merge_by_time_and_keep_their_own_order(pairs: list[tuple[int, int]]) -> None:
    streams: dict[int, list[LogEntry]] = {n: [] for n in range(4)}
    for number, time in pairs:
        streams[number].append(LogEntry(len(streams[number]), b"", b"", time))
    merged = list(in_order(streams))
    assert [item[:3] for item in merged] == sorted(item[:3] for item in merged)
    for number, records in streams.items():
        assert [item[3] for item in merged if item[1] == number] == records


# --- what may differ -----------------------------------------------------------------------


def keys_of(kind: Any, path: str = "") -> Iterator[str]:
    """Yield the keys of a struct, and those of the structs in it."""
    if isinstance(kind, msgspec.inspect.Metadata):
        yield from keys_of(kind.type, path)
    elif isinstance(kind, msgspec.inspect.UnionType):
        for option in kind.types:
            yield from keys_of(option, path)
    elif isinstance(kind, msgspec.inspect.StructType):
        for field in kind.fields:
            yield f"{path}{field.name}"
            yield from keys_of(field.type, f"{path}{field.name}.")


def test_every_key_of_a_study_may_differ_or_is_refused_with_a_reason() -> None:
    study = parse_study(sgd_text(records=50, name="x"))
    keys = list(keys_of(msgspec.inspect.type_info(Study)))
    keys += keys_of(msgspec.inspect.type_info(Path), "estimator.path.")
    assert "estimator.path.eta0" in keys
    own = method_of(study)
    allowed = {*SERVER_SIDE, *own.spec.server_keys}
    assert allowed <= set(keys)
    inside = {key for key in keys if key.startswith("estimator.forgetting.")}
    for key in set(keys) - allowed - inside:
        with pytest.raises(ConfigError, match=f"^{key}: a replay cannot change it: ") as caught:
            altered(study, {key: 1})
        assert "no such key" not in str(caught.value)
    with pytest.raises(ConfigError, match="levle: unknown key"):
        altered(study, {"levle": 0.9})
    assert REASONS.keys() <= set(keys)


CHANGES: dict[str, dict[str, Any]] = {
    "plain": {
        "estimator.level": 0.5,
        "estimator.ridge": 7.0,
    },
    # where noise remembers nothing: clients of a study that forgets have such noise
    "independent": {"estimator.forgetting": {"half_life": 900.0, "of": "records"}},
    "sgd": {
        "estimator.level": 0.5,
        "estimator.path.interval": "plug-in",
        "estimator.path.burn_in": 7,
    },
}


@pytest.mark.parametrize("kind", CHANGES)
def test_what_may_differ_changes_no_release(kind: str) -> None:
    """With a seed the noise is the same: so must be all bytes but the revision."""
    memory = {"noise_memory": 0} if kind == "independent" else {}
    task = task_of(mechanism="insecure-simulation", p=2, **memory)
    if kind == "sgd":
        words = 'mechanism = "insecure-simulation"\nseed = 1'
        made = sgd_text(records=50, name="x").replace('mechanism = "discrete-gaussian"', words)
        task = make_task(parse_study(made))
    rows = _rows(task, np.random.default_rng(1))
    own = method_of(task.study).spec.server_keys
    tried = {key for changes in CHANGES.values() for key in changes}
    assert own.keys() | SERVER_SIDE.keys() <= tried

    def payloads(study: Study, version: int) -> bytes:
        other = make_task(study)
        # away from the start, where margins are 0 and losses of all q are one
        point = task.first_model.lattice + 2048 * version
        model = replace(task.first_model, version=version, lattice=point)
        sent = release_of(other, rows, model, client="c", ledger="l", seq=version)
        assert header_of(sent).revision == other.revision
        return edited(other, sent, revision="0" * 16)

    for version in (0, 3):
        live = payloads(task.study, version)
        for key, value in CHANGES[kind].items():
            assert payloads(altered(task.study, {key: value}), version) == live, key
        if kind == "plain" and version:
            steep = parse_study(study_text(mechanism="insecure-simulation", p=2, q=2.0))
            assert payloads(steep, version) != live


def test_changes_are_checked_as_a_study_file_is() -> None:
    study = task_of().study
    assert altered(study, {}) is study
    assert parse_change("estimator.level=0.9") == ("estimator.level", 0.9)
    assert parse_change("estimator.path.interval=plug-in") == ("estimator.path.interval", "plug-in")
    assert parse_change("estimator.forgetting=none") == ("estimator.forgetting", None)
    assert parse_forgetting("50000 records") == {"half_life": 50000.0, "of": "records"}
    halved = altered(study, {"estimator.forgetting": {"half_life": 900.0, "of": "records"}})
    longer = altered(halved, {"estimator.forgetting.half_life": 1800.0})
    assert longer.estimator.forgetting is not None
    assert longer.estimator.forgetting.half_life == 1800.0
    with pytest.raises(ConfigError, match=r"estimator.levle: unknown key \(did you mean 'level'"):
        altered(study, {"estimator.levle": 0.9})
    for text in ("soon", "x records"):
        with pytest.raises(ConfigError, match="--forgetting"):
            parse_forgetting(text)
    with pytest.raises(ConfigError, match="--set"):
        parse_change("estimator.level")
    for key, value, word in (
        ("estimator.level", 2, "estimator.level"),
        ("estimator.forgetting", {"half_life": 900.0, "of": "years"}, "estimator.forgetting.of"),
        ("estimator.path.interval", "plug-in", "a replay cannot change it"),
    ):
        with pytest.raises(ConfigError, match=word):
            altered(study, {key: value})


# --- folding again -------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["private", "open", "sgd", "forgetting"])
def log(request: pytest.FixtureRequest) -> tuple[Task, list[LogEntry]]:
    """Return a study and the log of a live run of it, with times that go back now and then."""
    kind = request.param
    task = task_of(private=kind != "open", p=2, records=20, ridge=0.01)
    if kind == "forgetting":
        task = task_of(p=2, records=20, forgetting='half_life = 200, of = "records"')
    if kind == "sgd":
        task = make_task(parse_study(sgd_text(records=20, name="x", path="burn_in = 200")))
    rng = np.random.default_rng(5)
    run, entries = OfflineRun(task), []
    fold = run._reducer.fold

    def noted(state: Partition, records: Any, **_: Any) -> Any:
        [record] = records
        time = 1000 * len(entries) - (2500 if len(entries) % 9 == 4 else 0)
        entries.append(LogEntry(record.offset, record.key, record.value, max(time, 0)))
        return fold(state, records)

    run._reducer.fold = noted  # type: ignore[method-assign]
    for k in range(RELEASES):
        run.add(f"c{k % 3}", _rows(task, rng))
    return task, entries


def _rows(task: Task, rng: np.random.Generator) -> list[Any]:
    made = []
    for _ in range(task.slots):
        features = rng.uniform(-1, 1, task.size - 1)
        response = float(np.sign(features[0] + rng.normal())) if task.classes else features[0] / 2
        made.append(Row(features, float(response), 0))
    return made


def replay_of(
    task: Task,
    entries: list[LogEntry],
    rhythm: Rhythm,
    *,
    start: int = 0,
    study: Task | None = None,
) -> Replay:
    span = Span(start, len(entries))
    return Replay(study or task, "t", task.revision, {0: span}, rhythm)


def lines_of(replay: Replay, entries: list[LogEntry]) -> list[bytes]:
    start = replay.partitions[0].head.next_offset
    return [write_estimate(m) for m in replay.run({0: iter(entries[start:])})]


def test_the_last_line_of_a_replay_is_the_live_estimate(log: tuple[Task, list[LogEntry]]) -> None:
    task, entries = log
    state = Partition.empty(task)
    assert Reducer(task).fold(state, entries) == []
    replay = replay_of(task, entries, Rhythm(releases=10**6))
    [line] = list(replay.run({0: iter(entries)}))
    live = combine(task, {0: state}, topic="t", model_version=4, published_at=1.0)[1]
    assert difference(live, line) is None
    coefficients = [
        msgspec.structs.replace(c, value=math.nextafter(c.value, 9)) for c in live.coefficients
    ]
    changed = msgspec.structs.replace(live, coefficients=coefficients)
    found = difference(changed, line)
    assert found is not None
    assert found.field == "coefficients[0].value"
    assert difference(msgspec.structs.replace(live, clients=9), line).field == "clients"  # type: ignore[union-attr]


def test_a_replay_from_the_middle_is_of_its_records_alone_and_misses_nothing(
    log: tuple[Task, list[LogEntry]],
) -> None:
    task, entries = log
    if task.keeps_slots:
        with pytest.raises(ConfigError, match="moves one path"):
            replay_of(task, entries, Rhythm(releases=10), start=25)
        return
    *_, last = replay_of(task, entries, Rhythm(releases=10), start=25).run({0: iter(entries[25:])})
    assert last.releases == RELEASES - 25
    assert (last.diagnostics.missing, last.diagnostics.duplicates) == (0, 0)
    # the same releases in a log that has lost another beginning
    own = [LogEntry(place, e.key, e.value, e.timestamp) for place, e in enumerate(entries[25:], 4)]
    replay = Replay(task, "t", task.revision, {0: Span(4, 4 + len(own))}, Rhythm(releases=10))
    *_, alone = replay.run({0: iter(own)})
    values = [c.value for c in last.coefficients]
    if task.study.estimator.forgetting is None:
        assert values == [c.value for c in alone.coefficients]
    # a gap after the beginning is one, and a repeat of a number from before it is none to count
    gap = [e for e in entries[25:] if e.offset != 31]
    *_, holed = replay_of(task, entries, Rhythm(releases=10), start=25).run({0: iter(gap)})
    assert holed.diagnostics.missing == 1


def test_releases_of_another_revision_end_a_replay_unless_they_are_passed_over(
    log: tuple[Task, list[LogEntry]],
) -> None:
    task, entries = log
    other = edited(task, entries[30].value or b"", revision="0123456789abcdef")
    mixed = [*entries[:30], LogEntry(30, entries[30].key, other, 0), *entries[31:]]
    with pytest.raises(ConfigError, match=r"offset 30 of partition 0 .* 0123456789abcdef"):
        lines_of(replay_of(task, mixed, Rhythm(releases=10)), mixed)
    passing = Replay(
        task, "t", task.revision, {0: Span(0, RELEASES)}, Rhythm(releases=10), others=True
    )
    *_, last = passing.run({0: iter(mixed)})
    assert last.diagnostics.dead_letters == 1


def test_what_if_folds_the_same_releases(log: tuple[Task, list[LogEntry]]) -> None:
    task, entries = log
    *_, live = replay_of(task, entries, Rhythm(releases=10)).run({0: iter(entries)})
    wide = make_task(altered(task.study, {"estimator.level": 0.5}))
    *_, other = replay_of(task, entries, Rhythm(releases=10), study=wide).run({0: iter(entries)})
    assert other.level == 0.5
    assert other.coefficients[0].value == live.coefficients[0].value
    assert other.diagnostics.dead_letters == 0
    if not task.keeps_slots:
        short = {"half_life": 100.0, "of": "records"}
        fading = make_task(altered(task.study, {"estimator.forgetting": short}))
        *_, other = replay_of(task, entries, Rhythm(releases=9), study=fading).run(
            {0: iter(entries)}
        )
        state = Partition.empty(fading)
        Reducer(fading, task.revision).fold(state, entries)
        assert len(state.sums.states) > 5
        assert (
            other.releases < RELEASES or other.coefficients[0].value != live.coefficients[0].value
        )
