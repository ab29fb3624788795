"""The only doors out of a client: `privatise`, and the loud `disclose` of studies without privacy.

Messages can be made from the two result types alone, and only this module makes those.
"""

from __future__ import annotations

from dataclasses import InitVar, dataclass
from typing import final

import numpy as np

from pipeline.errors import PrivacyError
from pipeline.linalg import pack_upper, upper_is_diagonal
from pipeline.local.model import Model
from pipeline.local.plan import Plan
from pipeline.local.summarise import BoundedSums, Exact, Summary
from pipeline.privacy.channel import Channel
from pipeline.privacy.randomness import SecureStream
from pipeline.types import Integers, Vector

_SEAL = object()


@final
@dataclass(frozen=True, slots=True)
class NoisedSums:
    """Noised integers on the study's public lattices: safe to send under its policy.

    Attributes
    ----------
    model
        Expansion point and its version.
    slots
        Public number of record slots of the window, full or empty.
    gradient, curvature, counts, products
        Lattice integers; the units are the plan's. None for a matrix that is not released.
    """

    model: Model
    slots: int
    gradient: Integers
    curvature: Integers | None
    counts: Integers
    products: Integers | None = None
    seal: InitVar[object] = None

    def __post_init__(self, seal: object) -> None:
        """Refuse to be made by anything but `privatise`, and to be written over."""
        _check_seal(seal)
        _freeze(self.gradient, self.curvature, self.counts, self.products)


@final
@dataclass(frozen=True, slots=True)
class OpenSums:
    """Sums of raw records, sent as they are because the study says mechanism "none".

    Attributes
    ----------
    version, seen, place
        Of the model that the client knew: its version, and the record slots folded before it, of
        all partitions and of the client's own.
    records
        How many records entered.
    expansion, gradient
        Shape (d,).
    curvature, scores
        Packed upper triangles.
    counts
        Negative and positive records.
    """

    version: int
    seen: int
    records: int
    expansion: Vector
    gradient: Vector
    curvature: Vector
    scores: Vector
    counts: Vector
    place: int | None = None
    seal: InitVar[object] = None

    def __post_init__(self, seal: object) -> None:
        """Refuse to be made by anything but `disclose`, and to be written over."""
        _check_seal(seal)
        _freeze(self.expansion, self.gradient, self.curvature, self.scores, self.counts)


def privatise(plan: Plan, sums: BoundedSums, stream: SecureStream) -> NoisedSums:
    """Round to the lattices and add the noise of the study's mechanism.

    Call it once for a window: a second call would be a second release of the same records.

    Raises
    ------
    PrivacyError
        If the study has no noise, or a sum does not fit its lattice.
    """
    if not plan.study.noised:
        raise PrivacyError('privacy.mechanism is "none": there is no noise to add')
    channels = plan.channels(sums.model.version)
    curvature = _noised_matrix(channels.curvature, channels.beside, sums.curvature, plan, stream)
    products = _noised_matrix(
        channels.products, channels.products_beside, sums.products, plan, stream
    )
    return NoisedSums(
        model=sums.model,
        slots=plan.slots,
        gradient=_noised_records(plan, sums, stream)
        if plan.by_record
        else _noised(channels.gradient, sums.gradient, plan.summed, stream),
        curvature=curvature,
        counts=_noised(channels.counts, sums.counts, plan.slots, stream)
        if channels.counts is not None
        else np.zeros(0, dtype=np.int64),
        products=products,
        seal=_SEAL,
    )


def disclose(
    plan: Plan, summary: Summary, version: int, seen: int = 0, place: int | None = None
) -> OpenSums:
    """Pass raw sums on, for a study whose file says mechanism "none".

    Raises
    ------
    PrivacyError
        If the study's releases are noised.
    """
    if plan.study.noised:
        raise PrivacyError("releases of this study are noised: its sums can only leave with noise")
    return OpenSums(
        version=version,
        seen=seen,
        records=summary.records,
        expansion=summary.expansion.copy(),
        gradient=summary.gradient.copy(),
        curvature=pack_upper(summary.curvature),
        scores=pack_upper(summary.scores),
        counts=np.array(summary.counts, dtype=np.float64),
        place=place,
        seal=_SEAL,
    )


def _noised(part: Channel, sums: Exact, slots: int, stream: SecureStream) -> Integers:
    return part.noised(part.round(sums.integers, sums.exponents), slots, stream)


def _noised_records(plan: Plan, sums: BoundedSums, stream: SecureStream) -> Integers:
    """Add to the gradient of each slot the noise of its level, but of no looser one than allowed.

    A place that is none counts as the strictest: no slot is left without noise.
    """
    channels = plan.record_channels
    rounded = channels[-1].round(sums.gradient.integers, sums.gradient.exponents)
    if len(channels) == 1:
        return channels[0].noised(rounded, plan.summed, stream)
    asked = np.zeros(plan.slots, dtype=np.int64) if sums.levels is None else sums.levels
    known = (asked > 0) & (asked < len(channels))
    places = np.minimum(np.where(known, asked, 0), plan.ceiling)
    values = rounded.reshape(plan.slots, plan.size)
    noised = np.empty_like(values)
    for place, channel in enumerate(channels):
        slots = places == place
        part = channel.noised(values[slots].ravel(), plan.summed, stream)
        noised[slots] = part.reshape(-1, plan.size)
    return noised.ravel()


def _noised_matrix(
    part: Channel | None,
    beside: Channel | None,
    sums: Exact | None,
    plan: Plan,
    stream: SecureStream,
) -> Integers | None:
    """Add noise that is isotropic in svec form; None for a matrix that is not released."""
    if sums is None:
        return None
    if part is None or beside is None:
        raise PrivacyError("this release has no such matrix")
    values = part.round(sums.integers, sums.exponents)
    diagonal = upper_is_diagonal(plan.size)
    values[diagonal] = part.noised(values[diagonal], plan.slots, stream)
    values[~diagonal] = beside.noised(values[~diagonal], plan.slots, stream)
    return values


def _check_seal(seal: object) -> None:
    if seal is not _SEAL:
        raise PrivacyError("a release is made by privatise or disclose, never by hand")


def _freeze(*arrays: Integers | Vector | None) -> None:
    for array in arrays:
        if array is not None:
            array.setflags(write=False)
