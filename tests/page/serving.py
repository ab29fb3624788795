"""A page that is served from a thread of the tests' own process."""

from __future__ import annotations

import asyncio
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pipeline.page.content import Watched
from pipeline.page.server import PageServer
from tests.stage import PATIENCE


@contextmanager
def served(watched: Watched, token: str = "", host: str = "127.0.0.1") -> Iterator[int]:
    """Yield the port of a page; it ends with the context."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    server = PageServer(watched, token)

    def here(waiting):  # type: ignore[no-untyped-def]
        return asyncio.run_coroutine_threadsafe(waiting, loop).result(PATIENCE)

    try:
        yield here(server.start(host, 0))
    finally:
        here(server.stop())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(5)
        loop.close()


class _Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        return None


def asked(
    url: str, headers: Mapping[str, str] = {}, method: str = "GET"
) -> tuple[int, Mapping[str, str], str]:
    """Return status, headers and text of an answer; a redirection is one."""
    request = urllib.request.Request(url, headers=dict(headers), method=method)  # noqa: S310
    try:
        answer = urllib.request.build_opener(_Stay).open(request, timeout=PATIENCE)
    except urllib.error.HTTPError as error:
        answer = error
    with answer:
        return answer.status, answer.headers, answer.read().decode()
