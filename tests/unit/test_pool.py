"""Calls in other processes: what dies takes one call with it, and nothing is left."""

from __future__ import annotations

import math
import multiprocessing
import operator
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.backtest.grid import parse_axis
from pipeline.cli.main import THREADS
from pipeline.cli.pool import Pool
from pipeline.errors import ConfigError, VeilstreamError

DEATH = (signal.raise_signal, signal.SIGKILL)


def found(jobs: int, *calls: tuple[Any, ...]) -> list[Any]:
    """Return what calls came to, in their order."""
    outcomes: dict[int, Any] = dict(Pool(jobs)(operator.call, calls))
    assert multiprocessing.active_children() == []
    return [outcomes[number] for number in range(len(calls))]


def test_calls_share_the_processes_and_leave_none() -> None:
    pids = found(2, *[(os.getpid,)] * 6)
    assert len(set(pids)) <= 2
    assert os.getpid() not in pids
    assert found(3) == []


def test_a_process_computes_on_one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(THREADS[0], "5")
    monkeypatch.delenv(THREADS[1], raising=False)
    assert found(1, *[(os.getenv, name) for name in THREADS]) == ["1"] * len(THREADS)
    assert (os.environ[THREADS[0]], THREADS[1] in os.environ) == ("5", False)


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_process_that_is_killed_takes_its_own_call_with_it(jobs: int) -> None:
    roots = [(math.sqrt, float(n * n)) for n in range(4)]
    one, *others = found(jobs, DEATH, *roots)
    assert isinstance(one, VeilstreamError)
    assert "SIGKILL" in str(one)
    assert "--jobs" in str(one)
    assert others == [0.0, 1.0, 2.0, 3.0]


def test_a_process_that_dies_between_two_calls_is_replaced() -> None:
    outcomes = Pool(1)(operator.call, [(os.getpid,), (math.sqrt, 4.0), (math.sqrt, 9.0)])
    _, pid = next(outcomes)
    os.kill(int(pid), signal.SIGKILL)
    while multiprocessing.active_children():
        time.sleep(0.01)
    time.sleep(0.2)  # its executor has seen it
    (_, lost), (_, root) = outcomes
    assert "SIGKILL" in str(lost)
    assert root == 3.0
    assert multiprocessing.active_children() == []


def test_where_every_process_is_killed_there_is_an_end() -> None:
    assert [type(one) for one in found(2, *[DEATH] * 5)] == [VeilstreamError] * 5


def test_errors_of_a_call_are_its_own() -> None:
    memory, refused, root = found(1, (bytes, 1 << 62), (parse_axis, "no axis"), (math.sqrt, 9.0))
    assert "ran out of memory" in str(memory)
    assert isinstance(refused, ConfigError)
    assert root == 3.0


def test_an_error_that_nobody_expects_is_raised_with_its_place() -> None:
    with pytest.raises(ZeroDivisionError) as raised:
        found(2, (divmod, 1, 0), (time.sleep, 60.0))
    assert "in _process_worker" in str(raised.value.__cause__)
    assert multiprocessing.active_children() == []


def test_whoever_goes_away_leaves_no_process() -> None:
    outcomes = Pool(2)(operator.call, [(os.getpid,), (time.sleep, 60.0), (time.sleep, 60.0)])
    _, pid = next(outcomes)
    # one that is stopped ends, too
    os.kill(int(pid), signal.SIGSTOP)
    outcomes.close()
    assert multiprocessing.active_children() == []
    assert not Path(f"/proc/{pid}").exists()


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Have an interrupt be an error, as it is in a command, whatever came before this test."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_while_a_process_starts_comes_when_it_has_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spawn = multiprocessing.get_context("spawn").Process
    start, started = spawn.start, []

    def interrupted(process: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        start(process)
        started.append(process.pid)
        masks = Path(f"/proc/{process.pid}/status").read_text()
        [blocked] = [line.split()[1] for line in masks.splitlines() if "SigBlk" in line]
        assert int(blocked, 16) & 1 << signal.SIGINT - 1

    monkeypatch.setattr(spawn, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        found(1, (time.sleep, 60.0))
    assert len(started) == 1
    assert multiprocessing.active_children() == []
