"""A plugin of pytest for `benchmarks.mutants`: which tests pass which places, in how many seconds.

Places call `passed` with their numbers. Tests that need a server or a browser are left out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

SERVERS = {"kafka", "redis_url", "local_runtime", "frail_runtime", "browser"}
_current: set[int] = set()
_seen: dict[str, tuple[float, list[int]]] = {}


def passed(number: int) -> bool:
    """Take down that a place is passed, and go on."""
    _current.add(number)
    return True


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    served = [item for item in items if SERVERS & {*getattr(item, "fixturenames", ())}]
    config.hook.pytest_deselected(items=served)
    items[:] = [item for item in items if item not in served]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    _current.clear()
    return (yield)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    # a controller of other processes has no places
    if report.when == "call" and report.passed and _current:
        _seen[report.nodeid] = (report.duration, sorted(_current))


def pytest_sessionfinish() -> None:
    (Path(os.environ["MUTANTS_SEEN"]) / f"{os.getpid()}.json").write_text(json.dumps(_seen))
