"""When a window leaves, and when the next model is due.

A policy says whether a client's open window is released, waits for more, or is dropped. It is pure
and sees public facts alone: how many record slots have come, when, and what the worker has said. It
never sees a record, so that what leaves when says nothing about one.

The worker, a run of a file and a backtest share the rule of when a model is due. Clients that work
off a backlog wait for models. A release at a point far from the estimate says less, and where sums
grow by a tenth with each window, so does the error of a model that is late. Counts that are public
decide alone.

Where windows grow, the next one holds a tenth of what its client has released. A release carries
the same noise whatever its size, so that a few large ones carry less than many small ones; small
ones at the beginning give the first estimates early. Public numbers alone decide how large a window
is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import ConfigError
from pipeline.study.model import Study
from pipeline.types import Integers

#: By how much windows grow unless a study says otherwise: a tenth of what the client has released.
DIVISOR = 10
#: No window has more slots, unless a study says so.
MOST = 1_000_000
#: Buckets of age in a half-life.
BUCKETS_OF_A_HALF_LIFE = 8
#: Nor more times those of the first: the products of a state stay within their bits.
MOST_TIMES = 2**17


@dataclass(frozen=True, slots=True)
class Growth:
    """How large the windows of one study are.

    records: Slots of the first ones; all others are a multiple.
    divisor: k where a window has one k-th of what its client has released; 0: all are alike.
    most: Slots of the largest.
    """

    records: int
    divisor: int
    most: int

    @property
    def largest(self) -> int:
        """Slots of the largest window that there can be."""
        return self.records * max(1, self.most // self.records) if self.divisor else self.records

    def next_window(self, before: int) -> int:
        """Return the slots of the next window of a client that has released `before` slots."""
        if not self.divisor:
            return self.records
        times = min(before // (self.records * self.divisor), self.most // self.records)
        return self.records * max(1, times)

    def allowed(self, before: Integers, slots: Integers) -> NDArray[np.bool_]:
        """Whether windows may have these slots behind so many, shape (n,).

        One that time or the source's end has cut is smaller than the next one would be.
        """
        fits: NDArray[np.bool_]
        if not self.divisor:
            fits = slots == self.records
            return fits
        times = np.minimum(before // (self.records * self.divisor), self.most // self.records)
        most = self.records * np.maximum(1, times)
        fits = (before >= 0) & (slots > 0) & (slots % self.records == 0) & (slots <= most)
        return fits

    @property
    def ends(self) -> Integers:
        """The slots of 0, 1, ... windows of a client until they grow no more."""
        return _ends_of(self)

    def most_behind(self, windows: Integers) -> Integers:
        """Return the most slots that so many windows of a client can have, shape (n,)."""
        ends, last = self.ends, len(self.ends) - 1
        beyond = np.maximum(windows - last, 0).astype(np.float64) * self.largest
        most: Integers = ends[np.clip(windows, 0, last)] + np.minimum(beyond, 2.0**60).astype(
            np.int64
        )
        return most

    def schedule(self, slots: int) -> Iterator[int]:
        """Yield the slots of all windows that close within so many slots of one client."""
        before = 0
        while before + (size := self.next_window(before)) <= slots:
            yield size
            before += size


@lru_cache(maxsize=64)
def _ends_of(growth: Growth) -> Integers:
    ends = [0]
    while len(ends) < 2 or (growth.divisor and ends[-1] - ends[-2] < growth.largest):
        ends.append(ends[-1] + growth.next_window(ends[-1]))
    return np.array(ends, dtype=np.int64)


def growth_of(study: Study, *, grows: bool) -> Growth:
    """Return how the windows of a study grow.

    Where old releases fade, no window is longer than they take to fade by an eighth of a half-life:
    else it would be most of what counts. Time has no such bound in slots, so that there they do
    not grow.

    grows: Whether the method's sums let them; if so, they do by default.

    Raises ConfigError if the study says that they grow and they cannot.
    """
    window, forgetting = study.window, study.estimator.forgetting
    divisor, limit = window.divisor, None
    if forgetting is not None and grows:
        if divisor and forgetting.of == "seconds":
            raise ConfigError(
                "window.growth: windows do not grow where releases fade with time (forgetting "
                'of = "seconds"); remove it, or set growth = 0'
            )
        grows = forgetting.of == "records"
        limit = max(window.records, int(forgetting.half_life / BUCKETS_OF_A_HALF_LIFE))
    if divisor and not grows:
        raise ConfigError(
            "window.growth: in studies of this kind each record has noise of its own, or no noise, "
            "so that larger windows gain nothing; remove it, or set growth = 0"
        )
    if divisor is None:
        divisor = DIVISOR if grows else 0
    longest = window.records * MOST_TIMES
    most = min(MOST, longest) if window.most is None else window.most
    if divisor and not window.records <= most <= longest:
        raise ConfigError(
            f"window.most: from window.records to {MOST_TIMES} times as many, here {longest:,}; "
            f"for example most = {min(MOST, longest)}"
        )
    most = most if limit is None else min(most, limit)
    return Growth(window.records, divisor, max(most, window.records))


@dataclass(frozen=True, slots=True)
class OpenWindow:
    """The window that a client fills.

    taken, size: How many slots have come, and how many it has.
    opened: When the first one came, in seconds of the client's clock; None while it is empty.
    discarded: How many windows were dropped since the last release. A client that starts again
        stands behind its last release: it is 0 then.
    ended: Whether the source has ended, so that no more slots will come.
    """

    taken: int
    size: int
    opened: float | None = None
    discarded: int = 0
    ended: bool = False

    @property
    def full(self) -> bool:
        """Whether no slot is left."""
        return self.taken >= self.size


@dataclass(frozen=True, slots=True)
class Directive:
    """What the worker has told the client.

    version: Of the newest model.
    in_flight: How many releases of this client that model had not seen, as far as they are known.
    behind: How many releases of all clients it had not seen in this one's partition of the topic,
        when the newest one of this client was acknowledged.
    seen: How many record slots it had seen, divided by the number of partitions.
    """

    version: int
    in_flight: int
    behind: int = 0
    seen: int = 0

    def after(self, releases: int) -> Directive:
        """Return what it says once this client has made more releases."""
        return replace(self, in_flight=self.in_flight + releases, behind=self.behind + releases)


@dataclass(frozen=True, slots=True)
class Send:
    """The window leaves now; its empty slots stay empty."""


@dataclass(frozen=True, slots=True)
class Wait:
    """It stays open; a full one keeps further records waiting in the source.

    reason: What for, where that is not more records: words for a progress line.
    """

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Discard:
    """It is dropped: its records are never released, and cost nothing.

    That becomes durable with the next release; a client that starts before asks again.
    """


Decision: TypeAlias = Send | Wait | Discard


class ReleasePolicy(Protocol):
    """When windows of one task leave."""

    @property
    def discards(self) -> bool:
        """Whether it ever drops one: what a lost release held is then unknown.

        A client whose database was restored from an old copy does not go on.
        """

    def decide(self, window: OpenWindow, directive: Directive, now: float) -> Decision:
        """Say what becomes of the open window.

        An empty one that must not begin yet gets a `Wait` with a reason.

        now: Seconds of the client's clock, as `OpenWindow.opened`.
        """


#: A window begins where the newest model lacks no more than so many releases of all clients, or as
#: many as hold one part in so many of the slots that it has seen: far from the estimate they say
#: less.
TOGETHER, PART = 8, 10


@dataclass(frozen=True, slots=True)
class WhenFull:
    """A window leaves when it is full, old, or the last; it begins when models have kept up.

    seconds: How old an open window may become; None: as old as it takes to fill it.
    most_in_flight: How many windows of a client the newest model may lack, with the one that
        begins; 0: any number, of all clients, too.
    at_start: The same before the first model, where other clients do not count; 0: any number.
    """

    seconds: float | None = None
    most_in_flight: int = 0
    at_start: int = 0
    discards: ClassVar[bool] = False

    def decide(self, window: OpenWindow, directive: Directive, now: float) -> Decision:
        """As `ReleasePolicy.decide`."""
        if not window.taken:
            return Wait("a newer model" if self._is_ahead(window.size, directive) else "")
        if window.full or window.ended:
            return Send()
        if self.seconds is None or window.opened is None:
            return Wait()
        return Send() if now - window.opened >= self.seconds else Wait()

    def _is_ahead(self, slots: int, directive: Directive) -> bool:
        if not directive.version:
            return 0 < self.at_start <= directive.in_flight
        if not self.most_in_flight:
            return False
        most = max(TOGETHER, self.most_in_flight, directive.seen // (PART * slots))
        return directive.in_flight >= self.most_in_flight or directive.behind > most


def ready(
    policy: ReleasePolicy, window: OpenWindow, directive: Directive, now: float, most: int
) -> tuple[int, str]:
    """Return how many windows could leave or be dropped in a row if their slots came now.

    window: The first of them, as it is.
    most: Where to stop counting.

    Returns: The number, and what the next one waits for if that is fewer.
    """
    for number in range(most):
        begins = policy.decide(window, directive, now)
        if isinstance(begins, Wait) and begins.reason and not window.taken:
            return number, begins.reason
        decision = policy.decide(replace(window, taken=window.size, opened=now), directive, now)
        if isinstance(decision, Wait):
            return number, decision.reason
        dropped = isinstance(decision, Discard)
        window = replace(window, taken=0, discarded=window.discarded + 1 if dropped else 0)
        directive = directive if dropped else directive.after(1)
    return most, ""


#: A model is due when slots have grown by one part in so many, 4 %, or so many releases have come.
LATE_PART, RELEASES = 25, 8
#: Seconds from one model to the next where only the number of releases makes it due. What has grown
#: by 4 % waits for nothing: that happens 211 times between 250 slots and a million.
SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Rhythm:
    """Of the models of one study.

    grows: Whether growth of slots counts: in studies whose windows grow or noise remembers.
    releases: So many releases make a model due in any case.
    most_of_one: So do so many of one client, which waits for it; 0: no client waits.
    """

    grows: bool
    releases: int
    most_of_one: int = 0

    def wait(
        self, before: int, slots: int, releases: int, most: int = 0, least: float = 0.0
    ) -> float | None:
        """Return how long after the last model the next one is due, in seconds; None: not yet.

        before, slots: Record slots that the last model had seen, and that have been seen by now.
        releases, most: How many releases have come since, and how many of one client.
        least: Seconds between two models where slots have not grown enough for one.
        """
        if self.grows and LATE_PART * (slots - before) >= before:
            return 0.0
        if 0 < self.most_of_one <= most:
            return least
        return max(least, SECONDS) if releases >= self.releases else None
