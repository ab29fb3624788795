"""`/metrics` of a client, for its own machine: what stands in its ledger, read when somebody asks.

The numbers of records are not private: they are for whoever runs the client, and so on loopback.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import prometheus_client as prometheus
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from infra.requests import ELSEWHERE, names_loopback
from pipeline.errors import ConfigError
from pipeline.release.task import Task
from producers.report import standing

HOST = "127.0.0.1"


class ClientMetrics(Collector):
    """Reads the client's database whenever somebody asks.

    path: Of the database; task: of which study.
    """

    def __init__(self, path: Path, task: Task) -> None:
        self._path, self._task = path, task

    def collect(self) -> Iterator[Metric]:
        """Yield every family; those without a value have no sample."""
        now = standing(self._path, self._task)
        for name, said in (
            ("limit", "Epsilon that all studies together may spend on this source."),
            ("spent", "Epsilon that studies have spent on this source, as its limit holds it."),
            ("remaining", "Epsilon that is left of the limit."),
        ):
            family = GaugeMetricFamily(f"veilstream_client_epsilon_{name}", said)
            value = (now.get(name) or {}).get("epsilon")
            if value is not None:
                family.add_metric([], value)
            yield family
        for name, said in (
            ("releases", "Releases of this study that were stored with their cost."),
            ("records_used", "Records that entered a release."),
            ("records_set_aside", "Records that could not be used."),
            ("values_clipped", "Values outside their public range, cut to it."),
        ):
            yield CounterMetricFamily(f"veilstream_client_{name}", said, value=now.get(name, 0))
        unsent = now.get("releases_unsent", 0)
        yield GaugeMetricFamily(
            "veilstream_client_releases_unsent", "Stored releases that Kafka has not.", value=unsent
        )


@contextmanager
def serving(port: int, path: Path, task: Task) -> Iterator[None]:
    """Serve `/metrics` on loopback while something runs.

    ConfigError if the port is taken.
    """
    registry = CollectorRegistry()
    # a series of its own for the time at which each other one began: nobody asks for it
    prometheus.disable_created_metrics()  # type: ignore[no-untyped-call]
    try:
        server, thread = prometheus.start_http_server(port, addr=HOST, registry=registry)
    except OSError as error:
        raise ConfigError(
            f"--metrics-port: {HOST}:{port} cannot be had ({error.strerror}); name a free port"
        ) from error
    app: Any = server.get_app()

    def by_own_name(asked: dict[str, Any], begin: Any) -> Any:
        if names_loopback(asked.get("HTTP_HOST", "")):
            return app(asked, begin)
        begin("403 Forbidden", [("Content-Type", "text/plain")])
        return [ELSEWHERE.encode()]

    server.set_app(by_own_name)
    # from here on there is something to read
    registry.register(ClientMetrics(path, task))
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5.0)
