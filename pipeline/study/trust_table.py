"""The table [trust]: who is believed."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from pipeline.study.data_tables import Strict, key


class Trust(Strict, frozen=True, kw_only=True):
    """`[trust]`: which releases count, and whose words are believed."""

    releases: Annotated[
        Literal["authenticated", "open"],
        key(
            '"authenticated": releases of admitted clients alone; "open": of anybody who can '
            "write to the topic",
            "authenticated",
        ),
    ]
    key: Annotated[
        Annotated[str, Meta(pattern=r"^[0-9a-f]{128}\Z")] | None,
        key(
            "the study's public key, 128 hexadecimal digits, as `veilstream study keys` prints "
            "it; default: the first one that this folder hears of",
            "0" * 128,
        ),
    ] = None
