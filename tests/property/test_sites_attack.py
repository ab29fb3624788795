"""Attacks on the noised sums of a site learn less than is promised, and see planted faults."""

from __future__ import annotations

import pytest

from pipeline.privacy.sensitivity import Neighbours
from tests.attacks.bugs import BOTH
from tests.attacks.sites import FAULTS, KINDS, Fault, Kind, attack_of
from tests.attacks.studies import EPSILON, Mechanism
from tests.attacks.windows import measure
from tests.builders import SeededStream

DRAWS = 8000


@pytest.mark.parametrize("mechanism", BOTH)
@pytest.mark.parametrize("neighbours", ["zero-out", "replace-one"])
@pytest.mark.parametrize("kind", KINDS)
def test_no_attack_learns_more_than_was_promised(
    kind: Kind, neighbours: Neighbours, mechanism: Mechanism
) -> None:
    found = measure(attack_of(kind, mechanism, neighbours), DRAWS, SeededStream)
    # a weak attack would show nothing
    assert 0.2 < found.claimed / EPSILON[mechanism] <= 1


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_attack_finds_a_planted_fault(fault: Fault) -> None:
    with fault.plant():
        found = measure(fault.attack(), DRAWS, SeededStream)
    assert found.claimed > 1.2 * EPSILON["discrete-gaussian"]
