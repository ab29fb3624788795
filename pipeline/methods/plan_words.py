"""What a plan says in words: when intervals come, how long they are, and for which records.

Sizes in a plan are *typical*: of independent features whose values spread over the whole range,
about the typical value where it is given; or of records like those of a sample. Where a study has
a ridge, another one is *sure*, as the ridge alone is enough for it: it holds for all slopes that do
not go with the intercept, which has no ridge.
"""

from __future__ import annotations

import math
from typing import Any

from pipeline.methods.base import Plan
from pipeline.study.model import Study
from pipeline.study.reference import rarer_share, typical_mean
from pipeline.words import counted, rounded_up

#: What a size supposes, and what the ridge does not reach.
SPREAD = "if features are independent and fill their ranges (around `typical`, where it is given)"
SAMPLED = "if records are like those of the sample"
BUT = (
    "Only slopes that go with the intercept, which no ridge helps, may take longer: those of a "
    "feature that stays far from its typical value, or of a level that most records have"
)
OTHERS = (
    "Intervals of features that are correlated, or that use only a part of their ranges, come "
    "later, are longer, or are missing"
)
#: So many coefficients that come late are named.
NAMED = 5
#: No plan looks further ahead than for so many records.
NEVER, NOT_WITHIN = 10**12, "not within a trillion records"
#: Numbers of a plan that `--json` has beside the words.
NUMBERS = ("first", "latest", "usual", "usual_half", "tenth")


def told(outlook: Plan, study: Study, records: int, clients: int) -> dict[str, str]:
    """Return all that is said of a plan, by name; what there is nothing to say of is left out."""
    found = {
        "come": when(outlook, study),
        "half": half(outlook, study, records, clients),
        "ridge": with_ridge(outlook),
        "exact": exact(outlook, study, records),
        "classes": classes(outlook, study),
        "counts": counts(outlook, study),
        "but": outlook.why,
    }
    return {name: said for name, said in found.items() if said}


def numbers(outlook: Plan) -> dict[str, Any]:
    """Return the numbers of a plan, as every command has them in `--json`."""
    return {name: getattr(outlook, name) for name in NUMBERS}


def _supposed(outlook: Plan) -> str:
    """Say of which records the sizes are."""
    return SAMPLED if outlook.seen else SPREAD


def _if(outlook: Plan) -> str:
    """Say it, and what else would be."""
    if outlook.seen or outlook.tenth is None:
        return _supposed(outlook) + ("" if outlook.seen else ", later if not")
    late = outlook.tenth >= NEVER
    after = NOT_WITHIN if late else f"after about {_about(outlook.tenth)}"
    return f"{SPREAD}, and {after} if they filled a tenth of them"


def when(outlook: Plan, study: Study | None = None) -> str:
    """Say when intervals come: the end of a sentence, and perhaps more sentences.

    study: Without noise, or without features, what its records say matters to no size.
    """
    if outlook.usual >= NEVER:
        return "not with these settings" if outlook.why else NOT_WITHIN
    if study is not None and not (study.noised and study.data.features):
        return f"after about {outlook.usual:,} records"
    if outlook.first is not None:
        return _at_first(outlook, outlook.first)
    return _after(outlook)


def _after(outlook: Plan) -> str:
    latest, usual, intercept = outlook.latest, outlook.usual, outlook.intercept
    if latest is not None and latest <= usual:
        own = "perhaps later" if intercept is None else f"after about {intercept:,}, {_if(outlook)}"
        return f"after {latest:,} records for slopes; for the intercept {own}. {BUT}"
    typical = f"after about {usual:,} records"
    if intercept is not None and intercept > usual:
        typical += f" for slopes and {intercept:,} for the intercept"
    if latest is None and outlook.narrow is not None:
        return (
            f"{typical}, {_supposed(outlook)}. If features use only a part of their ranges: hardly "
            f"before {outlook.narrow:,}, and perhaps much later. No number of records guarantees it"
        )
    if latest is None:
        return f"{typical}, {_if(outlook)}. No number of records guarantees it"
    sure = f"Whatever features are like, slopes have one after {latest:,}. {BUT}"
    return f"{typical}, {_if(outlook)}. {sure}"


def _at_first(outlook: Plan, first: int) -> str:
    """Say the same where it is known when intervals come at first, and when to stay."""
    said = f"after about {_about(first)} records"
    if outlook.usual > first:
        said = (
            f"at first {said}, and to stay after about {_about(outlook.usual)} (until then a later "
            "estimate may have none again)"
        )
    said = f"{said}, {_if(outlook)}"
    if outlook.late and outlook.whole is not None:
        names = ", ".join(outlook.late[:NAMED]) + (", ..." if len(outlook.late) > NAMED else "")
        said += f"; for {names} after about {_about(outlook.whole)}"
    if outlook.latest is None:
        return (
            f"{said}. No number of records guarantees them all: coefficients of which the records "
            "never say enough stay without an interval, and all others have theirs"
        )
    return f"{said}. The ridge alone is enough for slopes after {_about(outlook.latest)}. {BUT}"


def half(outlook: Plan, study: Study, records: int, clients: int) -> str:
    """Say how long intervals are, and of what; empty where no formula knows it."""
    if outlook.usual_half is None or not study.data.features:
        return ""
    kept = "" if outlook.kept is None else f", of which the ridge keeps about {outlook.kept:.0%}"
    which = f"penalised slopes{kept}" if study.estimator.ridge else "real slopes"
    size = counted_of(records, clients)
    first = outlook.usual if outlook.first is None else outlook.first
    if first > records:
        late = NOT_WITHIN if first >= NEVER else f"none before about {_about(first)}"
        return f"{size} are too few for intervals: {late}"
    return f"+-{outlook.usual_half:.2g} for a slope at {size}, {_supposed(outlook)}: of {which}"


def with_ridge(outlook: Plan) -> str:
    """Say what a ridge would give where there is none; empty where no formula knows it."""
    if outlook.ridge is None or outlook.kept_by_ridge is None:
        return ""
    return (
        f"intervals are of real coefficients. estimator.ridge = {outlook.ridge:g} would be enough "
        "for those of slopes at this size whatever features are like; they would then be of "
        f"penalised slopes, of which it keeps about {outlook.kept_by_ridge:.0%}"
    )


def exact(outlook: Plan, study: Study, records: int) -> str:
    """Say how long intervals must be whatever is known, and when "ready" comes at the latest.

    records: The size for which the outlook is.

    Returns: Empty where no formula knows it.
    """
    if (found := outlook.exact) is None:
        return ""
    classes = study.data.response.kind == "class"
    unit = "half a logit" if classes else "half a standard deviation of the residuals"
    return (
        "for the widest coefficient, an exact interval (one that allows for the noise alone) is "
        f"+-{found.half:.2g} at {counted_of(records)}, and +-{found.wanted:.2g} ({unit}) after "
        f"about {_about(found.records)}; estimates are ready after {_about(found.ready)} at the "
        f"latest, {_supposed(outlook)} and "
        f"{'classes are as even' if classes else 'residuals are as large'} as assumed"
    )


def classes(outlook: Plan, study: Study) -> str:
    """Say which share of the classes a plan supposes, and what waits for it.

    Returns: Empty where nothing does, and the study says no share.
    """
    after, typical, share = outlook.classes, study.data.response.typical, rarer_share(study)
    if study.data.response.kind != "class":
        return ""
    if after is None:
        said = f"assumed: {share:.3g} of the records have the rarer class (as data.response.typical"
        return "" if typical is None or outlook.seen else f"{said} says)"
    whence = "as in the sample" if outlook.seen else "as data.response.typical says"
    if typical is None:
        whence = "as data.response has no `typical`, a public guess of the share of `positive`"
    return (
        f"assumed: {share:.3g} of the records have the rarer class ({whence}). No interval comes "
        "before both noised class counts stand out of their noise, here after about "
        f"{_about(after)} records; a rarer class does so later"
    )


def counts(outlook: Plan, study: Study) -> str:
    """Say which mean of counts a plan supposes; empty where it has seen some, or of no counts."""
    if study.data.response.kind != "count" or outlook.seen:
        return ""
    whence = "as data.response.typical says"
    if study.data.response.typical is None:
        whence = "a quarter of the largest, as data.response has no `typical`, a public guess of it"
    return (
        f"assumed: a mean count of {typical_mean(study):.3g} ({whence}). Smaller counts say less "
        "of the log of their mean: intervals then come later, and are longer"
    )


def by_ridge(outlook: Plan, records: int) -> bool:
    """Whether the ridge alone is enough for intervals of slopes at a size."""
    return outlook.latest is not None and outlook.latest <= records


def holds_for(outlook: Plan, records: int) -> str:
    """Say for which records intervals are to be expected at a size: whole sentences."""
    if by_ridge(outlook, records):
        return f"the ridge alone is enough for slopes after {outlook.latest:,} records. {BUT}"
    if outlook.classes is not None and outlook.usual == outlook.classes:
        return (
            "one class is so rare that its noised count stands out of the noise only after "
            f"{outlook.classes:,} records"
        )
    least = "" if outlook.exact is not None else "no ridge is enough by itself: "
    if outlook.latest is not None:
        least = f"the ridge alone is enough after {outlook.latest:,} records, and before that "
    rest = "" if outlook.seen else f". {OTHERS}"
    return f"{least}this holds {_supposed(outlook)}{rest}"


def half_at(outlook: Plan, records: int) -> str:
    """Say half the length of a slope's interval at a size, or when there is one, in a few words."""
    if outlook.usual > records or outlook.usual_half is None:
        late = outlook.usual >= NEVER
        return f"none, {NOT_WITHIN}" if late else f"none before {outlook.usual:,} records"
    return f"+-{outlook.usual_half:.2g}"


def _about(records: int) -> str:
    return f"{rounded_up(records, 3):,}"


def counted_of(records: int, clients: int | None = None) -> str:
    """Return a size in words."""
    said = f"{records:,} {'record' if records == 1 else 'records'}"
    return said if clients is None else f"{said} of {counted(clients, 'client')}"


def two_digits(number: float | None, most: float = math.inf) -> str:
    """Return a number in two digits without a power of ten; "-" if it is unknown, or above most."""
    if number is None or number > most:
        return "-"
    rounded = float(f"{number:.2g}")
    return f"{rounded:,.0f}" if rounded >= 100 else f"{rounded:g}"
