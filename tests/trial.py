"""A private study run end to end on records full of canaries, and all that it put out."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from infra.local.processes import free_port
from pipeline.release import layout
from tests import outputs
from tests.canaries import BYTES, COLUMN, HEADER, HEAT, LABEL, LOAD, NOTE, Mix, Output
from tests.stage import Stage, send, study_text
from tests.wire import edited

SLOTS = 500
#: In every forged release, and nowhere in the raw data.
FORGED = "forgery-4d1c"
FIRST, SECOND, LINES = Mix(137, 193, 170, 113), Mix(127, 109, 103, 107), Mix(131, 173, 196, 151)
SMALL, LAST, SINGLE = Mix(13, 5, 4, 3), Mix(14, 7, 9, 2), Mix(0, 0, 1, 0)
SITE = FIRST + SECOND
WHOLE = SITE + LINES + SMALL + SMALL + LAST + SINGLE
#: Smaller numbers, and multiples of a window's public slots, stand in an output by chance.
COUNTS = {
    n for mix in (FIRST, SECOND, LINES, SITE, WHOLE) for n in mix.counts if n > 99 and n % SLOTS
}
#: The only record of client `alone`.
RECORD = {"heat": repr(HEAT), "load": repr(LOAD), "failed": "no"}
#: Before the names of processes whose libraries log all that they can.
LOUD = "loud-"


@dataclass(frozen=True)
class Failing:
    """A producer that must fail: its source and options, its exit code, and what it says."""

    arguments: tuple[str, ...]
    code: int
    words: str


_POOR = Failing(("poor.csv", "--epsilon-limit", "0.5"), 31, "would reach epsilon")
FAILING = {
    "lacking": Failing(("lacking.csv",), 20, "has no column 'load'"),
    "headless": Failing(("headless.csv",), 20, "has no column 'heat', 'load', 'failed'"),
    "twice": Failing(("twice.csv",), 20, "names fields 4 and 5 alike"),
    "garbled": Failing(("garbled.csv",), 20, "not UTF-8"),
    "folder": Failing(("folder.csv",), 20, "cannot be opened"),
    "poor": _POOR,
    f"{LOUD}poor": _POOR,
}


@dataclass(frozen=True)
class Trial:
    """What came of it.

    Attributes
    ----------
    outputs
        Everything that was put out.
    shown
        What the client's own report says of client `site`.
    codes
        Exit codes of the producers that had to fail.
    modes
        Permissions of the clients' own files and folders while client `lines` was running.
    """

    stage: Stage
    outputs: list[Output]
    shown: dict[str, Any]
    codes: dict[str, int]
    modes: dict[Path, int]


def study() -> str:
    """Return the text of the trial's study."""
    privacy = 'mechanism = "discrete-gaussian"\nepsilon = 1.0\ndelta = 1e-5'
    return study_text(
        records=SLOTS, partitions=1, privacy=privacy, stream="max_in_flight_windows = 0", releases=1
    )


def run(stage: Stage) -> Trial:
    """Run clients, workers and commands, and collect what they have put out."""
    temporary = stage.folder / "temporary"
    temporary.mkdir()
    stage.environment["TMPDIR"] = str(temporary)
    write_sources(stage.folder / "sources")
    # one record alone, at the public start: without its noise the release would be that record
    produce(stage, "alone", "alone.csv")
    ended(stage, "alone")
    port = start_worker(stage, "w0")
    # in its topic: a worker stores it first
    models = stage.topics.models.name
    stage.until(lambda: stage.read(models), "a model for the clients to linearise at")
    forge(stage)
    modes, codes = run_clients(stage)
    seen = stop_worker(stage, "w0", port)
    port = start_worker(stage, f"{LOUD}w1")
    forge(stage)
    produce(stage, f"{LOUD}site", "last.csv")
    ended(stage, f"{LOUD}site")
    seen += stop_worker(stage, f"{LOUD}w1", port)
    seen += commands(stage)
    [shown] = [o.plain for o in seen if o.place == "client show site --json, stdout"]
    own = {stage.folder / "sources", stage.settings.home / "clients"}
    seen += outputs.topics(stage) + outputs.redis_keys(stage)
    seen += outputs.files(stage, apart=own, local={"desk.log"}, unnumbered=LOUD)
    return Trial(stage, seen, json.loads(shown)[stage.task.study.name], codes, modes)


def run_clients(stage: Stage) -> tuple[dict[Path, int], dict[str, int]]:
    """Run clients of every kind of source.

    Returns the permissions of their files, and the exit codes of those that must fail.
    """
    small, desk = stage.folder / "sources/small.csv", stage.folder / "sources/desk.csv"
    produce(stage, "lines", "lines.jsonl", "--follow", before="import os\nos.umask(0)")
    produce(stage, "site", "site.csv")
    produce(stage, "pipe", "-", stdin=small)
    for name, failing in FAILING.items():
        produce(stage, name, *failing.arguments)
    outputs.at_terminal(stage, "desk", "produce", stage.study, "--client", "desk", "--source", desk)
    ended(stage, "site", "pipe", "desk")
    # all others have ended: they make files, and remove them, as long as they run
    codes = {name: stage.code(name) for name in FAILING}
    stage.until(lambda: len(honest(stage)) == 6, "the window of the client that still runs")
    clients = stage.settings.home / "clients"
    modes = {p.relative_to(clients): p.stat().st_mode & 0o777 for p in clients.rglob("*")}
    assert stage.stop("lines") == 0, stage.said("lines")
    return modes, codes


def produce(
    stage: Stage, client: str, source: str, *options: str, stdin: Path | None = None,
    before: str = "",
) -> None:  # fmt: skip
    """Start a producer that may say what leaves its machine."""
    path = source if source == "-" else stage.folder / "sources" / source
    with (stdin or Path(os.devnull)).open("rb") as stream:
        stage.produce(
            client, path, *options, stdin=stream.fileno(), before=before or loudness(client)
        )


def loudness(name: str) -> str:
    """Return what a process of this name runs first."""
    return outputs.LOUD if name.startswith(LOUD) else ""


def ended(stage: Stage, *names: str) -> None:
    """Wait for processes and see that they end well."""
    for name in names:
        assert stage.code(name) == 0, stage.said(name)


def start_worker(stage: Stage, name: str) -> int:
    """Start a worker and return the port of its pages."""
    port = free_port()
    arguments = ("worker", stage.study, "--instance", name, "--health-port", port)
    stage.start(name, *arguments, before=loudness(name))
    return port


def stop_worker(stage: Stage, name: str, port: int) -> list[Output]:
    """Look at a worker's pages when everything is folded and estimated, and stop it."""
    stage.caught_up()
    stage.final_estimate()
    seen = outputs.pages(port)
    assert stage.stop(name) == 0, stage.said(name)
    return seen


def honest(stage: Stage) -> list[Any]:
    """Return the records of the releases topic that clients have sent."""
    return [record for record in stage.releases() if record.key != FORGED.encode()]


def forge(stage: Stage) -> None:
    """Send releases that no honest client sends."""
    task, honest = stage.task, stage.releases()[0].value
    changes: list[dict[str, object]] = [
        {"form": 9},
        {"revision": "f" * 16},
        {"claim": FORGED, "ledger": FORGED},
        {"records": 2**32 - 1},
    ]
    values = [edited(task, honest, client=FORGED, **change) for change in changes]
    values.append(values[0][: layout.HEADER.itemsize] + FORGED.encode())
    values += [FORGED.encode(), values[0][:-1]]
    key, headers = FORGED.encode(), [("odd", FORGED.encode())]
    records = [{"key": key, "value": value, "headers": headers} for value in values]
    send(stage.settings.kafka, stage.topics.releases.name, records)


def commands(stage: Stage) -> list[Output]:
    """Run every command that reads what the study has made."""
    site = stage.folder / "sources/site.csv"
    public = [
        ("state", "show", stage.study, "--json"),
        ("state", "verify", stage.study, "--json"),
        ("watch", stage.study, "--count", "1"),
        ("privacy", "ledger", "--json"),
        ("status",),
    ]
    local = ("client", "show", "site", "--json")
    fit = ("fit", stage.study, "--input", site, "--json")
    with ThreadPoolExecutor(2) as pool:
        said = list(pool.map(lambda words: outputs.command(stage, *words), [*public, fit, local]))
    seen = [output for pair in said[: len(public)] for output in pair]
    (estimate, words), report = said[len(public) :]
    # what `fit` prints is a release; how many records it could not use, it says beside that
    return [*seen, estimate, *(replace(output, local=True) for output in (words, *report))]


def write_sources(folder: Path) -> None:
    """Write the sources of all clients."""
    folder.mkdir()
    (folder / "folder.csv").mkdir()
    head, data = HEADER.encode(), f"{HEAT!r},{LOAD!r},{LABEL},{NOTE}\n".encode()
    written = {
        "alone.csv": [head, f"{','.join(RECORD.values())},{NOTE}\n".encode()],
        "site.csv": ["\ufeff".encode(), head, *FIRST.csv(1), *SECOND.csv(2)],
        "lines.jsonl": LINES.json(3),
        "small.csv": [head, *SMALL.csv(4)],
        "desk.csv": [head, *SMALL.csv(6)],
        "poor.csv": [head, *SMALL.csv(7)],
        "last.csv": [head, *LAST.csv(5)],
        "lacking.csv": [f"heat,failed,{COLUMN}\n".encode(), data],
        "headless.csv": [data, data],
        "twice.csv": [f"heat,load,failed,{COLUMN},{COLUMN}\n".encode(), data],
        "garbled.csv": [f"heat,load,failed,{COLUMN}{BYTES}".encode(), b"\xff\n", data],
    }
    for name, parts in written.items():
        (folder / name).write_bytes(b"".join(parts))
