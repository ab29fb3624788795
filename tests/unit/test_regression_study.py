"""What the study file of a regression may not say, and that every error names its key."""

from __future__ import annotations

import pytest

from pipeline.errors import ConfigError
from pipeline.study_file.edit import TEMPLATE
from pipeline.study_file.load import parse_study
from tests.builders import study_text

LINEAR = study_text(p=2, loss="linear", least=0.0, most=100.0)
POISSON = study_text(p=2, loss="poisson", most=50.0)
CLASSES = study_text(p=2, loss="logistic")
NUMBER = '{ name = "y", kind = "number", min = 0.0, max = 100.0 }'
COUNT = '{ name = "y", kind = "count", max = 50.0 }'
LABELS = '{ name = "y", positive = "1", negative = "0" }'


def own(text: str, line: str) -> str:
    """Return a study with one more line under [estimator]."""
    return text.replace("[estimator]\n", f"[estimator]\n{line}\n")


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        (LINEAR.replace("min = 0.0, ", ""), "data.response.min", "is required"),
        (LINEAR.replace(", max = 100.0 }", " }"), "data.response.max", "is required"),
        (LINEAR.replace("min = 0.0", "min = 100.0"), "data.response", "min must be below max"),
        (LINEAR.replace("min = 0.0", "min = 200"), "data.response", "min must be below max"),
        (LINEAR.replace("min = 0.0", "min = nan"), "data.response", "must be finite"),
        (LINEAR.replace("max = 100.0", "max = inf"), "data.response", "must be finite"),
        (
            LINEAR.replace("min = 0.0", 'min = "a"'),
            "data.response.min",
            "must be a number, not a text",
        ),
        (LINEAR.replace(NUMBER, LABELS), "estimator.loss", "explains a number"),
        (LINEAR.replace(NUMBER, COUNT), "estimator.loss", "explains a number"),
        (
            LINEAR.replace("max = 100.0 }", 'max = 100.0, positive = "1" }'),
            "data.response.positive",
            "does not go with",
        ),
        (POISSON.replace("max = 50.0", "max = 0"), "data.response.max", "whole number from 1"),
        (POISSON.replace("max = 50.0", "max = -5"), "data.response.max", "whole number from 1"),
        (POISSON.replace("max = 50.0", "max = 2.5"), "data.response.max", "whole number from 1"),
        (POISSON.replace("max = 50.0", "max = 1e9"), "data.response.max", "from 1 to 1000000"),
        (POISSON.replace("max = 50.0", "max = nan"), "data.response.max", "whole number from 1"),
        (
            POISSON.replace("max = 50.0", "min = 0, max = 50"),
            "data.response.min",
            "does not go with",
        ),
        (POISSON.replace(COUNT, NUMBER), "estimator.loss", "explains a count"),
        (CLASSES.replace(LABELS, COUNT), "estimator.loss", "explains a class"),
        (own(LINEAR, "class_weights = { maximum = 2 }"), "estimator.class_weights", "no classes"),
        (own(POISSON, "class_weights = { maximum = 2 }"), "estimator.class_weights", "no classes"),
        (own(CLASSES, "residual_bound = 1"), "estimator.residual_bound", 'loss = "linear"'),
        (own(POISSON, "residual_bound = 1"), "estimator.residual_bound", 'loss = "linear"'),
        (own(POISSON, "noise_scale = 1"), "estimator.noise_scale", 'loss = "linear"'),
        (own(LINEAR, "smoothing = 0.1"), "estimator.smoothing", 'loss = "gdwd"'),
        (own(LINEAR, "residual_bound = 0"), "estimator.residual_bound", "more than 0"),
        (own(LINEAR, "residual_bound = -1"), "estimator.residual_bound", "more than 0"),
        (own(LINEAR, "residual_bound = nan"), "estimator.residual_bound", ""),
        (own(LINEAR, "residual_bound = inf"), "estimator.residual_bound", "at most"),
        (own(LINEAR, "residual_bound = 1e-9"), "estimator.residual_bound", "at least a millionth"),
        (own(LINEAR, "residual_bound = 1e5"), "estimator.residual_bound", "10 times it"),
        (own(LINEAR, "noise_scale = 1e5"), "estimator.noise_scale", "at most the width"),
        (own(LINEAR, "noise_scale = 0"), "estimator.noise_scale", "more than 0"),
        (own(LINEAR, "noise_scale = nan"), "estimator.noise_scale", ""),
        (own(LINEAR, "noise_scale = inf"), "estimator.noise_scale", "at most"),
        (own(LINEAR, "noise_scale = 1e-300"), "estimator.noise_scale", "at least"),
    ],
)
def test_a_contradiction_names_its_key(text: str, key: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_study(text)
    assert f"{key}:" in str(caught.value)
    assert words in str(caught.value)


def test_the_template_s_comments_are_studies_themselves() -> None:
    number, count = (
        next(line for line in TEMPLATE.splitlines() if f'kind = "{kind}"' in line).split(": ", 1)[1]
        for kind in ("number", "count")
    )
    labels = '{ name = "anomaly", positive = "1", negative = "0" }'
    linear = TEMPLATE.replace(labels, number).replace('loss = "logistic"', 'loss = "linear"')
    linear = linear.replace("# residual_bound", "residual_bound").replace("# noise", "noise")
    assert parse_study(linear).estimator.residual_bound == 5
    poisson = TEMPLATE.replace(labels, count).replace('loss = "logistic"', 'loss = "poisson"')
    assert parse_study(poisson).data.response.ends == (0.0, 50.0)
    weighted = TEMPLATE.replace("# class_weights", "class_weights")
    assert parse_study(weighted).estimator.class_weights is not None
