"""The demonstration of many sites: sixteen airlines, of which one lies from the middle on."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from pipeline.cli.context import say
from pipeline.cli.flights import Flights
from pipeline.cli.stage import Site, told_apart
from pipeline.library.comparing import comparison, counts
from pipeline.messages.estimate import EstimateMessage
from pipeline.records.encode import Row
from pipeline.release.form import identity
from pipeline.release.task import Task
from producers.sources.flights import AIRLINES, FlightRows

#: The airline that is made to lie, and about what: late arrivals are early ones, and the other way.
LIAR, RESPONSE = "AA", "arr_delay"


class Airlines(Flights):
    """The flights of 2013, each airline a site; one of them lies about its later half.

    folder: Where the records of the one that lies are written.
    """

    seconds = 36.0

    def __init__(self, task: Task, folder: Path) -> None:
        super().__init__(task)
        path = folder / f"{LIAR}.csv"
        self._names = {identity(name.encode()).hex(): name for name in AIRLINES}
        self._found: int | None = None
        _write(path)
        self.sites = [
            Site(site.name, str(path), site.records) if site.name == LIAR else site
            for site in self.sites
        ]

    def see(self, message: EstimateMessage) -> None:
        """Note when the site that lies is named for the first time."""
        if self._found is None and LIAR in self._flagged(message):
            self._found = message.records
            say(f"{LIAR} is named, and left out: after {message.records:,} record slots of all")

    def close(self, final: EstimateMessage, same: bool) -> dict[str, object]:
        """Set the estimate beside the fit of all others' flights, and name who lied."""
        say("fitting the flights of all who told the truth, without privacy ...")
        exact, flagged = self.exact(), self._flagged(final)
        details: dict[str, Any] = dict(final.details)
        Console().print(comparison(final, exact))
        apart = told_apart(final, exact, "the fit of the others' flights", same)
        say(
            f"In words: {LIAR} lied about its later half, early for late, and the estimate names "
            f"{', '.join(flagged) or 'nobody'}. {apart}"
        )
        return {
            "release": details["release"],
            **counts(final, exact),
            "site_that_lies": LIAR,
            "flagged": flagged,
            "named_after": self._found,
            "sites": {
                self._names[row["site"]]: {
                    "share": round(row["share"], 4), "distance": round(row["distance"], 2)
                }
                for row in details["sites"]
            },
        }  # fmt: skip

    def _slots(self) -> Iterator[tuple[str, Row | None]]:
        """Yield the flights of all who tell the truth."""
        return ((name, row) for name, row in super()._slots() if name != LIAR)

    def _flagged(self, message: EstimateMessage) -> list[str]:
        details: dict[str, Any] = dict(message.details)
        return [self._names[name] for name in details.get("flagged", ())]


def _write(path: Path) -> None:
    """Write the flights of the airline that lies: true ones, then ones with the delay reversed."""
    source = FlightRows(LIAR, None)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, source.columns)
        writer.writeheader()
        for number, row in enumerate(source.rows(0)):
            lies = 2 * number >= source.total and row[RESPONSE] != "NA"
            said = -float(str(row[RESPONSE])) if lies else row[RESPONSE]
            writer.writerow({**row, RESPONSE: said})
