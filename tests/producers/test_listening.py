"""Records that are posted: stored before the answer, each request once, whoever may."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infra.local.processes import HOST
from pipeline.errors import ConfigError, DataError, LocalStoreError
from pipeline.settings import Settings
from producers.sources import kind_of, known_as, open_source
from producers.sources.base import Slot
from producers.sources.push import BODY, FORGET, Inbox, Push, Pushed
from producers.sources.text import RECORD_LIMIT
from tests.compliance.sources import CANARY, CHECKS, Case
from tests.secured import Authority

#: What senders must show.
TOKEN = "-".join(["right", "one"])
BODY_OF_FIVE = f'{{"x": 1}}\n{{"x": {CANARY}}}\n\n["{CANARY}"]\r\n{{"x": 2}}\n{{"x": 3}}'.encode()


def listening(
    folder: Path, position: bytes | None = None, address: str = f"{HOST}:0", *,
    skip_lost: bool = False, **settings: str,
) -> Pushed:  # fmt: skip
    found = open_source(
        f"listen://{address}", position, folder=folder, settings=Settings(**settings),
        skip_lost=skip_lost,
    )  # fmt: skip
    assert isinstance(found, Pushed)
    return found


def port_of(source: Pushed) -> int:
    return source._feed.port  # type: ignore[attr-defined, no-any-return]


def post(
    port: int, body: bytes, key: str | None = "a", token: str = "", context: Any = None,
    more: dict[str, str] | None = None,
) -> tuple[int, Any]:  # fmt: skip
    """Return the status and the answer to one request."""
    if context is None:
        link = http.client.HTTPConnection(HOST, port, timeout=20)
    else:
        link = http.client.HTTPSConnection(HOST, port, timeout=20, context=context)
    headers = {**(more or {}), **({} if key is None else {"Idempotency-Key": key})}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    try:
        link.request("POST", "/", body, headers)
        answer = link.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        link.close()


class Until:
    """A source that ends when what was pushed so far has been read."""

    def __init__(self, source: Pushed, last: int) -> None:
        self._source, self._last = source, last

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    @property
    def ended(self) -> bool:
        return self._source._at >= self._last


@pytest.mark.parametrize("check", CHECKS, ids=[check.__name__ for check in CHECKS])
def test_what_is_posted_keeps_what_every_source_must(
    check: Callable[[Case], None], tmp_path: Path
) -> None:
    source = listening(tmp_path)
    assert post(port_of(source), BODY_OF_FIVE) == (200, {"records": 5, "new": True})
    source.close()
    check(Case(lambda position: Until(listening(tmp_path, position), 5), bad=2))  # type: ignore[arg-type]


def drain(source: Pushed) -> list[Slot]:
    found: list[Slot] = []
    while new := source.read(100, 0.1):
        found += new
    return found


def test_a_repeated_request_is_stored_once_even_by_another_run(tmp_path: Path) -> None:
    source = listening(tmp_path)
    assert post(port_of(source), b'{"x": 1}')[1] == {"records": 1, "new": True}
    assert post(port_of(source), b'{"x": 1}')[1] == {"records": 1, "new": False}
    assert post(port_of(source), b'{"x": 1}', "b")[1] == {"records": 1, "new": True}
    assert post(port_of(source), b'{"x": 2}', "b")[1] == {"records": 1, "new": True}
    position = drain(source)[1].position
    source.close()
    source = listening(tmp_path, position)
    assert post(port_of(source), b'{"x": 1}')[1] == {"records": 1, "new": False}
    assert [slot.record for slot in drain(source)] == [{"x": 2}]
    source.close()


def test_what_is_posted_lies_in_a_folder_of_its_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "not" / "there"
    listening(folder).close()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}


#: What a request has behind its line and key, and the status of its answer.
UNREADABLE = [
    (400, b'Transfer-Encoding: chunked\r\n\r\n{"name": "CANARY"}\r\n'),
    (400, b"Content-Encoding: gzip\r\nContent-Length: 6\r\n\r\nCANARY"),
    (400, b"Content-Encoding: gzip\r\nContent-Length: 8\r\n\r\n\x1f\x8bCANARY"),
    (400, b"Idempotency-Key: CANARY\xff\r\nContent-Length: 2\r\n\r\n{}"),
    (401, b"Authorization: Bearer CANARY\xff\r\nContent-Length: 2\r\n\r\n{}"),
]


@pytest.mark.parametrize(("status", "rest"), UNREADABLE)
def test_of_a_request_that_cannot_be_read_the_log_has_no_byte(
    status: int, rest: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    source = listening(tmp_path, listen_token=TOKEN if status == 401 else "")
    key = b"" if b"Idempotency" in rest else b"Idempotency-Key: a\r\n"
    with socket.create_connection((HOST, port_of(source)), timeout=20) as link:
        link.sendall(b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n" + key + rest)
        assert int(link.makefile("rb").readline().split()[1]) == status
    assert source.read(5, 0.0) == []
    source.close()
    said = caplog.text + capfd.readouterr().err
    assert "CANARY" not in said
    assert "Traceback" not in said
    # what no handler has answered is said, by its class alone
    assert ("BadHttpMessage" in said) == (b"chunked" in rest)


@pytest.mark.parametrize(
    "more",
    [
        {"Host": "rebound.example"},
        {"Host": ""},
        {"Host": "127.0.0.1.rebound.example:80"},
        {"Origin": "http://rebound.example"},
        {"Origin": "null"},
    ],
)
def test_without_a_token_no_web_page_can_post(more: dict[str, str], tmp_path: Path) -> None:
    source = listening(tmp_path)
    assert post(port_of(source), b'{"x": 1}', more=more)[0] == 403
    assert source.read(5, 0.0) == []
    assert post(port_of(source), b'{"x": 1}', more={"Host": "localhost:80"})[0] == 200
    source.close()
    source = listening(tmp_path, listen_token=TOKEN)
    assert post(port_of(source), b'{"x": 1}', "b", token=TOKEN, more=more)[0] == 200
    source.close()


@pytest.mark.parametrize(
    ("status", "request_of"),
    [
        (401, {"token": "wrong"}),
        (401, {"token": ""}),
        (400, {"key": None}),
        (400, {"key": "k" * 201}),
        (400, {"key": "a\tb"}),
        (413, {"body": b" " * (BODY + 1)}),
    ],
)
def test_a_request_that_is_refused_stores_nothing(
    status: int, request_of: dict[str, Any], tmp_path: Path
) -> None:
    source = listening(tmp_path, listen_token=TOKEN)
    asked = {"body": b'{"x": 1}', "token": TOKEN, **request_of}
    try:
        assert post(port_of(source), **asked)[0] == status
    except (ValueError, OSError):
        # of a body that is too long, the answer is no JSON, or comes before all is sent
        assert status == 413
    assert source.read(5, 0.0) == []
    source.close()


def test_a_poisoned_record_is_one_empty_slot(tmp_path: Path) -> None:
    source = listening(tmp_path)
    big = b'{"x": "' + b"a" * (10 * RECORD_LIMIT) + b'"}'
    assert post(port_of(source), b'{"x": 1}\n' + big + b'\n{"x": 2}')[1]["records"] == 3
    slots = drain(source)
    assert [slot.record for slot in slots] == [{"x": 1}, None, {"x": 2}]
    assert slots[1].fault == "record 2: the record is too long"
    source.close()


def test_a_request_that_breaks_off_stores_nothing(tmp_path: Path) -> None:
    source = listening(tmp_path)
    with socket.create_connection((HOST, port_of(source)), timeout=20) as link:
        head = "POST / HTTP/1.1\r\nHost: x\r\nIdempotency-Key: a\r\nContent-Length: 99\r\n\r\n"
        link.sendall(head.encode() + b'{"x": 1}\n')
    assert source.read(5, 0.3) == []
    source.close()


def test_two_cannot_listen_on_one_port(tmp_path: Path) -> None:
    source = listening(tmp_path / "a")
    with pytest.raises(DataError, match=r"cannot be listened on .* the operator must end"):
        listening(tmp_path / "b", address=f"{HOST}:{port_of(source)}")
    source.close()


def test_outside_loopback_it_wants_a_token_and_tls(tmp_path: Path) -> None:
    for settings in ({}, {"listen_token": "t"}, {"listen_certificate": "c"}):
        with pytest.raises(ConfigError, match=r"VEILSTREAM_LISTEN_(TOKEN|CERTIFICATE)"):
            listening(tmp_path, address="0.0.0.0:0", **settings)
    Authority("throwaway").issue(tmp_path / "server.pem", HOST)
    pem = str(tmp_path / "server.pem")
    source = listening(
        tmp_path,
        address="0.0.0.0:0",
        listen_token=TOKEN,
        listen_certificate=pem,
    )
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    assert post(port_of(source), b'{"x": 1}', token=TOKEN, context=context)[0] == 200
    assert post(port_of(source), b'{"x": 1}', context=context)[0] == 401
    source.close()


@pytest.mark.parametrize("address", ["", "8080", "example.org:80", "127.0.0.1:99999"])
def test_what_is_no_address_is_refused(address: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"--listen: .* such as 127\.0\.0\.1:8080"):
        listening(tmp_path, address=address)


def test_what_is_posted_is_known_as_it_comes() -> None:
    spec = "listen://127.0.0.1:80"
    assert (known_as(spec), kind_of(spec)) == (("http", None, ""), "input")


def test_an_inbox_forgets_what_was_released_and_knows_that_it_did(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path)
    inbox.put([Push([b"1"] * (FORGET + 2), "a", again=True)])
    inbox.forget(FORGET + 1)
    assert inbox.read(0, 5, 0.0) == [(FORGET + 2, b"1")]
    inbox.forget(FORGET + 2)
    inbox.close()
    inbox = Inbox(tmp_path)
    inbox.begin(FORGET + 1)
    with pytest.raises(DataError, match="no position behind them"):
        inbox.begin(None)
    assert inbox.put([Push([b"1"] * (FORGET + 2), "a", again=True)]) == [False]
    inbox.close()
    mode = (tmp_path / "inbox.db").stat().st_mode
    assert mode & 0o077 == 0


def test_an_inbox_that_is_gone_is_told_and_gives_no_number_twice(tmp_path: Path) -> None:
    source = listening(tmp_path / "a")
    post(port_of(source), b'{"x": 1}\n{"x": 2}')
    position = drain(source)[-1].position
    source.close()
    with pytest.raises(DataError, match=r"read record 2 .* held 0: it is gone.* --skip-lost"):
        listening(tmp_path / "b", position)
    source = listening(tmp_path / "b", position, skip_lost=True)
    assert post(port_of(source), b'{"x": 3}')[1]["new"]
    assert [(slot.record, slot.line) for slot in drain(source)] == [({"x": 3}, 3)]
    source.close()
    listening(tmp_path / "b", position).close()


def test_an_inbox_is_of_one_source(tmp_path: Path) -> None:
    listening(tmp_path).close()
    with pytest.raises(DataError, match="takes what comes by http"):
        open_source("mqtt://127.0.0.1:1/a", None, folder=tmp_path)


def test_a_packets_number_is_of_the_last_message_alone(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path)
    for content in (b"1", b"2", b"1"):
        # each may be the first that arrives of its message
        assert inbox.put([Push([content], "packet 1", again=True, reused=True)]) == [True]
    assert inbox.put([Push([b"1"], "packet 1", again=True, reused=True)]) == [False]
    inbox.close()


def test_a_full_inbox_asks_senders_to_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("producers.sources.push.ROOM", 8)
    source = listening(tmp_path)
    assert post(port_of(source), b'{"x": 1}')[0] == 200
    assert post(port_of(source), b'{"x": 2}', "b")[0] == 503
    assert len(drain(source)) == 1
    assert post(port_of(source), b'{"x": 2}', "b")[0] == 200
    source.close()


def test_an_inbox_that_cannot_be_kept_is_told_and_answered(tmp_path: Path) -> None:
    source = listening(tmp_path)
    source._inbox._db.execute("DROP TABLE pushes")
    assert post(port_of(source), b'{"x": 1}')[0] == 503
    with pytest.raises(LocalStoreError, match="the operator must give"):
        source.read(1, 0.0)
    source.close()


@pytest.mark.parametrize(
    ("body", "records"),
    [
        (b'[{"x": 1}, {"x": 2}]', [{"x": 1}, {"x": 2}]),
        (json.dumps([{"x": 1}, {"x": 2}], indent=1).encode(), [{"x": 1}, {"x": 2}]),
        (json.dumps({"x": 1, "y": [2]}, indent=1).encode(), [{"x": 1, "y": [2]}]),
        (b'[{"x": 1}, 2]', [{"x": 1}, None]),
        (b'[1]\n{"x": 2}\n', [None, {"x": 2}]),
        (b'{"x": 1}\nbad\n', [{"x": 1}, None]),
        (b"[]", None),
        (b"[1, 2]", None),
        (b'[{"x": 1},\n{"x": 2}\n', None),
        (b'{\n"x": 1\n}\n{\n"x": 2\n}\n', None),
        (b"x,y\n1,2\n", None),
    ],
)
def test_arrays_and_objects_of_several_lines_are_read_or_refused_whole(
    body: bytes, records: list[object] | None, tmp_path: Path
) -> None:
    source = listening(tmp_path)
    status, answer = post(port_of(source), body)
    assert [slot.record for slot in drain(source)] == (records or [])
    assert status == (400 if records is None else 200)
    assert "an array of objects" in answer["error"] if records is None else answer["new"]
    source.close()
