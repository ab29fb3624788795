"""The tables [study] and [data] of a study file: names, columns and their public ranges."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta


def key(meaning: str, example: object, **limits: Any) -> Meta:
    """Return what errors say of a key, with an example, and its limits as in `msgspec.Meta`."""
    return Meta(description=meaning, examples=[example], **limits)


#: Topics and keys of Redis have it in their names.
StudyName = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9-]{0,62}\Z")]


class Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of all tables of a study file."""


class Heading(Strict, frozen=True, kw_only=True):
    """`[study]`: who is who."""

    name: Annotated[
        str,
        key(
            "lower case letters, digits and hyphens, at most 63; names the topics",
            "shuttle",
            pattern=r"^[a-z0-9][a-z0-9-]{0,62}\Z",
        ),
    ]
    description: Annotated[str, key("one line for people", "...")] = ""
    follows: Annotated[
        StudyName | Annotated[list[StudyName], Meta(min_length=1)] | None,
        key(
            "the study that this one replaces: a client begins behind the records that it has "
            "released for that study, which is then over for this client. If that study replaced "
            "others, a list of them all, the newest first; default: none",
            "shuttle",
        ),
    ] = None

    @property
    def before(self) -> tuple[str, ...]:
        """The studies whose place this one takes, the newest first."""
        return (self.follows,) if isinstance(self.follows, str) else tuple(self.follows or ())


class Feature(Strict, frozen=True, kw_only=True, omit_defaults=True):
    """One feature: a number with its public range, in its own unit, or a category with levels."""

    kind: Annotated[
        Literal["number", "category"],
        key('"number" with min and max, or "category" with levels', "number"),
    ] = "number"
    min: Annotated[float | None, key("lower end, public", 0.0)] = None
    max: Annotated[float | None, key("upper end, public, above min", 100.0)] = None
    typical: Annotated[
        float | None,
        key(
            "a public value within the range, near most records: it becomes the zero of the "
            "encoded feature; default: the middle of the range, after the transform",
            20.0,
        ),
    ] = None
    transform: Annotated[
        Literal["asinh", "log1p", "sqrt"] | None,
        key(
            '"asinh" of x / unit for any range, "log1p" of x / unit or "sqrt" for ranges from '
            "0 on; default: none",
            "asinh",
        ),
    ] = None
    unit: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        key(
            "for asinh and log1p: the public size, above 0, from which on values count by their "
            "ratio; default: 1",
            100.0,
        ),
    ] = None
    levels: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=200)]] | None,
        key("for a category: all its values, public, at least two texts", '["north", "south"]'),
    ] = None
    base: Annotated[
        str | None,
        key(
            "for a category: the level that the others are compared with; default: the first",
            "north",
        ),
    ] = None
    missing: Annotated[
        float | str,
        key(
            'what a record without this value is: "drop", which leaves its slot empty, or the '
            "public value or level that is read in its place, such as the typical one",
            20.0,
        ),
    ] = "drop"
    indicator: Annotated[
        bool,
        key("whether a further column FEATURE_missing is 1 where it is missing, else 0", "true"),
    ] = False

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

    name: Annotated[str, key("column name", "anomaly", min_length=1)]
    kind: Annotated[
        Literal["class", "number", "count"],
        key(
            '"class" with positive and negative, "number" with min and max, or "count" with max',
            "class",
        ),
    ] = "class"
    positive: Annotated[str | None, key("the value that means yes", "1")] = None
    negative: Annotated[str | None, key("the value that means no", "0")] = None
    min: Annotated[float | None, key("lower end of the public range of a number", 0.0)] = None
    max: Annotated[
        float | None, key("upper end of the public range of a number or count", 100.0)
    ] = None
    typical: Annotated[
        Annotated[float, Meta(ge=1e-6, le=1 - 1e-6)] | None,
        key(
            "of classes: a public guess of the share of `positive`, from 1e-6 to 1 - 1e-6; plans "
            "and simulations alone use it, no release and no estimate does; default: 0.5",
            0.1,
        ),
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
        key(
            "a table with name and two classes, or with kind and a public range",
            '{ name = "anomaly", positive = "1", negative = "0" }',
        ),
    ]
    features: Annotated[
        dict[Annotated[str, Meta(min_length=1)], Feature],
        key(
            "one entry for each feature with its public range, or its levels",
            "sensor_1 = { min = 20, max = 120 }",
            max_length=1000,
        ),
    ]
    interactions: Annotated[
        list[str], key('products of two features, each as "a:b"', '["amount:region"]')
    ] = []
    scaling: Annotated[
        Literal["unit", "none"], key('"unit": public range to [-1, 1]; "none": keep units', "unit")
    ] = "unit"
