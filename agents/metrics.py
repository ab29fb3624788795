"""`/healthz` and `/metrics` of a worker: counts and times in Prometheus's text format.

They come from noised releases, log positions and estimates, which are public; none names a client.
Both answer on loopback unless told otherwise.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from datetime import datetime
from functools import partial
from typing import Any

import prometheus_client as prometheus
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST as TEXT_FORMAT
from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from agents.folding import Folding, Progress
from agents.history import Verifying
from agents.publishing import Publishing
from infra import requests
from pipeline.messages.estimate import EstimateMessage

STATUSES = ("empty", "starting", "warming", "ready")
Samples = Iterable[tuple[str, float]]


class Health(Collector):
    """The worker's small web server; it reads the worker whenever somebody asks."""

    def __init__(
        self, folding: Folding, publishing: Publishing, progress: Progress,
        verifying: Verifying | None = None,
    ) -> None:  # fmt: skip
        self._folding, self._publishing, self._progress = folding, publishing, progress
        self._verifying = verifying
        folding.meters.registry.register(self)

    async def start(self, host: str, port: int) -> None:
        """Listen until the process ends; an address that is taken is an error."""
        site = web.Application(middlewares=[requests.by_own_name])
        site.router.add_get("/healthz", self._healthz)
        site.router.add_get("/metrics", self._metrics)
        runner = requests.runner(site)
        await runner.setup()
        await web.TCPSite(runner, host, port).start()

    async def _healthz(self, _request: web.Request) -> web.Response:
        """Answer 200 while the worker gets on, and 503 with a status and reasons while not."""
        facts = self.facts()
        return web.json_response(facts, status=200 if facts["status"] == "ok" else 503)

    def facts(self) -> dict[str, Any]:
        """Return what `/healthz` answers.

        "starting" before partitions are assigned; "stalled" when something is left to fold, or an
        estimate is due, and nothing has come of it for `agents.folding.STALLED_SECONDS`.
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
        return web.Response(body=self.text(), headers={"Content-Type": TEXT_FORMAT})

    def text(self) -> bytes:
        """Return all metrics, as `/metrics` does."""
        return generate_latest(self._folding.meters.registry)

    def collect(self) -> Iterator[Metric]:
        """Yield every family, also those without a value yet: dashboards find their names."""
        heads = {str(n): p.head for n, p in sorted(self._folding.partitions.items())}
        of = "partition"
        yield _gauge(
            "state_watermark_offset", "Offset up to which the log is folded and stored.", of,
            ((n, head.next_offset) for n, head in heads.items()),
        )  # fmt: skip
        yield _gauge(
            "lag_records", "Records in the log that are not yet folded, checked every 5 s.", of,
            ((str(n), left) for n, left in sorted(self._progress.left.items())),
        )  # fmt: skip
        yield _counter(
            "releases_folded", "Records of the log that have entered the sums, since its start.",
            of, ((n, head.folded) for n, head in heads.items()),
        )  # fmt: skip
        yield _counter(
            "releases_applied", "Releases added to sums since this worker started.",
            value=self._folding.releases,
        )  # fmt: skip
        for name, field, said in (
            ("duplicates_dropped", "duplicates", "Repeated releases, since the start of the log."),
            ("dead_letters", "dead_letters", "Records set aside, since the start of the log."),
            ("releases_forgotten", "forgotten", "Releases too old to count, since its start."),
        ):
            yield _counter(name, said, value=sum(getattr(h, field) for h in heads.values()))
        missing = sum(head.missing for head in heads.values())
        yield _gauge("releases_missing", "Releases that are known to be missing.", value=missing)
        clients = sum(head.clients for head in heads.values())
        yield _gauge("clients", "Clients that have released, of these partitions.", value=clients)
        yield from self._of_the_estimate(self._publishing.message)
        yield from self._of_the_verification()

    def _of_the_estimate(self, message: EstimateMessage | None) -> Iterator[Metric]:
        """Yield what the worker that publishes has to say."""
        rows = [] if message is None else message.coefficients
        way = None if message is None else message.progress
        age = None
        if message is not None:
            age = max(0.0, time.time() - datetime.fromisoformat(message.published_at).timestamp())
        yield _gauge("estimate_age_seconds", "Time since the last successful estimate.", value=age)
        yield _gauge(
            "estimate_status", "1 for the status of the last estimate, 0 for the others.",
            "status",
            [] if message is None else ((s, float(s == message.status)) for s in STATUSES),
        )  # fmt: skip
        yield _gauge(
            "estimate_value", "Each coefficient of the last estimate.", "coefficient",
            ((row.name, row.value) for row in rows),
        )  # fmt: skip
        yield _gauge(
            "interval_width", "Length of each interval of the last estimate.", "coefficient",
            ((row.name, row.interval[1] - row.interval[0]) for row in rows if row.interval),
        )  # fmt: skip
        for name, field, said in (
            ("interval_progress", "share",
             "Share of the way to an interval for every coefficient."),
            ("interval_missing_records", "missing_records",
             "About how many record slots are missing for that."),
            ("interval_seconds", "seconds", "About how long until then, at the present rate."),
            ("records_per_second", "records_per_second",
             "Record slots that came each second, over the last minutes."),
        ):  # fmt: skip
            yield _gauge(name, said, value=None if way is None else getattr(way, field))

    def _of_the_verification(self) -> Iterator[Metric]:
        beside = self._verifying
        at = None if beside is None else beside.verified_at
        ranges = {} if beside is None else beside.ranges
        yield _gauge(
            "verified_age_seconds", "Time since a second fold of the log was equal bit by bit.",
            value=None if at is None else max(0.0, time.time() - at),
        )  # fmt: skip
        yield _gauge(
            "verified_offset", "How far that fold was equal.", "partition",
            ((str(n), end) for n, (_, end) in sorted(ranges.items())),
        )  # fmt: skip


def _family(
    kind: type[GaugeMetricFamily] | type[CounterMetricFamily], name: str, said: str,
    label: str = "", samples: Samples = (), *, value: float | None = None,
) -> Metric:  # fmt: skip
    family = kind(f"veilstream_{name}", said, labels=[label] if label else [])
    for of, number in samples:
        family.add_metric([of], number)
    if value is not None:
        family.add_metric([], value)
    return family


_gauge, _counter = partial(_family, GaugeMetricFamily), partial(_family, CounterMetricFamily)
# the time at which each series began is a series of its own otherwise, and nobody asks for it
prometheus.disable_created_metrics()  # type: ignore[no-untyped-call]
