"""Attacks on whole streams: all releases, the models made of them, and the last estimate.

Each window is taken at a model that earlier noise has moved. The bounds fail a right program with
probability ALARM each, over fresh noise; noise comes from a seeded stand-in.
"""

from __future__ import annotations

from functools import cache

import pytest

from pipeline.errors import ConfigError
from pipeline.study_file.load import parse_study
from tests.attacks.bugs import BOTH
from tests.attacks.streams import (
    EPSILON,
    Change,
    Sighting,
    StreamFinding,
    measure_stream,
    sightings,
    stream_attack,
)
from tests.attacks.studies import Mechanism, study_text
from tests.attacks.windows import Streams
from tests.builders import SeededStream

WINDOWS = 6
#: Windows and streams of the short form.
SHORT, FEW = 4, 200
#: Streams for either neighbour.
DRAWS = {"discrete-gaussian": 300, "discrete-laplace": 500}
#: The least share of the claim that an attack must reach with so few draws.
STRONG = {"discrete-gaussian": 0.25, "discrete-laplace": 0.1}


def streams(seed: int) -> Streams:
    return lambda number: SeededStream(1000 * seed + number)


@cache
def undisturbed(mechanism: Mechanism) -> list[Sighting]:
    """The left side of two attacks: the stream without the change, under the zero-out task."""
    attack = stream_attack("zero-out", mechanism, WINDOWS)
    return sightings(attack.task, attack.left, DRAWS[mechanism], SeededStream(99))


def attacked(change: Change, mechanism: Mechanism) -> StreamFinding:
    attack = stream_attack(change, mechanism, WINDOWS)
    return measure_stream(attack, DRAWS[mechanism], streams(1), undisturbed(mechanism))


@pytest.mark.takes("a stream is drawn hundreds of times, for what its releases tell together")
def test_a_short_stream_keeps_what_was_promised_and_the_attack_finds_one_that_does_not() -> None:
    """One window after the change; with Laplace noise releases one by one are attacked."""
    whole = stream_attack("zero-out", "discrete-gaussian", SHORT)
    unmoved = sightings(whole.task, whole.left, FEW, SeededStream(99))
    kept, broken = (
        measure_stream(
            stream_attack(change, "discrete-gaussian", SHORT), FEW, streams(1), unmoved
        ).everything
        for change in ("zero-out", "add-remove")
    )
    claim = EPSILON["discrete-gaussian"]
    assert 0.1 * claim < kept.claimed <= claim
    assert kept.events <= claim
    # such neighbours no study may declare
    assert broken.claimed > claim


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", BOTH)
def test_a_whole_stream_keeps_what_was_promised(mechanism: Mechanism) -> None:
    found = attacked("zero-out", mechanism)
    claim = EPSILON[mechanism]
    assert STRONG[mechanism] * claim < found.everything.claimed <= claim
    assert found.everything.events <= claim
    assert found.estimate.claimed <= claim


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", BOTH)
@pytest.mark.parametrize("change", ["zero-out", "replace-one", "user zero-out"])
def test_a_whole_stream_drawn_many_times_keeps_what_was_promised(
    change: Change, mechanism: Mechanism
) -> None:
    found = measure_stream(stream_attack(change, mechanism, WINDOWS), 3000, streams(2))
    claim = EPSILON[mechanism]
    # a user's records move each release by a third of its sensitivity: so few draws show little
    floor = 0.01 if change == "user zero-out" else 0.5
    assert floor * claim < found.everything.claimed <= claim
    assert found.estimate.claimed <= claim


@pytest.mark.parametrize("mechanism", BOTH)
@pytest.mark.slow
def test_a_record_inserted_with_a_slot_of_its_own_would_show_in_every_later_window(
    mechanism: Mechanism,
) -> None:
    """Which is why no study may declare such neighbours: the stream exceeds any claim."""
    found = attacked("add-remove", mechanism)
    assert found.everything.claimed > 1.2 * EPSILON[mechanism]


@pytest.mark.parametrize("mechanism", BOTH)
def test_a_study_that_declares_such_neighbours_is_refused(mechanism: Mechanism) -> None:
    with pytest.raises(ConfigError, match="add-remove"):
        parse_study(study_text(mechanism, "add-remove"))


@pytest.mark.parametrize("change", ["zero-out", "add-remove"])
def test_the_two_kinds_of_change_touch_one_window_and_all_later_ones(change: Change) -> None:
    attack = stream_attack(change, "discrete-gaussian", WINDOWS)
    size = attack.task.slots
    windows: list[list[object]] = []
    for slots in (attack.left, attack.right):
        counts = [
            sum(row is not None and row.response > 0 for row in slots[i * size : (i + 1) * size])
            for i in range(WINDOWS)
        ]
        windows.append(list(counts))
    differing = [i for i in range(WINDOWS) if windows[0][i] != windows[1][i]]
    assert differing == ([2] if change == "zero-out" else [2, 3, 4, 5])
