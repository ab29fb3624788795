"""Numbers of a plan in two digits, as people read them."""

from __future__ import annotations

import pytest

from pipeline.methods.plan_words import two_digits


@pytest.mark.parametrize(
    ("number", "told"),
    [(120.4, "120"), (1234.0, "1,200"), (99.6, "100"), (4.26, "4.3"), (0.0312, "0.031")],
)
def test_no_power_of_ten_is_printed(number: float, told: str) -> None:
    assert two_digits(number) == told


def test_a_bound_wider_than_the_range_is_no_bound() -> None:
    assert two_digits(12.0, 10.0) == "-"
    assert two_digits(9.0, 10.0) == "9"
    assert two_digits(None) == "-"
