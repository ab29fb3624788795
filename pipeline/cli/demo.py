"""`veilstream demo`: the whole system on real data, with a crash on the way."""

from __future__ import annotations

import csv
import shutil
import tempfile
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console

from infra.local import LocalRuntime, program_paths
from infra.topics import ensure_topics
from pipeline.api.fitting import ExactFit
from pipeline.api.table import comparison, counts, covers
from pipeline.cli.context import Number, put, say
from pipeline.cli.stage import (
    Demonstration,
    Processes,
    Site,
    Stage,
    about,
    same_state,
    signals_as_exit,
    tell,
)
from pipeline.cli.state import verified
from pipeline.errors import RecordError
from pipeline.messages.estimate import Coefficient, EstimateMessage
from pipeline.messages.spend import ledger_topic
from pipeline.messages.topics import Topics
from pipeline.methods import task_of
from pipeline.prediction.scores import Confusion
from pipeline.records.encoder import Encoder, Row, stack
from pipeline.release.layout import identity
from pipeline.release.task import Task
from pipeline.settings import Settings
from pipeline.study_file.load import load_study
from pipeline.types import Matrix, Vector
from producers.sources import open_source
from producers.sources.base import Opening
from producers.sources.samples import AIRLINES, STREAMED, flights, heldout, opened

#: Among how many clients the records of the shuttle are dealt, in turn.
CLIENTS = 8
#: The coefficient that the studies of flights are about.
MAIN = "dep_delay"
#: The airline that is made to lie, and about what: late arrivals are early ones, and the other way.
LIAR, RESPONSE = "AA", "arr_delay"
#: Rounds of each client of meters, and the seed of what its flats do.
ROUNDS, SEED = 12, 16


class Compared(Demonstration):
    """One whose estimate is set beside the exact fit of the same records, without privacy.

    fit: What that is called.
    """

    fit = "the exact fit"

    def exact(self) -> EstimateMessage:
        """Return the exact fit of the study to all records at once, without privacy."""
        fit = ExactFit(self._task)
        for _ in fit.kept(self.slots):
            pass
        return fit.message(0.0)

    @abstractmethod
    def told(self, final: EstimateMessage, exact: EstimateMessage) -> tuple[str, dict[str, object]]:
        """Return what came out in words, and what the last line tells of it."""

    def close(self, final: EstimateMessage, same: bool) -> dict[str, object]:
        """As `Demonstration.close`."""
        say("fitting the same records without privacy ...")
        exact = self.exact()
        Console().print(comparison(final, exact))
        found, (words, facts) = counts(final, exact), self.told(final, exact)
        tell(
            f"In words: {words} Of {len(exact.coefficients)} coefficients {found['intervals']} "
            f"have an interval; {found['covering_fit']} of these hold {self.fit}, and "
            f"{found['excluding_zero']} tell their coefficient from zero. {same_state(same)}"
        )
        return {**facts, "coefficients": len(exact.coefficients), **found}


class Shuttle(Compared):
    """The Shuttle stream as the demonstration splits it; a classifier, scored on later records."""

    seconds = 20.0

    def __init__(self, task: Task, clients: int = CLIENTS) -> None:
        super().__init__(task)
        self.sites = [
            Site(f"site-{k}", f"shuttle:{k}/{clients}", len(range(k, STREAMED, clients)))
            for k in range(clients)
        ]

    def told(self, final: EstimateMessage, exact: EstimateMessage) -> tuple[str, dict[str, object]]:
        """Score the rule on the records behind the streamed ones."""
        private, plainly = (self.score([c.value for c in m.coefficients]) for m in (final, exact))
        words = (
            f"on later records the private rule has a balanced accuracy of {private:.1%}, the "
            f"exact fit without privacy {plainly:.1%}."
        )
        return words, {
            "balanced_accuracy": round(private, 4),
            "balanced_accuracy_without_privacy": round(plainly, 4),
            "scored_on": f"the {len(self._tail[1])} records behind the {STREAMED} streamed ones",
        }

    @cached_property
    def _tail(self) -> tuple[Matrix, Vector]:
        encoder = Encoder(self._task.study)
        return stack([encoder.encode(record) for record in heldout()], self._task.size - 1)[:2]

    def score(self, coefficients: Sequence[float]) -> float:
        """Return the balanced accuracy on the records behind the streamed ones."""
        features, responses = self._tail
        weights, held = np.asarray(coefficients), Confusion()
        said = np.where(weights[0] + features @ weights[1:] >= 0, 1.0, -1.0)
        held.add_all(responses, said)
        return held.balanced_accuracy or 0.0

    def _slots(self) -> Iterator[tuple[str, Row | None]]:
        """Yield windows of the clients in turn."""
        encoder = Encoder(self._task.study)
        sources = [open_source(site.source, None, folder=Path()) for site in self.sites]
        while not all(source.ended for source in sources):
            for site, source in zip(self.sites, sources, strict=True):
                for slot in source.read(self._task.slots, 0.0):
                    if slot.record is not None:
                        yield site.name, encoder.encode(slot.record)


class Flights(Compared):
    """The flights of 2013, each airline a client."""

    seconds, ahead, fit = 48.0, 15.0, "the pooled fit"
    #: Whether ranges are no wider than the question: all of an airline may fly beyond them.
    narrow = True

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.sites = [
            Site(code, f"flights:{code}", count, accept=self.narrow)
            for code, count in AIRLINES.items()
        ]

    def told(self, final: EstimateMessage, exact: EstimateMessage) -> tuple[str, dict[str, object]]:
        """Set the main coefficient beside the pooled fit."""
        main, pooled = (next(c for c in m.coefficients if c.name == MAIN) for m in (final, exact))
        words = f"no interval of {MAIN}: {final.reason}."
        if main.interval is not None:
            zero = "holds" if covers(main.interval, 0.0) else "excludes"
            words = f"the interval of {MAIN} {zero} zero."
        return words, {
            "flights": len(self.slots),
            "coefficient": MAIN,
            "estimate": round(main.value, 3),
            "interval": _ends(main),
            "pooled": round(pooled.value, 3),
            "exact_interval": _ends(pooled),
            "staleness": final.diagnostics.staleness and round(final.diagnostics.staleness),
        }

    def _slots(self) -> Iterator[tuple[str, Row | None]]:
        encoder = Encoder(self._task.study)
        for record in flights():
            airline = str(record["carrier"])
            try:
                yield airline, encoder.encode(record)
            except RecordError:
                yield airline, None


def _ends(row: Coefficient) -> list[float] | None:
    return row.interval and [round(end, 3) for end in row.interval]


class Airlines(Flights):
    """The flights of 2013, each airline a site; one of them lies about its later half.

    folder: Where the records of the one that lies are written.
    """

    seconds, fit, narrow = 36.0, "the fit of the others' flights", False

    def __init__(self, task: Task, folder: Path) -> None:
        super().__init__(task)
        path = folder / f"{LIAR}.csv"
        self._names = {identity(name.encode()).hex(): name for name in AIRLINES}
        self._found: int | None = None
        _write_lies(path)
        self.sites = [
            Site(site.name, str(path), site.records) if site.name == LIAR else site
            for site in self.sites
        ]

    def see(self, message: EstimateMessage) -> None:
        """Note when the site that lies is named for the first time."""
        if self._found is None and LIAR in self._flagged(message):
            self._found = message.records
            say(f"{LIAR} is named, and left out: after {message.records:,} record slots of all")

    def told(self, final: EstimateMessage, exact: EstimateMessage) -> tuple[str, dict[str, object]]:
        """Name who lied; the exact fit is that of all others' flights."""
        flagged, details = self._flagged(final), dict[str, Any](final.details)
        words = (
            f"{LIAR} lied about its later half, early for late, and the estimate names "
            f"{', '.join(flagged) or 'nobody'}."
        )
        sites = {
            self._names[row["site"]]: {k: round(row[k], 4) for k in ("share", "distance")}
            for row in details["sites"]
        }
        return words, {
            "release": details["release"],
            "site_that_lies": LIAR,
            "flagged": flagged,
            "named_after": self._found,
            "sites": sites,
        }

    def _slots(self) -> Iterator[tuple[str, Row | None]]:
        """Yield the flights of all who tell the truth."""
        return ((name, row) for name, row in super()._slots() if name != LIAR)

    def _flagged(self, message: EstimateMessage) -> list[str]:
        details: dict[str, Any] = dict(message.details)
        return [self._names[name] for name in details.get("flagged", ())]


def _write_lies(path: Path) -> None:
    """Write the flights of the airline that lies: true ones, then ones with the delay reversed."""
    source = opened(f"flights:{LIAR}", Opening())
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, source.columns or ())
        writer.writeheader()
        for number, slot in enumerate(source.read(source.total, 0.0)):
            row = slot.record or {}
            lies = 2 * number >= source.total and row[RESPONSE] != "NA"
            said = -float(str(row[RESPONSE])) if lies else row[RESPONSE]
            writer.writerow({**row, RESPONSE: said})


class Meters(Demonstration):
    """Flats that go round the states of their model card, each at its own pace.

    folder: Where the records of each client are written.
    """

    seconds, ahead = 24.0, 25.0

    def __init__(self, task: Task, folder: Path) -> None:
        super().__init__(task)
        method: dict[str, Any] = task.study.estimator.method or {}
        self._slots_each, rng = int(method["slots"]), np.random.default_rng(SEED)
        names = task.clients
        cards = {name: method["groups"][name.rpartition("-")[0]] for name in names}
        self._loads = {
            name: _loads(card, task, self._slots_each, rng) for name, card in cards.items()
        }
        self._kept: dict[int, dict[str, Any]] = {}
        self.sites = [
            Site(name, str(_written(folder / f"{name}.csv", task, loads)), loads.size)
            for name, loads in self._loads.items()
        ]

    def see(self, message: EstimateMessage) -> None:
        """Keep what was said of each round last."""
        details: dict[str, Any] = dict(message.details)
        if "round" in details:
            self._kept[details["round"]] = details

    def close(self, final: EstimateMessage, same: bool) -> dict[str, object]:
        """Set each published round beside the flats' true mean at its end."""
        self.see(final)
        last: dict[str, Any] = dict(final.details)
        errors = [
            details["value"] - self._truth(number) for number, details in sorted(self._kept.items())
        ]
        error = float(np.sqrt(np.mean(np.square(errors))))
        expected, alone = last["expected_loss"] ** 0.5, last["loss_without_data"] ** 0.5
        tell(
            f"In words: {len(errors)} published rounds miss the flats' true mean by {error:.2f} Wh "
            f"(root mean square); {expected:.2f} was expected, and {alone:.2f} of the model cards "
            f"alone, without any data. {same_state(same)}"
        )
        return {
            "round": last["round"],
            "value": round(last["value"], 2),
            "true_value": round(self._truth(last["round"]), 2),
            "rounds_seen": len(errors),
            "error": round(error, 3),
            "expected_error": round(expected, 3),
            "expected_error_without_data": round(alone, 3),
            "data_help": last["data_help"],
            "epsilon_now": last["epsilon_now"],
            "epsilon_when_collected": round(last["epsilon_when_collected"], 4),
            "epsilon_at_any_time": round(last["epsilon_at_any_time"], 4),
            "epsilon_of_all_rounds": round(last["epsilon_of_all_rounds"], 4),
        }

    def _truth(self, number: int) -> float:
        at = (number + 1) * self._slots_each - 1
        return float(np.mean([loads[at].mean() for loads in self._loads.values()]))

    def _slots(self) -> Iterator[tuple[str, Row | None]]:
        """Yield the records of the clients one after the other."""
        encoder, name = Encoder(self._task.study), self._task.study.data.response.name
        for client, loads in self._loads.items():
            for load in loads.ravel().tolist():
                yield client, encoder.encode({name: load})


def _loads(card: dict[str, Any], task: Task, slots: int, rng: np.random.Generator) -> Vector:
    """Return the loads of a client's flats in all slots, shape (slots of all rounds, flats)."""
    states, flats = np.array(card["states"], dtype=np.float64), task.slots // slots
    steps = rng.random((ROUNDS * slots, flats)) < card["q"]
    places = rng.integers(len(states), size=flats) + np.cumsum(steps, axis=0)
    return np.asarray(states[places % len(states)])


def _written(path: Path, task: Task, loads: Vector) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([task.study.data.response.name])
        writer.writerows([load] for load in loads.ravel().tolist())
    return path


#: By name, each from its study and a folder for data that it makes.
DEMONSTRATIONS: Mapping[str, Callable[[Task, Path], Demonstration]] = {
    "shuttle": lambda task, _: Shuttle(task),
    "flights": lambda task, _: Flights(task),
    "airlines": Airlines,
    "meters": Meters,
}


@click.command()
@click.option(
    "--study", type=click.Choice(list(DEMONSTRATIONS)), default="shuttle", show_default=True,
    help="Anomalies in a space shuttle's sensors, delays of a year of flights, sixteen airlines of "
    "which one lies, or the load of twelve blocks of flats as it is now.",
)  # fmt: skip
@click.option("--keep", is_flag=True, help="Keep the data folder and say where it is.")
@click.option("--rate", type=Number(min=1), help="Records per second of the largest client.")
def demo(study: str, keep: bool, rate: float | None) -> None:
    """Stream real data from many clients, kill the worker on the way, and verify.

    Starts its own Kafka, Redis, worker and clients, in its own folder, and ends them all. The last
    line on standard output is one JSON object.
    """
    folder = Path(tempfile.mkdtemp(prefix="veilstream-demo-"))
    try:
        with signals_as_exit():
            outcome = run(study, folder, rate)
    finally:
        if keep:
            say(f"data and logs: {folder}")
        else:
            shutil.rmtree(folder)
    put(outcome)


def run(name: str, folder: Path, rate: float | None) -> dict[str, object]:
    """Run a demonstration in `folder` and return its last line."""
    started = time.monotonic()
    settings = Settings.read()
    path = Path(str(files("pipeline.study") / "examples" / f"{name}.toml"))
    task = task_of(load_study(path))
    shown = DEMONSTRATIONS[name](task, folder)
    seconds = max(site.records for site in shown.sites) / rate if rate else shown.seconds
    for line in about(task):
        tell(line)
    say("starting Kafka and Redis ...")
    with LocalRuntime(folder / "runtime", program_paths(settings)) as addresses:
        settings = Settings(kafka=addresses.kafka, redis=addresses.redis, folder=str(folder))
        environment = {
            "VEILSTREAM_KAFKA": settings.kafka,
            "VEILSTREAM_REDIS": settings.redis,
            "VEILSTREAM_FOLDER": settings.folder,
        }
        ensure_topics(settings, [*Topics.of(task.study).all(), ledger_topic(task.study, settings)])
        processes = Processes(folder / "logs", environment)
        try:
            stage = Stage(task, settings, processes, str(path), shown.sites)
            stage.open(seconds, shown.ahead)
            final = stage.play(shown.see)
            say("all clients are done; folding the topic again from its start ...")
            same = verified(task, settings)
        finally:
            processes.end()
    return {
        "demo": task.study.name,
        "records": final.records,
        "clients": final.clients,
        "releases": final.releases,
        "epsilon": task.study.privacy.epsilon,
        "delta": task.study.privacy.delta,
        "unit": task.study.privacy.unit,
        **shown.close(final, same),
        "status": final.status,
        "first_intervals_at": stage.first_intervals,
        "recovery_seconds": stage.recovery and round(stage.recovery, 2),
        "state_verified": same,
        "seconds": round(time.monotonic() - started, 1),
    }
