"""What counts against the limit of a source: its studies' spends, here and elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from pipeline.errors import LocalStoreError, PrivacyError
from pipeline.privacy.accounting import Unit
from pipeline.privacy.events import Event, NonPrivate, compose, decode, worse
from pipeline.release.task import Task

#: Asks a client's database.
Rows = Callable[..., list[tuple[Any, ...]]]

_OWN = "SELECT event, count(*) FROM spends WHERE study = ? GROUP BY event"
_INHERITED = """
    SELECT inherited.ledger = identity.ledger, study, event, neighbours, noise_per_record
    FROM inherited, identity WHERE source = ? AND counts = 1"""


@dataclass(frozen=True, slots=True)
class Charge:
    """What one study has cost a record.

    event: All of its releases together.
    neighbours: The change that this is for; None where nobody is protected.
    noise_per_record: As `Budget` has it.
    own: Whether this very ledger has made the releases.
    """

    study: str
    event: Event
    neighbours: str | None
    noise_per_record: bool
    own: bool

    def of(self, unit: Unit) -> Event:
        """Return what it costs a unit."""
        return unit.convert(
            self.event, self.neighbours or "", noise_per_record=self.noise_per_record
        )


def spent_by(rows: Rows, study: str) -> Event | None:
    """Return what the releases of a study have cost a record together; None before the first.

    Raises LocalStoreError if an event is of a kind or version that this program does not know.
    """
    found = Counter({known(text): times for text, times in rows(_OWN, study)})
    return compose(found) if found else None


def charges(rows: Rows, source: str) -> list[Charge]:
    """Return all that has been charged to a source.

    What was told of a study of this ledger counts where it is more than the ledger knows itself.
    Raises LocalStoreError as `spent_by`.
    """
    studies = rows(
        "SELECT study, neighbours, noise_per_record FROM charged WHERE source = ?", source
    )
    found = []
    for study, neighbours, noise_per_record in studies:
        event = spent_by(rows, study)
        if event is not None:
            found.append(Charge(study, event, neighbours, bool(noise_per_record), own=True))
    own = {charge.study: charge.event for charge in found}
    for mine, study, text, neighbours, noise_per_record in rows(_INHERITED, source):
        event = known(text)
        if not (mine and study in own and worse(own[study], event) == own[study]):
            found.append(Charge(study, event, neighbours, bool(noise_per_record), own=bool(mine)))
    return found


def as_known(found: Iterable[Charge], task: Task) -> list[Charge]:
    """Return the charges, a study's own as it knows best what its releases cost together."""
    return [
        replace(one, event=task.budget.together(one.event))
        if one.own and one.study == task.study.name and one.event != NonPrivate()
        else one
        for one in found
    ]


def protecting(found: Iterable[Charge], unit: Unit) -> list[Event]:
    """Return the charges that protect anybody, as costs of a source's unit."""
    return [charge.of(unit) for charge in found if charge.event != NonPrivate()]


def spent(rows: Rows, source: str, unit: Unit) -> list[Event]:
    """Return what a source's unit has paid, as events that add up; LocalStoreError as `charges`."""
    return protecting(charges(rows, source), unit)


def known(text: str) -> Event:
    """Return a stored event.

    Raises LocalStoreError if it is of a kind or version that this program does not know.
    """
    try:
        return decode(text)
    except PrivacyError as error:
        raise LocalStoreError(f"the client database: {error}; nothing was spent") from None
