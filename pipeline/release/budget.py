"""The budget of a study's releases, and the share that one client may have."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property

import numpy as np

from pipeline.errors import ConfigError, PrivacyError
from pipeline.privacy.accounting import Unit, total_mu
from pipeline.privacy.events import Event, NonPrivate, Scope, compose
from pipeline.privacy.guarantee import NO_PRIVACY, Guarantee, guarantee_of, simulation_of
from pipeline.privacy.mechanism import GaussianMechanism, LaplaceMechanism, Mechanism, Simulation
from pipeline.study.model import Study
from pipeline.types import Integers


class Budget:
    """The budget of a study's releases: its mechanism, its personal levels and its guarantee.

    level: Of a client with personal levels: the loosest one that its records may have. By default
        the loosest of all where a column says which, else the strictest.
    touched: Most noised numbers that one record can touch.
    noise_per_record: Whether each record has noise of its own alone, so that a user's records
        compose.
    counted: What leaves with noise beside sums of gradients, in words; empty where there is
        nothing.
    shares: Shares of the budget that the parts of a record have, by name, where single records
        release several; they sum to one.
    scope: How often the study pays. "record": each record enters one release, so that the first one
        pays for all; "release": each pays, until together they reach the study's epsilon.
    releases: How many releases share the study's epsilon, where each pays.

    levels: Names of the personal levels, the strictest first; without them there is one, unnamed.
    ceiling: Place of the loosest level that records of this client may have.

    Raises ConfigError if the study has no such level.
    """

    def __init__(
        self,
        study: Study,
        level: str | None,
        *,
        touched: int,
        noise_per_record: bool = False,
        counted: str = "",
        shares: Mapping[str, float] | None = None,
        scope: Scope = "record",
        releases: int = 1,
    ) -> None:
        self._study, self._touched = study, touched
        self.noise_per_record, self.scope, self.releases = noise_per_record, scope, releases
        self._counted, self._shares = counted, shares or {}
        self.levels = study.privacy.personal.names if study.privacy.personal else ("",)
        self.ceiling = self._ceiling(level)

    @cached_property
    def mechanism(self) -> Mechanism:
        """What noises the releases of this study; PrivacyError if the study has no noise."""
        return self.mechanism_of(self._study.privacy.epsilon)

    def mechanism_of(self, epsilon: float | None) -> Mechanism:
        """Return what noises a record whose budget is `epsilon`."""
        privacy = self._study.privacy
        if epsilon is None:
            raise PrivacyError("this study keeps no guarantee: it has no epsilon and no delta")
        if privacy.delta is None:
            return LaplaceMechanism(epsilon)
        gaussian = GaussianMechanism(epsilon, privacy.delta)
        return Simulation(gaussian) if privacy.mechanism == "insecure-simulation" else gaussian

    @cached_property
    def per_record(self) -> float:
        """What one release may cost one record, in the mechanism's own terms: mu or epsilon.

        Of personal levels it is that of the loosest.
        """
        return self.per_record_of(self.mechanism)

    def per_record_of(self, mechanism: Mechanism) -> float:
        """Return what one release may cost one record, in a mechanism's own terms."""
        # a user's records may be in as many releases as there are records
        records = self._study.privacy.records or 1
        # noised apart, they compose: mu grows as the root (docs/privacy/composition.md)
        share = math.sqrt(records) if self.noise_per_record and mechanism.order == 2 else records
        whole = mechanism.budget(self._touched * records * self.releases) / share
        return mechanism.part(whole, 1 / self.releases)

    @cached_property
    def allocation(self) -> dict[str, float]:
        """What each part of a release costs one record, in the mechanism's own terms."""
        return {
            name: self.mechanism.part(self.per_record, share)
            for name, share in self._shares.items()
        }

    @property
    def empty_level(self) -> int:
        """Place of the level of a slot without a record.

        Where no column says which, all slots of a client have one level, so that noise does not
        show which are empty; else there is no record to ask, and the strictest is sure.
        """
        personal = self._study.privacy.personal
        return len(self.levels) - 1 if personal is not None and personal.column is None else 0

    @property
    def shows_absence(self) -> bool:
        """Whether the noise of a slot can show that no record is in it."""
        return self.empty_level < self.ceiling

    @property
    def epsilons(self) -> tuple[float | None, ...]:
        """Epsilon of each of `levels`."""
        personal = self._study.privacy.personal
        if personal is None:
            return (self._study.privacy.epsilon,)
        return tuple(personal.levels[name] for name in self.levels)

    @cached_property
    def event(self) -> Event:
        """What one release costs one record of this client, at most."""
        if not self._study.private:
            return NonPrivate()
        mechanism = self.mechanism_of(self.epsilons[self.ceiling])
        return mechanism.event(self.per_record_of(mechanism))

    @cached_property
    def largest_event(self) -> Event:
        """What it costs one record of any client, at most: `event` where there are no levels."""
        return self.mechanism.event(self.per_record) if self._study.private else NonPrivate()

    def of_unit(self, event: Event) -> Event:
        """Return what something that costs one record costs the study's own unit."""
        privacy = self._study.privacy
        unit = Unit(privacy.records or 1, privacy.neighbours)
        return unit.convert(event, privacy.neighbours, noise_per_record=self.noise_per_record)

    def together(self, event: Event) -> Event:
        """Return what all releases of this client cost one record by the study's own account.

        event: All that have been charged, composed.

        Raises BudgetExceeded if the study's promise does not reach so far.
        """
        return event

    @property
    def whole(self) -> Event:
        """What all releases of this study together cost one record of any client, at most."""
        return compose({self.largest_event: self.releases})

    @property
    def beforehand(self) -> Mapping[str, Event]:
        """What was learned of a client's records before any release, and what that cost, by name.

        It is charged to the source with the first release, once for each name.
        """
        return {}

    @cached_property
    def guarantee(self) -> Guarantee:
        """The statement that goes with every estimate."""
        privacy = self._study.privacy
        if privacy.epsilon is None:
            return NO_PRIVACY
        if not self._study.private:
            return simulation_of(epsilon=privacy.epsilon, delta=privacy.delta or 0.0)
        return guarantee_of(
            mechanism=privacy.mechanism,
            epsilon=privacy.epsilon,
            delta=privacy.delta or 0.0,
            mu=total_mu([self.of_unit(self.whole)]),
            unit=privacy.unit,
            records=privacy.records,
            neighbours=privacy.neighbours,
            counted=self._counted,
            releases=self.releases,
            parts=self.allocation,
            levels=privacy.personal.levels if privacy.personal else None,
        )

    @cached_property
    def claim(self) -> str:
        """The promise in short, which every release carries."""
        return self.guarantee.claim

    def _ceiling(self, level: str | None) -> int:
        personal = self._study.privacy.personal
        if level is None:
            return len(self.levels) - 1 if personal is None or personal.column else 0
        if personal is None or level not in personal.levels:
            raise ConfigError(
                f"--level: this study has no level {level!r}; privacy.personal.levels has "
                f"{', '.join(map(repr, self.levels)) if personal else 'none'}"
            )
        return self.levels.index(level)


#: So much is no release: 0.29 times 100 is 29, and not what floats make of it.
_ROUNDING = 1e-9


def most_releases(study: Study, watermark: int) -> int | None:
    """Return how many releases one client may have made with the next one; None: any number.

    A release of more slots than `window.records` counts as so many of that size.

    watermark: Of the model at which that is taken: the record slots that had come from all.
    """
    limit = study.largest_share
    if limit is None:
        return None
    came = max(watermark // study.window.records, limit.after)
    return math.floor(limit.share * came + _ROUNDING)


def least_clients(study: Study) -> int | None:
    """Return with how many clients a study cannot stand still; None: with any number.

    With n of them it stands still where so many releases c have come that each has its part of
    them, n floor(share c) <= c: parts are whole numbers, so that a share above 1 / n may not do
    (docs/decisions/0023-a-share-told-by-a-release.md).
    """
    limit = study.largest_share
    if limit is None:
        return None
    part, least = math.floor(limit.share * limit.after + _ROUNDING), 1
    # with more than (part + 1) / (share part) clients no larger part stands still either
    while (part + 1) / (limit.share * part) > least:
        last = math.ceil((part + 1) / limit.share - _ROUNDING) - 1
        least = max(least, last // part + 1)
        part += 1
    return least


def standstill(study: Study, clients: int | None = None) -> str:
    """Return a warning of a share at which a study can stand still; empty if there is none.

    clients: How many there will be; None: the fewest whose shares are more than all.
    """
    limit, least = study.largest_share, least_clients(study)
    if limit is None or least is None:
        return ""
    clients = clients or math.floor(1 / limit.share) + 1
    if clients >= least:
        return ""
    return (
        f"trust.largest_share: with {clients} clients the study can stand still for ever, each at "
        f"its share of {limit.share:g} in whole releases: it takes {least} clients that all go on. "
        "Raise share, to about twice one nth for n clients, or after"
    )


def above_share(study: Study, ends: Integers, watermarks: Integers) -> Integers:
    """Return which releases of a batch are more than their clients may make, as places in it.

    Each tells how many slots its client has released, which no client can say too few of, and names
    a model, which tells how many had come from all. So it needs no memory of what came before it to
    judge one.

    ends, watermarks: Slots of their clients, each release included, and the watermarks of their
        models, shape (n,).
    """
    if study.largest_share is None:
        return np.empty(0, dtype=np.int64)
    told, which = np.unique(watermarks, return_inverse=True)
    most = [most_releases(study, watermark) for watermark in told.tolist()]
    return np.flatnonzero(ends > study.window.records * np.array(most)[which])
