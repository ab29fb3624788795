"""`/healthz` and `/metrics` of a worker, on loopback unless told otherwise.

The metrics come from noised releases and log positions; none names a client.
"""

from __future__ import annotations

import time
from typing import Any

from aiohttp import web

from agents.folding import Folding
from agents.progress import Progress
from agents.publishing import Publishing
from agents.verifying import Verifying


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
        self._runner: web.AppRunner | None = None

    async def start(self, host: str, port: int) -> None:
        """Listen; an address that is taken is an error."""
        site = web.Application()
        site.router.add_get("/healthz", self._healthz)
        site.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(site, access_log=None)
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
        return web.Response(text=self.exposition(time.time()), content_type="text/plain")

    def exposition(self, now: float) -> str:
        """Return the metrics in Prometheus's text format."""
        heads = {n: p.head for n, p in sorted(self._folding.partitions.items())}
        lines = [
            "# TYPE veilstream_state_watermark_offset gauge",
            *(
                f'veilstream_state_watermark_offset{{partition="{n}"}} {head.next_offset}'
                for n, head in heads.items()
            ),
            "# TYPE veilstream_lag_records gauge",
            *(
                f'veilstream_lag_records{{partition="{n}"}} {left}'
                for n, left in sorted(self._progress.left.items())
            ),
            "# TYPE veilstream_releases_applied_total counter",
            f"veilstream_releases_applied_total {self._folding.releases}",
            "# TYPE veilstream_duplicates_dropped_total counter",
            f"veilstream_duplicates_dropped_total {sum(h.duplicates for h in heads.values())}",
            "# TYPE veilstream_dead_letters_total counter",
            f"veilstream_dead_letters_total {sum(h.dead_letters for h in heads.values())}",
            "# TYPE veilstream_releases_forgotten_total counter",
            f"veilstream_releases_forgotten_total {sum(h.forgotten for h in heads.values())}",
        ]
        if (at := self._publishing.published_at) is not None:
            lines += [
                "# TYPE veilstream_estimate_age_seconds gauge",
                f"veilstream_estimate_age_seconds {max(0.0, now - at):.3f}",
            ]
        if (way := self._publishing.way) is not None:
            lines += [
                "# TYPE veilstream_interval_progress gauge",
                f"veilstream_interval_progress {way.share:.4f}",
            ]
            if way.records is not None:
                lines += [
                    "# TYPE veilstream_interval_missing_records gauge",
                    f"veilstream_interval_missing_records {way.records}",
                ]
        if self._verifying is not None:
            lines += self._verifying.metrics(now)
        return "\n".join(lines) + "\n"
