"""Attacks on chains: a record keeps its budget over all releases whose noise it is part of.

Bounds fail a right program with probability ALARM over fresh noise; noise comes from a seeded
stand-in, so that these runs are always the same.
"""

from __future__ import annotations

import pytest

from tests.attacks.chains import FAULTS, Fault, measure_chains
from tests.attacks.windows import Streams
from tests.builders import SeededStream

#: Chains with the record, and as many without it.
CHAINS = 4000


def streams(seed: int) -> Streams:
    return lambda number: SeededStream(10**6 * seed + number)


def test_a_chain_keeps_what_was_promised_and_wastes_nothing() -> None:
    found = measure_chains(CHAINS, streams(1))
    assert found.least <= found.promised
    # the estimate has a standard error of 3.2 %
    assert found.measured == pytest.approx(found.promised, rel=0.1)


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name for fault in FAULTS])
def test_the_attack_finds_a_fault_of_chains(fault: Fault) -> None:
    found = measure_chains(CHAINS, streams(2), fault)
    assert found.least > found.promised
