"""Privacy events: what a release costs, apart from how costs are added up.

The set is closed, and its JSON names the kind and the version of each: what is not known here is
refused, never taken for nothing. `accounting` counts events, and the clients' ledger keeps them.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from pipeline.errors import PrivacyError

#: No event costs more, or happens more often: what is beyond is refused, not rounded.
_MOST_COST, _MOST_TIMES = 1e9, 2**53
_Cost = Annotated[float, Meta(gt=0, le=_MOST_COST)]
_Times = Annotated[int, Meta(ge=1, le=_MOST_TIMES)]

#: How often a study pays. "record": each record enters one release, so that the first release pays
#: for all. "release": records may enter several, so that each release pays. "individual": so, too,
#: where a record is what an individual is in many slots, and not a row.
Scope = Literal["record", "release", "individual"]


class _Kind(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    """Base of all kinds of events, which JSON tells apart by `kind`."""


class Gaussian(_Kind, frozen=True, tag="gaussian/1"):
    """A mu-GDP release, mu > 0 (Dong, Roth and Su 2022)."""

    mu: _Cost


class Pure(_Kind, frozen=True, tag="pure/1"):
    """An epsilon-DP release without a delta, epsilon > 0: Laplace noise, for one."""

    epsilon: _Cost


class Renyi(_Kind, frozen=True, tag="renyi/1"):
    """A release of which a curve of Renyi divergences is known (Mironov 2017).

    orders: Orders alpha > 1, rising.
    epsilons: The release is (orders[i], epsilons[i])-RDP; not falling.
    """

    orders: tuple[Annotated[float, Meta(gt=1, le=1e9)], ...]
    epsilons: tuple[_Cost, ...]

    def __post_init__(self) -> None:
        """Refuse lists that are no curve."""
        if not self.orders or len(self.orders) != len(self.epsilons):
            raise ValueError("`orders` and `epsilons` must have the same length, at least 1")
        for values, strictly in ((self.orders, True), (self.epsilons, False)):
            pairs = itertools.pairwise(values)
            if any(b < a or (strictly and a == b) for a, b in pairs):
                raise ValueError("`orders` must rise, and `epsilons` must not fall")


class TotalVariation(_Kind, frozen=True, tag="total-variation/1"):
    """How far a release is from one whose cost is an event beside this: what drawing it adds.

    distance: Total variation of the two laws, at most, whatever the data are.
    """

    distance: Annotated[float, Meta(gt=0, le=1)]


class NonPrivate(_Kind, frozen=True, tag="non-private/1"):
    """A release that protects nobody."""


Single: TypeAlias = Gaussian | Pure | Renyi | TotalVariation | NonPrivate


class Repeated(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One event, so many times."""

    event: Single
    times: _Times


class Composed(_Kind, frozen=True, tag="composed/1"):
    """Several releases about the same records; each may depend on what those before it gave."""

    parts: Annotated[tuple[Repeated, ...], Meta(min_length=1)]


Event: TypeAlias = Single | Composed

_DECODER: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


def parts(event: Event) -> Iterator[tuple[Single, int]]:
    """Yield the single events of an event, with how often each happened."""
    if isinstance(event, Composed):
        yield from ((part.event, part.times) for part in event.parts)
    else:
        yield event, 1


def compose(events: Mapping[Event, int] | Iterable[Event]) -> Event:
    """Return one event for several, in a canonical form: the same for every order of them.

    Several of which one protects nobody protect nobody.

    events: One or more; a mapping says how often each happened.

    Raises PrivacyError if there is none, or one happened more often than can be written down.
    """
    counts = counted(events)
    if NonPrivate() in counts:
        return NonPrivate()
    if not counts or not all(1 <= times <= _MOST_TIMES for times in counts.values()):
        raise PrivacyError("privacy events: give at least one, each 1 to 2^53 times")
    found = [Repeated(single, counts[single]) for single in sorted(counts, key=encode)]
    if len(found) == 1 and found[0].times == 1:
        return found[0].event
    return Composed(tuple(found))


def counted(events: Mapping[Event, int] | Iterable[Event]) -> Counter[Single]:
    """Return the single events, with how often each happened."""
    counts: Counter[Single] = Counter()
    for event, times in Counter(events).items():
        for single, each in parts(event):
            counts[single] += times * each
    return counts


def worse(one: Event, other: Event) -> Event:
    """Return an event that costs at least as much as either, so that neither lowers the other.

    Costs of one number are compared from the largest down: the k-th largest of the result is the
    larger of both k-th largest. So are curves of equal orders, at each order: a release that costs
    no more than either curve costs no more than their maximum. Curves of other orders all count.
    Nothing that protects nobody is worse than anything.
    """
    both = (counted([one]), counted([other]))
    if any(NonPrivate() in count for count in both):
        return NonPrivate()
    found: Counter[Event] = Counter()
    for kind in (Gaussian, Pure, TotalVariation):
        costs = [
            Counter({_size(single): n for single, n in count.items() if type(single) is kind})
            for count in both
        ]
        found.update({kind(cost): n for (cost,), n in _largest([costs]).items()})
    grids = {single.orders for count in both for single in count if isinstance(single, Renyi)}
    for orders in grids:
        columns = [[Counter[float](), Counter[float]()] for _ in orders]
        for side, count in enumerate(both):
            for single, n in count.items():
                if isinstance(single, Renyi) and single.orders == orders:
                    for column, epsilon in zip(columns, single.epsilons, strict=True):
                        column[side][epsilon] += n
        found.update({Renyi(orders, epsilons): n for epsilons, n in _largest(columns).items()})
    return compose(found)


def _largest(columns: list[list[Counter[float]]]) -> Counter[tuple[float, ...]]:
    """Return how often each row of costs occurs, where each column falls for itself.

    columns: Of each, how often each cost occurs in both of two events: the k-th row has the larger
        of both k-th largest costs. All columns of an event have as many costs.
    """
    ladders = []
    for column in columns:
        ladder: list[tuple[int, float]] = []
        for cost in sorted(set().union(*column), reverse=True):
            # so many cost at least this much, in whichever has more of them
            reached = max(sum(n for each, n in side.items() if each >= cost) for side in column)
            if reached > (ladder[-1][0] if ladder else 0):
                ladder.append((reached, cost))
        ladders.append(ladder)
    found: Counter[tuple[float, ...]] = Counter()
    before = 0
    for end in sorted({reached for ladder in ladders for reached, _ in ladder}):
        row = tuple(next(c for reached, c in ladder if reached >= end) for ladder in ladders)
        found[row] += end - before
        before = end
    return found


def group(event: Event, size: int) -> Event:
    """Return what an event costs a group of so many records that share its noise.

    One after the other is exchanged: mu and epsilon grow with the size (Dong, Roth and Su 2022,
    theorem 5; Dwork and Roth 2014, theorem 2.2), and so does a distance, as each record may be in
    another release. A curve grows by Mironov 2017, proposition 2: with 2^c >= size, (alpha,
    epsilon) becomes (alpha / 2^c, 3^c epsilon) where alpha >= 2^(c + 1).
    Raises PrivacyError if a curve has no order that is large enough, or a cost is larger than can
    be written down.
    """
    counts: Counter[Event] = Counter()
    for single, times in parts(event):
        counts[_grouped(single, size)] += times
    return compose(counts)


def _grouped(single: Single, size: int) -> Event:
    if size == 1 or isinstance(single, NonPrivate):
        return single
    if isinstance(single, Gaussian):
        return Gaussian(_payable(size * single.mu, size))
    if isinstance(single, Pure):
        return Pure(_payable(size * single.epsilon, size))
    if isinstance(single, TotalVariation):
        return TotalVariation(min(1.0, size * single.distance))
    doublings = math.ceil(math.log2(size))
    kept = [
        (order / 2**doublings, _payable(3**doublings * epsilon, size))
        for order, epsilon in zip(single.orders, single.epsilons, strict=True)
        if order >= 2 ** (doublings + 1)
    ]
    if not kept:
        raise PrivacyError(
            f"a Renyi curve says nothing about {size} records together below order "
            f"{2 ** (doublings + 1)}; the method must give larger orders"
        )
    orders, epsilons = zip(*kept, strict=True)
    return Renyi(orders, epsilons)


def _payable(cost: float, size: int) -> float:
    if cost > _MOST_COST:
        raise PrivacyError(
            f"a release costs {size} records together more than {_MOST_COST:g}, which protects "
            "nobody: declare a unit of fewer records, or a smaller privacy.epsilon"
        )
    return cost


def _size(event: Event) -> float:
    if isinstance(event, TotalVariation):
        return event.distance
    return event.mu if isinstance(event, Gaussian) else getattr(event, "epsilon", math.inf)


def encode(event: Event) -> str:
    """Return an event as JSON, in one form for each."""
    return msgspec.json.encode(event).decode()


def decode(text: str | bytes) -> Event:
    """Read an event, in the form that `compose` gives it, however it was written.

    Raises PrivacyError if its kind or version is not known, or it is damaged.
    """
    try:
        return compose([_DECODER.decode(text)])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PrivacyError(
            f"a privacy event cannot be read ({error}), so nobody can tell what was spent: use the "
            "version of this program that wrote it"
        ) from None
