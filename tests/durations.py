"""A test that takes long has a reason in the code: `@pytest.mark.takes("...")`, or `slow`.

What counts is processor time, of the tests' own process and of children that it has waited for: a
machine that is busy with something else does not change it much. Those above `LONG` seconds without
a reason are listed at the end of a run; one above `FAR_TOO_LONG` fails, on a machine that is as
quick as `STEPS_SECONDS` says, and above as much more as it is slower.

One that waits for what never comes fails after `LONGEST` seconds of the clock, and the run goes on.
"""

from __future__ import annotations

import resource
import signal
import time
from collections.abc import Iterator
from types import FrameType

import pytest

LONG, FAR_TOO_LONG = 2.0, 12.0
#: Longer than any test waits by itself, on a machine that is busy with others.
LONGEST = 400.0
#: Steps of a loop in Python, and how long they take where the limits above were set.
STEPS, STEPS_SECONDS = 300_000, 0.02
#: Under which a report carries its seconds, from a process of the run to the one that prints.
PROPERTY = "processor seconds without a reason"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Measure a test, and fail it if it takes far too long."""
    began = processor_seconds()
    signal.signal(signal.SIGALRM, _waited_for_nothing)
    signal.setitimer(signal.ITIMER_REAL, 0.0 if item.get_closest_marker("slow") else LONGEST)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
    seconds = processor_seconds() - began
    if seconds <= LONG or has_reason(item):
        return
    item.user_properties.append((PROPERTY, round(seconds, 1)))
    if seconds > FAR_TOO_LONG and seconds > FAR_TOO_LONG * slowness():
        pytest.fail(
            f"{seconds:.0f} s of processor time: make the test smaller, or say "
            "why it must take so long: @pytest.mark.takes(reason)",
            pytrace=False,
        )


def _waited_for_nothing(number: int, frame: FrameType | None) -> None:
    del number, frame
    pytest.fail(f"not done within {LONGEST:g} s: it waits for what does not come")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List tests that take long without a reason."""
    found = [
        (seconds, report.nodeid)
        for outcome in ("passed", "failed")
        for report in terminalreporter.getreports(outcome)
        if report.when == "call"
        for name, seconds in report.user_properties
        if name == PROPERTY
    ]
    if found:
        terminalreporter.section(f"over {LONG:g} s of processor time, and no reason in the code")
        for seconds, test in sorted(found, reverse=True):
            terminalreporter.write_line(f"{seconds:6.1f} s  {test}")


def has_reason(item: pytest.Item) -> bool:
    """Whether a test says why it takes long."""
    if item.get_closest_marker("slow"):
        return True
    mark = item.get_closest_marker("takes")
    return mark is not None and bool(mark.args and str(mark.args[0]).strip())


def slowness() -> float:
    """Return how many times as long as usual this machine takes for the same steps, now."""
    taken = []
    for _ in range(3):
        began, total = time.process_time(), 0
        for step in range(STEPS):
            total += step * step
        taken.append(time.process_time() - began)
    return min(taken) / STEPS_SECONDS


def processor_seconds() -> float:
    """Return what this process and its ended children have used."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime
