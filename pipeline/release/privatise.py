"""The only doors out of a client: `privatise`, and the loud `disclose` of studies without privacy.

Messages can be made from the two result types alone, and only this module makes those.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import InitVar, dataclass
from typing import Generic, TypeVar, final

import numpy as np

from pipeline.errors import PrivacyError
from pipeline.privacy.memory import Chain, empty_rows, epoch_of
from pipeline.privacy.randomness import SecureStream
from pipeline.release.model import Model
from pipeline.release.query import MatrixPart, OpenQuery, Query
from pipeline.release.task import Task
from pipeline.types import Integers, Vector

_SEAL = object()
Numbers = TypeVar("Numbers", Integers, Vector)


@final
@dataclass(frozen=True, slots=True)
class Parts(Mapping[str, Numbers], Generic[Numbers]):
    """Arrays by name, in their order; none can be put in another's place, as in a dict."""

    pairs: tuple[tuple[str, Numbers], ...]

    def __getitem__(self, name: str) -> Numbers:
        """Return the array of a part."""
        for known, array in self.pairs:
            if known == name:
                return array
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        """Yield the names."""
        return (name for name, _ in self.pairs)

    def __len__(self) -> int:
        """Return how many parts there are."""
        return len(self.pairs)


@final
@dataclass(frozen=True, slots=True)
class Place:
    """Where a release stands in its client's chain: public.

    before: Slots of the chain's releases before it.
    chain, number: Which chain, and which release of it, from 1; 0 at the public start, which is in
        none.
    starts: For each epoch of models the number of the chain's first release in it or in a later
        one; 0 where there is none yet.
    """

    before: int
    chain: int
    number: int
    starts: tuple[int, ...]

    @classmethod
    def of(cls, before: Chain, after: Chain) -> Place:
        """Return the place of the release between two states of a chain: the same at the start."""
        number = after.number if after.number > before.number else 0
        return cls(before.slots, before.chain, number, after.starts)


@final
@dataclass(frozen=True, slots=True)
class Answer:
    """Noised integers on the study's public lattices: safe to send under its policy.

    model: Expansion point and its version.
    slots: Public number of record slots of the window, full or empty.
    parts: Lattice integers by name, in the order of the release; the units are the task's.
    place: Where it stands among the client's releases, where these depend on each other.
    """

    model: Model
    slots: int
    parts: Parts[Integers]
    place: Place
    seal: InitVar[object] = None

    def __post_init__(self, seal: object) -> None:
        """Refuse to be made by anything but `privatise`, and to be written over."""
        _check_seal(seal)
        _freeze(array for _, array in self.parts.pairs)


@final
@dataclass(frozen=True, slots=True)
class OpenAnswer:
    """Sums of raw records, sent as they are because the study says mechanism "none".

    model: The model that the client knew.
    records: How many records entered.
    expansion: Where the sums were taken, shape (d,).
    parts: Floats by name, in the order of the release.
    """

    model: Model
    records: int
    expansion: Vector
    parts: Parts[Vector]
    seal: InitVar[object] = None

    def __post_init__(self, seal: object) -> None:
        """Refuse to be made by anything but `disclose`, and to be written over."""
        _check_seal(seal)
        _freeze((self.expansion, *self.parts.values()))


def privatise(task: Task, query: Query, stream: SecureStream) -> Answer:
    """Round to the lattices and add the noise of the study's mechanism: the first of a chain.

    Call it once for a window: a second call would be a second release of the same records. Raises
    PrivacyError if the study has no noise, or a sum does not fit its lattice.
    """
    return privatise_behind(task, query, stream, Chain())[0]


def privatise_behind(
    task: Task, query: Query, stream: SecureStream, chain: Chain
) -> tuple[Answer, Chain]:
    """Do as `privatise` behind the releases of a chain; return the chain behind this one, too.

    Releases at the public start are in no chain. Raises PrivacyError as `privatise`, and if
    there are more slots than the chain lets a window have, its rows are of another study, or its
    last model had seen more.
    """
    if not task.study.noised:
        raise PrivacyError('privacy.mechanism is "none": there is no noise to add')
    slots, version = task.slots * query.blocks, query.model.version
    epoch = epoch_of(query.model.watermark, task.slots)
    if version and epoch < chain.epoch:
        raise PrivacyError("a chain goes on at models that have seen no less than those before")
    if slots > task.growth.next_window(chain.slots if version else 0):
        raise PrivacyError(
            "window.growth: this window has more record slots than it may have behind the "
            "client's releases so far"
        )
    rows = _rows_of(query, chain) if version and task.remembers else None
    # matrices draw first: the order is part of what a simulation's seed means
    drawn = sorted(query.parts, key=lambda name: not isinstance(query.parts[name], MatrixPart))
    noised, behind = {}, {}
    for name in drawn:
        if rows is None:
            noised[name] = query.parts[name].noised(stream)
        else:
            noised[name], behind[name] = query.parts[name].noised_behind(rows[name], stream)  # type: ignore[attr-defined]
    after = chain
    if version:
        kept = None if rows is None else np.hstack([behind[name] for name in query.parts])
        after = chain.behind(slots, epoch, kept)
    answer = Answer(
        model=query.model,
        slots=slots,
        parts=Parts(tuple((name, noised[name]) for name in query.parts)),
        place=Place.of(chain, after),
        seal=_SEAL,
    )
    return answer, after


def _rows_of(query: Query, chain: Chain) -> dict[str, Integers]:
    """Return the rows of noise that each part has to remember."""
    lengths = {name: len(part.sums.integers) for name, part in query.parts.items()}  # type: ignore[attr-defined]
    rows = chain.rows if chain.number else empty_rows(sum(lengths.values()))
    if rows.shape[1] != sum(lengths.values()):
        raise PrivacyError("the noise of this chain is of releases that hold other numbers")
    ends = np.cumsum(list(lengths.values()))[:-1]
    return dict(zip(lengths, np.split(rows, ends, axis=1), strict=True))


def disclose(task: Task, query: OpenQuery) -> OpenAnswer:
    """Pass raw sums on, for a study whose file says mechanism "none".

    Raises PrivacyError if the study's releases are noised.
    """
    if task.study.noised:
        raise PrivacyError("releases of this study are noised: its sums can only leave with noise")
    return OpenAnswer(
        model=query.model,
        records=query.records,
        expansion=query.expansion.copy(),
        parts=Parts(tuple((name, part.copy()) for name, part in query.parts.items())),
        seal=_SEAL,
    )


def _check_seal(seal: object) -> None:
    if seal is not _SEAL:
        raise PrivacyError("a release is made by privatise or disclose, never by hand")


def _freeze(arrays: Iterable[Integers | Vector]) -> None:
    for array in arrays:
        array.setflags(write=False)
