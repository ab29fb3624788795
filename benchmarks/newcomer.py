"""A newcomer's whole way with records of one's own, as the documents tell it: `make newcomer`.

`python -m benchmarks.newcomer [--records 20000] [--folder F]`. Three sites have a CSV file each,
with empty cells and times of 2019. A study file is begun, filled in and checked; clients send, and
the first interval is read where the page shows it. A fourth site sends from a topic. Then all is
replayed, a backtest is run, and the library is used. Prints each step with its time, then a line of
JSON; a step that fails ends with 1.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import NewTopic

import veilstream as vs

FILES, TOPIC = ("site-1", "site-2", "site-3"), "site-4"
#: One cell of so many is empty.
EMPTY = 100
TABLES = """\
[data]
response = { name = "failed", positive = "1", negative = "0" }

[data.features]
temperature = { min = -20, max = 60, typical = 20, missing = 20 }
humidity = { min = 0, max = 100, typical = 50, missing = 50, indicator = true }
vibration = { min = 0, max = 10, typical = 5, missing = 5 }

"""
#: In log odds over half a feature's range, as these records are made.
PUT_IN = {"temperature": 2.0, "humidity": -1.0, "vibration": 1.5}
#: Seconds that one step may take, and how far an estimate may be from the exact fit of the same
#: records: farther than six standard errors it is once in 500 million runs.
LONGEST, ERRORS = 300.0, 6.0
PROGRAM = str(Path(sys.executable).with_name("veilstream"))


class Failed(Exception):
    """A step did not do what the documents say."""


@dataclass
class Running:
    """A command in the background, and the file with what it says."""

    words: tuple[str, ...]
    process: subprocess.Popen[bytes]
    log: Path

    def said(self) -> str:
        return self.log.read_text()

    def look(self) -> None:
        """Fail if it has ended with a fault."""
        if code := self.process.poll():
            raise Failed(f"{shlex.join(self.words)} ended with {code}: {self.said()}")

    def wait(self) -> None:
        """Wait for the end of one that ends by itself."""
        self.process.wait(LONGEST)
        self.look()


class Shell:
    """The newcomer's folder and clock, and what runs in the background."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.began = folder, time.monotonic()
        self.running: list[Running] = []
        self._environment = {n: v for n, v in os.environ.items() if not n.startswith("VEILSTREAM_")}

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self.began:5.1f} s] {text}", flush=True)

    def show(self, text: str, lines: int) -> None:
        said = text.strip().splitlines()
        for line in said[len(said) - lines :] if lines < len(said) else said:
            print(f"    {line[:150]}", flush=True)

    def run(self, *words: str, lines: int = 2) -> str:
        self.say(f"$ veilstream {shlex.join(words)}")
        done = subprocess.run(
            [PROGRAM, *words], cwd=self.folder, env=self._environment, capture_output=True,
            text=True, timeout=LONGEST, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
        if done.returncode:
            raise Failed(f"{words[0]} ended with {done.returncode}: {done.stdout}{done.stderr}")
        self.show(done.stdout or done.stderr, lines)
        return done.stdout

    def start(self, *words: str) -> Running:
        self.say(f"$ veilstream {shlex.join(words)} &")
        log = self.folder / f"{len(self.running)}-{words[0]}.log"
        with log.open("w") as file:
            process = subprocess.Popen(
                [PROGRAM, *words], cwd=self.folder, env=self._environment, stdout=file,
                stderr=file, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        self.running.append(Running(words, process, log))
        return self.running[-1]

    def end(self) -> None:
        """End what still runs, and the servers."""
        for command in self.running:
            if command.process.poll() is None:
                command.process.send_signal(signal.SIGTERM)
                command.process.wait(LONGEST)
        self.run("down")


def records(site: str, count: int) -> Iterator[dict[str, str]]:
    """Make a site's records: one a minute since 2019, an empty text for a cell that is empty."""
    chance = random.Random(site)
    start = datetime(2019, 3, 1, tzinfo=UTC)
    for number in range(count):
        here = {name: chance.uniform(-1, 1) for name in PUT_IN}
        odds = sum(PUT_IN[name] * here[name] for name in PUT_IN)
        row = {
            "when": (start + timedelta(minutes=number)).isoformat(),
            "temperature": f"{20 + 40 * here['temperature']:.2f}",
            "humidity": f"{50 + 50 * here['humidity']:.1f}",
            "vibration": f"{5 + 5 * here['vibration']:.3f}",
            "failed": str(int(chance.random() < 1 / (1 + math.exp(-odds)))),
        }
        yield row | {name: "" for name in PUT_IN if not chance.randrange(EMPTY)}


def write_files(folder: Path, count: int) -> None:
    """Write the files of three sites, and what all four have, by time, as a history."""
    sites = {site: list(records(site, count)) for site in (*FILES, TOPIC)}
    for site in FILES:
        pd.DataFrame(sites[site]).to_csv(folder / f"{site}.csv", index=False)
    together = [row for rows in sites.values() for row in rows]
    history = pd.DataFrame(sorted(together, key=lambda row: row["when"]))
    history.to_csv(folder / "history.csv", index=False)


def fill_in(study: Path) -> None:
    """Put the site's own columns into the study file that `study init` has written."""
    text = study.read_text()
    text = text.replace('name = "my-study"', 'name = "pumps"')
    study.write_text(re.sub(r"\[data\]\n.*?(?=\[estimator\])", TABLES, text, flags=re.DOTALL))


def fill_topic(kafka: str, count: int) -> None:
    """Make a topic of one's own: JSON, null for a cell that is empty."""
    with KafkaAdminClient(bootstrap_servers=kafka) as admin:
        admin.create_topics([NewTopic(TOPIC, 1, 1)])
    producer = KafkaProducer(bootstrap_servers=kafka, linger_ms=20)
    for row in records(TOPIC, count):
        producer.send(TOPIC, json.dumps({n: v or None for n, v in row.items()}).encode())
    producer.close()


def first_interval(page: Running, worker: Running) -> dict[str, Any]:
    """Read the JSON behind the page until a coefficient of a feature has an interval."""
    deadline = time.monotonic() + LONGEST
    while not (found := re.search(r"http://\S+/", page.said())):
        page.look()
        if time.monotonic() > deadline:
            raise Failed("the page prints no address")
        time.sleep(0.1)
    with urllib.request.urlopen(f"{found[0]}events", timeout=LONGEST) as events:  # noqa: S310
        for line in events:
            worker.look()
            if time.monotonic() > deadline:
                break
            content = json.loads(line[5:]) if line.startswith(b"data:") else {}
            for point in content.get("points", ()):
                rows = list(zip(content["now"]["names"], point["low"], point["high"], strict=True))
                shown = {name: (low, high) for name, low, high in rows if low is not None}
                if set(shown) & set(PUT_IN):
                    return {"records": point["records"], "intervals": shown}
    raise Failed("the page shows no interval")


def compare(newest: dict[str, Any], exact: dict[str, float]) -> None:
    """Fail unless every feature has an interval, and is as near to the exact fit as it says."""
    for row in newest["coefficients"]:
        name, value = row["name"], row["value"]
        if name not in PUT_IN:
            continue
        if row["interval"] is None:
            raise Failed(f"{name} has no interval")
        if abs(value - exact[name]) > ERRORS * row["standard_error"]:
            raise Failed(f"{name} is {value}, without privacy {exact[name]}")
        low, high = row["interval"]
        print(
            f"    {name:12} {value:6.2f}  [{low:.2f}, {high:.2f}]   without privacy "
            f"{exact[name]:6.2f}, put in {PUT_IN[name]:6.2f}"
        )


def library(shell: Shell, study: Path) -> dict[str, float]:
    """Fit and predict in a program; return the exact coefficients of all records."""
    frame = pd.read_csv(shell.folder / "history.csv")
    shell.say(">>> vs.fit(study, frame), vs.fit(study, frame, exact=True), result.model.predict")
    result, exact = vs.fit(study, frame), vs.fit(study, frame, exact=True)
    predicted = result.model.predict(frame)
    right = float((predicted == frame["failed"]).mean())
    shell.show(f"{result.status}; {100 * right:.1f} % of the records are predicted right", 1)
    if result.status != "ready" or right < 0.6:
        raise Failed(result.summary())
    return dict(exact.coefficients)


def walk(shell: Shell, count: int) -> dict[str, Any]:
    """Go the whole way, and return what was reached."""
    study, sites = shell.folder / "pumps.toml", len(FILES)
    size = ("--records", str(count * (sites + 1)), "--clients", str(sites + 1))
    shell.say(f"{sites} files of {count} records, one cell of {EMPTY} is empty, times of 2019")
    write_files(shell.folder, count)
    shell.run("study", "init", study.name, *size, "--event-time", "when")
    fill_in(study)
    shell.say(f"edited {study.name}: its name, its columns and what an empty cell stands for")
    shell.run("study", "check", study.name, *size, lines=10)
    kafka = re.search(r"VEILSTREAM_KAFKA=(\S+)", shell.run("up"))
    if kafka is None:
        raise Failed("`veilstream up` prints no address")
    shell.run(
        "doctor", "connect", study.name, "--source", "site-1.csv", "--event-time", "when", lines=30
    )
    worker = shell.start("worker", study.name)
    page = shell.start("page", study.name, "--port", "0")
    times = ("--event-time", "when")
    clients = [
        shell.start("produce", study.name, "--client", site, "--source", f"{site}.csv", *times)
        for site in FILES
    ]
    first = first_interval(page, worker)
    minutes = (time.monotonic() - shell.began) / 60
    shell.say(f"the first interval is on the page: {minutes:.1f} minutes from an empty folder")
    for name, (low, high) in first["intervals"].items():
        shell.show(f"{name:20} [{low:6.2f}, {high:6.2f}]   at {first['records']} records", 1)
    for client in clients:
        client.wait()
    shell.show(clients[0].said(), 3)

    fill_topic(kafka[1], count)
    shell.say(f"a topic with {count} messages")
    source = f"kafka://{TOPIC}"
    shell.run("produce", study.name, "--client", TOPIC, "--source", source, *times, lines=3)
    shell.run("privacy", "ledger")
    shell.run("state", "verify", study.name)
    newest = json.loads(shell.run("watch", study.name, "--count", "1", "--json", lines=0))
    shell.run("replay", study.name, "--every", "1000")
    shell.run("replay", study.name, "--check")
    shell.run(
        "backtest", study.name, "--input", "history.csv", "--split", size[-1], *times, lines=12
    )
    exact = library(shell, study)
    shell.say("what came out")
    compare(newest, exact)
    return {
        "minutes_to_the_first_interval": round(minutes, 2),
        "records_at_the_first_interval": first["records"],
        "minutes": round((time.monotonic() - shell.began) / 60, 2),
    }


def main(words: Sequence[str] | None = None) -> int:
    """Go the way in a folder; return 1 if a step fails."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=20_000, help="of each site")
    parser.add_argument("--folder", type=Path, help="an empty one to keep; default: a new one")
    chosen = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as new:
        folder = chosen.folder or Path(new)
        folder.mkdir(parents=True, exist_ok=True)
        shell = Shell(folder)
        try:
            reached = walk(shell, chosen.records)
        except (Failed, subprocess.TimeoutExpired) as error:
            print(f"FAILED: {error}", file=sys.stderr)
            return 1
        finally:
            shell.end()
    print(json.dumps(reached))
    return 0


if __name__ == "__main__":
    sys.exit(main())
