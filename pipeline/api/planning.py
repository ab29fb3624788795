"""What a study of a size can find, before there are data: settings, and a power analysis.

By formulas of the study's method, from public numbers alone or a sample; nothing is simulated. All
commands print what `pipeline/methods/plan_words.py` says of a plan. `veilstream doctor coverage`
simulates the same study, which takes longer and tells more.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import count, takewhile
from typing import Any, TypeVar

import msgspec
from scipy.special import ndtri

from pipeline.errors import ConfigError, PrivacyError
from pipeline.methods import METHODS, load_live, method_of, require_live, task_of
from pipeline.methods.base import LARGEST_EPSILON, Plan, Proposal
from pipeline.methods.plan_words import by_ridge, counted_of, two_digits, when
from pipeline.study.model import Study
from pipeline.study.reference import Seen
from pipeline.study_file.edit import with_keys
from pipeline.study_file.load import study_of

#: Smallest slope that most such studies tell from zero, above which next to nothing is seen: in
#: log odds or logs over half a feature's range, and as a share of the range of a number.
BLIND, BLIND_OF_RANGE = 1.0, 0.2
#: A ridge that keeps a smaller share of slopes leaves little to find; one that keeps a larger share
#: is not worth a word.
LITTLE, NEARLY_ALL = 0.1, 0.95
#: Another kind is worth a word where the smallest effect that it finds is at most this share of it.
CLEARLY = 0.8
#: What a study says of its estimator, and its plan as another kind leaves out.
LEFT = ("class_weights", "forgetting")
#: What the unit of a slope is, by loss; of numbers it is that of the response.
UNITS = {"logistic": " in log odds", "poisson": " in the log of the mean"}


def verdict(found: StudyPlan) -> str:
    """Say whether intervals are to be expected, and what it would take."""
    outlook, size = found.own.outlook, f"{found.records:,} records"
    if outlook.usual <= found.records:
        sure = by_ridge(outlook, found.records) or outlook.seen or not found.study.data.features
        where = "" if sure else " where features spread over their ranges"
        enough = f"are enough{' for wide intervals only' if _is_blind(found) else ''}{where}"
        more = _finds(found)
        if outlook.intercept is not None and outlook.intercept > found.records:
            enough += ", but for the intercept"
            more.append(
                "Predictions need the intercept, so they may be far off before it has an interval"
            )
        more.append(f"Intervals come {when(outlook, found.study)}")
        return ". ".join([f"{size} {enough}", *more])
    ways = []
    if found.enough_records is not None:
        ways.append(f"about {found.enough_records:,} records")
    if found.enough_epsilon is not None:
        ways.append(f"privacy.epsilon = {found.enough_epsilon:g}")
    if found.study.data.features:
        ways.append("fewer features")
    best_of_all = outlook.exact
    even = "" if best_of_all is None else f", where even an exact one is +-{best_of_all.half:.2g}"
    at_first = outlook.first is not None and outlook.first <= found.records
    few = (
        "are enough for first intervals, and too few for intervals that stay,"
        if at_first
        else "are too few for intervals"
    )
    return (
        f"{size} {few} at epsilon {found.own.epsilon:g}{even}; enough would be "
        f"{' or '.join(ways or ['larger clients'])}"
    )


def _finds(found: StudyPlan) -> list[str]:
    """Say how long intervals are at the size, by the smallest effect that they find.

    The effect is that without the ridge: of what a ridge leaves, no size is too large to be found.
    """
    study, own = found.study, found.own
    if own.detectable is None or not study.data.features:
        return []
    kept, seen = own.outlook.kept, own.effect
    if seen is None or _leaves_little(found):
        said = (
            f"The ridge keeps only about {kept or 0.0:.2g} times a slope, so they find next to no "
            "effect. More records, a larger privacy.epsilon, or fewer levels or features allow a "
            "smaller ridge"
        )
        return [said]
    response, step = study.data.response, "one unit of a feature"
    unit = UNITS.get(study.estimator.loss, "")
    if study.data.scaling == "unit":
        step = "half a feature's range"
        if response.kind == "number":
            unit = f" ({seen / (response.ends[1] - response.ends[0]):.0%} of the response's range)"
    said = f"They find only effects larger than {two_digits(seen)}{unit}, over {step}"
    if kept is not None and kept < NEARLY_ALL:
        least = two_digits(own.detectable)
        said += f" ({least} after the ridge, which keeps about {kept:.0%} of a slope)"
    return [said]


def _leaves_little(found: StudyPlan) -> bool:
    """Whether the ridge leaves so little of slopes that hardly any can be found."""
    kept = found.own.outlook.kept
    return kept is not None and kept < LITTLE


def _is_blind(found: StudyPlan) -> bool:
    """Whether the smallest slope that is seen is so large that next to nothing is."""
    response, seen = found.study.data.response, found.own.effect
    if found.own.detectable is None or not found.study.data.features:
        return False
    if seen is None or _leaves_little(found):
        return True
    if response.kind == "number":
        return seen > BLIND_OF_RANGE * (response.ends[1] - response.ends[0])
    return seen > BLIND


def lacking(rows: Sequence[Row], records: int) -> str:
    """Say at which budgets there are no intervals, and when they would come; empty: all have some.

    rows: Of one kind, by growing epsilon.
    """
    few = [row for row in rows if row.outlook.usual > records]
    if not few:
        return ""
    best = min(few, key=lambda row: row.outlook.usual)
    return (
        f"{counted_of(records)} are too few at epsilon "
        f"{', '.join(f'{row.epsilon:g}' for row in few)} (at {best.epsilon:g} it would take about "
        f"{best.outlook.usual:,})"
    )


def other_kind(found: StudyPlan) -> str:
    """Say which other kind finds clearly more at this budget, and what is lost by it; "" if none.

    Of the same loss alone: effects of another have another unit.
    """
    own, study, size = found.own, found.study, found.records
    able = [
        row
        for row in found.rows
        if row.kind != own.kind
        and (row.loss, row.epsilon) == (own.loss, own.epsilon)
        and row.outlook.usual <= size
        and row.effect is not None
        and not _is_blind(replace(found, own=row))
    ]
    best = min(able, key=lambda row: row.effect or 0.0, default=None)
    if best is None or best.effect is None:
        return ""
    has = own.outlook.usual <= size and own.effect is not None
    if has and best.effect > CLEARLY * (own.effect or 0.0):
        return ""
    unit, gives, kept = UNITS.get(own.loss, ""), method_of(study).spec.gives, best.outlook.kept
    instead = f"those larger than {two_digits(own.effect)}" if has else "none"
    lost = [gives] if gives else []
    if has and best.outlook.usual > own.outlook.usual:
        lost.append(
            f"intervals between about {own.outlook.usual:,} and {best.outlook.usual:,} records"
        )
    lost += [
        f"estimator.{key}, without which this is planned"
        for key in LEFT
        if getattr(study.estimator, key) is not None
    ]
    if kept is not None and own.outlook.kept is None:
        lost.append(f"intervals of real slopes, as it has a ridge that keeps about {kept:.0%}")
    needs = "" if best.neighbours == own.neighbours else f', neighbours = "{best.neighbours}"'
    return (
        f'estimator.kind = "{best.kind}"{needs} would find effects larger than '
        f"{two_digits(best.effect)}{unit} at this size and epsilon, where these settings find "
        f"{instead}. One would lose: {'; '.join(lost) or 'nothing that a plan knows'}"
    )


T = TypeVar("T")

#: The size that is planned where nobody says one: records of all clients, and clients.
RECORDS, CLIENTS = 100_000, 10
#: Budgets that stand beside the study's own.
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
#: Share of the studies that are to tell a coefficient from zero.
POWER = 0.8
#: No more records, and no larger budget, is looked for.
MOST_RECORDS, MOST_EPSILON = 10**9, 20.0
#: What one kind of study can take over from another.
SHARED = ("level", "residual_bound", "tau", "noise_scale")


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of study at one budget, with the settings that its method proposes there.

    detectable: The smallest penalised slope that four of five studies tell from zero where features
        are as usual, in the unit in which estimates print it; None as `usual_half`.
    effect: The slope without the ridge that the ridge shrinks to it; None where `detectable` is, or
        where the ridge leaves nothing.
    """

    kind: str
    loss: str
    neighbours: str
    epsilon: float
    design: Proposal
    outlook: Plan
    detectable: float | None
    effect: float | None


@dataclass(frozen=True, slots=True)
class StudyPlan:
    """What a study of a size should set, and what it can then find.

    study: With the settings that are proposed: those of `chosen`.
    own, rows: At the study's own budget, and at others, for every kind that can estimate it.
    enough_records, enough_epsilon: With how many records, or at which budget, intervals are to be
        expected, each with its own design; None where the study has enough as it is, or where
        nothing allowed is enough.
    larger: As `own`, for `enough_records`.
    """

    study: Study
    records: int
    clients: int
    own: Row
    rows: tuple[Row, ...]
    enough_records: int | None
    enough_epsilon: float | None
    larger: Row | None

    @property
    def chosen(self) -> Row:
        """The design that is proposed: of the expected records, or of the fewest that do."""
        return self.larger or self.own

    @property
    def chosen_for(self) -> int:
        """How many records that design is for."""
        return self.records if self.larger is None else self.enough_records or self.records

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        found = asdict(self)
        return found | {"study": self.study.name, "type": "plan/1"}


def plan(
    study: Study,
    records: int,
    clients: int,
    report: Callable[[int, int], object] | None = None,
    seen: Seen | None = None,
) -> StudyPlan:
    """Plan a study for an expected number of records, all clients together.

    seen: As `Method.plan` takes it.
    report: Takes how many designs are made, and how many there will be at least: where the records
        are too few, more are made to find how many are enough.

    Raises ConfigError if the study keeps no privacy, or is of a kind that runs over a file;
    PrivacyError if its budget cannot be kept.
    """
    epsilon = _budget(study)
    rows: list[Row] = []
    others = [other for kind in METHODS if (other := _as_kind(study, kind)) is not None]
    wanted = [(other, budget) for other in others for budget in sorted({*EPSILONS, epsilon})]
    for done, (other, budget) in enumerate(wanted, 1):
        rows += _rows(other, budget, records, clients, seen)
        if report is not None:
            report(done, len(wanted) + 1)
    return replace(proposed(study, records, clients, seen), rows=tuple(rows))


def proposed(study: Study, records: int, clients: int, seen: Seen | None = None) -> StudyPlan:
    """Return the plan of a study alone, without rows; parameters and errors as those of `plan`."""
    epsilon = _budget(study)
    own = _row(study, epsilon, records, clients, seen, told=True)
    enough_records = enough_epsilon = larger = None
    if own.outlook.usual > records:

        def is_enough(budget: float, size: int) -> bool:
            return _row(study, budget, size, clients, seen).outlook.usual <= size

        sizes = takewhile(lambda size: size < 2 * MOST_RECORDS, (2**k * records for k in count(1)))
        enough_records = _least(list(sizes), lambda size: is_enough(epsilon, size))
        # what is written is what is tried, with three digits
        tried = takewhile(lambda e: e <= MOST_EPSILON, (1.25**k * epsilon for k in count(1)))
        budgets = [float(f"{one:.3g}") for one in tried]
        enough_epsilon = _least(budgets, lambda budget: is_enough(budget, records))
        # settings that cannot do at this size would not do at a larger one, either
        larger = enough_records and _row(study, epsilon, enough_records, clients, seen, told=True)
    changes = (larger or own).design.changes
    return StudyPlan(
        with_keys(study, changes, name="the design"), records, clients, own, (),
        enough_records, enough_epsilon, larger or None,
    )  # fmt: skip


def _budget(study: Study) -> float:
    """Return the epsilon of a study that can be planned; errors as those of `plan`."""
    require_live(study, "a plan")
    epsilon = study.privacy.epsilon
    if epsilon is None or study.privacy.personal is not None:
        raise ConfigError(
            "privacy.epsilon: a plan is made for one budget, and this study has none or several; "
            "give --epsilon, without privacy.personal"
        )
    return epsilon


def _row(
    study: Study, epsilon: float, records: int, clients: int, seen: Seen | None, *,
    told: bool = False,
) -> Row:  # fmt: skip
    """Return a row; `told`: its outlook is put in words, and says what else would be."""
    given = with_keys(study, {"privacy.epsilon": epsilon}, name="the study")
    method = method_of(given)
    design = method.propose(given, records, clients, seen)
    proposed = with_keys(given, design.changes, name="the design")
    of = method.outlook if told else method.plan
    outlook = of(task_of(proposed), records, clients, seen)
    level = study.estimator.level
    times = 1 + float(ndtri(POWER)) / float(ndtri((1 + level) / 2))
    half, kept = outlook.usual_half, outlook.kept
    least = None if half is None else times * half
    effect = least if kept is None else least / kept if least is not None and kept > 0 else None
    return Row(
        study.estimator.kind, study.estimator.loss, study.privacy.neighbours, epsilon, design,
        outlook, least, effect,
    )  # fmt: skip


def _rows(
    study: Study, epsilon: float, records: int, clients: int, seen: Seen | None
) -> Iterator[Row]:
    try:
        yield _row(study, epsilon, records, clients, seen)
    except (ConfigError, PrivacyError):
        # a budget that this kind does not allow, or at which it cannot keep its promise, has no row
        return


def _as_kind(study: Study, kind: str) -> Study | None:
    """Return a study of the same records with another kind; None where it can have none.

    A loss that the kind has not becomes the first that it has for such responses, and neighbours
    that it does not hide the wider "replace-one".
    """
    if kind == study.estimator.kind:
        return study
    if not study.data.features:
        # a mean alone: other kinds explain it by features
        return None
    tables = msgspec.to_builtins(study)
    # how many partitions a topic has changes no plan, and a kind may ask for one
    tables["stream"]["partitions"] = 1
    privacy = {name: v for name, v in tables["privacy"].items() if v and name != "split"}
    for loss in (study.estimator.loss, *load_live(kind).spec.losses):
        shared = SHARED if loss == study.estimator.loss else ("level",)
        kept = {name: v for name in shared if (v := tables["estimator"].get(name)) is not None}
        tables["estimator"] = {"kind": kind, "loss": loss, "ridge": 0.0, **kept}
        for neighbours in dict.fromkeys((study.privacy.neighbours, "replace-one")):
            tables["privacy"] = {**privacy, "neighbours": neighbours}
            try:
                found = study_of(tables, name="the study")
                task_of(found)
            except (ConfigError, PrivacyError):
                continue
            return found
    return None


def _least(ordered: Sequence[T], is_enough: Callable[[T], bool]) -> T | None:
    """Return the least that is enough, as is all behind it; None: none is."""
    place = bisect_left(ordered, True, key=is_enough)
    return ordered[place] if place < len(ordered) else None


def least_epsilon(
    study: Study, records: int, clients: int, seen: Seen | None = None
) -> float | None:
    """Return the least epsilon, in steps of a tenth, at which so many records have intervals.

    seen: As `Method.plan` takes it.

    Returns: None where none does, or the study has no single epsilon.
    """
    epsilon = study.privacy.epsilon
    if study.privacy.personal is not None:
        return None
    while epsilon is not None and (epsilon := 1.1 * epsilon) <= LARGEST_EPSILON:
        try:
            tried = with_keys(study, {"privacy.epsilon": epsilon}, name="the study")
            if method_of(tried).plan(task_of(tried), records, clients, seen).usual <= records:
                return epsilon
        except (ConfigError, PrivacyError):
            # whatever leaves no room here leaves none at a larger one either
            return None
    return None
