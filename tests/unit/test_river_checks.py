"""The learners under River's own checks; what they do not keep is listed with its reason."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import pytest
from river import base, datasets
from river.checks import clf, common

import veilstream as vs

pytestmark = pytest.mark.filterwarnings("ignore::pipeline.errors.VeilstreamWarning")

STUDY = """\
[study]
name = "river"
[data]
response = {response}
[data.features]
{features}
[estimator]
loss = "{loss}"
[privacy]
mechanism = "none"
[window]
records = 20
"""
CLASSES = '{ name = "y", positive = "1", negative = "0" }'
NUMBERS = '{ name = "y", kind = "number", min = 0, max = 100 }'


def study_of(records: list[Any], loss: str, response: str) -> str:
    names = list(records[0][0])
    values = {name: [float(x[name]) for x, _ in records] for name in names}
    features = "\n".join(
        f'"{name}" = {{ min = {min(found) - 1}, max = {max(found) + 1} }}'
        for name, found in values.items()
    )
    return STUDY.format(response=response, features=features, loss=loss)


PHISHING = list(datasets.Phishing().take(200))
APPROVAL = list(datasets.TrumpApproval().take(200))
LEARNERS = {
    "classifier": (vs.StreamClassifier(study_of(PHISHING, "logistic", CLASSES)), PHISHING),
    "regressor": (vs.StreamRegressor(study_of(APPROVAL, "linear", NUMBERS)), APPROVAL),
}
CHECKS: dict[str, Callable[..., Any]] = {
    name: check
    for module in (common, clf)
    for name, check in list(vars(module).items())
    if name.startswith("check_") and "dataset" in list(inspect.signature(check).parameters)[1:2]
}
RIVER_BASE = "it calls methods of River's own base class, which would make River a dependency"
FIXED = "a study declares its features, and a record without one of them is refused by name"
EXCEPTIONS = {
    "check_shuffle_features_no_impact": (AttributeError, RIVER_BASE),
    "check_clone_is_independent": (AttributeError, RIVER_BASE),
    "check_learn_many_matches_learn_one": (AttributeError, RIVER_BASE),
    "check_seeding_is_idempotent": (AttributeError, RIVER_BASE),
    "check_bounded_memory_growth": (AttributeError, RIVER_BASE),
    "check_debug_one": (AttributeError, RIVER_BASE),
    "check_disappearing_features": (vs.VeilstreamError, FIXED),
    "check_radically_disappearing_features": (vs.VeilstreamError, FIXED),
}
#: They ask for probabilities, which there are from the first release on and of classes alone.
PROBABILITIES = ("check_predict_proba_one", "check_predict_proba_one_binary")


@pytest.mark.parametrize("kind", LEARNERS)
@pytest.mark.parametrize("name", CHECKS)
def test_river_checks(kind: str, name: str) -> None:
    fresh, records = LEARNERS[kind]
    learner = copy.deepcopy(fresh)
    if name in EXCEPTIONS:
        # a check that comes to pass leaves the list
        error, reason = EXCEPTIONS[name]
        assert reason
        with pytest.raises(error):
            CHECKS[name](learner, list(records))
        return
    if name in PROBABILITIES:
        if kind == "regressor":
            assert not hasattr(learner, "predict_proba_one")
            return
        assert learner.predict_proba_one(records[0][0]) == {}
        for x, y in records[:40]:
            learner.learn_one(x, y)
    CHECKS[name](learner, list(records))


def test_river_takes_the_learners_for_what_they_are() -> None:
    # a class is told to River when one is made behind River's import
    roles = {kind: type(learner) for kind, (learner, _) in LEARNERS.items()}
    assert issubclass(roles["classifier"], base.Classifier)
    assert issubclass(roles["regressor"], base.Regressor)
