"""The reference of metrics, alerts and errors, from the program that has them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from prometheus_client.registry import CollectorRegistry

from agents.folding import Meters
from agents.metrics import Health
from infra import deploy
from pipeline import errors as kinds
from producers.metrics import ClientMetrics


def metrics() -> str:
    """Return every family of a worker's page and of a client's."""
    meters = Meters()
    Health(
        SimpleNamespace(meters=meters, partitions={}, releases=0),  # type: ignore[arg-type]
        SimpleNamespace(message=None),  # type: ignore[arg-type]
        SimpleNamespace(left={}),  # type: ignore[arg-type]
    )
    lines = ["## Of a worker: `worker --health-port`", ""]
    lines += _families(meters.registry)
    own = CollectorRegistry()
    own.register(ClientMetrics(Path("no-such-client"), "any"))
    lines += ["## Of a client: `produce --metrics-port`", "", *_families(own)]
    return "\n".join(lines)


def _families(registry: Any) -> Iterable[str]:
    yield from ("| name | kind | meaning |", "|---|---|---|")
    for family in sorted(registry.collect(), key=lambda one: one.name):
        name = family.name + ("_total" if family.type == "counter" else "")
        yield f"| `{name}` | {family.type} | {family.documentation} |"
    yield ""


def alerts() -> str:
    """Return every alert rule with what to do."""
    rows = [
        f"| `{rule['alert']}` | {rule['labels']['severity']} | {rule['annotations']['summary']} "
        f"| {rule['annotations']['action']} |"
        for rule in deploy.alerts()["groups"][0]["rules"]
    ]
    return "\n".join(["| alert | severity | says | do |", "|---|---|---|---|", *rows])


def errors() -> str:
    """Return every class of error with its exit code."""
    found = {
        kind.__name__: kind
        for kind in vars(kinds).values()
        if isinstance(kind, type) and issubclass(kind, kinds.VeilstreamError)
    }
    rows = [
        f"| {kind.exit_code} | `{name}` | {(kind.__doc__ or '').splitlines()[0]} |"
        for name, kind in sorted(found.items(), key=lambda pair: pair[1].exit_code)
        if kind is not kinds.VeilstreamError
    ]
    return "\n".join(["| code | class | means |", "|---|---|---|", *rows])
