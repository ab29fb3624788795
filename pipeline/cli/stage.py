"""A demonstration: its records, its processes, and the running system with a crash on the way."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from rich.console import Console
from rich.live import Live

from agents.announcing import store_of
from infra.local.processes import HOST, free_port, private
from infra.process import Waiting, is_json
from pipeline.api.feed import Feed
from pipeline.api.table import line, on_screen, privacy_line, table, value
from pipeline.cli.client import admit_here
from pipeline.cli.context import say
from pipeline.errors import VeilstreamError
from pipeline.losses import MEANINGS
from pipeline.messages.estimate import EstimateMessage
from pipeline.records.encoder import Row
from pipeline.release.task import Task
from pipeline.settings import Settings
from state import RedisStore


class Processes:
    """Child processes that run `veilstream` commands.

    logs: Folder for their output.
    environment: Variables on top of the inherited ones.
    """

    def __init__(self, logs: Path, environment: Mapping[str, str]) -> None:
        self._logs = logs
        self._environment = {**os.environ, **environment}
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        logs.mkdir(parents=True, exist_ok=True)

    def start(self, name: str, *arguments: str) -> None:
        """Start `veilstream ARGUMENTS` under a name; its output goes to a log of that name."""
        command = [sys.executable, "-m", "pipeline.cli.main", *arguments]
        with private(self._logs / f"{name}.log").open("ab") as log:
            self._children[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,
            )

    def kill(self, name: str) -> None:
        """End a process as a crash would: SIGKILL."""
        child = self._children[name]
        child.kill()
        child.wait()

    def check(self) -> None:
        """Refuse to go on if a process has failed.

        VeilstreamError with the last words of its log.
        """
        for name, child in self._children.items():
            code = child.poll()
            if code not in (None, 0, -signal.SIGKILL):
                text = (self._logs / f"{name}.log").read_text(errors="replace").strip()
                last = text.splitlines()[-1] if text else "it said nothing"
                raise VeilstreamError(f"{name} ended with code {code}: {last}")

    def running(self, prefix: str) -> int:
        """Return how many processes whose name begins so still run."""
        return sum(
            child.poll() is None
            for name, child in self._children.items()
            if name.startswith(prefix)
        )

    def end(self, grace: float = 3.0) -> None:
        """End all that still run: politely, then for good."""
        for child in self._children.values():
            if child.poll() is None:
                child.terminate()
        deadline = time.monotonic() + grace
        for child in self._children.values():
            try:
                child.wait(timeout=max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


@contextmanager
def signals_as_exit() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into SystemExit, so that `finally` runs as it does on Ctrl-C."""
    handled = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    before = {number: signal.getsignal(number) for number in handled}

    def leave(number: int, _frame: object) -> None:
        sys.exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leave)
    # a shell starts background jobs with SIGINT ignored; whoever sends one means it
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


#: The share of the record slots after which the worker is killed.
KILL_AFTER = 0.45
#: Nothing in a demonstration takes longer than this.
PATIENCE_SECONDS = 300.0
#: So many coefficients stand in such a line.
NAMED = 4
#: What such lines mean, said before the first.
HOW_TO_READ = (
    "each line: what has been added up, the newest model (the point at which clients sum up their "
    "records next), the status (starting, warming: no intervals yet; ready) and coefficients. "
    "In a terminal there is a table"
)
#: A line about the estimate comes no sooner than this, where no table can be shown.
LINE_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Site:
    """One client of a demonstration.

    name, source: Client id, and its source as `veilstream produce` takes it.
    records: How many records the source has.
    accept: Whether it is taken although most of its records may lie far beyond the ranges.
    """

    name: str
    source: str
    records: int
    accept: bool = False


class Demonstration(ABC):
    """Real data, dealt to clients, and what is said about the estimate at the end.

    seconds: How long the stream is to last.
    ahead: Seconds until all clients begin at once; None if each may begin when it is up.
    """

    seconds: float
    ahead: float | None = None
    sites: Sequence[Site]

    def __init__(self, task: Task) -> None:
        self._task = task

    @cached_property
    def slots(self) -> list[tuple[str, Row | None]]:
        """All records with their clients, in the order of the data; None for an empty slot."""
        return list(self._slots())

    @abstractmethod
    def _slots(self) -> Iterator[tuple[str, Row | None]]: ...

    def see(self, message: EstimateMessage) -> None:  # noqa: B027  most have nothing to note
        """Look at an estimate on the way."""

    @abstractmethod
    def close(self, final: EstimateMessage, same: bool) -> dict[str, object]:
        """Say what came out; return what the last line tells of it.

        same: Whether the log, folded again, gave the same bits.
        """


def tell(sentence: str) -> None:
    """Say a sentence; where somebody looks, its lines end between words."""
    if sys.stderr.isatty() and not is_json():
        columns = shutil.get_terminal_size().columns
        sentence = textwrap.fill(sentence, columns, break_long_words=False, break_on_hyphens=False)
    say(sentence)


def about(task: Task) -> Iterator[str]:
    """Yield what a study is about: what is predicted from what, and what a coefficient means."""
    study, names = task.study, list(task.study.data.features)
    yield f"{study.name}: {study.study.description}"
    if names:
        response, more = study.data.response, f" and {len(names) - NAMED} more"
        what = response.name
        if response.kind == "class":
            what = f"whether {what} is {response.positive!r}"
        yield f"predicted: {what}, from {', '.join(names[:NAMED])}{more * (len(names) > NAMED)}"
        yield (
            "a coefficient: what half of a feature's public range adds to the prediction "
            f"({study.estimator.loss}: {MEANINGS[study.estimator.loss]})"
        )


def same_state(same: bool) -> str:
    """Say whether the log, folded again, gave the same state."""
    return f"The state was {'' if same else 'NOT '}the same, bit by bit, after the crash."


@dataclass
class Stage:
    """The running system, as the audience sees it.

    recovery: Seconds from the start of the worker that followed the crash to its first commit; None
        where all releases were in the state before the crash, so that none was left to commit.
    first_intervals: Record slots behind the first estimate with an interval; None while there is
        none.
    """

    task: Task
    settings: Settings
    processes: Processes
    study: str
    sites: Sequence[Site]
    recovery: float | None = None
    first_intervals: int | None = None
    _killed: bool = False
    _shown: float = 0.0
    _page: int | None = None
    _newest: EstimateMessage | None = None

    @cached_property
    def _store(self) -> RedisStore:
        # under the study's key, which there is once the clients are admitted
        return store_of(self.task, self.settings)

    def open(self, seconds: float, ahead: float | None = None) -> None:
        """Start the worker and the clients.

        seconds: How long the stream of each client is to last, whatever its size.
        ahead: Seconds until all streams begin at once; None: each begins when its client is up.
        """
        if self.task.study.authenticated:
            names = [site.name for site in self.sites]
            # keys are for an operator to know of
            admit_here(self.task.study, self.settings, names, say=lambda _: None)
        say(f"starting one worker and {len(self.sites)} clients as processes of their own ...")
        self._start_worker()
        self._page = free_port()
        self.processes.start("page", "page", self.study, "--port", str(self._page))
        begin = [] if ahead is None else ["--begin", f"{time.time() + ahead:.3f}"]
        for site in self.sites:
            more = [*begin, *(["--accept-unusable"] if site.accept else [])]
            self.processes.start(
                f"client-{site.name}", "produce", self.study, "--client", site.name,
                "--source", site.source, "--rate", str(site.records / seconds), *more, "--quiet",
            )  # fmt: skip

    def play(self, see: Callable[[EstimateMessage], None]) -> EstimateMessage:
        """Show estimates until the last release is in one; kill the worker on the way.

        see: Called with each estimate.
        """
        slots = self.task.slots
        expected = sum(-(-site.records // slots) * slots for site in self.sites)
        console = Console()
        deadline = time.monotonic() + PATIENCE_SECONDS
        feed, waits = Feed(self.task.study, self.settings, beginning=True), Waiting()
        live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        try:
            if live:
                live.start()
            while True:
                self.processes.check()
                self._tell_page()
                for message, _ in feed.poll(0.2):
                    self._newest = message
                    self._note_first(message)
                    see(message)
                    if live:
                        live.update(on_screen(message, self.task.study, console), refresh=True)
                if live is None:
                    self._say_now_and_then()
                    if hint := waits.hint("" if self._newest else "the first estimate"):
                        say(hint)
                newest = self._newest
                come = 0 if newest is None else self._slots(newest.releases, newest.records)
                if newest and not self._killed and come >= KILL_AFTER * expected:
                    self._crash(expected)
                if newest and come >= expected and not self.processes.running("client-"):
                    break
                if time.monotonic() > deadline:
                    raise VeilstreamError("the demonstration takes too long; see its logs (--keep)")
        finally:
            self._leave(live)
            feed.close()
        if live is None:
            say(privacy_line(newest))
        return newest

    def _leave(self, live: Live | None) -> None:
        """Leave the whole table of the newest estimate on the screen."""
        if live and self._newest:
            live.update(table(self._newest, self.task.study))
        if live:
            live.stop()

    def _tell_page(self) -> None:
        """Say where the page is, once it answers there."""
        if self._page is None:
            return
        with suppress(OSError), socket.create_connection((HOST, self._page), timeout=0.2):
            address = f"http://{HOST}:{self._page}/"
            say(f"watch it in a browser: {address} (while the demonstration runs)")
            self._page = None

    def _note_first(self, message: EstimateMessage) -> None:
        if self.first_intervals is None and any(row.interval for row in message.coefficients):
            self.first_intervals = message.records
            total = sum(site.records for site in self.sites)
            say(f"the first intervals: after {message.records:,} of {total:,} record slots")

    def _crash(self, expected: int) -> None:
        """Kill the worker with SIGKILL, start it again, and time its first new commit.

        expected: Record slots of all clients' releases together.
        """
        self._killed = True
        say("killing the worker with SIGKILL ...")
        self.processes.kill("worker")
        before, folded = self._watermarks(), self._folded()
        began = time.monotonic()
        self._start_worker()
        if folded >= expected:
            # all had come before the crash: there is nothing that a new commit could hold
            say("it had folded every release before")
            return
        while self._watermarks() == before:
            self.processes.check()
            if time.monotonic() - began > PATIENCE_SECONDS / 2:
                raise VeilstreamError("the worker did not come back; see its log (--keep)")
            time.sleep(0.01)
        self.recovery = time.monotonic() - began
        say(f"it is back: first commit {self.recovery:.2f} s after its start")

    def _folded(self) -> int:
        """Return how many record slots of releases are in the state."""
        count = self.task.study.stream.partitions
        heads = [self._store.load(number).head for number in range(count)]
        return sum(self._slots(head.folded, head.slots) for head in heads)

    def _slots(self, releases: int, slots: int) -> int:
        """Return the record slots of releases, whose windows may grow."""
        return slots if self.task.growth.divisor else releases * self.task.slots

    def _start_worker(self) -> None:
        self.processes.start("worker", "worker", self.study, "--instance", "demo-0")

    def _watermarks(self) -> list[int]:
        return [self._store.watermark(n) for n in range(self.task.study.stream.partitions)]

    def _say_now_and_then(self) -> None:
        if self._newest is None or time.monotonic() - self._shown < LINE_SECONDS:
            return
        if not self._shown:
            say(HOW_TO_READ)
        self._shown = time.monotonic()
        rows = self._newest.coefficients
        values = ", ".join(
            f"{row.name} {value(self._newest, row.value, 2)}" for row in rows[:NAMED]
        )
        more = f", {len(rows) - NAMED} more" if len(rows) > NAMED else ""
        sys.stdout.write(f"{line(self._newest, brief=True)}; {values}{more}\n")
        sys.stdout.flush()
