"""Clients as the topics show them: what they sent, what is not folded, what was set aside.

Everything here is public: keys, times and places of records, reasons of dead letters, and the
accounts that clients publish. Whoever may write to the topic can add rows; where a study admits its
clients, the others are counted together and have no name here. Their ids are kept apart all the
same, as far as there is room: one that is admitted later has its name then.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from pipeline.errors import PrivacyError
from pipeline.messages.estimate import EstimateMessage
from pipeline.messages.spend import SpendsMessage
from pipeline.privacy.accounting import total_epsilon
from pipeline.privacy.events import NonPrivate
from pipeline.release.layout import identity

#: Rows that a page shows, clients that are held, and ids among them that nobody has admitted yet.
SHOWN, HELD, UNKNOWN = 100, 20_000, 1000
#: What clients that are not admitted are called together, and those that are too many.
STRANGERS, OTHERS = "(not admitted)", "(others)"
#: Dead letters that are remembered as seen.
REMEMBERED = 50_000


@dataclass(slots=True)
class Client:
    """What was seen of one client; `last` in milliseconds since 1970, by the record's time."""

    releases: int = 0
    last: int = 0
    letters: Counter[str] = field(default_factory=Counter)

    def add(self, other: Client) -> None:
        """Count another one with this one."""
        self.releases += other.releases
        self.last = max(self.last, other.last)
        self.letters.update(other.letters)


class Clients:
    """All clients whose records were seen."""

    def __init__(self) -> None:
        self._clients: dict[str, Client] = {}
        #: By partition, places that no estimate stands for yet.
        self._waiting: dict[int, deque[tuple[int, str]]] = {}
        self._folded: dict[int, int] = {}
        #: By the place of the record: whose letters are open there, why, and where each stands.
        self._letters: dict[tuple[int, int], dict[tuple[str, str], int]] = {}
        #: How many were remembered, by now open or not.
        self._remembered = 0
        self._budget: dict[str, dict[str, float | None]] = {}
        #: Ids that are admitted; None where a study admits nobody by name.
        self._admitted: Collection[str] | None = None
        #: Ids that are held and not admitted, oldest first.
        self._unknown: dict[str, None] = {}
        self.reasons: Counter[str] = Counter()

    def admit(self, ids: Collection[str]) -> None:
        """Take note of who is admitted by now, in a study that admits its clients."""
        self._admitted = ids
        self._unknown = dict.fromkeys(name for name in self._clients if self._is_unknown(name))

    def release(self, partition: int, offset: int, key: bytes | None, at: int) -> None:
        """Take note of a release on its topic."""
        name = self._name(key)
        client = self._clients.setdefault(name, Client())
        client.releases += 1
        client.last = max(client.last, at)
        if offset >= self._folded.get(partition, 0):
            self._waiting.setdefault(partition, deque()).append((offset, name))

    def letter(self, place: tuple[int, int], key: bytes | None, reason: str, number: int) -> None:
        """Take note of a dead letter; one that a worker repeated after a crash counts once.

        place: Partition and offset of the record that it was. Another record had it, where the
            releases topic was made anew since.
        number: Its own offset, in the topic of dead letters.
        """
        name = self._name(key)
        if (name, reason) in self._letters.get(place, {}) or self._remembered >= REMEMBERED:
            return
        self._letters.setdefault(place, {})[name, reason] = number
        self._remembered += 1
        self._clients.setdefault(name, Client()).letters[reason] += 1
        self.reasons[reason] += 1

    def settled(self, place: tuple[int, int], number: int | None) -> None:
        """Take note that a dead letter was sent again, or dropped: nobody has to look at it.

        number: Its own offset; None, of an older note: all letters of the place are meant.
        """
        here = self._letters.setdefault(place, {})
        for name, reason in [who for who, own in here.items() if number in (None, own)]:
            del here[name, reason]
            self._clients[name if name in self._clients else STRANGERS].letters[reason] -= 1
            self.reasons[reason] -= 1

    def folded(self, message: EstimateMessage) -> None:
        """Take note of how far the newest estimate reaches."""
        for position in message.watermark:
            self._folded[position.partition] = position.next_offset
            waiting = self._waiting.get(position.partition, deque())
            while waiting and waiting[0][0] < position.next_offset:
                waiting.popleft()

    def account(self, message: SpendsMessage, study: str) -> None:
        """Take note of what a client says it has spent on the source of this study."""
        for source in message.sources:
            if any(spend.study == study for spend in source.spends):
                events = [s.event for s in source.spends if s.event != NonPrivate()]
                try:
                    spent = total_epsilon(events, source.delta)
                except PrivacyError:
                    continue
                self._budget[message.client] = {"spent": _finite(spent), "limit": source.epsilon}

    def _lag(self) -> Counter[str]:
        """Return how many releases of each client no estimate stands for yet."""
        return Counter(
            self._shown(name)
            for partition, places in self._waiting.items()
            for offset, name in places
            # what was set aside waits for nothing, and alone it leads to no estimate
            if (partition, offset) not in self._letters
        )

    def by_digest(self) -> dict[str, str]:
        """Return the names that may be shown, by the digest that estimates have of them."""
        return {
            identity(name.encode()).hex(): name
            for name in self._clients
            if self._shown(name) == name
        }

    def table(self, sites: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
        """Return what a page shows: the clients that need a look first, then the largest.

        sites: What the newest estimate says of single ones, by digest: `Method.of_clients`.
        """
        names = self.by_digest() if sites else {}
        site = {names[digest]: said for digest, said in sites.items() if digest in names}
        lag, shown = self._lag(), dict[str, Client]()
        for name, client in self._clients.items():
            shown.setdefault(self._shown(name), Client()).add(client)
        total = sum(client.releases for client in shown.values()) or 1
        ranked = sorted(
            shown.items(),
            key=lambda item: (
                -site.get(item[0], {}).get("flag", 0),
                -item[1].letters.total(),
                -item[1].releases,
                item[0],
            ),
        )
        return {
            "count": len(ranked),
            "waiting": lag.total(),
            "reasons": dict(+self.reasons),
            "rows": [
                {
                    "name": name,
                    "releases": client.releases,
                    "share": client.releases / total,
                    "lag": lag[name],
                    "last": client.last / 1000 if client.last else None,
                    "letters": dict(+client.letters),
                    "budget": self._budget.get(name),
                    "site": site.get(name),
                }
                for name, client in ranked[:SHOWN]
            ],
        }

    def _name(self, key: bytes | None) -> str:
        """Return under which name a record is counted."""
        name = (key or b"").decode("utf-8", "replace")[:200]
        if self._is_unknown(name) and name not in self._unknown:
            while len(self._unknown) >= UNKNOWN:
                oldest = next(iter(self._unknown))
                del self._unknown[oldest]
                self._clients.setdefault(STRANGERS, Client()).add(self._clients.pop(oldest))
            self._unknown[name] = None
        elif name not in self._clients and len(self._clients) >= HELD:
            return OTHERS
        return name

    def _shown(self, name: str) -> str:
        return STRANGERS if self._is_unknown(name) else name

    def _is_unknown(self, name: str) -> bool:
        ours = self._admitted is None or name in self._admitted
        return not ours and name not in (STRANGERS, OTHERS)


def _finite(value: float) -> float | None:
    return value if value < float("inf") else None


def budget_of(message: EstimateMessage) -> Mapping[str, object]:
    """Return the guarantee of a study, as its estimates carry it."""
    return {k: v for k, v in msgspec.structs.asdict(message.privacy).items() if k != "mu"}
