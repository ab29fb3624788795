"""The page over HTTP: who may read it, what a browser may load, and that it only reads."""

import asyncio
import hashlib
import re
import socket
from importlib.resources import files

import pytest

from infra.requests import is_loopback
from pipeline.errors import ConfigError
from pipeline.page.content import Watched
from pipeline.page.server import POLICY, PageServer
from tests.page.serving import asked, served
from tests.page.shown import TASK, Stream

TOKEN = "t" * 20
ASSETS = files("pipeline.page") / "assets"


@pytest.fixture
def watched():
    made = Watched(TASK.study)
    made.estimate(Stream().next(), live=True)
    return made


def test_all_files_come_with_a_policy_that_forbids_other_addresses(watched):
    with served(watched) as port:
        for path in (
            "",
            "page.js",
            "page.css",
            "uPlot.iife.min.js",
            "uPlot.LICENSE.txt",
            "estimates.csv",
        ):
            status, headers, text = asked(f"http://127.0.0.1:{port}/{path}")
            assert status == 200
            assert text
            assert headers["Content-Security-Policy"] == POLICY
            assert headers["X-Content-Type-Options"] == "nosniff"
    assert "default-src 'none'" in POLICY
    assert "http" not in POLICY


def test_no_file_names_an_address_outside():
    for path in ASSETS.iterdir():
        if not path.name.startswith("uPlot."):
            assert not re.search(r"https?:|//[a-z]+\.|@import", path.read_text()), path.name


def test_the_copied_library_is_the_one_that_is_listed():
    listed = [line.split() for line in (ASSETS / "assets.sha256").read_text().splitlines()]
    assert {name for _, name in listed} == {
        p.name for p in ASSETS.iterdir() if p.name.startswith("uPlot")
    }
    for digest, name in listed:
        assert hashlib.sha256((ASSETS / name).read_bytes()).hexdigest() == digest


def test_a_page_only_reads(watched):
    with served(watched) as port:
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            status, headers, _ = asked(f"http://127.0.0.1:{port}/", method=method)
            assert status == 405
            assert headers["Content-Security-Policy"] == POLICY


@pytest.mark.parametrize(
    "path", ["nothing", "../server.py", "..%2Fserver.py", "assets.sha256", "etc/passwd"]
)
def test_nothing_else_is_served(watched, path):
    with served(watched) as port:
        assert asked(f"http://127.0.0.1:{port}/{path}")[0] == 404


def test_a_page_elsewhere_cannot_have_its_name_point_here(watched):
    with served(watched) as port:
        status, _, text = asked(f"http://127.0.0.1:{port}/events", {"Host": "example.com"})
        assert (status, "machine" in text) == (403, True)
        assert asked(f"http://127.0.0.1:{port}/", {"Host": f"localhost:{port}"})[0] == 200


def test_a_token_is_brought_once_and_kept_from_the_address(watched):
    with served(watched, TOKEN) as port:
        url = f"http://127.0.0.1:{port}"
        for wrong in (
            f"{url}/",
            f"{url}/events",
            f"{url}/?token=wrong",
            f"{url}/?token=",
            f"{url}/estimates.csv",
        ):
            status, _, text = asked(wrong)
            assert status == 401
            assert "veilstream page" in text
            assert TOKEN not in text
        assert asked(f"{url}/", {"Cookie": "veilstream-page=wrong"})[0] == 401
        status, headers, _ = asked(f"{url}/?token={TOKEN}")
        assert (status, headers["Location"]) == (303, "/")
        cookie = headers["Set-Cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert asked(f"{url}/", {"Cookie": cookie.split(";")[0]})[0] == 200


@pytest.mark.parametrize("path", ["//evil.example/", "///evil.example", "/%0d%0aX-A: b", "/\\evil"])
def test_a_token_leads_to_this_machine_alone(watched, path):
    with served(watched, TOKEN) as port:
        lines = raw(port, f"GET {path.replace(' ', '')}?token={TOKEN} HTTP/1.1", "Host: x")
        assert " 303 " in lines[0]
        (there,) = [line.split(": ")[1] for line in lines if line.startswith("Location")]
        assert re.match(r"/[^/\\]", there)
        assert not any(line.startswith("X-A") for line in lines)


@pytest.mark.parametrize(
    ("token", "status", "header"),
    [
        (TOKEN, 401, "Cookie: veilstream-page=CANARY\xff\xfe"),
        (TOKEN, 400, "Transfer-Encoding: chunked\r\n\r\nCANARY"),
        ("", 400, "X-CANARY: 1"),
    ],
)
def test_of_strange_requests_the_log_has_no_byte(watched, caplog, capfd, token, status, header):
    with served(watched, token) as port:
        host = [] if status == 400 and "X-" in header else ["Host: 127.0.0.1"]
        lines = raw(port, "GET / HTTP/1.1", *host, header)
    assert f" {status} " in lines[0]
    said = caplog.text + capfd.readouterr().err
    assert "CANARY" not in said
    assert "Traceback" not in said


def raw(port, *head):
    """Return the lines that answer a request, of whatever bytes it has."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as link:
        text = "\r\n".join([*head, "Connection: close", "", ""])
        link.sendall(text.encode("latin-1"))
        return link.makefile("rb").read().decode().split("\r\n")


def test_a_port_that_is_taken_is_named():
    with served(Watched(TASK.study)) as port, pytest.raises(ConfigError, match=f"{port}.*--port"):
        asyncio.run(PageServer(Watched(TASK.study)).start("127.0.0.1", port))


@pytest.mark.parametrize(
    ("host", "so"),
    [
        ("127.0.0.1", True),
        ("127.8.0.1", True),
        ("::1", True),
        ("localhost", True),
        ("192.0.2.1", False),
        ("127.0.0.1.example.com", False),
        ("", False),
    ],
)
def test_what_is_loopback(host, so):
    assert is_loopback(host) is so
