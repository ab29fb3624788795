"""The release on the wire: MessagePack with explicit type, length and unit of every vector.

Only the two sealed types of `pipeline.release.privatise` can be written; raw summaries have no
encoder. Unknown fields are ignored on reading, so that newer clients can send more.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from pipeline.errors import PayloadError, PrivacyError
from pipeline.release.model import COEFFICIENT_EXPONENT, VERSION_LIMIT, WATERMARK_LIMIT
from pipeline.release.privatise import Answer, OpenAnswer
from pipeline.release.task import Task

# The structs below opt out of the garbage collector (gc=False): they cannot form cycles, and a
# worker makes hundreds of thousands of them a second.
#: A release is far smaller; a larger payload is refused before it is decoded.
MAX_RELEASE_BYTES = 8 * 2**20

Name = Annotated[str, Meta(min_length=1, max_length=200)]
Version = Annotated[int, Meta(ge=0, le=VERSION_LIMIT)]
Watermark = Annotated[int, Meta(ge=0, le=WATERMARK_LIMIT)]
Sequence = Annotated[int, Meta(ge=0, lt=2**62)]


class Numbers(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A little-endian vector of one or more parts.

    The real value of a number is the stored one times 2^exponent, with the exponent of its part.
    """

    dtype: Literal["<i8", "<f8"]
    length: int
    exponents: tuple[int, ...]
    data: bytes


class PrivateRelease(
    msgspec.Struct,
    frozen=True,
    tag="private-release/1",
    tag_field="type",
    omit_defaults=True,
    gc=False,
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
    model_watermark
        Record slots folded before that model, as its message says: the age of the release.
    partition_watermark
        Of these, the slots of the client's own partition, where the study has several paths.
    slots
        Public number of record slots.
    claim
        The policy that the client kept, as `Guarantee.claim` words it; the worker compares it with
        the study's.
    sums
        Noised integers, one after the other. At version 0: the gradients of the negative and of the
        positive class (d each), and the two class counts; of a regression, one gradient alone.
        Later: the gradient (d), the curvature's packed upper triangle, row by row (d (d + 1) / 2),
        and the two class counts; of a regression, the sum of squared slopes instead of them, or
        nothing if the noise scale is known. Of single records: their gradients (d each), then what
        the study releases of the curvature and of the sum of outer products, packed as above.
    """

    client: Name
    ledger: Name
    seq: Sequence
    revision: Name
    version: Version
    model_watermark: Watermark
    slots: Annotated[int, Meta(ge=1)]
    claim: str
    expansion: Numbers
    sums: Numbers
    partition_watermark: Watermark | None = None


class OpenRelease(
    msgspec.Struct,
    frozen=True,
    tag="open-release/1",
    tag_field="type",
    omit_defaults=True,
    gc=False,
):
    """One window without privacy: exact sums of raw records, float64.

    Attributes
    ----------
    records
        How many records entered.
    partition_watermark
        As in `PrivateRelease`.
    sums
        Floats, one after the other: gradient (d), packed curvature and packed sum of score products
        (d (d + 1) / 2 each), and the two class counts (zeros if there are no classes). Of single
        records: their gradients (d each), and of the two matrices those that the study releases.
    """

    client: Name
    ledger: Name
    seq: Sequence
    revision: Name
    version: Version
    model_watermark: Watermark
    records: Annotated[int, Meta(ge=0, lt=2**31)]
    expansion: Numbers
    sums: Numbers
    partition_watermark: Watermark | None = None


Release = PrivateRelease | OpenRelease

_ENCODER = msgspec.msgpack.Encoder()
_DECODER: msgspec.msgpack.Decoder[Release] = msgspec.msgpack.Decoder(PrivateRelease | OpenRelease)


def seal(task: Task, answer: Answer | OpenAnswer, *, client: str, ledger: str, seq: int) -> bytes:
    """Write a sealed answer as the payload of a release.

    Raises
    ------
    TypeError
        If it is anything but what `privatise` or `disclose` made.
    PrivacyError
        If it was made for a study of the other kind.
    """
    if type(answer) is not Answer and type(answer) is not OpenAnswer:
        raise TypeError("only answers that privatise or disclose made can be written")
    if task.study.noised != isinstance(answer, Answer):
        raise PrivacyError("this answer was made for a study under another privacy policy")
    model, numbers = answer.model, np.concatenate(list(answer.parts.values()))
    if isinstance(answer, OpenAnswer):
        return _ENCODER.encode(
            OpenRelease(
                client=client,
                ledger=ledger,
                seq=seq,
                revision=task.revision,
                version=model.version,
                model_watermark=model.watermark,
                partition_watermark=model.partition_watermark,
                records=answer.records,
                expansion=_numbers(answer.expansion),
                sums=_numbers(numbers),
            )
        )
    return _ENCODER.encode(
        PrivateRelease(
            client=client,
            ledger=ledger,
            seq=seq,
            revision=task.revision,
            version=model.version,
            model_watermark=model.watermark,
            partition_watermark=model.partition_watermark,
            slots=answer.slots,
            claim=task.claim,
            expansion=_numbers(model.lattice, (COEFFICIENT_EXPONENT,)),
            sums=_numbers(numbers, task.exponents(model.version)),
        )
    )


def schema_of(task: Task) -> str:
    """Return the schema name that releases of this study carry."""
    return "private-release/1" if task.study.noised else "open-release/1"


def read(payload: bytes | None) -> Release:
    """Read a payload.

    Raises
    ------
    PayloadError
        If it is empty, too large, or no release of a known version. The text of the fault stays out
        of the message: it can echo the payload.
    """
    if payload is None:
        raise PayloadError("empty", "the record has no value")
    if len(payload) > MAX_RELEASE_BYTES:
        raise PayloadError("too-large", f"more than {MAX_RELEASE_BYTES} bytes")
    try:
        return _DECODER.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise PayloadError("undecodable", "the payload is no release of a known version") from None


def _numbers(
    values: NDArray[np.int64] | NDArray[np.float64], exponents: tuple[int, ...] = (0,)
) -> Numbers:
    dtype: Literal["<i8", "<f8"] = "<i8" if values.dtype.kind == "i" else "<f8"
    return Numbers(dtype, len(values), exponents, values.astype(dtype, copy=False).tobytes())
