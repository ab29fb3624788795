"""Every mechanism keeps what the compliance suite asks, and wrong ones do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pipeline.privacy.mechanism import Channel, GaussianMechanism, LaplaceMechanism, Mechanism
from tests.compliance.mechanisms import CHECKS

MECHANISMS: dict[str, Mechanism] = {
    "discrete-gaussian": GaussianMechanism(1.0, 1e-6),
    "discrete-laplace": LaplaceMechanism(1.0),
}


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("check", CHECKS, ids=[check.__name__ for check in CHECKS])
def test_a_mechanism_keeps_what_is_asked(check: Callable[[Mechanism], None], name: str) -> None:
    check(MECHANISMS[name])


class Third(GaussianMechanism):
    """Takes a third of the sensitivity."""

    def channel(self, sensitivity: float, *rest: Any) -> Channel:
        return super().channel(sensitivity / 3, *rest)


class Greedy(GaussianMechanism):
    """Lets its parts cost more than the budget together."""

    def part(self, budget: float, share: float) -> float:
        return budget * share**0.4


class Wasteful(LaplaceMechanism):
    """Has twice the noise that its budget asks for."""

    def channel(self, sensitivity: float, *rest: Any) -> Channel:
        return super().channel(2 * sensitivity, *rest)


@pytest.mark.parametrize(
    "wrong", [Third(1.0, 1e-6), Greedy(1.0, 1e-6), Wasteful(1.0)], ids=lambda w: type(w).__name__
)
def test_a_wrong_mechanism_is_found(wrong: Mechanism) -> None:
    found = 0
    for check in CHECKS:
        try:
            check(wrong)
        except AssertionError:
            found += 1
    assert found
