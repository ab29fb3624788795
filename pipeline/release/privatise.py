"""The only doors out of a client: `privatise`, and the loud `disclose` of studies without privacy.

Messages can be made from the two result types alone, and only this module makes those.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import InitVar, dataclass
from typing import Generic, TypeVar, final

from pipeline.errors import PrivacyError
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
class Answer:
    """Noised integers on the study's public lattices: safe to send under its policy.

    model: Expansion point and its version.
    slots: Public number of record slots of the window, full or empty.
    parts: Lattice integers by name, in the order of the release; the units are the task's.
    """

    model: Model
    slots: int
    parts: Parts[Integers]
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
    """Round to the lattices and add the noise of the study's mechanism.

    Call it once for a window: a second call would be a second release of the same records. Raises
    PrivacyError if the study has no noise, or a sum does not fit its lattice.
    """
    if not task.study.noised:
        raise PrivacyError('privacy.mechanism is "none": there is no noise to add')
    # matrices draw first: the order is part of what a simulation's seed means
    drawn = sorted(query.parts, key=lambda name: not isinstance(query.parts[name], MatrixPart))
    noised = {name: query.parts[name].noised(stream) for name in drawn}
    return Answer(
        model=query.model,
        slots=task.slots,
        parts=Parts(tuple((name, noised[name]) for name in query.parts)),
        seal=_SEAL,
    )


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
