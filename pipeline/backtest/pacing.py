"""At which model the windows of clients are: as live clients do, which wait for one.

A window closes no sooner than it has its model. One that waits keeps its records in the source, so
that it holds the same ones, later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from pipeline.backtest.history import Closed, Opened
from pipeline.release.model import Model
from pipeline.release.policy import Directive, OpenWindow, Wait
from pipeline.release.task import Task


@dataclass(slots=True)
class _Window:
    """A window with its slots, once they have come; model: at which it is, if it has one."""

    size: int
    model: Model | None = None
    closed: Closed | None = None


@dataclass(slots=True)
class _Client:
    """A client's windows in their order; how many releases are on their way; offsets of others."""

    windows: deque[_Window] = field(default_factory=deque)
    sent: int = 0
    unseen: deque[int] = field(default_factory=deque)
    last: int = -1


class Pacing:
    """The windows of all clients of a study whose releases depend on those before them.

    ended: Whether no record and no model will come any more: then nobody waits.
    """

    def __init__(self, task: Task) -> None:
        self._policy, self.ended = task.policy, False
        self._clients: dict[int, _Client] = {}

    def take(self, window: Opened | Closed) -> None:
        """Take the news of a window, those of one client in their order."""
        windows = self._clients.setdefault(window.client, _Client()).windows
        if isinstance(window, Opened):
            windows.append(_Window(window.size))
        else:
            next(held for held in windows if held.closed is None).closed = window

    def leaving(self, client: int, model: Model) -> Iterator[tuple[Closed, Model]]:
        """Yield the windows of a client that leave now, each with its model.

        model: The newest that has reached the client.
        """
        held = self._clients[client]
        while held.windows:
            first = held.windows[0]
            if first.model is None:
                if not self.ended and self._waits(held, first.size, model):
                    return
                first.model = model
            if first.closed is None:
                return
            held.windows.popleft()
            held.sent += 1
            yield first.closed, first.model

    def arrived(self, client: int, offset: int) -> None:
        """Note that a release has reached the log."""
        held = self._clients[client]
        held.sent, held.last = held.sent - 1, offset
        held.unseen.append(offset)

    def waiting(self) -> list[int]:
        """Return the clients that have a window which could not begin."""
        return [
            client
            for client, held in self._clients.items()
            if held.windows and held.windows[0].model is None
        ]

    def _waits(self, held: _Client, size: int, model: Model) -> bool:
        read = sum(model.offsets)
        while held.unseen and held.unseen[0] < read:
            held.unseen.popleft()
        behind = max(0, held.last + 1 - read)
        told = Directive(model.version, len(held.unseen), behind, model.watermark).after(held.sent)
        decision = self._policy.decide(OpenWindow(0, size), told, 0.0)
        return isinstance(decision, Wait) and bool(decision.reason)
