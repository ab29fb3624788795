"""How the budget of a release is shared: what a study has by default, and what is refused."""

from __future__ import annotations

import re

import numpy as np
import pytest

from pipeline.errors import ConfigError, PrivacyError
from pipeline.methods.renewable.client import RenewableTask
from pipeline.study_file.load import parse_study
from tests import sgd
from tests.builders import study_text, task_of

LOGISTIC: dict[str, object] = {"loss": "logistic", "epsilon": 1.0, "delta": 1e-6, "p": 7}


def left(gradient: float, middle: float = 0.05, counts: float = 0.05) -> float:
    """Return what g p^2 + h 16 p^2 (1 - p)^2 + m p^4 + c <= 1 leaves to h, from a fine grid."""
    p = np.linspace(0.4, 0.9999, 1_000_001)
    over = 1 - counts - gradient * p**2 - middle * p**4
    return float(np.min(over / (4 * p * (1 - p)) ** 2))


@pytest.mark.parametrize(
    ("settings", "shares"),
    [
        (LOGISTIC, (0.9, 0.6716, 0.05, 0.05)),
        ({}, (0.63, 0.502, 0.05, 0.05)),
        ({"loss": "linear"}, (0.63, 0.27, 0.05, 0.05)),
        ({"loss": "poisson", "most": 9.0}, (0.63, 0.27, 0.05, 0.05)),
        # nothing is counted
        ({"loss": "linear", "noise_scale": 0.5}, (0.63, 0.32, 0.05, 0.0)),
        # where counts have more, the gradient has less
        ({"loss": "logistic", "split": "counts = 0.2"}, (0.75, left(0.75, counts=0.2), 0.05, 0.2)),
        ({"loss": "linear", "split": "counts = 0.2"}, (0.525, 0.225, 0.05, 0.2)),
        ({"loss": "logistic", "split": "middle = 0"}, (0.9, left(0.9, middle=0), 0.0, 0.05)),
        ({"loss": "logistic", "split": "gradient = 0.7"}, (0.7, left(0.7), 0.05, 0.05)),
    ],
)
def test_a_study_has_the_largest_share_of_the_curvature_that_no_record_can_break(
    settings: dict[str, object], shares: tuple[float, ...]
) -> None:
    split = task_of(**settings).split
    found = (split.gradient, split.curvature, split.middle, split.counts)
    assert found == pytest.approx(shares, abs=1.1e-4)


def test_joint_shares_need_less_noise_and_the_middle_is_free() -> None:
    """Gradient .665 to .9, curvature .285 to .6716 of the squared budget."""
    new = task_of(**LOGISTIC)
    old = task_of(**LOGISTIC, split="gradient = 0.665, curvature = 0.285, counts = 0.05")
    for name, wanted in (("gradient", 0.860), ("curvature", 0.652), ("counts", 1.0)):
        one, two = (task.update_channels.parts[name] for task in (new, old))
        # what rounding to the lattice can add
        assert one.standard_deviation / two.standard_deviation == pytest.approx(wanted, rel=4e-3)
    assert new.update_channels.middle is not None
    assert old.update_channels.middle is None
    assert [field.name for field in new.layout.later] == [
        "gradient", "curvature", "middle", "counts",
    ]  # fmt: skip
    assert [field.name for field in old.layout.later] == ["gradient", "curvature", "counts"]
    assert [field.name for field in new.layout.start] == ["gradient", "counts"]


def test_with_pure_epsilon_the_condition_has_no_squares() -> None:
    """Of .95 - .9 p - .05 p^2 = .05 (1 - p) (19 + p) the curvature 4 p (1 - p) leaves a quarter."""
    split = task_of(**{**LOGISTIC, "mechanism": "discrete-laplace"}).split
    assert split.curvature == pytest.approx(0.25, abs=1e-3)


@pytest.mark.parametrize(
    ("split", "key", "said"),
    [
        ("gradient = 0.9, curvature = 0.68, middle = 0.05", "curvature", "0.6716"),
        ("gradient = 0.9, curvature = 0.73, middle = 0", "curvature", "0.6792"),
        ("gradient = 0.96", "gradient", "nothing for the curvature"),
        ("counts = 0.97", "gradient", "nothing for the curvature"),
    ],
)
def test_shares_that_a_record_can_break_are_refused_with_what_is_allowed(
    split: str, key: str, said: str
) -> None:
    with pytest.raises(PrivacyError, match=rf"privacy\.split\.{key}") as caught:
        task_of(**LOGISTIC, split=split)
    assert said in str(caught.value)
    [example] = re.findall(r"split = \{ (.*?) \}", str(caught.value))
    assert isinstance(task_of(**LOGISTIC, split=example), RenewableTask)


def test_the_revision_is_of_the_shares_and_not_of_how_they_are_written() -> None:
    whole = "gradient = 0.9, curvature = 0.6716, middle = 0.05, counts = 0.05"
    plain, written, other = (
        task_of(**LOGISTIC, split=split) for split in (None, whole, "middle = 0.04")
    )
    assert plain.revision == written.revision != other.revision
    # without a middle shares are scaled by their sum: another noise
    alone = task_of(**LOGISTIC, split="gradient = 0.9, curvature = 0.6716, counts = 0.05")
    assert alone.revision != task_of(**LOGISTIC, split=f"{whole.replace('0.05,', '0,')}").revision


def test_only_renewable_estimation_has_a_middle() -> None:
    text = study_text(loss="logistic", split="middle = 0.05")
    with pytest.raises(ConfigError, match=r"privacy\.split\.middle"):
        parse_study(text.replace("[estimator]\n", '[estimator]\nkind = "noisy-mle"\n'))
    gradients = sgd.study_text().replace("[window]", "split = { middle = 0.1 }\n[window]")
    with pytest.raises(ConfigError, match=r"privacy\.split\.middle"):
        parse_study(gradients)


def test_the_numbers_that_a_record_touches_are_counted() -> None:
    """Two gradients at most, matrices, counts; finer draws of noise that remembers cost less."""
    packed = 8 * 9 // 2
    for settings, numbers in (
        (LOGISTIC, 2 * 8 + 2 * packed + 2),
        ({**LOGISTIC, "split": "middle = 0"}, 2 * 8 + packed + 2),
    ):
        assert task_of(**settings).budget._touched == numbers
