"""What a method says of itself: how much it needs, and what helps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline.errors import VeilstreamError
from pipeline.study import Study, with_keys

#: The largest epsilon that a study can have.
LARGEST_EPSILON = 20.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """What formulas expect of a study at a number of records; None where there is no formula.

    records_for_intervals: With fewer records intervals hardly appear; often it takes up to twice as
        many.
    epsilon_for_intervals: The epsilon at which the records at hand would do; None if none in the
        allowed range does.
    slope_error: Standard error of a slope from the noise alone, in the unit in which estimates
        print it.
    cloud: Variance of the linear predictor under the iterate's jitter, over its public scale: the
        largest slope for losses of numbers, 1 for classes. Formulas hold where it is small.
    relative_bias: Of logistic coefficients: by what share the jitter makes them too large.
    late: Whether it is models that may be late which keep the steps short, and not noise.
    sooner: What makes intervals come sooner besides more records or a larger epsilon, in words.
    """

    records_for_intervals: int
    epsilon_for_intervals: float | None = None
    slope_error: float | None = None
    cloud: float | None = None
    relative_bias: float | None = None
    late: bool = False
    sooner: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Missed:
    """Intervals that cover less than they promise, in a simulation.

    biased: Whether the estimates miss the target by more than chance.
    covering: Other kinds of intervals, which covered there.
    """

    biased: bool
    covering: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Exact:
    """An interval that knows all but the noise and the chance of its own records.

    With this noise none is shorter on average. All numbers are of the widest coefficient, for
    features as they are supposed to be.

    half: Half its length at the size that was asked for, in the unit in which estimates print it.
    wanted: Half the length at which it begins to say something, in that unit: half a logit, or half
        a standard deviation of the residuals.
    records: Record slots after which it is as short as that.
    ready: Record slots after which estimates are "ready" at the latest.
    """

    half: float
    wanted: float
    records: int
    ready: int


@dataclass(frozen=True, slots=True)
class Outlook:
    """What intervals a study will have, by formulas, before there are data.

    latest: Record slots after which the ridge alone is enough for intervals of slopes; None: no
        number of them is. What has no ridge, the intercept, and slopes that go with it may need
        more.
    usual: The same for independent features that are as their ranges and typical values say; where
        `first` is known, from which on four of five such studies have them.
    first: After which half of such studies have had one at all; None where no formula knows it.
    whole, late: From which on every coefficient has one, and the names of those that come late.
    intercept: Record slots after which the intercept has an interval, too, for such features; None:
        it needs no more than slopes do, or no number of records is known to be enough.
    narrow: Where `latest` is None: record slots before which there are hardly any if features use a
        part of their ranges alone; None: no formula knows it.
    usual_half: Half the length of a slope's interval at the size that was asked for, for such
        features, in the unit in which estimates print it. None where no formula knows it.
    why: What it hangs on, in words; empty if there is nothing to say.
    exact: Of a method whose noise is that of single records; None for others.
    classes: Record slots after which the noised counts of both classes stand out of their noise, if
        classes are as frequent as the study guesses; `latest`, `usual` and `intercept` are no less.
        None: nothing waits for that.
    kept: Share that the ridge leaves of a slope, for such features: the median over slopes, in [0,
        1]. None: there is no ridge, or no formula knows it.
    ridge, kept_by_ridge: Where there is none, the least ridge that alone is enough at the size that
        was asked for, and the share that it would leave of a slope.
    """

    latest: int | None
    usual: int
    usual_half: float | None
    why: str = ""
    intercept: int | None = None
    exact: Exact | None = None
    classes: int | None = None
    narrow: int | None = None
    kept: float | None = None
    first: int | None = None
    whole: int | None = None
    late: tuple[str, ...] = ()
    ridge: float | None = None
    kept_by_ridge: float | None = None


@dataclass(frozen=True, slots=True)
class Design:
    """What a method proposes for a study of a size.

    changes: Keys of the study file, as in "window.records", with their values.
    reasons: Why, by key.
    """

    changes: Mapping[str, Any]
    reasons: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Timetable:
    """A table for people and programs: what a method plans.

    rows: All with the same keys.
    shown: Which of them people are shown.
    facts: What holds for all of them.
    notes: What the reader should know, in words.
    why: How the rows come about, in words, for who asks.
    """

    rows: Sequence[Mapping[str, Any]]
    shown: Sequence[str]
    facts: Mapping[str, Any]
    notes: Sequence[str] = ()
    why: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class ModelCard:
    """How records change, estimated under differential privacy.

    text: Lines of a study file.
    facts: Its numbers, for programs.
    notes: What the reader should know, in words.
    """

    text: str
    facts: Mapping[str, Any]
    notes: Sequence[str]


def least_epsilon(
    study: Study, records: int, needed: Callable[[Study], int], step: float = 1.1
) -> float | None:
    """Return the least epsilon, on a grid, at which the records would do; None if none does.

    needed: Record slots until a study has intervals.
    step: From one epsilon of the grid to the next, > 1; the study's own comes before the first.
    """
    epsilon = study.privacy.epsilon
    while epsilon is not None and (epsilon := step * epsilon) <= LARGEST_EPSILON:
        try:
            found = needed(with_keys(study, {"privacy.epsilon": epsilon}, name="the study"))
        except VeilstreamError:
            # whatever leaves no room here leaves none at a larger one either
            return None
        if found <= records:
            return epsilon
    return None
