"""The release on the wire: MessagePack with explicit dtype, shape and unit of every array.

Only the two sealed types of `pipeline.local.privatise` can be written; raw summaries have no
encoder. Unknown fields are ignored on reading, so that newer clients can send more.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from pipeline.errors import PayloadError, PrivacyError
from pipeline.local.model import COEFFICIENT_EXPONENT
from pipeline.local.plan import Plan
from pipeline.local.privatise import NoisedSums, OpenSums

# The structs below opt out of the garbage collector (gc=False): they cannot form cycles, and a
# worker makes hundreds of thousands of them a second.
Name = Annotated[str, Meta(min_length=1, max_length=200)]
Sequence = Annotated[int, Meta(ge=0, lt=2**62)]


class Tensor(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A little-endian array; the real value is the stored one times 2^exponent."""

    dtype: Literal["<i8", "<f8"]
    shape: tuple[int, ...]
    exponent: int
    data: bytes


class PrivateRelease(
    msgspec.Struct, frozen=True, tag="private-release/1", tag_field="type", gc=False
):
    """One noised window.

    Attributes
    ----------
    client, ledger, seq
        Who sent it, which privacy ledger vouches for it, and its number, gap-free from 0.
    revision
        The study revision it was made under.
    version, expansion
        The model at which it was taken, version and coefficients; the fold needs no other topic.
    slots
        Public number of record slots.
    mechanism, epsilon, delta
        What the client claims; the worker compares it with the study.
    gradient, curvature, counts
        Noised integers; at version 0 two class gradients and no curvature.
    """

    client: Name
    ledger: Name
    seq: Sequence
    revision: Name
    version: Annotated[int, Meta(ge=0, lt=2**53)]
    slots: Annotated[int, Meta(ge=1)]
    mechanism: str
    epsilon: float
    delta: float
    expansion: Tensor
    gradient: Tensor
    curvature: Tensor | None
    counts: Tensor


class OpenRelease(msgspec.Struct, frozen=True, tag="open-release/1", tag_field="type", gc=False):
    """One window without privacy: exact sums of raw records, float64.

    Attributes
    ----------
    records
        How many records entered.
    curvature, scores
        Packed upper triangles.
    """

    client: Name
    ledger: Name
    seq: Sequence
    revision: Name
    version: Annotated[int, Meta(ge=0, lt=2**53)]
    records: Annotated[int, Meta(ge=0, lt=2**31)]
    expansion: Tensor
    gradient: Tensor
    curvature: Tensor
    scores: Tensor
    counts: Tensor


Release = PrivateRelease | OpenRelease

_ENCODER = msgspec.msgpack.Encoder()
_DECODER: msgspec.msgpack.Decoder[Release] = msgspec.msgpack.Decoder(PrivateRelease | OpenRelease)


def seal(plan: Plan, sums: NoisedSums | OpenSums, *, client: str, ledger: str, seq: int) -> bytes:
    """Write a sealed summary as the payload of a release.

    Raises
    ------
    TypeError
        If it is anything but what `privatise` or `disclose` made.
    PrivacyError
        If it was made for a study of the other kind.
    """
    if not isinstance(sums, NoisedSums | OpenSums):
        raise TypeError("only sums that privatise or disclose made can be written")
    if plan.study.private != isinstance(sums, NoisedSums):
        raise PrivacyError("these sums were made for a study under another privacy policy")
    if isinstance(sums, OpenSums):
        return _ENCODER.encode(
            OpenRelease(
                client=client,
                ledger=ledger,
                seq=seq,
                revision=plan.revision,
                version=sums.version,
                records=sums.records,
                expansion=_tensor(sums.expansion),
                gradient=_tensor(sums.gradient),
                curvature=_tensor(sums.curvature),
                scores=_tensor(sums.scores),
                counts=_tensor(sums.counts),
            )
        )
    channels, policy = plan.channels(sums.model.version), plan.guarantee
    curvature: Tensor | None = None
    if sums.curvature is not None and channels.curvature is not None:
        curvature = _tensor(sums.curvature, channels.curvature.exponent)
    return _ENCODER.encode(
        PrivateRelease(
            client=client,
            ledger=ledger,
            seq=seq,
            revision=plan.revision,
            version=sums.model.version,
            slots=sums.slots,
            mechanism=policy.mechanism,
            epsilon=policy.epsilon or 0.0,
            delta=policy.delta or 0.0,
            expansion=_tensor(sums.model.lattice, COEFFICIENT_EXPONENT),
            gradient=_tensor(sums.gradient, channels.gradient.exponent),
            curvature=curvature,
            counts=_tensor(sums.counts, channels.counts.exponent),
        )
    )


def schema_of(plan: Plan) -> str:
    """Return the schema name that releases of this study carry."""
    return "private-release/1" if plan.study.private else "open-release/1"


def read(payload: bytes) -> Release:
    """Read a payload.

    Raises
    ------
    PayloadError
        If it is no release of a known version. The text of the fault stays out of the message: it
        can echo the payload.
    """
    try:
        return _DECODER.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise PayloadError("undecodable", "the payload is no release of a known version") from None


def _tensor(values: NDArray[np.int64] | NDArray[np.float64], exponent: int = 0) -> Tensor:
    dtype: Literal["<i8", "<f8"] = "<i8" if values.dtype.kind == "i" else "<f8"
    return Tensor(dtype, values.shape, exponent, values.astype(dtype, copy=False).tobytes())
