"""What the page shows: what happened to a stream, and its clients as the topics show them.

Everything here is public: keys, times and places of records, reasons of dead letters, and the
accounts that clients publish. Whoever may write to the topic can add rows; where a study admits its
clients, the others are counted together and have no name here. Their ids are kept apart all the
same, as far as there is room: one that is admitted later has its name then.
"""

from __future__ import annotations

import io
import re
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from threading import Lock
from typing import Any, Literal, NamedTuple

import msgspec

from pipeline.api.table import (
    Forecast,
    information_line,
    progress_line,
    spread_line,
    state_of,
    target_line,
    title,
    unit_lines,
)
from pipeline.errors import PrivacyError
from pipeline.messages.estimate import EstimateMessage
from pipeline.messages.spend import SpendsMessage
from pipeline.methods import method_of
from pipeline.privacy.accounting import total_epsilon
from pipeline.privacy.events import NonPrivate
from pipeline.release.layout import identity
from pipeline.study.model import Study
from pipeline.words import counted, csv_lines

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


#: Happenings that are kept.
EVENTS_KEPT = 60
#: A silence is shorter than this, or than so many of the study's rhythms.
SILENCE_SECONDS, RHYTHMS = 2.0, 4
#: Nor longer than what is usual: so many times what four of five of the last gaps stay within.
TIMES, USUAL, GAPS, FEWEST = 3, 0.8, 20, 5
Kind = Literal["status", "pause", "recovery", "rebuilt", "loss", "letters", "revision"]


class Happening(NamedTuple):
    """One of them; `at` in seconds since 1970, by the worker's clock."""

    at: float
    kind: Kind
    text: str


class Happenings:
    """Compares each estimate with the one before it.

    rhythm: Seconds after which a worker publishes, if there is anything new.
    """

    def __init__(self, rhythm: float) -> None:
        self._silence = max(SILENCE_SECONDS, RHYTHMS * rhythm)
        self._before: EstimateMessage | None = None
        self._gaps: deque[float] = deque(maxlen=GAPS)
        self.found: deque[Happening] = deque(maxlen=EVENTS_KEPT)

    def take(self, message: EstimateMessage) -> None:
        """Take the next estimate."""
        before, self._before = self._before, message
        at = _seconds(message)
        if before is None:
            self._tell(at, "status", f"{message.status}{_because(message)}")
            return
        if message.study_revision != before.study_revision:
            self._tell(at, "revision", "another revision of the study: a new stream begins")
            return
        self._positions(before, message, at)
        if message.status != before.status:
            self._tell(at, "status", f"{before.status} → {message.status}{_because(message)}")
        self._counts(before, message, at)

    def _positions(self, before: EstimateMessage, message: EstimateMessage, at: float) -> None:
        silent = at - _seconds(before)
        new = message.releases - before.releases
        if message.state_version < before.state_version:
            self._tell(
                at, "rebuilt",
                f"the log positions went back by {before.state_version - message.state_version:,}: "
                "the state is being made anew from the log",
            )  # fmt: skip
        elif message.state_version == before.state_version:
            lasted = f" after {silent:.1f} s" if silent >= 0.1 else ""
            self._tell(
                at, "recovery",
                f"a worker took over{lasted} at the same log positions: nothing was lost",
            )  # fmt: skip
        else:
            if silent > max(self._silence, TIMES * self._usual()):
                self._tell(
                    at, "pause",
                    f"no estimate for {silent:.1f} s, then {counted(new, 'release')} in one: "
                    "clients were silent, or a worker came back",
                )  # fmt: skip
            self._gaps.append(silent)

    def _usual(self) -> float:
        """Return the gap in seconds that is usual: long where clients send in bursts."""
        gaps = sorted(self._gaps)
        return gaps[int(USUAL * len(gaps))] if len(gaps) >= FEWEST else 0.0

    def _counts(self, before: EstimateMessage, message: EstimateMessage, at: float) -> None:
        was, now = before.diagnostics, message.diagnostics
        if now.missing != was.missing:
            self._tell(at, "loss", f"{counted(now.missing, 'release')} known to be missing")
        if now.dead_letters > was.dead_letters:
            if self.found and self.found[-1].kind == "letters":
                self.found.pop()
            self._tell(at, "letters", f"{counted(now.dead_letters, 'dead letter')} in all by now")
        if now.erased > was.erased:
            self._tell(at, "loss", f"{counted(now.erased, 'release')} of erased clients left out")

    def _tell(self, at: float, kind: Kind, text: str) -> None:
        self.found.append(Happening(at, kind, text))


def _seconds(message: EstimateMessage) -> float:
    return datetime.fromisoformat(message.published_at).timestamp()


def _because(message: EstimateMessage) -> str:
    # what would help stands beside the status, once: this list has a line for each change
    reason = message.reason.split(". ")[0]
    return f": {reason}" if reason else ""


#: Estimates that are kept, at most: a chart has no more pixels.
KEPT = 1200


@dataclass(frozen=True, slots=True)
class Point:
    """One estimate as it is drawn.

    at: When it was published, seconds since 1970 by the worker's clock.
    records: Record slots behind it.
    values, low, high: One number for each coefficient; `low` and `high` are None where there is no
        interval.
    """

    at: float
    status: str
    records: int
    values: list[float]
    low: list[float | None]
    high: list[float | None]

    @classmethod
    def of(cls, message: EstimateMessage) -> Point:
        """Return what is drawn of an estimate."""
        ends = [row.interval or (None, None) for row in message.coefficients]
        return cls(
            datetime.fromisoformat(message.published_at).timestamp(),
            message.status,
            message.records,
            [row.value for row in message.coefficients],
            [low for low, _ in ends],
            [high for _, high in ends],
        )


@dataclass
class History:
    """Every `step`-th estimate, and always the newest; the step doubles when there are too many."""

    kept: int = KEPT
    step: int = 1
    points: list[Point] = field(default_factory=list)
    _seen: int = 0

    def add(self, point: Point) -> None:
        """Take the next one."""
        if self.points and (self._seen - 1) % self.step:
            self.points.pop()
        self.points.append(point)
        self._seen += 1
        if len(self.points) > self.kept:
            newest = self.points[-1]
            self.points, self.step = self.points[::2], 2 * self.step
            if self.points[-1] is not newest:
                self.points.append(newest)

    def csv(self, names: list[str]) -> Iterator[str]:
        """Yield the lines of a CSV table, one for each estimate and coefficient."""
        yield _line("published_at", "status", "records", "coefficient", "value", "lower", "upper")
        for point in list(self.points):
            at = datetime.fromtimestamp(point.at).astimezone().isoformat()
            for row in zip(names, point.values, point.low, point.high, strict=True):
                yield _line(at, point.status, point.records, *row)


def _line(*cells: object) -> str:
    text = io.StringIO()
    csv_lines(text)(cells)
    return text.getvalue()


#: Estimates that wait for a browser, at most: it skips older ones.
RECENT = 64
#: A difference of clocks that is said, in seconds.
SKEW_SECONDS = 60.0
#: By what estimates name a client.
DIGEST = re.compile(r"\b[0-9a-f]{32}\b")


class Watched:
    """Everything that was seen of one study.

    clock: Seconds since 1970; `steady`: seconds that never go back.
    """

    def __init__(
        self,
        study: Study,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._study, self._clock, self._steady = study, clock, steady
        self._lock = Lock()
        self._history, self._clients = History(), Clients()
        self._happenings = Happenings(study.stream.publish.seconds)
        self._recent: deque[tuple[int, Point]] = deque(maxlen=RECENT)
        self._newest: EstimateMessage | None = None
        self._forecast, self._skew = Forecast(clock, steady), 0.0
        #: Who reads says here what keeps it from reading, by topic.
        self.warnings: dict[str, str] = {}
        #: How many estimates were taken.
        self.version = 0

    def estimate(self, message: EstimateMessage, *, live: bool) -> None:
        """Take the next estimate.

        live: It has just been published; an older one says nothing of clocks.
        """
        with self._lock:
            if self._newest is not None and message.published_at == self._newest.published_at:
                # a reader that connects anew begins with the newest
                return
            other = self._newest is not None and _names(self._newest) != _names(message)
            if other:
                self._history = History()
                self._recent.clear()
                self._forecast = Forecast(self._clock, self._steady)
            self._newest = message
            self._forecast.take(message, live=live)
            point = Point.of(message)
            if live:
                self._skew = self._clock() - point.at
            self._history.add(point)
            self._happenings.take(message)
            self._clients.folded(message)
            self.version += 1
            self._recent.append((self.version, point))

    def seen(self, change: Callable[[Clients], None]) -> None:
        """Let a reader of the log take note of records."""
        with self._lock:
            change(self._clients)

    def whole(self) -> dict[str, Any]:
        """Return all estimates that are kept, and what is said of the newest."""
        with self._lock:
            points = [asdict(point) for point in self._history.points]
            return {"version": self.version, "points": points, "now": self._now()}

    def since(self, version: int) -> dict[str, Any]:
        """Return the estimates after a version, and what is said of the newest."""
        with self._lock:
            points = [asdict(point) for number, point in self._recent if number > version]
            return {"version": self.version, "points": points, "now": self._now()}

    def around(self) -> dict[str, Any]:
        """Return what changes without an estimate: clients, happenings, warnings, ages."""
        with self._lock:
            age, newest = self._forecast.age, self._newest
            details = {} if newest is None else newest.details
            return {
                "clients": self._clients.table(method_of(self._study).report.clients(details)),
                "happenings": [happening._asdict() for happening in self._happenings.found],
                "warnings": self._warnings(),
                "age": None if age is None else round(age, 2),
                "missing": self._missing(),
                "clock": self._clock(),
            }

    def csv(self) -> str:
        """Return the kept estimates as CSV."""
        with self._lock:
            names = [] if self._newest is None else _names(self._newest)
            return "".join(self._history.csv(names))

    def _missing(self) -> str:
        """Return what is missing until all intervals are there, and when they come."""
        lines = [] if self._newest is None else [progress_line(self._newest)]
        return "; ".join(filter(None, [*lines, self._forecast.told()]))

    def _warnings(self) -> list[str]:
        told = list(self.warnings.values())
        if abs(self._skew) > SKEW_SECONDS:
            way = "behind" if self._skew > 0 else "ahead of"
            told.append(
                f"the worker's clock is {abs(self._skew) / 60:.0f} minutes {way} this machine's: "
                "times here are the worker's; whoever runs them must set the clocks"
            )
        return told

    def _named(self, line: str) -> str:
        """Return a line with the names of clients beside their digests."""
        if not DIGEST.search(line):
            return line
        names = self._clients.by_digest()
        return DIGEST.sub(
            lambda found: f"{names[found[0]]} ({found[0]})" if found[0] in names else found[0], line
        )

    def _now(self) -> dict[str, Any] | None:
        message = self._newest
        if message is None:
            return None
        at = datetime.fromisoformat(message.published_at).timestamp()
        known = message.progress if message.status != "starting" else None
        told = [
            *unit_lines(message), target_line(message), spread_line(message, self._study),
            information_line(message),
            *map(self._named, method_of(self._study).report.lines(self._study, message.details)),
        ]  # fmt: skip
        return {
            "study": message.study,
            "title": title(message, self._study),
            "revision": message.study_revision,
            "names": _names(message),
            "level": message.level,
            "method": message.interval_method,
            "published": at,
            "event_time": message.event_time,
            "status": message.status,
            "state": state_of(message),
            "reason": message.reason,
            "progress": None if known is None else known.share,
            "missing": self._missing(),
            "records": message.records,
            "releases": message.releases,
            "clients": message.clients,
            "model": message.model_version,
            "privacy_share": message.diagnostics.privacy_share,
            "lost": message.diagnostics.missing,
            "duplicates": message.diagnostics.duplicates,
            "letters": message.diagnostics.dead_letters,
            "largest": message.diagnostics.largest_client_share,
            "errors": [row.standard_error for row in message.coefficients],
            "told": [line for line in told if line],
            "privacy": budget_of(message),
        }


def _names(message: EstimateMessage) -> list[str]:
    return [row.name for row in message.coefficients]
