"""What a sample file says of its classes, and of its order: from raw records, and NOT private.

Estimates take records as independent of their place in the stream: the newest releases count most,
at models that came from earlier ones. A file that is sorted by its response is no such stream.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import logit, ndtri

from pipeline.methods import method_of, task_of
from pipeline.methods.offline import offline_method
from pipeline.records.features import response_of
from pipeline.release.task import Task
from pipeline.study_file.edit import with_keys
from pipeline.types import Matrix, Vector

#: A file is cut into so many consecutive parts, if each has so many records.
PARTS, LEAST = 10, 20
#: Parts differ where a larger share of what sorting could put between them is, and one larger than
#: chance makes once in so many columns.
SHARE, CHANCE = 0.1, 1e6
#: So many columns are named.
NAMED = 5
#: A guess of how frequent a class is is wrong from this ratio of odds on.
WRONG = 1.5


def classes_of(task: Task, responses: Vector, clients: int) -> dict[str, object]:
    """Return how frequent the positive class is, and what that means for intervals.

    clients: How many are expected.
    responses: Encoded; NaN where a record has none. Empty for responses without classes.
    """
    known = responses[np.isfinite(responses)]
    if not task.classes or not len(known):
        return {}
    share, response = float(np.mean(known > 0)), task.study.data.response
    supposed = 0.5 if response.typical is None else response.typical
    guess = "the study supposes" if response.typical is None else "the study guesses"
    found: dict[str, object] = {
        "share_of_positive": share,
        "positive": (
            f"{100 * share:.2g} % of {len(known):,} responses are positive; {guess} "
            f"{100 * supposed:.3g} %"
        ),
    }
    said = "is not given" if response.typical is None else f"is {response.typical:g}"
    if share in {0.0, 1.0}:
        found["classes"] = (
            f"only one class in these {len(known):,} records: there is nothing to estimate. If "
            "the file is sorted by its response, shuffle it first"
        )
    elif abs(float(logit(share) - logit(supposed))) > math.log(WRONG):
        found["classes"] = (
            f"data.response.typical {said}, so plans count with {supposed:g}"
            f"{_later(task, share, clients)}. Choose a guess by what is public, and run "
            "`veilstream study design` with it"
        )
    return found


def _later(task: Task, share: float, clients: int) -> str:
    """Say when both counts stand out with this share of the positive class."""
    if offline_method(task.study) is not None:
        return ""
    study = with_keys(task.study, {"data.response.typical": share}, name="the sample")
    outlook = method_of(study).plan(task_of(study), task.slots, clients)
    if outlook.classes is None:
        return ""
    return (
        f". With {share:.2g} no interval comes before {outlook.classes:,} records, at which both "
        "noised class counts stand out of their noise"
    )


def order_of(task: Task, columns: Matrix, responses: Vector) -> dict[str, object]:
    """Return which columns go with the place of a record in the file; empty if none does.

    columns: Encoded features, shape (n, p).
    responses: As of `classes_of`.
    """
    names = [response_of(task.study).name, *task.study.coefficient_names[1:]]
    found = {
        name: said
        for name, column in zip(names, [responses, *columns.T], strict=True)
        if (said := _moving(column[np.isfinite(column)]))
    }
    if not found:
        return {}
    told = dict(sorted(found.items(), key=lambda item: -item[1])[:NAMED])
    return {
        "goes_with_the_order": {
            name: (
                f"{share:.0%} of what sorting by it could put between {PARTS} consecutive parts of "
                "the file is between them"
            )
            for name, share in told.items()
        },
        "order": (
            "records are not in a random order. Clients release them as they come, and estimates "
            "follow the newest: such a stream may have no intervals, or those of its last part. "
            "If the order is of the file alone (sorted, or site after site), shuffle it before it "
            "is released, but for its heading; if it is the order of time, records drift: "
            "estimator.forgetting, or a feature that says what changes"
        ),
    }


def _moving(column: Vector) -> float:
    """Return the share of the variance that is between consecutive parts, 0 if it may be chance.

    Of the largest share that there can be, as of a rare class most of the variance is within parts
    whatever the order is.
    """
    total = float(np.var(column)) * len(column) if len(column) >= PARTS * LEAST else 0.0
    if total == 0:
        return 0.0
    share, most = (_between(each) / total for each in (column, np.sort(column)))
    # of independent records it is chi squared, by the cube root of Wilson and Hilferty
    free = PARTS - 1
    root = 1 - 2 / (9 * free) - float(ndtri(1 / CHANCE)) * math.sqrt(2 / (9 * free))
    return share / most if share > max(SHARE * most, free * root**3 / len(column)) else 0.0


def _between(column: Vector) -> float:
    """Return the sum of squares that is between consecutive parts."""
    middle = float(np.mean(column))
    return sum(
        len(part) * (float(np.mean(part)) - middle) ** 2 for part in np.array_split(column, PARTS)
    )
