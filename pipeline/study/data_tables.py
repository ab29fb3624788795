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


class Feature(Strict, frozen=True, kw_only=True, omit_defaults=True):
    """One feature: a number with its public range, in its own unit, or a category with levels."""

    kind: Annotated[
        Literal["number", "category"],
        Meta(
            description='"number" with min and max, or "category" with levels', examples=["number"]
        ),
    ] = "number"
    min: Annotated[float | None, Meta(description="lower end, public", examples=[0.0])] = None
    max: Annotated[
        float | None, Meta(description="upper end, public, above min", examples=[100.0])
    ] = None
    typical: Annotated[
        float | None,
        Meta(
            description="a public value within the range that most records are near: the zero of "
            "the encoded feature; default: the middle of the range, after the transform",
            examples=[20.0],
        ),
    ] = None
    transform: Annotated[
        Literal["asinh", "log1p", "sqrt"] | None,
        Meta(
            description='"asinh" of x / unit for any range, "log1p" of x / unit or "sqrt" for '
            "ranges from 0 on; default: none",
            examples=["asinh"],
        ),
    ] = None
    unit: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Meta(
            description="of asinh and log1p: the public size, above 0, from which on values count "
            "by their ratio; default: 1",
            examples=[100.0],
        ),
    ] = None
    levels: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=200)]] | None,
        Meta(
            description="of a category: all its values, public, at least two texts",
            examples=['["north", "south"]'],
        ),
    ] = None
    base: Annotated[
        str | None,
        Meta(
            description="of a category: the level that the others are compared with; default: the "
            "first",
            examples=["north"],
        ),
    ] = None

    @property
    def base_level(self) -> str:
        """The level of a category that the others are compared with; empty for a number."""
        return self.base or (self.levels or [""])[0]

    @property
    def others(self) -> tuple[str, ...]:
        """Levels of a category without its base, in the order of the file; each has a column."""
        return tuple(level for level in self.levels or [] if level != self.base_level)

    @property
    def ends(self) -> tuple[float, float]:
        """The public range of a number; (0, 1) for a category."""
        if self.min is None or self.max is None:
            return 0.0, 1.0
        return self.min, self.max


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
        dict[Annotated[str, Meta(min_length=1)], Feature],
        Meta(
            min_length=1,
            max_length=1000,
            description="one entry for each feature with its public range, or its levels",
            examples=["sensor_1 = { min = 20, max = 120 }"],
        ),
    ]
    interactions: Annotated[
        list[str],
        Meta(
            description='products of two features, each as "a:b"',
            examples=['["amount:region"]'],
        ),
    ] = []
    scaling: Annotated[
        Literal["unit", "none"],
        Meta(description='"unit": public range to [-1, 1]; "none": keep units', examples=["unit"]),
    ] = "unit"
