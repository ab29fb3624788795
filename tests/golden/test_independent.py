"""Windows of one size with independent noise: the bytes that there were before anything grew."""

from __future__ import annotations

import json

import pytest

from tests.golden.independent import BEFORE, FILE, STUDIES, made, text_of

RECORDED = json.loads(FILE.read_text())
#: Each of their parts is in another study, too.
ALIKE = {"logistic-replace-one", "logistic-other-shares", "linear-known"}


def test_every_study_is_recorded() -> None:
    assert list(RECORDED) == list(STUDIES)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in ALIKE)) for name in STUDIES],
)
def test_a_study_without_growth_memory_and_joint_shares_releases_the_same_bytes(name: str) -> None:
    assert made(text_of(name, BEFORE)) == RECORDED[name]


def test_another_noise_is_seen() -> None:
    for keys in ({"growth": 0}, {"noise_memory": 0}, {**BEFORE, "split": None}):
        assert made(text_of("logistic", keys)) != RECORDED["logistic"]
