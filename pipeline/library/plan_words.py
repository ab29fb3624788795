"""What a plan says in words: when intervals come, whether records are enough, what would do.

Sizes in a plan are *typical*: of independent features whose values spread over the whole range,
about the typical value where it is given. Where a study has a ridge, another one is *sure*, as the
ridge alone is enough for it: it holds for all slopes that do not go with the intercept, which has
no ridge.
"""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.library.planning import Row, StudyPlan
from pipeline.methods.base import Plan
from pipeline.study.model import Study
from pipeline.study.reference import rarer_share
from pipeline.words import counted

#: What the typical size supposes, and what the ridge does not reach.
SPREAD = "if features are independent and fill their ranges (around `typical`, where it is given)"
IF = f"{SPREAD}, later if not"
BUT = (
    "Only slopes that go with the intercept, which no ridge helps, may take longer: those of a "
    "feature that stays far from its typical value, or of a level that most records have"
)
#: Smallest slope that most such studies tell from zero, above which next to nothing is seen: in
#: log odds or logs over half a feature's range, and as a share of the range of a number.
BLIND, BLIND_OF_RANGE = 1.0, 0.2
#: A ridge that keeps a smaller share of slopes leaves little to find; one that keeps a larger share
#: is not worth a word.
LITTLE, NEARLY_ALL = 0.1, 0.95
#: So many coefficients that come late are named.
NAMED = 5
#: No plan looks further ahead than for so many records.
NEVER = 10**12
#: What the unit of a slope is, by loss; of numbers it is that of the response.
UNITS = {"logistic": " in log odds", "poisson": " in the log of the mean"}


def when(outlook: Plan, study: Study | None = None) -> str:
    """Say when intervals come: the end of a sentence, and perhaps more sentences.

    study: Without noise, or without features, what its records say matters to no size.
    """
    if outlook.usual >= NEVER:
        return "not with these settings" if outlook.why else f"not within {NEVER:,} records"
    if study is not None and not (study.noised and study.data.features):
        return f"after about {outlook.usual:,} records"
    if outlook.first is not None:
        return _at_first(outlook, outlook.first)
    return _after(outlook)


def _after(outlook: Plan) -> str:
    latest, usual, intercept = outlook.latest, outlook.usual, outlook.intercept
    if latest is not None and latest <= usual:
        own = "perhaps later" if intercept is None else f"after about {intercept:,}, {IF}"
        return f"after {latest:,} records for slopes; for the intercept {own}. {BUT}"
    typical = f"after about {usual:,} records"
    if intercept is not None and intercept > usual:
        typical += f" for slopes and {intercept:,} for the intercept"
    if latest is None and outlook.narrow is not None:
        return (
            f"{typical}, {SPREAD}. If features use only a part of their ranges: hardly before "
            f"{outlook.narrow:,}, and perhaps much later. No number of records guarantees it"
        )
    if latest is None:
        return f"{typical}, {IF}. No number of records guarantees it"
    return f"{typical}, {IF}. Whatever features are like, slopes have one after {latest:,}. {BUT}"


def _at_first(outlook: Plan, first: int) -> str:
    """Say the same where it is known when intervals come at first, and when to stay."""
    said = f"after about {_about(first)} records"
    if outlook.usual > first:
        said = (
            f"at first {said}, and from about {_about(outlook.usual)} on to stay: before, a later "
            "estimate may have none again"
        )
    said = f"{said}, {IF}"
    if outlook.late and outlook.whole is not None:
        names = ", ".join(outlook.late[:NAMED]) + (", ..." if len(outlook.late) > NAMED else "")
        said += f"; for {names} after about {_about(outlook.whole)}"
    if outlook.latest is None:
        return (
            f"{said}. Nothing bounds it: coefficients of which the records never say enough stay "
            "without an interval, and all others have theirs"
        )
    return f"{said}. The ridge alone is enough for slopes after {_about(outlook.latest)}. {BUT}"


def half(outlook: Plan, study: Study, records: int, clients: int) -> str:
    """Say how long intervals are, and of what; empty where no formula knows it."""
    if outlook.usual_half is None or not study.data.features:
        return ""
    kept = "" if outlook.kept is None else f", of which the ridge keeps about {outlook.kept:.0%}"
    return (
        f"+-{outlook.usual_half:.2g} for a slope at {counted_of(records, clients)}, {SPREAD}: of "
        f"{f'penalised slopes{kept}' if study.estimator.ridge else 'real slopes'}"
    )


def with_ridge(outlook: Plan) -> str:
    """Say what a ridge would give where there is none; empty where no formula knows it."""
    if outlook.ridge is None or outlook.kept_by_ridge is None:
        return ""
    return (
        f"intervals are of real coefficients. estimator.ridge = {outlook.ridge:g} would be enough "
        "for those of slopes at this size whatever features are like; they would then be of "
        f"penalised slopes, of which it keeps about {outlook.kept_by_ridge:.0%}"
    )


def exact(outlook: Plan, study: Study, records: int | None = None) -> str:
    """Say how long intervals must be whatever is known, and when "ready" comes at the latest.

    records: The size for which the outlook is; None: it has none.

    Returns: Empty where no formula knows it.
    """
    if (found := outlook.exact) is None:
        return ""
    classes = study.data.response.kind == "class"
    unit = "half a logit" if classes else "half a standard deviation of the residuals"
    at = "" if records is None else f"+-{found.half:.2g} at {records:,} records, and "
    return (
        "for the widest coefficient, an exact interval (one that allows for the noise alone) is "
        f"{at}+-{found.wanted:.2g} ({unit}) after about {_about(found.records)}; estimates are "
        f"ready after {_about(found.ready)} at the latest, if features spread over their ranges "
        f"and {'classes are as even' if classes else 'residuals are as large'} as assumed"
    )


def classes(outlook: Plan, study: Study) -> str:
    """Say which share of the classes a plan supposes, and what waits for it.

    Returns: Empty where nothing does, and the study says no share.
    """
    after, typical, share = outlook.classes, study.data.response.typical, rarer_share(study)
    if after is None:
        said = f"assumed: {share:.3g} of the records have the rarer class (as data.response.typical"
        return "" if typical is None else f"{said} says)"
    whence = "as data.response.typical says"
    if typical is None:
        whence = "as data.response has no `typical`, a public guess of the share of `positive`"
    return (
        f"assumed: {share:.3g} of the records have the rarer class ({whence}). No interval comes "
        "before both noised class counts stand out of their noise, here after about "
        f"{_about(after)} records; a rarer class does so later"
    )


def _about(records: int) -> str:
    """Return a number of records with three digits, rounded up."""
    unit = 10 ** max(len(str(records)) - 3, 0)
    return f"{-(-records // unit) * unit:,}"


def verdict(found: StudyPlan) -> str:
    """Say whether intervals are to be expected, and what it would take."""
    outlook, size = found.own.outlook, f"{found.records:,} records"
    if outlook.usual <= found.records:
        sure = outlook.latest is not None and outlook.latest <= found.records
        sure = sure or not found.study.data.features
        where = "" if sure else " where features spread over their ranges"
        enough = f"are enough{' for wide intervals only' if _is_blind(found) else ''}{where}"
        told = _finds(found)
        if outlook.intercept is not None and outlook.intercept > found.records:
            enough += ", but for the intercept"
            told.append(
                "Predictions need the intercept, so they may be far off before it has an interval"
            )
        told.append(f"Intervals come {when(outlook, found.study)}")
        return ". ".join([f"{size} {enough}", *told])
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
    said = f"They find only effects larger than {_plain(seen)}{unit}, over {step}"
    if kept is not None and kept < NEARLY_ALL:
        said += (
            f" ({_plain(own.detectable)} after the ridge, which keeps about {kept:.0%} of a slope)"
        )
    return [said]


def _leaves_little(found: StudyPlan) -> bool:
    """Whether the ridge leaves so little of slopes that hardly any can be found."""
    kept = found.own.outlook.kept
    return kept is not None and kept < LITTLE


def _plain(number: float) -> str:
    """Return a number with two digits, without an exponent where it is not tiny."""
    return f"{float(f'{number:.2g}'):,.0f}" if number >= 10 else f"{number:.2g}"


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


def counted_of(records: int, clients: int | None = None) -> str:
    """Return a size in words."""
    said = f"{records:,} record" if records == 1 else f"{records:,} records"
    return said if clients is None else f"{said} of {counted(clients, 'client')}"
