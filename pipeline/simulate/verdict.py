"""Whether intervals can be trusted at this size, in words, with the reason and what to change."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pipeline.methods import method_of
from pipeline.methods.base import Plan
from pipeline.methods.plan_words import SAMPLED, by_ridge
from pipeline.release.task import Task
from pipeline.simulate.coverage import Coverage

#: Coverage may miss its level by so much, that of single coefficients by more.
TOLERATED, TOLERATED_WORST = 0.02, 0.05
#: A bias beyond so many standard deviations pulls a normal 95 % interval to about 92 %.
TOLERATED_BIAS = 0.5
#: With a larger Monte Carlo error of the coverage intervals are not called right.
LARGEST_ERROR = 0.02
#: Below this share of coefficients with an interval a study of the size has none to speak of.
LEAST_GIVEN = 0.5
#: Above this share nothing is said of those that have none.
WHOLE = 0.9
#: Errors on either side that count as chance: of one share, and of the worst of several.
CHANCE, CHANCE_WORST = 2.0, 3.5

#: An expectile of this level weighs both sides alike.
EVEN = 0.5
#: What to do where a yes holds for residuals of the assumed size alone.
SMALLER = (
    "nothing, if residuals are as large as assumed. Noise biases an expectile more where "
    "residuals are smaller, or crowd at zero: ask again with the smallest --residual-scale that "
    "you expect, or lower estimator.residual_bound"
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to think of a study's intervals at a size.

    trusted: None where there were too few streams to tell.
    """

    trusted: bool | None
    verdict: str
    reason: str
    advice: str


def judge(
    task: Task, found: Coverage, plan: Plan, records: int, epsilon: float | None = None
) -> Verdict:
    """Return the verdict on the study's own kind of interval.

    plan: What formulas expect of the study at this size.
    epsilon: The one at which so many records usually have intervals; None: no larger one is known.
    """
    if found.given + CHANCE * found.given_error < LEAST_GIVEN:
        return Verdict(
            False, f"no: {'most coefficients have' if found.ready else 'it has'} no intervals yet",
            f"{found.ready:.0%} of the streams ended ready, with intervals for {found.given:.0%} "
            f"of all coefficients; {found.reason}",
            _larger(task, plan, records, epsilon),
        )  # fmt: skip
    # few streams can show that intervals are wrong, and not that they are right
    wrong = _wrong(task, found, plan, records, epsilon) if found.intervals else None
    if wrong is not None:
        return wrong
    if not found.intervals or found.intervals[0].error > LARGEST_ERROR:
        return Verdict(
            None, "not decided: too few streams",
            f"{round(found.ready * found.replications)} streams were ready, and coverage is known "
            f"to {found.intervals[0].error if found.intervals else 1.0:.1%} only",
            "more --replications, or fewer --records",
        )  # fmt: skip
    right, assumed = _right(found), list[str]()
    said, hangs = right.verdict, not by_ridge(plan, records)
    if hangs and not plan.seen:
        assumed.append("independent features")
    if _leans(task):
        assumed.append("residuals")
        right = replace(right, advice=SMALLER)
    if assumed:
        said += f", for {' and '.join(assumed)} as assumed"
    return replace(right, verdict=f"{said}, {SAMPLED}" if hangs and plan.seen else said)


def _leans(task: Task) -> bool:
    """Whether noise bends estimates the more the smaller residuals are."""
    estimator = task.study.estimator
    return task.study.noised and estimator.loss == "expectile" and estimator.tau != EVEN


def _wrong(
    task: Task, found: Coverage, plan: Plan, records: int, epsilon: float | None
) -> Verdict | None:
    own = found.intervals[0]
    if own.coverage + CHANCE * own.error < found.level - TOLERATED:
        return Verdict(
            False, "no: intervals miss the true coefficients too often",
            f"they cover {own.coverage:.1%} (+-{own.error:.1%}) where they promise "
            f"{found.level:.0%}{_bent(found)}",
            _better(task, found, plan, records, epsilon),
        )  # fmt: skip
    if own.worst_coverage + CHANCE_WORST * own.worst_error < found.level - TOLERATED_WORST:
        return Verdict(
            False, f"no: intervals of {own.worst!r} miss the true value too often",
            f"they cover {own.worst_coverage:.1%} (+-{own.worst_error:.1%}) where they promise "
            f"{found.level:.0%}{_bent(found)}",
            _better(task, found, plan, records, epsilon),
        )  # fmt: skip
    if found.bias - CHANCE * found.bias_error > TOLERATED_BIAS:
        return Verdict(
            False, "no: estimates are biased",
            f"{found.biased!r} is off by {found.bias:.2f} of its standard deviations "
            f"(+-{found.bias_error:.2f}), and intervals do not allow for that",
            _better(task, found, plan, records, epsilon),
        )  # fmt: skip
    return None


def _right(found: Coverage) -> Verdict:
    own = found.intervals[0]
    late, but, advice = "", "", "nothing"
    if found.given <= WHOLE or found.rarest_given < LEAST_GIVEN:
        late = (
            f"; {found.given:.0%} of the coefficients have them, {found.rarest!r} in "
            f"{found.rarest_given:.0%} of the streams"
        )
    if found.rarest_given < LEAST_GIVEN:
        but = f", but mostly not for {found.rarest!r}"
        advice = f"nothing for the others; more records, or a larger epsilon, for {found.rarest!r}"
    if own.worst_coverage + CHANCE * own.worst_error < found.level - TOLERATED:
        # too few streams to say no, and by chance alone it would hardly be so low
        but = f", but perhaps not for {own.worst!r}"
        late += f"; those of {own.worst!r} {own.worst_coverage:.1%} (+-{own.worst_error:.1%})"
        advice = f"nothing for the others; more --replications to be sure of {own.worst!r}"
    if own.coverage - CHANCE * own.error > found.level + (1 - found.level) / 2:
        return Verdict(
            True, f"yes, but they are longer than necessary{but}",
            f"they cover {own.coverage:.1%} (+-{own.error:.1%}){late}", advice,
        )  # fmt: skip
    return Verdict(
        True, f"yes{but}",
        f"they cover {own.coverage:.1%} (+-{own.error:.1%}) where they promise "
        f"{found.level:.0%}{late}",
        advice,
    )  # fmt: skip


def _bent(found: Coverage) -> str:
    if found.bias - CHANCE * found.bias_error <= TOLERATED_BIAS / 2:
        return ""
    return f"; {found.biased!r} is off by {found.bias:.2f} of its standard deviations"


def _larger(task: Task, plan: Plan, records: int, epsilon: float | None) -> str:
    """Say what makes intervals appear."""
    needed = plan.usual
    parts = list(plan.sooner)
    if needed > records:
        parts.append(f"about {needed:,} records instead of {records:,} by the rule of thumb")
    else:
        parts.append("more records")
    if epsilon is not None:
        parts.append(f"privacy.epsilon of about {epsilon:.2g}")
    elif task.study.noised:
        parts.append("a larger privacy.epsilon")
    parts.append("fewer features, or narrower public ranges")
    return "; or ".join(parts)


def _better(task: Task, found: Coverage, plan: Plan, records: int, epsilon: float | None) -> str:
    """Say what brings coverage to its level."""
    if plan.bias_remedies and found.bias - CHANCE * found.bias_error > TOLERATED_BIAS / 2:
        return "; or ".join(plan.bias_remedies)
    key = method_of(task.study).spec.interval_key
    other = [i.method for i in found.intervals[1:] if i.coverage >= found.level - TOLERATED]
    advice = [f'{key} = "{name}", which covered here' for name in other[:1] if key]
    advice += [one or _larger(task, plan, records, epsilon) for one in plan.remedies]
    return "; or ".join(advice)
