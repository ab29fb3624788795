"""Release policies: whether a client's open window is released, waits for more, or is dropped.

A policy is pure and sees public facts alone: how many record slots have come, when, and what the
worker has said. It never sees a record, so that what leaves when says nothing about one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Protocol, TypeAlias


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
    in_flight: How many windows this client has released at it, in this run.
    """

    version: int
    in_flight: int


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

        now: Seconds of the client's clock, as `OpenWindow.opened`.
        """


@dataclass(frozen=True, slots=True)
class WhenFull:
    """A window leaves when it is full, old, or the last; not too far ahead of the model.

    seconds: How old an open window may become; None: as old as it takes to fill it.
    most_in_flight: How many windows may be released at one model; 0: any number.
    """

    seconds: float | None = None
    most_in_flight: int = 0
    discards: ClassVar[bool] = False

    def decide(self, window: OpenWindow, directive: Directive, now: float) -> Decision:
        """As `ReleasePolicy.decide`."""
        if 0 < self.most_in_flight <= directive.in_flight:
            return Wait("a newer model")
        if window.full or (window.ended and window.taken):
            return Send()
        if self.seconds is None or window.opened is None:
            return Wait()
        return Send() if now - window.opened >= self.seconds else Wait()


def ready(
    policy: ReleasePolicy, window: OpenWindow, directive: Directive, now: float, most: int
) -> tuple[int, str]:
    """Return how many windows could leave or be dropped in a row if their slots came now.

    window: The first of them, as it is.
    most: Where to stop counting.

    Returns: The number, and what the next one waits for if that is fewer.
    """
    window = replace(window, taken=window.size, opened=now)
    for number in range(most):
        decision = policy.decide(window, directive, now)
        if isinstance(decision, Wait):
            return number, decision.reason
        if isinstance(decision, Discard):
            window = replace(window, discarded=window.discarded + 1)
        else:
            window = replace(window, discarded=0)
            directive = replace(directive, in_flight=directive.in_flight + 1)
    return most, ""
