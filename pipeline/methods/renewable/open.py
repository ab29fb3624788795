"""A study without privacy at the worker: float sums of the additive form, and its sandwich.

A = sum H, b = sum (H t - g): theta = (A + n ridge R)^-1 b is the exact zero of the summed
linearised scores, whatever the expansion points were and whatever order they came in. The middle of
the sandwich is the sum of score products, each score with its ridge. With forgetting, sums are
weighed by w and score products by w^2. Where no client is late, this is eq. (37) of paper dwd,
written as sums. Releases are added one by one in the order of the log, so that the bits do not
depend on fetch batches.

Where the records determine no coefficients, A is singular or near it, and its inverse would make
what rounding or a few records leave of b as large as it likes. There coefficients are drawn to 0,
as in `solution`, by a prior in the place of noise: it is all they have until records say more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from pipeline.errors import StateError
from pipeline.estimators.estimate import (
    FAR,
    Estimate,
    Status,
    class_weights,
    dispersion_of,
    is_far,
    kept_of,
)
from pipeline.estimators.forgetting import State, effective
from pipeline.linalg import (
    condition_number,
    pack_upper,
    sandwich,
    solve_positive,
    unpack_upper,
)
from pipeline.methods.base import Server
from pipeline.methods.renewable.client import RenewableTask
from pipeline.methods.renewable.solution import Bread, bread_of
from pipeline.methods.renewable.spec import JUMPS
from pipeline.release.layout import Rows
from pipeline.types import Matrix, Vector

SUMS, START = "sums", "start"
ROUGH = (
    "the clients' first windows were too small for so many coefficients. Intervals wait until as "
    "many records have come in later windows; larger windows (window.records) avoid that"
)
AT_THE_KINK = (
    "every feature has two values, so margins can crowd at the kink of this loss, and these sums "
    "keep curvatures of early models. Intervals may be too short: 95 % intervals have covered 86 "
    "%. Fit the records again at the end (`veilstream fit --without-privacy`)"
)
#: A direction with less of the largest curvature than so many roundings a coefficient has none.
ROUNDED = 64
#: Sums of a feature's values and of their squares are alike up to rounding.
ALIKE = 1e-9
#: How intervals are made.
INTERVAL = "sandwich, record scores"
#: Deviation of the prior of coefficients that records do not determine, for a step from the middle
#: of a range to its end: units of log odds, of the residuals' deviation, of the log of a mean.
LARGE = 5.0
#: Coefficients that lie in such directions at least so much as the one that does most are named.
ALONG = 0.1
#: Intervals need this many records for each coefficient.
RECORDS_PER_COEFFICIENT = 10
#: Windows at the start stay if they hold this many records for each pair of coefficients.
RECORDS_PER_PAIR = 2


@dataclass(frozen=True, slots=True)
class OpenRow:
    """One validated release: records, expansion (d,), gradient (d,), packed curvature and scores.

    counts: Records of the negative and the positive class.
    start: Whether the client knew no model yet, and took the sums at a fit to these very records.
    """

    records: int
    expansion: Vector
    gradient: Vector
    curvature: Vector
    scores: Vector
    counts: Vector
    start: bool = False


@dataclass(slots=True)
class OpenState(State):
    """Running float sums over the releases of one bucket.

    size: d, the number of coefficients.
    sums: One vector: packed A, packed scores, packed sum of n t t', all of sum g t', then b = sum
        (H t - g), then sum of n t, then records, releases, negatives, positives.
    start: The same over releases at the start, which are not in `sums`.
    dirty: Names of the fields that changed since they were last stored.
    """

    size: int
    sums: Vector = field(init=False)
    start: Vector = field(init=False)
    dirty: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Start from zero."""
        packed = self.size * (self.size + 1) // 2
        self.sums, self.start = np.zeros((2, 3 * packed + self.size**2 + 2 * self.size + 4))

    def fold(self, batch: Sequence[OpenRow]) -> None:
        """Add releases in order."""
        for release in batch:
            held = self.start if release.start else self.sums
            held += self._row(release)
            self.dirty.add(START if release.start else SUMS)

    def add(self, other: OpenState) -> None:
        """Add the sums of another partition; equal to folding both up to rounding."""
        self.sums += other.sums
        self.start += other.start

    @property
    def releases(self) -> int:
        return int(self.part("releases")[0] + self.part("releases", START)[0])

    @property
    def slots(self) -> int:
        """How many records they had."""
        return int(self.part("records")[0] + self.part("records", START)[0])

    @property
    def names(self) -> list[str]:
        return [SUMS, START]

    def part(self, name: str, of: str = SUMS) -> Vector:
        """Return one part of `sums`, or of `start`, by name; packed parts stay packed."""
        held: Vector = getattr(self, of)
        packed = self.size * (self.size + 1) // 2
        lengths = {
            "curvature": packed, "scores": packed, "expansions": packed, "cross": self.size**2,
            "right": self.size, "points": self.size, "records": 1, "releases": 1, "counts": 2,
        }  # fmt: skip
        start = 0
        for key, length in lengths.items():
            if key == name:
                return held[start : start + length]
            start += length
        raise KeyError(name)

    def encode_field(self, name: str) -> bytes:
        held: Vector = getattr(self, name)
        return held.astype("<f8").tobytes()

    @classmethod
    def decode(cls, size: int, fields: dict[str, bytes]) -> OpenState:
        """Rebuild a state from what `encode` gave.

        Raises StateError if a field is missing, unknown or has the wrong length.
        """
        state = cls(size)
        lengths = dict.fromkeys((SUMS, START), 8 * len(state.sums))
        for name in sorted(lengths.keys() | fields.keys()):
            data = fields.get(name, b"")
            if len(data) != lengths.get(name):
                raise StateError(
                    f"the field {name!r} of the stored state is lost or cannot be used; the "
                    "operator must run `veilstream state rebuild`"
                )
            setattr(state, name, np.frombuffer(data, dtype="<f8").copy())
        return state

    def _row(self, release: OpenRow) -> Vector:
        point, records = release.expansion, float(release.records)
        right = unpack_upper(release.curvature, self.size) @ point - release.gradient
        return np.concatenate(
            [
                release.curvature,
                release.scores,
                pack_upper(records * np.outer(point, point)),
                np.outer(release.gradient, point).ravel(),
                right,
                records * point,
                [records, 1.0, release.counts[0], release.counts[1]],
            ]
        )


#: States of some buckets with their weights.
Weighed = Sequence[tuple[float, OpenState]]


class OpenServer(Server[OpenState]):
    """As `methods.base.Server`, for float sums."""

    ordered = True

    def __init__(self, task: RenewableTask) -> None:
        self._task, self._columns = task, task.layout.columns(1)

    def empty(self) -> OpenState:
        return OpenState(self._task.size)

    def read(self, fields: dict[str, bytes]) -> OpenState:
        return OpenState.decode(self._task.size, fields)

    def fold(self, state: OpenState, rows: Rows) -> None:
        for row in rows:
            start, records = row["version"] == 0, int(row["records"])
            parts = {name: row["sums"][columns] for name, columns in self._columns.items()}
            state.fold([OpenRow(records, row["point"], **parts, start=start)])

    def estimate(self, parts: Weighed, partitions: Sequence[int], *, missing: int = 0) -> Estimate:
        del partitions, missing
        return estimate_open(self._task, list(parts))


def estimate_open(task: RenewableTask, sums: OpenState | Weighed) -> Estimate:
    """Estimate the coefficients of a study without privacy.

    sums: The sums of all partitions: one state, or those of the buckets with their weights.
    """
    size = task.size
    parts: Weighed = [(1.0, sums)] if isinstance(sums, OpenState) else sums
    releases = sum(state.releases for _, state in parts)
    total, later = _weighed(parts, size), _weighed(parts, size, start=False)
    rough = _start_is_rough(task, parts)
    late = rough and later.part("records")[0] >= max(
        RECORDS_PER_COEFFICIENT * size, total.part("records")[0] / 2
    )
    state = later if late else total
    squared = _weighed(parts, size, power=2, start=not late)
    records = float(state.part("records")[0])
    known = effective(records, float(squared.part("records")[0]))
    negative, positive = (float(count) for count in total.part("counts"))
    weights = class_weights(negative, positive, task.largest_weight)
    ridge = task.study.estimator.ridge * np.diag([0.0] + [1.0] * (size - 1))
    bread = unpack_upper(state.part("curvature"), size) + records * ridge
    coefficients: Vector = np.zeros(size)
    covariance: Matrix | None = None
    status: Status = "empty"
    reason, condition = "no release has come yet", None
    if releases:
        condition = condition_number(bread)
        largest = np.append(1.0, task.magnitudes)
        right, told = state.part("right"), _told(task, state, bread, largest)
        if told.weak.any():
            coefficients = told.inverse @ (right / largest) / largest
            status, reason = "warming", _undetermined(task, told)
        else:
            coefficients = solve_positive(bread, right)
            covariance = sandwich(bread, _meat(squared, ridge, size))
            status, reason = "ready", _crowded(task, state)
            doubt = _doubt(task, state, total) or (ROUGH if rough and not late else "")
            # half of it is the noise of fits to single windows, which moves nothing one way
            bent = task.loss.remainder * _distance(state, coefficients) / 2
            if is_far(bent, np.diag(covariance)):
                doubt = doubt or FAR
            if doubt:
                status, reason, covariance = "warming", doubt, None
        needed = RECORDS_PER_COEFFICIENT * size
        if known < needed:
            status, covariance = "warming", None
            reason = f"intervals need {needed} records; {int(known)} have come"
    return Estimate(
        coefficients=coefficients,
        covariance=covariance,
        privacy_covariance=None if covariance is None else np.zeros((size, size)),
        weights=weights,
        status=status,
        reason=reason,
        records=sum(part.slots for _, part in parts),
        releases=releases,
        condition=condition,
        effective_records=known,
        # the intercept stands first and has no ridge
        dispersion=None
        if task.classes
        else dispersion_of(float(state.part("scores")[0]), bread[0, 0]),
        interval=INTERVAL,
        kept=None if covariance is None else kept_of(bread / records, task.penalty),
        details={"design_effect": None},
    )


def _told(task: RenewableTask, state: OpenState, bread: Matrix, largest: Vector) -> Bread:
    """Return what records tell of coefficients, beside a prior, for steps of `largest`.

    largest: Of each column of (1, x), shape (d,).
    """
    scaled = bread / np.outer(largest, largest)
    # of a regression the curvature says what is known in units of the residuals' variance
    variance = 1.0
    if task.loss.name == "linear":
        variance = dispersion_of(float(state.part("scores")[0]), float(bread[0, 0])) or 1.0
    rounding = ROUNDED * len(bread) * float(np.finfo(float).eps)
    size = max(variance / LARGE**2, rounding * float(np.abs(scaled).max()))
    return bread_of(scaled, np.zeros(len(bread)), size)


def _undetermined(task: RenewableTask, told: Bread) -> str:
    """Name the coefficients in directions that records do not determine."""
    turned = told.vectors**2 @ told.weak
    along = turned >= ALONG * turned.max()
    names = ", ".join(np.array(task.study.coefficient_names)[along])
    return (
        f"the records so far do not determine {names}: what they leave open is drawn to 0, and "
        "more records, a larger estimator.ridge or fewer collinear or constant features are needed"
    )


def _distance(state: OpenState, coefficients: Vector) -> float:
    """Return the mean square distance of predictors where scores were taken from the estimate's."""
    size, records = len(coefficients), float(state.part("records")[0])
    cross = np.outer(state.part("points"), coefficients)
    spread = unpack_upper(state.part("expansions"), size) - cross - cross.T
    spread += records * np.outer(coefficients, coefficients)
    curvature = unpack_upper(state.part("curvature"), size)
    carried = float(curvature[0, 0]) * records
    return float(np.sum(curvature * spread)) / carried if carried > 0 else math.inf


def _doubt(task: RenewableTask, state: OpenState, total: OpenState) -> str:
    """Say why there is no interval yet although the numbers would give one; empty if none."""
    if task.classes and min(total.part("counts")) == 0:
        return "so far all records have the same class, so the intercept has no best value"
    # the first entry of the curvature is the sum of all records' own
    largest = task.largest_weight * task.loss.curvature_bound
    if task.loss.responses == "count":
        # a count of mean 1 carries the curvature 1; the bound is that of the largest count
        largest = 1.0
    carried = float(state.part("curvature")[0]) / largest
    needed = task.size if task.classes else RECORDS_PER_COEFFICIENT * task.size
    if carried < needed:
        return (
            "the loss is nearly flat at almost all records: together they tell as much as "
            f"{carried:.1f} records where it bends most, and intervals need {needed}. More "
            "records, a larger estimator.residual_bound or estimator.ridge, or a smaller q help"
        )
    return ""


def _crowded(task: RenewableTask, state: OpenState) -> str:
    """Warn where all features have two values at the ends of a range, or are levels, and V'' jumps.

    Then x^2 is 1, or x itself, in every record, and so in the sums weighed by curvature.
    """
    jumps = task.study.estimator.loss in JUMPS and task.study.estimator.smoothing is None
    fades = task.study.estimator.forgetting is not None
    if not jumps or fades or task.size == 1:
        return ""
    curvature = unpack_upper(state.part("curvature"), task.size)
    squares, whole, first = np.diag(curvature)[1:], curvature[0, 0], np.abs(curvature[0, 1:])
    ends = np.minimum(np.abs(squares - whole), np.abs(squares - first)) <= ALIKE * whole
    return AT_THE_KINK if ends.all() else ""


def _start_is_rough(task: RenewableTask, parts: Weighed) -> bool:
    """Whether windows were taken at fits of their own that followed their noise.

    A fit of d coefficients to n records has an error of the order d / n in its curvature, and with
    the records' own scores that moves the sum by d^2 / n windows' worth: intervals miss the target.
    A loss with a constant curvature has no such error.
    """
    if task.loss.remainder == 0:
        return False
    releases = sum(float(state.part("releases", START)[0]) for _, state in parts)
    records = sum(float(state.part("records", START)[0]) for _, state in parts)
    return 0 < records < RECORDS_PER_PAIR * task.size**2 * releases


def _weighed(parts: Weighed, size: int, *, power: int = 1, start: bool = True) -> OpenState:
    """Return the sum of w^power times each state, with or without the releases at the start."""
    total = OpenState(size)
    for weight, state in parts:
        total.sums += weight**power * (state.sums + state.start if start else state.sums)
    return total


def _meat(state: OpenState, ridge: Matrix, size: int) -> Matrix:
    """Sum the products of the scores s + R t over records, from sums over releases."""
    scores = unpack_upper(state.part("scores"), size)
    points = unpack_upper(state.part("expansions"), size)
    cross = state.part("cross").reshape(size, size) @ ridge
    return scores + cross + cross.T + ridge @ points @ ridge
