from __future__ import annotations

import math

import numpy as np
import pytest

from pipeline.errors import DataError, RecordError
from pipeline.records.blocks import Window
from pipeline.records.encoder import Encoder, stack
from pipeline.stream.in_process import OfflineRun
from pipeline.stream.merge import estimate_of
from pipeline.study_file.load import parse_study
from tests.builders import cut, rows_of, run_windows, simulate, study_text, task_of

ENCODER = Encoder(parse_study(study_text(p=2, low=-40.0, high=120.0)))
GOOD = {"y": "1", "x0": "120", "x1": 40.0}


def test_public_ranges_are_mapped_to_the_unit_interval_and_beyond_them_clipped() -> None:
    row = ENCODER.encode(GOOD)
    assert (row.features.tolist(), row.response, row.clipped) == ([1.0, 0.0], 1.0, 0)
    row = ENCODER.encode({"y": "0", "x0": 1e300, "x1": "-1e9"})
    assert (row.features.tolist(), row.response, row.clipped) == ([1.0, -1.0], -1.0, 2)


def test_the_encoded_features_never_leave_the_unit_interval() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        low = float(10.0 ** rng.uniform(-5, 5) * rng.choice([-1, 1]))
        high = low + float(10.0 ** rng.uniform(-8, 5))
        encoder = Encoder(parse_study(study_text(p=1, low=low, high=high)))
        for x in (low, high, low / 2 + high / 2, math.nextafter(high, 0)):
            assert abs(encoder.encode({"y": "1", "x0": repr(x)}).features[0]) <= 1.0


@pytest.mark.parametrize(
    ("change", "column"),
    [
        ({"x0": "warm"}, "x0"),
        ({"x0": ""}, "x0"),
        ({"x0": None}, "x0"),
        ({"x1": "nan"}, "x1"),
        ({"x1": "inf"}, "x1"),
        ({"x1": float("-inf")}, "x1"),
        ({"y": "secret-class"}, "y"),
        ({"y": None}, "y"),
    ],
)
def test_a_bad_record_is_refused_by_its_column_and_never_shows_its_value(
    change: dict[str, object], column: str
) -> None:
    with pytest.raises(RecordError) as caught:
        ENCODER.encode({**GOOD, **change})
    assert repr(column) in str(caught.value)
    for value in change.values():
        if isinstance(value, str) and value not in {"", "nan", "inf"}:
            assert value not in str(caught.value)


def test_a_missing_column_is_named() -> None:
    with pytest.raises(RecordError, match="'x1'"):
        ENCODER.encode({"y": "1", "x0": 1})
    with pytest.raises(DataError, match="'x1'"):
        ENCODER.check_columns(["y", "x0"])
    ENCODER.check_columns(["x1", "y", "x0", "more"])


def test_stacking_no_rows_gives_empty_arrays_of_the_right_width() -> None:
    features, responses = stack([], 3)[:2]
    assert features.shape == (0, 3)
    assert responses.shape == (0,)


def test_a_window_counts_slots_and_not_records() -> None:
    window = Window(4)
    row = ENCODER.encode(GOOD)
    far = {**GOOD, "x0": 1e9}
    window.add(ENCODER.block([GOOD, far, {**GOOD, "x1": "warm"}]), b"3", 10.0)
    assert (window.taken, window.usable, window.room, window.clipped) == (3, 2, 1, 1)
    assert (window.position, window.opened) == (b"3", 10.0)
    window.add(ENCODER.block([GOOD]), b"4", 12.0)
    assert (window.taken, window.usable, window.room) == (4, 3, 0)
    assert (window.position, window.opened) == (b"4", 10.0)
    expected = stack([row, ENCODER.encode(far), None, row], 2)
    for found, wanted in zip(window.slots, expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_a_bad_record_leaves_its_slot_empty_and_moves_no_other_record() -> None:
    rows = rows_of(*simulate(np.random.default_rng(1), 10, 2))
    slots = [*rows[:4], None, *rows[4:9]]
    windows = list(cut(slots, 5))
    assert [len(window) for window in windows] == [5, 5]
    assert windows[0][4] is None
    assert windows[1][0] is rows[4]
    assert [len(w) for w in cut(rows, 4)] == [4, 4, 2]
    assert list(cut([], 4)) == []


@pytest.mark.parametrize("private", [True, False])
def test_an_offline_run_goes_the_whole_way(private: bool) -> None:
    task = task_of(p=2, records=40, releases=4, private=private)
    rng = np.random.default_rng(2)
    windows = [(f"c{i % 3}", rows_of(*simulate(rng, 40, 2))) for i in range(17)]
    run = run_windows(task, windows)
    # one after four releases, or, where noise remembers, as slots have grown by 4 %
    assert run.model.version == (17 - 3 if private else 4)
    estimate, message = run.estimate(0.0)
    assert (estimate.releases, estimate.records, message.clients) == (17, 680, 3)
    assert message.watermark == []
    assert message.diagnostics.dead_letters == 0
    again = estimate_of(task, [run.partition])
    assert again.coefficients.tobytes() == estimate.coefficients.tobytes()


def test_two_private_offline_runs_of_the_same_data_differ_by_their_noise() -> None:
    task = task_of(p=2, records=40)
    rows = rows_of(*simulate(np.random.default_rng(3), 40, 2))
    sums = []
    for _ in range(2):
        run = OfflineRun(task)
        run.add("c", rows)
        sums.append(run.partition.sums.encode())
    assert sums[0] != sums[1]


def test_an_empty_window_is_released_like_a_full_one() -> None:
    task = task_of(p=2, records=40)
    run = OfflineRun(task)
    run.add("c", [])
    assert run.estimate(0.0)[0].records == 40
