"""The checks of the storm: what they read in sums, and that they find what must not be."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from pipeline.methods import task_of
from pipeline.records.encoder import Encoder
from pipeline.release.layout import identity
from pipeline.stream.release import release_of
from pipeline.study_file.load import parse_study
from tests.log_checks import MARKS, PLANTED, marks, noised_twice, payloads, shared_records

TASK = task_of(parse_study(PLANTED.format(name="planted", records=20)))
ENCODER = Encoder(TASK.study)


def release(numbers: list[int], seq: int = 0) -> bytes:
    rows = [
        ENCODER.encode({"mark": str(n), "load": f"{n % 7 / 7 - 0.5:.4f}", "failed": "0.5"})
        for n in numbers
    ]
    return release_of(TASK, rows, TASK.first_model, client="north", ledger="a", seq=seq)


@pytest.mark.parametrize("start", [0, 1, 19, 4097, MARKS - 20])
@pytest.mark.parametrize("count", [1, 20])
def test_the_numbers_of_a_window_are_read_in_its_sums(start: int, count: int) -> None:
    numbers = list(range(start, start + count))
    assert marks(TASK, release(numbers)) == range(start, start + count)


def test_a_window_whose_records_do_not_follow_each_other_is_seen() -> None:
    chance = np.random.default_rng(1)
    for _ in range(100):
        numbers = sorted(int(n) for n in chance.choice(60, 20, replace=False))
        if numbers[-1] - numbers[0] > 19:
            assert marks(TASK, release(numbers)) is None
    # in another order, the sums are those of a window that is whole
    assert marks(TASK, release([*range(10, 20), *range(10)])) == range(20)


def test_a_record_in_two_releases_and_two_noises_of_one_number_are_found() -> None:
    first, second = release(list(range(20))), release(list(range(20, 40)), 1)
    good = [SimpleNamespace(key=b"north", value=payload) for payload in (first, second, second)]
    assert noised_twice(payloads(good)) == []
    assert shared_records(TASK, payloads(good)) == []
    shifted = SimpleNamespace(key=b"north", value=release(list(range(39, 59)), 2))
    [fault] = shared_records(TASK, payloads([*good, shifted]))
    ledger = identity(b"a").hex()
    assert fault == f"record 39 is in ('north', '{ledger}', 1) and in ('north', '{ledger}', 2)"
    other = SimpleNamespace(key=b"north", value=release(list(range(40, 60)), 1))
    assert noised_twice(payloads([*good, other])) == [("north", ledger, 1)]
