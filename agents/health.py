"""`/healthz` and `/metrics` of a worker, on loopback unless told otherwise."""

from __future__ import annotations

import time
from typing import Any

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST as TEXT_FORMAT

from agents.exposition import Exposition
from agents.folding import Folding
from agents.progress import Progress
from agents.publishing import Publishing
from agents.verifying import Verifying
from infra import requests


class Health:
    """The worker's small web server."""

    def __init__(
        self,
        folding: Folding,
        publishing: Publishing,
        progress: Progress,
        verifying: Verifying | None = None,
    ) -> None:
        self._folding, self._publishing, self._progress = folding, publishing, progress
        self._verifying = verifying
        self._exposition = Exposition(folding, publishing, progress, verifying)
        self._runner: web.AppRunner | None = None

    async def start(self, host: str, port: int) -> None:
        """Listen; an address that is taken is an error."""
        site = web.Application(middlewares=[requests.by_own_name])
        site.router.add_get("/healthz", self._healthz)
        site.router.add_get("/metrics", self._metrics)
        self._runner = requests.runner(site)
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port).start()

    async def stop(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _healthz(self, _request: web.Request) -> web.Response:
        """Answer 200 while the worker gets on, and 503 with a status and reasons while not."""
        facts = self.facts()
        return web.json_response(facts, status=200 if facts["status"] == "ok" else 503)

    def facts(self) -> dict[str, Any]:
        """Return what `/healthz` answers.

        "starting" before partitions are assigned; "stalled" when something is left to fold, or an
        estimate is due, and nothing has come of it for `agents.progress.STALLED_SECONDS`.
        """
        reasons: list[str] = []
        status = "starting"
        if self._folding.partitions:
            reasons = self._progress.faults() + self._publishing.faults()
            status = "stalled" if reasons else "ok"
        facts = {"status": status, "publishes": self._publishing.owner, "reasons": reasons}
        if self._verifying is not None:
            facts["verified"] = self._verifying.facts(time.time())
        return facts

    async def _metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=self._exposition.text(), headers={"Content-Type": TEXT_FORMAT})
