"""The tables [study] and [data] of a study file: names, columns and their public ranges."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta


class Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of all tables of a study file."""


class Heading(Strict, frozen=True, kw_only=True):
    """`[study]`: who is who."""

    name: Annotated[
        str,
        Meta(
            pattern=r"^[a-z0-9][a-z0-9-]{0,62}\Z",
            description="lower case letters, digits and hyphens, at most 63; names the topics",
            examples=["shuttle"],
        ),
    ]
    description: Annotated[str, Meta(description="one line for people", examples=["..."])] = ""


class Range(Strict, frozen=True, kw_only=True):
    """The public range of one feature, in its own unit; values beyond it are clipped."""

    min: Annotated[float, Meta(description="lower end, public", examples=[0.0])]
    max: Annotated[float, Meta(description="upper end, public, above min", examples=[100.0])]


class Response(Strict, frozen=True, kw_only=True):
    """`data.response`: the column to explain: one of two classes, a number, or a count."""

    name: Annotated[str, Meta(min_length=1, description="column name", examples=["anomaly"])]
    kind: Annotated[
        Literal["class", "number", "count"],
        Meta(
            description='"class" with positive and negative, "number" with min and max, or "count" '
            "with max",
            examples=["class"],
        ),
    ] = "class"
    positive: Annotated[
        str | None, Meta(description="the value that means yes", examples=["1"])
    ] = None
    negative: Annotated[str | None, Meta(description="the value that means no", examples=["0"])] = (
        None
    )
    min: Annotated[
        float | None,
        Meta(description="lower end of the public range of a number", examples=[0.0]),
    ] = None
    max: Annotated[
        float | None,
        Meta(description="upper end of the public range of a number or count", examples=[100.0]),
    ] = None

    @property
    def classes(self) -> tuple[str, str]:
        """The values that mean no and yes; empty texts if the response has no classes."""
        return self.negative or "", self.positive or ""

    @property
    def ends(self) -> tuple[float, float]:
        """The public range of a number or a count; (-1, 1) for classes."""
        if self.kind == "class":
            return -1.0, 1.0
        return self.min or 0.0, self.max or 0.0


class Data(Strict, frozen=True, kw_only=True):
    """`[data]`: the columns and their public ranges."""

    response: Annotated[
        Response,
        Meta(
            description="a table with name and two classes, or with kind and a public range",
            examples=['{ name = "anomaly", positive = "1", negative = "0" }'],
        ),
    ]
    features: Annotated[
        dict[Annotated[str, Meta(min_length=1)], Range],
        Meta(
            min_length=1,
            max_length=1000,
            description="one entry for each feature with its public range",
            examples=["sensor_1 = { min = 20, max = 120 }"],
        ),
    ]
    scaling: Annotated[
        Literal["unit", "none"],
        Meta(description='"unit": public range to [-1, 1]; "none": keep units', examples=["unit"]),
    ] = "unit"
