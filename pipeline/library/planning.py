"""What a study of a size can find, before there are data: settings, and a power analysis.

By formulas of the study's method from public numbers alone; nothing is simulated and no data are
read. `veilstream doctor coverage` simulates the same study, which takes longer and tells more.
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
from pipeline.study.model import Study
from pipeline.study_file.edit import with_keys
from pipeline.study_file.load import study_of

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
    study: Study, records: int, clients: int, told: Callable[[int, int], object] | None = None
) -> StudyPlan:
    """Plan a study for an expected number of records, all clients together.

    told: Takes how many designs are made, and how many there will be at least: where the records
        are too few, more are made to find how many are enough.

    Raises ConfigError if the study keeps no privacy, or is of a kind that runs over a file;
    PrivacyError if its budget cannot be kept.
    """
    epsilon = _budget(study)
    rows: list[Row] = []
    others = [other for kind in METHODS if (other := _as_kind(study, kind)) is not None]
    wanted = [(other, budget) for other in others for budget in sorted({*EPSILONS, epsilon})]
    for done, (other, budget) in enumerate(wanted, 1):
        rows += _rows(other, budget, records, clients)
        if told is not None:
            told(done, len(wanted) + 1)
    return replace(proposed(study, records, clients), rows=tuple(rows))


def proposed(study: Study, records: int, clients: int) -> StudyPlan:
    """Return the plan of a study alone, without rows; errors as those of `plan`."""
    epsilon = _budget(study)
    own = _row(study, epsilon, records, clients)
    enough_records = enough_epsilon = larger = None
    if own.outlook.usual > records:
        enough_records = _enough_records(study, epsilon, records, clients)
        enough_epsilon = _enough_epsilon(study, epsilon, records, clients)
        # settings that cannot do at this size would not do at a larger one, either
        larger = enough_records and _row(study, epsilon, enough_records, clients)
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


def _row(study: Study, epsilon: float, records: int, clients: int) -> Row:
    given = with_keys(study, {"privacy.epsilon": epsilon}, name="the study")
    method = method_of(given)
    design = method.propose(given, records, clients)
    proposed = with_keys(given, design.changes, name="the design")
    outlook = method.plan(task_of(proposed), records, clients)
    level = study.estimator.level
    times = 1 + float(ndtri(POWER)) / float(ndtri((1 + level) / 2))
    half, kept = outlook.usual_half, outlook.kept
    seen = None if half is None else times * half
    effect = seen if kept is None else seen / kept if seen is not None and kept > 0 else None
    return Row(
        study.estimator.kind, study.estimator.loss, study.privacy.neighbours, epsilon, design,
        outlook, seen, effect,
    )  # fmt: skip


def _rows(study: Study, epsilon: float, records: int, clients: int) -> Iterator[Row]:
    try:
        yield _row(study, epsilon, records, clients)
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


def _enough_records(study: Study, epsilon: float, records: int, clients: int) -> int | None:
    sizes = list(
        takewhile(lambda size: size < 2 * MOST_RECORDS, (2**k * records for k in count(1)))
    )
    return _least(sizes, lambda size: _is_enough(study, epsilon, size, clients))


def _enough_epsilon(study: Study, epsilon: float, records: int, clients: int) -> float | None:
    # what is written is what is tried, with three digits
    larger = takewhile(lambda e: e <= MOST_EPSILON, (1.25**k * epsilon for k in count(1)))
    budgets = [float(f"{one:.3g}") for one in larger]
    return _least(budgets, lambda tried: _is_enough(study, tried, records, clients))


def _is_enough(study: Study, epsilon: float, records: int, clients: int) -> bool:
    return _row(study, epsilon, records, clients).outlook.usual <= records


def _least(ordered: Sequence[T], is_enough: Callable[[T], bool]) -> T | None:
    """Return the least that is enough, as is all behind it; None: none is."""
    place = bisect_left(ordered, True, key=is_enough)
    return ordered[place] if place < len(ordered) else None


def least_epsilon(study: Study, records: int, clients: int, step: float = 1.1) -> float | None:
    """Return the least epsilon, on a grid, at which so many records usually have intervals.

    step: From one epsilon of the grid to the next, > 1; the study's own comes before the first.

    Returns: None where none does, or the study has no single epsilon.
    """
    epsilon = study.privacy.epsilon
    if study.privacy.personal is not None:
        return None
    while epsilon is not None and (epsilon := step * epsilon) <= LARGEST_EPSILON:
        try:
            tried = with_keys(study, {"privacy.epsilon": epsilon}, name="the study")
            if method_of(tried).plan(task_of(tried), records, clients).usual <= records:
                return epsilon
        except (ConfigError, PrivacyError):
            # whatever leaves no room here leaves none at a larger one either
            return None
    return None
