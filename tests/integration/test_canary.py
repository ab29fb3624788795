"""No quantity computed from raw data leaves a client in passing.

Two studies run end to end on records full of canaries: a private one, in whose outputs none may be
found, and one without privacy, in whose releases the same search must find them.

Public, so free of values and of counts of records: topics, Redis, a worker's pages and log, what
every command says that reads those, and what a producer says with --quiet.
Local, so free of values but not of counts: `client show`, a producer's lines without --quiet, and
the number of unusable records that `fit` prints beside its estimate.
The source, the client's database and its spool of standard input are the client's own.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from pipeline.messages.release import header_of
from pipeline.methods.renewable.client import summarise_bounded
from pipeline.records.encoder import Encoder, stack
from pipeline.release.layout import HEADER, identity
from pipeline.release.model import start_model
from pipeline.release.task import Task
from producers.source_registry import NAME
from tests import canaries, outputs, trial
from tests.canaries import BEYOND, HEAT, LABEL, LOAD, TEXT, Form, counts_found, found, text
from tests.stage import OPEN, Stage, study_text
from tests.trial import COUNTS, FAILING, FORGED, LOUD, RECORD, SITE, SLOTS, SMALL, Trial, honest

FORMS = canaries.forms()


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory, kafka: str, redis_url: str) -> Iterator[Trial]:
    stage = Stage(tmp_path_factory.mktemp("trial"), kafka, redis_url, trial.study())
    try:
        stage.ensure_topics()
        yield trial.run(stage)
    finally:
        stage.remove()


def test_no_output_holds_a_canary(result: Trial) -> None:
    kinds = "releases models estimates latest dlq redis http state watch status fit client"
    logs = [f"file {name}.log" for name in result.stage.processes]
    for kind in (*kinds.split(), *logs):
        assert any(output.place.startswith(kind) for output in result.outputs), kind
    assert found(result.outputs, FORMS) == []


def test_no_public_output_holds_a_count_of_records(result: Trial) -> None:
    assert len(COUNTS) > 20
    public = [output for output in result.outputs if not output.local]
    assert counts_found(public, COUNTS) == []


def test_the_clients_own_report_has_the_counts(result: Trial) -> None:
    assert result.shown["records_used"] == SITE.used
    assert result.shown["records_set_aside"] == SITE.rejected
    assert result.shown["values_clipped"] == SITE.clipped
    assert sum(result.shown["reasons"].values()) == SITE.rejected
    assert len(result.shown["reasons"]) == 10, result.shown["reasons"]
    # a field without a value is no bad number
    assert "column 'heat': missing" in result.shown["reasons"]


def test_a_producer_counts_for_local_eyes_and_is_silent_when_quiet(result: Trial) -> None:
    """A terminal shows how many slots were read; with --quiet there are warnings alone."""
    assert result.stage.said("alone") == ""
    # many of their records are bad, and many values outside their ranges
    for client in ("site", "lines", "pipe"):
        said = result.stage.said(client).splitlines()
        assert all("WARNING: " in line for line in said)
        [_] = [
            line
            for line in said
            if re.search(r"WARNING: \d+% of the first \d+ record slots cannot be used", line)
        ]
    shown = result.stage.said("desk").splitlines()
    assert f"desk: {SMALL.slots} records (100%), 1 release" in shown
    [_] = [line for line in shown if line.startswith(f"desk: {SMALL.used} records used, ")]


@pytest.mark.parametrize("name", FAILING)
def test_a_producer_that_fails_says_why_in_one_sentence(result: Trial, name: str) -> None:
    assert result.codes[name] == FAILING[name].code
    said = result.stage.said(name)
    assert FAILING[name].words in said
    assert "Traceback" not in said
    if not name.startswith(LOUD):
        assert said.startswith("veilstream: ")
        assert len(said.splitlines()) == 1


def test_releases_differ_in_nothing_but_their_noise(result: Trial) -> None:
    """Full or short, good records or bad: who, when and at which model is all that tells."""
    kinds: dict[bool, list[Any]] = {True: [], False: []}
    for record in honest(result.stage):
        fields = dataclasses.asdict(header_of(record.value))
        names = (
            "client", "ledger", "seq", "version", "model_watermark", "held", "before", "number"
        )  # fmt: skip
        clear = {name: fields.pop(name) for name in names}
        kinds[clear["version"] == 0].append((fields, len(record.value)))
    assert [len(releases) for releases in kinds.values()] == [1, 6]
    assert all(release == kinds[False][0] for release in kinds[False])
    assert kinds[True][0] == kinds[False][0]
    assert kinds[False][0][0]["records"] == SLOTS


def test_the_headers_of_a_release_say_who_and_when(result: Trial) -> None:
    for record in honest(result.stage):
        headers = dict(record.headers)
        study, client = result.stage.task.study.name, record.key.decode()
        seq = header_of(record.value).seq
        assert headers.pop("ce_id").decode() == f"{client}/{study}/{seq}"
        assert headers.pop("ce_source").decode() == f"/veilstream/{study}/{client}"
        # whole seconds: the time of a window's last record is nobody's business
        assert re.fullmatch(rb"[0-9T:-]{19}(\.000000)?Z", headers.pop("ce_time"))
        assert set(headers) == {"ce_specversion", "ce_type", "content-type", "veil_schema"}


def test_a_window_of_one_record_is_not_sent_without_noise(result: Trial) -> None:
    """Nor are its exact sums to be seen elsewhere; in a release they would be."""
    searched = exact_sums(result.stage.task)
    assert found(result.outputs, searched) == []
    [release] = [r for r in result.stage.releases() if r.key == b"alone"]
    bare = next(form.needle for form in searched if form.name == "exact sums as <i8")
    forged, at = bytearray(release.value), HEADER.itemsize + 8 * result.stage.task.size
    forged[at : at + len(bare)] = bare
    places = found(outputs.payload("bare", bytes(forged), result.stage.task), searched)
    assert {place for place, _ in places} == {"bare", "bare, decoded"}


def exact_sums(task: Task) -> list[Form]:
    """Return the sums of the only record of client `alone` in the forms of a release."""
    features, responses = stack([Encoder(task.study).encode(RECORD)], task.size - 1)[:2]
    exact = summarise_bounded(task, features, responses, start_model(task.size)).gradient
    lattice = task.channels(0).gradient.round(exact.integers, exact.exponents)[: task.size]
    assert np.all(lattice != 0)  # the record is of the negative class, which comes first
    real = np.ldexp(exact.integers.astype(float), exact.exponents)[: task.size]
    wide = b"".join(int(value).to_bytes(16, "little", signed=True) for value in lattice)
    kinds = [("<i8", lattice), (">i8", lattice), ("<f8", real), (">f8", real)]
    return [
        Form("exact sums of 16 bytes", wide),
        *(Form(f"exact sums as {kind}", v.astype(kind).tobytes()) for kind, v in kinds),
        *(Form("exact sums as text", ", ".join(map(repr, v.tolist())).encode()) for _, v in kinds),
    ]


def test_a_forged_release_is_echoed_by_its_dead_letter_alone(result: Trial) -> None:
    """As it came, which is public; nothing that the system adds repeats what it held."""
    names = {
        re.sub(r" at \d+", "", place)
        for place, _ in found(result.outputs, canaries.forms_of_text(FORGED))
        # with all loggers on, Kafka's own libraries log what they send and read
        if not place.startswith(f"file {LOUD}")
    }
    parts = {"key", "header odd", "value", "value, fields", "value, decoded"}
    assert names <= {f"{topic}.v1, {part}" for topic in ("releases", "dlq") for part in parts}
    assert {"dlq.v1, key", "dlq.v1, value", "dlq.v1, header odd"} <= names
    assert len(result.stage.dead_letters()) == 14


def test_only_their_owner_can_read_the_clients_own_files(result: Trial) -> None:
    """The database with its log, and the spool; one client was started without any umask."""
    raw = {name: mode for name, mode in result.modes.items() if holds_raw(name)}
    for name in ("lines.db", "lines.db-wal", "lines.db-shm", "pipe.db"):
        assert Path(name) in raw
    assert {path.suffix for path in raw if path.parts[0] == "pipe.input"} == {".spool", ".json"}
    assert {name: oct(mode) for name, mode in raw.items() if mode != 0o600} == {}
    assert result.modes[Path("pipe.input") / result.stage.task.study.name] == 0o700
    # beside them are folders, hashes of first records, and locks with the ledger's id, whose digest
    # is in every release, and the numbers of its releases, which the topics tell
    clients = result.stage.settings.home / "clients"
    others = {path.suffix for path in set(result.modes) - set(raw)}
    assert others == {".lock", ".input", ".sqlite", ""}
    assert result.modes[Path(NAME)] == 0o600
    sent = [record.value for record in result.stage.releases() if record.key == b"lines"]
    ledger, count, study = (clients / "lines.lock").read_bytes().split()
    assert all(identity(ledger) in release for release in sent)
    assert int(count) == len(sent)
    assert study.decode() == result.stage.task.study.name


def holds_raw(path: Path) -> bool:
    """Whether a file of a client holds raw records, or numbers that come from them."""
    return path.suffix in (".spool", ".json") or ".db" in path.suffix


def test_without_privacy_the_same_search_finds_the_record(
    tmp_path: Path, kafka: str, redis_url: str
) -> None:
    """With a slope of one, the gradient of a window of one record is that record, scaled."""
    study = study_text(records=1, partitions=1, privacy=OPEN, stream="max_in_flight_windows = 0")
    study = study.replace('loss = "logistic"', 'loss = "gdwd"\nridge = 1e6')
    stage = Stage(tmp_path, kafka, redis_url, study)
    try:
        source = tmp_path / "data.csv"
        source.write_text(f"{canaries.HEADER}{','.join(RECORD.values())},note\n")
        # a client alone makes no topics but its own
        stage.ensure_topics()
        stage.produced("open", source)
        seen = found(outputs.topics(stage), FORMS)
    finally:
        stage.remove()
    for value in ((HEAT - 50) / 50, LOAD):
        assert ("releases.v1 at 0, value", f"{value} as <d") in seen
        assert ("releases.v1 at 0, value, decoded", f"{value} as text") in seen
    assert not [place for place, _ in seen if not place.startswith("releases.v1 at 0, value")]


LEAKS: dict[str, bytes] = {
    "a message": f"not a number: {TEXT!r}".encode(),
    "in capitals": LABEL.upper().encode(),
    "cut off": b"canary-la",
    "UTF-16": TEXT.encode("utf-16"),
    "hex": LABEL.encode().hex().encode(),
    "base64": base64.b64encode(b"x=" + TEXT.encode() + b";"),
    "a number": json.dumps({"mean": HEAT}).encode(),
    "four digits": b"heat 73.19, load 1",
    "six digits": f"{HEAT:.6g}".encode(),
    "in exponents": f"{BEYOND:.3e}".encode(),
    "a single": repr([np.float32(HEAT)]).encode(),
    "scaled": repr((HEAT - 50) / 50).encode(),
    "a double": b"\x00" + struct.pack("<d", HEAT),
    "a large double": struct.pack(">d", (HEAT - 50) / 50),
    "a negative single": struct.pack("<f", -LOAD),
    "a double in hex": struct.pack(">d", BEYOND).hex().encode(),
    "a double in base64": base64.b64encode(b"1" + struct.pack("<d", HEAT) + b"\x00"),
    "MessagePack": msgspec.msgpack.encode({"x": [HEAT]}),
}


@pytest.mark.parametrize("leak", LEAKS)
def test_a_planted_leak_is_found(tmp_path: Path, leak: str) -> None:
    (tmp_path / "worker.log").write_bytes(b"2026-01-01 [WARNING] " + LEAKS[leak] + b"\n")
    stage: Any = SimpleNamespace(folder=tmp_path)
    seen = outputs.files(stage, apart=set(), local=set(), unnumbered=LOUD)
    assert {place for place, _ in found(seen, FORMS)} == {"file worker.log"}


@pytest.mark.parametrize("said", ['{"n":137}', "n 137.0\n", 'rejected_total{x="1"} 137', "137,2"])
def test_a_planted_count_is_found(said: str) -> None:
    assert counts_found([text("here", said)], {137}) == [("here", 137)]
    for harmless in ("0.137", "1137", "137.25", "t-137af", "01:02.137Z", "x137"):
        assert counts_found([text("here", harmless)], {137}) == []
