"""The tables [study] and [data] of a study file: names, columns, public ranges and transforms.

What declarations of responses and features must keep is checked here.
"""

from __future__ import annotations

import math
import typing
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta

from pipeline.errors import ConfigError
from pipeline.types import Vector


def key(meaning: str, *examples: object, **limits: Any) -> Meta:
    """Return what errors say of a key, with examples, and its limits as in `msgspec.Meta`."""
    return Meta(description=meaning, examples=list(examples) or None, **limits)


#: Topics and keys of Redis have it in their names.
StudyName = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9-]{0,62}\Z")]


class Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of all tables of a study file."""


#: Behind the name that a study has in a trial (`veilstream play`).
OF_TRIALS = "-trial"


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


#: Beyond it a count is not told from its neighbours, and its noise hides everything.
LARGEST_COUNT = 10**6


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
        Annotated[float, Meta(ge=1e-6, le=LARGEST_COUNT)] | None,
        key(
            "a public guess: of classes the share of `positive`, from 1e-6 to 1 - 1e-6, by default "
            "0.5; of counts the mean, from 1e-6 to `max`, by default a quarter of that; plans and "
            "simulations alone use it, no release and no estimate does",
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
        dict[
            Annotated[str, Meta(min_length=1)],
            Annotated[Feature, key("a public range, or levels", "{ min = 20, max = 120 }")],
        ],
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


@dataclass(frozen=True, slots=True)
class Transform:
    """A monotone function of x / unit that is 0 at 0.

    forward, inverse: The function, and its inverse on what it gives.
    signed: Whether it takes values below 0.
    scaled: Whether a unit changes more than the unit of what it gives.
    """

    forward: Callable[[Vector], Vector]
    inverse: Callable[[Vector], Vector]
    signed: bool
    scaled: bool


TRANSFORMS = {
    "asinh": Transform(np.arcsinh, np.sinh, signed=True, scaled=True),
    "log1p": Transform(np.log1p, np.expm1, signed=False, scaled=True),
    "sqrt": Transform(np.sqrt, np.square, signed=False, scaled=False),
}


def transformed(feature: Feature, values: Vector) -> Vector:
    """Return values within the range after the feature's transform; as they are without one."""
    if feature.transform is None:
        return values
    return TRANSFORMS[feature.transform].forward(values / (feature.unit or 1.0))


def restored(feature: Feature, values: Vector) -> Vector:
    """Return the values that `transformed` makes these of."""
    if feature.transform is None:
        return values
    found: Vector = TRANSFORMS[feature.transform].inverse(values) * (feature.unit or 1.0)
    return found


def words_of(name: str, feature: Feature) -> str:
    """Return what a number is after its transform, such as "asinh(amount / 100)"."""
    if feature.transform is None:
        return name
    unit = feature.unit or 1.0
    return f"{feature.transform}({name if unit == 1 else f'{name} / {unit:g}'})"


#: No end of a range may be larger, and no range narrower than one part in it.
WIDEST = 1e100
#: More columns than any study has; a category has one for each level but its base.
MOST_COLUMNS = 1000
EXAMPLES = {
    "number": "{ min = 0, max = 100 }",
    "category": '{ kind = "category", levels = ["north", "south"] }',
}
#: Keys that each kind needs, and those that it may have.
_KEYS = {
    "number": (("min", "max"), ("typical", "transform", "unit")),
    "category": (("levels",), ("base",)),
}


def columns_of(features: Mapping[str, Feature], interactions: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the columns: features in their order, then products.

    A number has one column of its own name, a category `feature=level` for each level but its base.
    """
    features = with_indicators(features)
    held = {name: main_columns(name, feature) for name, feature in features.items()}
    products = [
        f"{left}:{right}"
        for one, other in (pair_of(text, features) for text in interactions)
        for left in held[one]
        for right in held[other]
    ]
    return (*(column for columns in held.values() for column in columns), *products)


#: A category of what the cell of another feature holds: "" is an empty one, as in a file.
INDICATOR = Feature(kind="category", levels=["present", ""])


def indicator_of(name: str) -> str:
    """Return what the column is called that says where a feature is missing."""
    return f"{name}_missing"


def with_indicators(features: Mapping[str, Feature]) -> dict[str, Feature]:
    """Return features, each followed by its indicator if it has one; the same if they are there."""
    found: dict[str, Feature] = {}
    for name, feature in features.items():
        found[name] = feature
        if feature.indicator:
            found[indicator_of(name)] = INDICATOR
    return found


def main_columns(name: str, feature: Feature) -> tuple[str, ...]:
    """Return the columns of one feature by itself."""
    if feature.kind == "number":
        return (name,)
    return tuple(f"{name}={level}" if level else name for level in feature.others)


def pair_of(interaction: str, features: Mapping[str, Feature]) -> tuple[str, str]:
    """Return the two features of an interaction "a:b".

    Raises ConfigError if it does not name two features of the study, or names them in two ways.
    """
    parts = interaction.split(":")
    splits = [(":".join(parts[:i]), ":".join(parts[i:])) for i in range(1, len(parts))]
    found = [(a, b) for a, b in splits if a in features and b in features and a != b]
    if len(found) != 1:
        raise ConfigError(
            f'data.interactions: {interaction!r} is not "a:b" of two different features, which are '
            f"{', '.join(list(features)[:8])}; example: interactions = "
            '["amount:region"]'
        )
    return found[0]


def check_range(key: str, low: float, high: float) -> None:
    """Refuse a range that is empty, endless, or too narrow to tell values apart.

    Raises ConfigError, naming the key.
    """
    if not (abs(low) <= WIDEST and abs(high) <= WIDEST):
        raise ConfigError(f"{key}: min and max must be finite, within +-{WIDEST:g}")
    if not low < high:
        raise ConfigError(f"{key}: min must be below max, for example {{ min = 0, max = 100 }}")
    if high - low < 1 / WIDEST:
        raise ConfigError(f"{key}: min and max are too close to tell apart")


def check_features(features: Mapping[str, Feature], interactions: Sequence[str]) -> None:
    """Refuse features, or interactions of them, that cannot be encoded.

    Raises ConfigError, naming the key, what is allowed and the way out.
    """
    for name, feature in features.items():
        key = f"data.features.{name}"
        _check_keys(key, feature)
        if feature.kind == "number":
            _check_number(key, feature)
        if feature.kind == "category":
            _check_category(key, feature)
        _check_missing(key, feature)
        if feature.indicator and indicator_of(name) in features:
            raise ConfigError(
                f"{key}.indicator: its column would be called {indicator_of(name)!r}, as another "
                "feature is; rename that feature, or remove indicator"
            )
    features = with_indicators(features)
    pairs = [frozenset(pair_of(text, features)) for text in interactions]
    if len(set(pairs)) < len(pairs):
        raise ConfigError("data.interactions: two are of the same features; remove one")
    columns = columns_of(features, interactions)
    if len(columns) > MOST_COLUMNS:
        raise ConfigError(
            f"data.features: they make {len(columns)} columns, and {MOST_COLUMNS} are allowed; "
            "join rare levels into one before the records come, or remove interactions"
        )
    twice = [name for name, count in Counter(("intercept", *columns)).items() if count > 1]
    if "intercept" in twice:
        raise ConfigError("data.features: the name 'intercept' belongs to the model")
    if twice:
        raise ConfigError(
            f"data.features: two columns would be called {twice[0]!r}; a level has a column "
            "feature=level, an interaction a:b; rename the feature or the level"
        )


def _check_keys(key: str, feature: Feature) -> None:
    needed, allowed = _KEYS[feature.kind]
    example = f"example: {key.rpartition('.')[2]} = {EXAMPLES[feature.kind]}"
    for wanted in needed:
        if getattr(feature, wanted) is None:
            raise ConfigError(
                f"{key}.{wanted}: is required; allowed: {_meaning(wanted)}; {example}"
            )
    others = [k for own in _KEYS.values() for keys in own for k in keys if k not in needed]
    for other in others:
        if other not in allowed and getattr(feature, other) is not None:
            raise ConfigError(
                f'{key}.{other}: does not go with kind = "{feature.kind}"; remove it; {example}'
            )


def _meaning(key: str) -> str:
    hints = typing.get_type_hints(Feature, include_extras=True)
    meta: msgspec.Meta = hints[key].__metadata__[0]
    return meta.description or ""


def _check_number(key: str, feature: Feature) -> None:
    low, high = feature.ends
    check_range(key, low, high)
    # written so that what is no number fails
    if feature.typical is not None and not low <= feature.typical <= high:
        raise ConfigError(
            f"{key}.typical: must lie in the public range, here {low:g} to {high:g}; it is a "
            "public guess of where most records are"
        )
    transform = None if feature.transform is None else TRANSFORMS[feature.transform]
    if feature.unit is not None and not (transform and transform.scaled):
        known = " or ".join(f'"{name}"' for name, t in TRANSFORMS.items() if t.scaled)
        raise ConfigError(f"{key}.unit: goes with transform = {known}; remove it, or add that")
    if feature.unit is not None and not 1 / WIDEST <= feature.unit <= WIDEST:
        raise ConfigError(f"{key}.unit: must lie in [{1 / WIDEST:g}, {WIDEST:g}]")
    if transform is None:
        return
    if low < 0 and not transform.signed:
        raise ConfigError(
            f'{key}.transform: "{feature.transform}" needs a range from 0 on, and min is {low:g}; '
            'use "asinh", which takes both signs, or raise min'
        )
    least, most = transformed(feature, np.array([low, high])).tolist()
    if most - least < 1 / WIDEST:
        raise ConfigError(
            f"{key}.transform: after the transform, the two ends of the range are too "
            "close to tell apart; remove the transform, or choose a wider range"
        )


def _check_category(key: str, feature: Feature) -> None:
    levels = feature.levels or []
    if len(levels) < 2:
        raise ConfigError(
            f"{key}.levels: a category needs at least two; a feature that is always the same has "
            "no coefficient, remove it"
        )
    if any(level != level.strip() for level in levels):
        raise ConfigError(f"{key}.levels: remove the blanks at their ends; records lose theirs")
    twice = [level for level, count in Counter(map(_same, levels)).items() if count > 1]
    if twice:
        raise ConfigError(
            f"{key}.levels: two stand for the same value, {str(twice[0])!r}; numbers are compared "
            "as such, so that 1 and 1.0 are one level; remove one"
        )
    if feature.base is not None and feature.base not in levels:
        raise ConfigError(f"{key}.base: must be one of levels: {', '.join(levels[:8])}")


def _check_missing(key: str, feature: Feature) -> None:
    if feature.missing == "drop":
        if feature.indicator:
            raise ConfigError(
                f"{key}.indicator: no record without the value is used; set {key}.missing to the "
                "public value that is read in its place, or remove indicator"
            )
    elif feature.kind == "category" and feature.missing not in (feature.levels or []):
        levels = ", ".join((feature.levels or [])[:8])
        raise ConfigError(f'{key}.missing: must be "drop" or one of levels: {levels}')
    elif feature.kind == "number":
        low, high = feature.ends
        # written so that what is no number fails
        if isinstance(feature.missing, str) or not low <= feature.missing <= high:
            raise ConfigError(
                f'{key}.missing: must be "drop" or lie in the public range, here {low:g} to '
                f"{high:g}; it is read where a record has no value"
            )


def _same(level: str) -> str | float:
    """Return what a level is compared by: its number, if it is one."""
    try:
        return level if "_" in level else float(level)
    except ValueError:
        return level


#: A response of each kind.
RESPONSES = {
    "class": '{ name = "anomaly", positive = "1", negative = "0" }',
    "number": '{ name = "power", kind = "number", min = 0, max = 100 }',
    "count": '{ name = "visits", kind = "count", max = 50 }',
}
#: Keys of a response that each kind needs; it takes no others.
_OF_KIND = {"class": {"positive", "negative"}, "number": {"min", "max"}, "count": {"max"}}


def _most_typical(response: Response) -> float:
    return 1 - 1e-6 if response.kind == "class" else response.ends[1]


def check_keys(response: Response) -> None:
    """Refuse a response whose keys do not go with its kind.

    Raises ConfigError, naming the key, with an example.
    """
    given = {
        key for key in ("positive", "negative", "min", "max") if getattr(response, key) is not None
    }
    needed = _OF_KIND[response.kind]
    example = f"example: response = {RESPONSES[response.kind]}"
    if missing := sorted(needed - given):
        raise ConfigError(
            f'data.response.{missing[0]}: is required with kind = "{response.kind}"; {example}'
        )
    if response.typical is not None and response.kind == "number":
        raise ConfigError(
            "data.response.typical: is a guess of the share of one of two classes, or of the mean "
            'of counts, and does not go with kind = "number"; remove it'
        )
    if extra := sorted(given - needed):
        raise ConfigError(
            f'data.response.{extra[0]}: does not go with kind = "{response.kind}"; {example}'
        )
    if response.typical is not None and response.typical > _most_typical(response):
        raise ConfigError(
            f"data.response.typical: must be at most {_most_typical(response):g} where kind = "
            f'"{response.kind}"'
        )
    if response.kind == "class" and response.positive == response.negative:
        raise ConfigError("data.response: positive and negative must be different values")
    if response.kind == "number":
        check_range("data.response", *response.ends)
    if response.kind == "count":
        most = response.ends[1]
        if not 1 <= most <= LARGEST_COUNT or most != math.floor(most):
            raise ConfigError(
                f"data.response.max: must be a whole number from 1 to {LARGEST_COUNT}; {example}"
            )
