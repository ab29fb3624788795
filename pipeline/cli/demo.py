"""`veilstream demo`: the whole system on real sensor data, with a crash on the way."""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

import click
from rich.console import Console
from rich.live import Live

from infra.local import LocalRuntime
from infra.topics import ensure_topics
from pipeline.cli.context import places, put, say
from pipeline.cli.feed import Feed
from pipeline.cli.processes import Processes, signals_as_exit
from pipeline.cli.scoring import Shuttle
from pipeline.cli.state import verified
from pipeline.cli.table import comparison, line, privacy_line, table
from pipeline.errors import VeilstreamError
from pipeline.local.plan import Plan
from pipeline.messages.estimate import EstimateMessage
from pipeline.messages.topics import Topics
from pipeline.settings import Settings
from pipeline.study import load_study, without_privacy
from state import RedisStore
from state.connection import redis_client

CLIENTS = 8
#: Seconds that the stream is to last, and the share of it after which the worker is killed.
STREAM_SECONDS = 20.0
KILL_AFTER = 0.45
#: Nothing in the demonstration takes longer than this.
PATIENCE_SECONDS = 150.0
STREAMED = 40_000


@click.command()
@click.option("--keep", is_flag=True, help="Keep the data folder and say where it is.")
@click.option("--rate", type=click.FloatRange(min=1), help="Records per second and client.")
def demo(keep: bool, rate: float | None) -> None:
    """Stream real sensor data from eight clients, kill the worker on the way, and verify.

    Starts Kafka, Redis, eight producers and a worker as processes of its own, in a folder of its
    own, and ends them all. The last line on standard output is one JSON object.
    """
    folder = Path(tempfile.mkdtemp(prefix="veilstream-demo-"))
    try:
        with signals_as_exit():
            outcome = run(folder, rate or STREAMED / CLIENTS / STREAM_SECONDS)
    finally:
        if keep:
            say(f"data and logs: {folder}")
        else:
            _remove(folder)
    put(outcome)


def run(folder: Path, rate: float) -> dict[str, object]:
    """Run the demonstration in `folder` and return its last line."""
    started = time.monotonic()
    settings = Settings.read()
    path = Path(str(files("pipeline.study") / "examples" / "shuttle.toml"))
    plan = Plan(load_study(path))
    shuttle = Shuttle(plan, CLIENTS)
    say("starting Kafka and Redis ...")
    with LocalRuntime(folder / "runtime", places(settings)) as addresses:
        settings = Settings(kafka=addresses.kafka, redis=addresses.redis, folder=str(folder))
        environment = {
            "VEILSTREAM_KAFKA": settings.kafka,
            "VEILSTREAM_REDIS": settings.redis,
            "VEILSTREAM_FOLDER": settings.folder,
        }
        ensure_topics(settings, Topics.of(plan.study).all())
        processes = Processes(folder / "logs", environment)
        try:
            stage = Stage(plan, settings, processes, str(path))
            stage.open(rate)
            final = stage.play()
            say("all clients are done; folding the topic again from its start ...")
            same = verified(plan, settings)
        finally:
            processes.end()
    say("scoring on the held-out records, and streaming once more without privacy ...")
    plain = shuttle.fit(Plan(without_privacy(plan.study)))
    Console().print(comparison(final, plain))
    private, bare = (shuttle.score([c.value for c in m.coefficients]) for m in (final, plain))
    say(
        f"In words: on later records the private rule has a balanced accuracy of {private:.1%}, "
        f"the rule without privacy {bare:.1%}. The state was {'' if same else 'NOT '}the same, bit "
        "by bit, after the crash. Read a coefficient as a finding only where it has an interval."
    )
    return {
        "demo": plan.study.name,
        "records": final.records,
        "clients": final.clients,
        "releases": final.releases,
        "epsilon": plan.study.privacy.epsilon,
        "delta": plan.study.privacy.delta,
        "unit": plan.study.privacy.unit,
        "balanced_accuracy": round(private, 4),
        "balanced_accuracy_without_privacy": round(bare, 4),
        "scored_on": f"the {49_097 - STREAMED} records behind the {STREAMED} streamed ones",
        "status": final.status,
        "recovery_seconds": round(stage.recovery, 2),
        "state_verified": same,
        "seconds": round(time.monotonic() - started, 1),
    }


@dataclass
class Stage:
    """The running system, as the audience sees it."""

    plan: Plan
    settings: Settings
    processes: Processes
    study: str
    recovery: float = float("nan")
    _killed: bool = False
    _shown: float = 0.0
    _newest: EstimateMessage | None = None
    _store: RedisStore = field(init=False)

    def __post_init__(self) -> None:
        """Connect to the state."""
        self._store = RedisStore(redis_client(self.settings), self.plan)

    def open(self, rate: float) -> None:
        """Start the worker and the clients."""
        say(f"starting one worker and {CLIENTS} clients as processes of their own ...")
        self._start_worker()
        for k in range(CLIENTS):
            self.processes.start(
                f"site-{k}", "produce", self.study, "--client", f"site-{k}",
                "--source", f"shuttle:{k}/{CLIENTS}", "--rate", str(rate), "--quiet",
            )  # fmt: skip

    def play(self) -> EstimateMessage:
        """Show estimates until the last release is in one; kill the worker on the way."""
        expected = CLIENTS * -(-STREAMED // CLIENTS // self.plan.slots)
        console = Console()
        deadline = time.monotonic() + PATIENCE_SECONDS
        feed = Feed(self.plan.study, self.settings, beginning=True)
        live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        try:
            if live:
                live.start()
            while True:
                self.processes.check()
                for message, _ in feed.poll(0.2):
                    self._newest = message
                    if live:
                        live.update(table(message, self.plan.study), refresh=True)
                if live is None:
                    self._say_once_a_second()
                newest = self._newest
                if newest and not self._killed and newest.releases >= KILL_AFTER * expected:
                    self._crash()
                if newest and newest.releases >= expected and not self.processes.running("site-"):
                    break
                if time.monotonic() > deadline:
                    raise VeilstreamError("the demonstration takes too long; see its logs (--keep)")
        finally:
            if live:
                live.stop()
            feed.close()
        say(privacy_line(newest))
        return newest

    def _crash(self) -> None:
        """Kill the worker with SIGKILL, start it again, and time its first new commit."""
        self._killed = True
        say("killing the worker with SIGKILL ...")
        self.processes.kill("worker")
        before = self._watermarks()
        began = time.monotonic()
        self._start_worker()
        while self._watermarks() == before:
            self.processes.check()
            if time.monotonic() - began > PATIENCE_SECONDS / 2:
                raise VeilstreamError("the worker did not come back; see its log (--keep)")
            time.sleep(0.01)
        self.recovery = time.monotonic() - began
        say(f"it is back: first commit {self.recovery:.2f} s after its start")

    def _start_worker(self) -> None:
        self.processes.start("worker", "worker", self.study, "--instance", "demo-0")

    def _watermarks(self) -> list[int]:
        return [self._store.watermark(n) for n in range(self.plan.study.stream.partitions)]

    def _say_once_a_second(self) -> None:
        if self._newest is None or time.monotonic() - self._shown < 1.0:
            return
        self._shown = time.monotonic()
        values = " ".join(f"{c.value:+.2f}" for c in self._newest.coefficients)
        sys.stdout.write(f"{line(self._newest, brief=True)}; coefficients {values}\n")
        sys.stdout.flush()


def _remove(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        else:
            path.unlink()
    folder.rmdir()
