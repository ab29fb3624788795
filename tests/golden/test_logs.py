"""Recorded logs fold to what they folded to, and clients make the same releases again.

A change that is meant: `make golden` records the logs again and prints what changed.
"""

from __future__ import annotations

import msgspec
import pytest

from pipeline.methods import task_of
from pipeline.release.task import form_of
from pipeline.study_file.load import parse_study
from tests.golden.cases import CASES
from tests.golden.logs import Outcome, alike, differences, folded, load, made_again
from tests.golden.record import changes

LOGS = load()
#: Each of their parts is in another log, too.
ALIKE = {"linear-simulated", "open-logistic", "open-linear",
         "gdwd-laplace", "gdwd-user", "gdwd-split", "logistic-laplace-weights", "open-gdwd-weights",
         "sgd-logistic-laplace", "sgd-linear-full", "sgd-open-logistic-products"}  # fmt: skip
each_log = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in ALIKE)) for name in LOGS]
)


def test_every_case_is_recorded() -> None:
    assert list(LOGS) == list(CASES)
    assert [LOGS[name].study for name in CASES] == [case.study for case in CASES.values()]
    # an interval is in most of them, so that it is compared, too; small streams have few
    assert sum(golden.outcome.exact["status"] == "ready" for golden in LOGS.values()) >= 30


@each_log
def test_a_recorded_log_folds_to_what_it_did(name: str) -> None:
    golden = LOGS[name]
    models, outcome = folded(golden)
    assert differences(golden.outcome, outcome) == []
    assert models == golden.models


#: These differ from others in what is made of releases, not in the releases.
FOLDED_OTHERWISE = ("forgets-records", "forgets-seconds", "open-forgets-records", "sgd-shared",
                    "sgd-pooled", "sgd-open-pooled", "planned-wiener")  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name in {*ALIKE, *FOLDED_OTHERWISE}))
        for name in LOGS
    ],
)
def test_clients_make_the_recorded_releases_again(name: str) -> None:
    golden = LOGS[name]
    made = list(made_again(golden, CASES[name]))
    task = task_of(parse_study(golden.study))
    pairs = enumerate(zip(golden.log, made, strict=True))
    assert [i for i, (sent, again) in pairs if not alike(task, sent.payload, again)] == []


def test_a_difference_is_told() -> None:
    golden = LOGS["open-linear"]
    exact, close = golden.outcome.exact, golden.outcome.close
    largest = max(map(abs, close["value"]))
    for moved, words in ((1e-13, []), (1e-11, ["value: moved by 1e-11 of the largest"])):
        value = [close["value"][0] + moved * largest, *close["value"][1:]]
        outcome = Outcome(exact, close | {"value": value})
        assert differences(golden.outcome, outcome) == words
    fewer = Outcome(exact | {"status": "warming"}, close | {"interval": []})
    assert differences(golden.outcome, fewer) == [
        "status: 'ready' is now 'warming'",
        "interval: 6 numbers are now 0",
    ]
    assert changes(golden, golden) == []
    assert changes(None, golden) == ["is new"]
    broken = msgspec.structs.replace(golden, log=[*golden.log[:-1], golden.log[0]], revision="r")
    said = changes(golden, broken)
    assert said == [
        f"revision {golden.revision} is now r",
        "1 of 42 releases are others, 42 in all",
    ]


@pytest.mark.parametrize(
    ("name", "byte"),
    # the last bit of an integer; of a float, one that is not lost in rounding
    [("gdwd", 0), ("sgd-linear", 0), ("open-gdwd", 5), ("sgd-open-linear", 5)],
)
def test_one_bit_of_a_release_is_seen(name: str, byte: int) -> None:
    golden = LOGS[name]
    task = task_of(parse_study(golden.study))
    raw = bytearray(golden.log[20].payload)
    # of a number near the end of the sums
    raw[form_of(task).chain_at - 6 * 8 + byte] ^= 1
    assert not alike(task, golden.log[20].payload, bytes(raw))
    log = list(golden.log)
    log[20] = msgspec.structs.replace(log[20], payload=bytes(raw))
    _, outcome = folded(msgspec.structs.replace(golden, log=log))
    assert differences(golden.outcome, outcome) != []
