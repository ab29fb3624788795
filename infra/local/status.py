"""What a runtime shows of itself: where clients connect, and how each service is."""

from __future__ import annotations

from dataclasses import dataclass

from infra.local.processes import is_alive
from infra.local.services import Service
from infra.local.state import Record


@dataclass(frozen=True)
class Addresses:
    """What clients connect to."""

    kafka: str
    redis: str


@dataclass(frozen=True)
class ServiceStatus:
    """One service as it is now.

    running: Its process exists.
    answers: It takes requests.
    pid, address: None when it does not run.
    """

    name: str
    running: bool
    answers: bool
    pid: int | None
    address: str | None


def look_at(service: Service, record: Record | None) -> ServiceStatus:
    """Look at a service now; there is no record when it was never started."""
    if record is None or record.process is None or not is_alive(record.process):
        return ServiceStatus(service.name, running=False, answers=False, pid=None, address=None)
    return ServiceStatus(
        service.name,
        running=True,
        answers=service.answers(record.port),
        pid=record.process.pid,
        address=service.address(record.port),
    )
