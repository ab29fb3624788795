from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pytest

from pipeline.api.result import Result
from pipeline.errors import ConfigError, NumericError, PayloadError
from pipeline.estimators.estimate import Estimate
from pipeline.messages import envelope
from pipeline.messages.admission import StudyKeys, read_enrolment, read_keys, read_signed
from pipeline.messages.estimate import (
    Provenance,
    coefficients_of,
    compose,
    read_estimate,
    write_estimate,
)
from pipeline.messages.model import read_model, write_model
from pipeline.messages.spend import read_spends
from pipeline.messages.topics import Topics, retention_ms
from pipeline.methods.renewable import open as open_side
from pipeline.methods.renewable import solution
from pipeline.release.model import COEFFICIENT_LIMIT, VERSION_LIMIT, Model, round_model, start_model
from pipeline.stream.merge import combine, estimate_of
from pipeline.stream.replay import difference
from pipeline.study_file.load import parse_study
from pipeline.trust import Pair, signed
from tests.builders import folded, sample_log, some_model, study_text, task_of

TASK = task_of(p=2, records=30, maximum=1000.0)
MODEL = Model(3, np.array([4096, -1, 12345], dtype=np.int64), (1024, 3000))
PAYLOAD = write_model(TASK, MODEL, "2026-01-01T00:00:00Z")


def test_a_model_comes_back_exactly() -> None:
    for model in (
        MODEL,
        Model(
            VERSION_LIMIT, np.array([COEFFICIENT_LIMIT, -COEFFICIENT_LIMIT, 0]), (512, 1000 * 2**10)
        ),
        some_model(TASK, 7),
    ):
        again = read_model(TASK, write_model(TASK, model, "t"))
        assert again.version == model.version
        assert again.weights == model.weights
        assert again.lattice.tolist() == model.lattice.tolist()


def edited(*path: str | int, value: object) -> bytes:
    tree = json.loads(PAYLOAD)
    at = tree
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    return json.dumps(tree).encode()


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "undecodable"),
        (b"\xff\xfe", "undecodable"),
        (b"{}", "undecodable"),
        (PAYLOAD[:-1], "undecodable"),
        (PAYLOAD.replace(b"model/2", b"model/3"), "undecodable"),
        (b'{"type":"model/2","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "undecodable"),
        (edited("version", value=0), "undecodable"),
        (edited("version", value=2**40), "undecodable"),
        (edited("coefficients", 0, "value", value=float("nan")), "undecodable"),
        (PAYLOAD.replace(b'"value":1.0', b'"value":1e400'), "undecodable"),
        (edited("study", value="other"), "wrong-revision"),
        (edited("study_revision", value="0" * 16), "wrong-revision"),
        (edited("coefficients", 1, "name", value="x9"), "wrong-shape"),
        (edited("coefficients", value=[]), "wrong-shape"),
        (edited("coefficients", 0, "value", value=1.00001), "off-lattice"),
        (edited("class_weights", "positive", value=0.3), "off-lattice"),
        (edited("coefficients", 0, "value", value=4096.0 + 2.0**-12), "out-of-range"),
        (edited("coefficients", 0, "value", value=1e300), "out-of-range"),
        (edited("class_weights", "negative", value=-1.0), "out-of-range"),
    ],
)
def test_a_bad_model_is_refused_with_its_reason(payload: bytes, reason: str) -> None:
    with pytest.raises(PayloadError) as caught:
        read_model(TASK, payload)
    assert caught.value.reason == reason


def test_a_model_with_fields_of_the_future_is_read() -> None:
    assert read_model(TASK, edited("later", value=[1, 2])).version == 3


def test_a_rounded_model_stays_within_its_limits_and_never_raises_a_weight() -> None:
    model = round_model(1, np.array([1e308, -1e308, 0.3]), (0.9999, 7.99999))
    assert model.lattice.tolist() == [COEFFICIENT_LIMIT, -COEFFICIENT_LIMIT, 1229]
    assert model.class_weights[0] <= 0.9999
    assert model.class_weights[1] <= 7.99999
    assert abs(model.coefficients[2] - 0.3) <= 2.0**-13
    with pytest.raises(NumericError):
        round_model(1, np.array([math.nan]), (1.0, 1.0))


def test_the_start_is_zero_with_unit_weights() -> None:
    model = start_model(3)
    assert model.coefficients.tolist() == [0, 0, 0]
    assert model.class_weights == (1.0, 1.0)


@pytest.mark.parametrize("read", [read_estimate, read_spends])
@pytest.mark.parametrize(
    "payload",
    [
        b'{"a":' * 100_000,
        b'{"type":"estimate/1","study":"\xff"}',
        b'{"type":"spends/2","a":' * 9999,
    ],
)
def test_what_is_no_text_or_nested_without_end_is_no_message(read: Any, payload: bytes) -> None:
    with pytest.raises((msgspec.DecodeError, ConfigError)):
        read(payload)


PAIR = Pair(b"k" * 32)
OWN = PAIR.public.hex()
#: Readers, each with a message of its kind that has a name somewhere.
READERS: dict[str, tuple[Callable[[bytes], object], dict[str, object]]] = {
    "model": (partial(read_model, TASK), json.loads(PAYLOAD)),
    "estimate": (
        read_estimate,
        json.loads(write_estimate(combine(
            TASK, {0: folded(TASK, [])}, topic=None, model_version=None, published_at=0.0)[1])),
    ),
    "account": (read_spends, {"type": "spends/2", "ledger": "0" * 16, "sources": []}),
    "enrolment": (
        lambda payload: read_enrolment(signed(payload, PAIR)), {"type": "enrolment/1", "key": OWN},
    ),
    "keys": (
        lambda payload: read_keys(signed(payload, PAIR), "s", None),
        {"type": "keys/1", "study": "s", "chain": [{"generation": 1, "key": OWN}]},
    ),
    "word": (
        lambda payload: read_signed(signed(payload, PAIR), StudyKeys, [PAIR.public]),
        {"type": "keys/1", "study": "s", "chain": [{"generation": 1, "key": OWN}]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize("name", ["\x1b[2J", "\u202e", "\n", "\x7f", "\u009b2J"])
def test_no_reader_takes_what_a_terminal_obeys(kind: str, name: str) -> None:
    """Names of strangers are shown to people: what moves a cursor there is no message of ours."""
    read, message = READERS[kind]
    read(json.dumps({**message, "client": "north"}).encode())
    with pytest.raises((PayloadError, msgspec.DecodeError), match="not text"):
        read(json.dumps({**message, "client": name}).encode())


@pytest.mark.parametrize("private", [True, False])
@pytest.mark.parametrize("releases", [0, 2, 24, 120])
def test_an_estimate_is_plain_json_and_comes_back(
    private: bool, releases: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the models of this log are drawn at random, far from any estimate; a logistic curvature is
    # still something there
    monkeypatch.setattr(open_side, "is_far", lambda *_: False)
    monkeypatch.setattr(solution, "SECOND_ORDER", 0.0)
    monkeypatch.setattr(solution, "moves", lambda whole, *_: np.zeros(len(whole), dtype=bool))
    task = task_of(p=2, records=200, private=private, epsilon=8.0, loss="logistic")
    partition = folded(task, sample_log(task, releases=releases, start=1))
    _, message = combine(task, {0: partition}, topic="t", model_version=4, published_at=1.5)
    data = write_estimate(message)
    assert read_estimate(data) == message

    def forbid(name: str) -> float:
        raise AssertionError(name)

    tree = json.loads(data, parse_constant=forbid)
    assert tree["type"] == "estimate/1"
    assert tree["published_at"] == "1970-01-01T00:00:01.500000Z"
    assert tree["watermark"] == [{"topic": "t", "partition": 0, "next_offset": releases}]
    assert tree["state_version"] == releases
    assert [c["name"] for c in tree["coefficients"]] == ["intercept", "x0", "x1"]
    assert all(math.isfinite(c["value"]) for c in tree["coefficients"])
    ready = tree["status"] == "ready"
    if private:
        assert ready == (releases >= 24)
    for coefficient in tree["coefficients"]:
        for key in ("standard_error", "interval", "sampling_se", "privacy_se"):
            assert (coefficient[key] is not None) == ready
        if ready:
            low, high = coefficient["interval"]
            assert low < coefficient["value"] < high
    assert bool(tree["reason"]) == (not ready)
    assert tree["privacy"]["mechanism"] == ("discrete-gaussian" if private else "none")
    assert (tree["event_time"] is None) == (releases == 0)


def test_an_estimate_that_is_not_finite_is_refused() -> None:
    partition = folded(TASK, sample_log(TASK))
    estimate = estimate_of(TASK, [partition])
    provenance = Provenance(1, 0, 0, 0, None, [], None, "t")
    for bad in (np.nan, np.inf):
        broken = dataclasses.replace(estimate, coefficients=np.array([0.0, bad, 0.0]))
        with pytest.raises(NumericError):
            compose(TASK, broken, provenance)


def test_the_envelope_is_a_cloud_event() -> None:
    items = envelope.headers(
        identity="c/s/3",
        source="veil://c",
        kind="veilstream.release",
        schema="release/2",
        content_type=envelope.BINARY,
        time=envelope.rfc3339(1_700_000_000.25),
    )
    found = dict(items)
    assert found == {
        "ce_specversion": b"1.0",
        "ce_id": b"c/s/3",
        "ce_source": b"veil://c",
        "ce_type": b"veilstream.release",
        "ce_time": b"2023-11-14T22:13:20.250000Z",
        "content-type": b"application/octet-stream",
        "veil_schema": b"release/2",
    }
    assert envelope.header(items, "ce_id") == b"c/s/3"
    assert envelope.header(items, "ce_none") is None


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("30d", 2_592_000_000), ("1s", 1000), ("5m", 300_000), ("2h", 7_200_000), ("forever", -1)],
)
def test_retention_is_given_in_milliseconds(text: str, wanted: int) -> None:
    assert retention_ms(text) == wanted


def test_models_are_compacted_and_releases_kept_for_their_time() -> None:
    topics = Topics.of(parse_study(study_text(name="abc")))
    assert [topic.name for topic in topics.all()] == [
        f"veil.abc.{kind}.v1"
        for kind in ("releases", "models", "estimates", "latest", "dlq", "study")
    ]
    assert topics.models.config["cleanup.policy"] == "compact"
    assert topics.releases.config["retention.ms"] == "2592000000"
    assert topics.dead_letters.config["retention.ms"] == "-1"


def test_a_sampling_error_that_noise_hides_is_null_and_said_in_words() -> None:
    task = task_of(p=1)
    hidden, known = (
        Estimate(
            coefficients=np.array([0.5, -0.5]), covariance=total * np.eye(2),
            privacy_covariance=np.eye(2), weights=(1.0, 1.0), status="ready", reason="",
            records=100, releases=2, condition=1.0, floored=0,
        )
        for total in (0.9, 2.0)
    )  # fmt: skip
    rows = coefficients_of(task, hidden)
    assert [(row.sampling_se, row.privacy_se) for row in rows] == [(None, 1.0)] * 2
    assert all(row.interval for row in rows)
    assert [row.sampling_se for row in coefficients_of(task, known)] == [1.0, 1.0]
    facts = Provenance(1, 0, 0, 0, 1, [], None, "2026-01-01T00:00:00Z")
    message = compose(task, hidden, facts)
    assert b'"sampling_se":null' in write_estimate(message)
    assert Result(task.study, message).summary().count("below noise") == 3
    # a log that was published before has 0 there, and is no other estimate
    before = msgspec.structs.replace(
        message, coefficients=[msgspec.structs.replace(row, sampling_se=0.0) for row in rows]
    )
    assert difference(before, message) is None
    assert Result(task.study, before).summary().count("below noise") == 3
