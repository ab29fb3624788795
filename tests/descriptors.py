"""A process of tests holds few files and sockets open: some systems allow but a thousand."""

import gc
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

#: More than any test needs at a time, and far below the thousand.
MANY = 150
OPEN = "/proc/self/fd"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Iterator[None]:
    """Collect what is not used any more, and fail a test if many stay open behind it."""
    yield
    if not os.path.isdir(OPEN) or len(os.listdir(OPEN)) < MANY:
        return
    # clients of Kafka and MQTT hold themselves, and their sockets, until somebody looks
    gc.collect()
    if len(os.listdir(OPEN)) >= MANY:
        held = Counter(_kind(number) for number in os.listdir(OPEN)).most_common(5)
        pytest.fail(f"{MANY} files are open behind this test, most of them {held}", pytrace=False)


def _kind(number: str) -> str:
    try:
        name = os.readlink(f"{OPEN}/{number}")
    except FileNotFoundError:
        return "closed meanwhile"
    return name.partition(":[")[0] if ":[" in name else Path(name).name
