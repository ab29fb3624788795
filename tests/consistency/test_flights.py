"""The study of the second demonstration, in one process: what its last words rest on."""

from collections import Counter
from importlib.resources import files
from pathlib import Path

import pytest

from pipeline.cli.flights import ASKED, MAIN, Flights
from pipeline.cli.table import covers
from pipeline.local.plan import Plan
from pipeline.messages.estimate import Coefficient, EstimateMessage
from pipeline.study import Study, load_study, parse_study, with_keys
from producers.sources.flights import AIRLINES

FILE = Path(str(files("pipeline.study") / "examples" / "flights.toml"))
PLACE = list(load_study(FILE).coefficient_names).index(MAIN)


def seeded() -> Study:
    """Return the study with noise that a test can repeat."""
    mechanism = 'mechanism = "discrete-gaussian"'
    text = FILE.read_text(encoding="utf-8")
    assert text.count(mechanism) == 1
    return parse_study(text.replace(mechanism, 'mechanism = "insecure-simulation"\nseed = 1'))


@pytest.fixture(scope="module")
def shown() -> Flights:
    return Flights(Plan(load_study(FILE)))


@pytest.fixture(scope="module")
def pooled(shown: Flights) -> list[float]:
    return shown.pooled()


@pytest.fixture(scope="module")
def final(shown: Flights) -> EstimateMessage:
    return shown.stream(Plan(seeded()))


def main(message: EstimateMessage) -> Coefficient:
    return message.coefficients[PLACE]


def test_every_flight_is_there_and_those_that_never_arrived_keep_their_slots(
    shown: Flights,
) -> None:
    assert Counter(airline for airline, _ in shown.slots) == AIRLINES
    # the package's own counts: 336,776 flights, of which 9,430 have no arrival delay
    assert len(shown.slots) == 336_776
    assert sum(row is None for _, row in shown.slots) == 9_430
    assert {site.name: site.records for site in shown.sites} == AIRLINES


def test_at_its_budget_the_main_coefficient_is_told_from_zero(
    final: EstimateMessage, pooled: list[float]
) -> None:
    assert final.status == "ready"
    interval = main(final).interval
    assert interval is not None
    assert not covers(interval, 0.0)
    # a late departure makes a late arrival, minute by minute or nearly
    assert interval[0] > 0
    assert covers(interval, pooled[PLACE])


def test_at_epsilon_one_it_is_not(shown: Flights) -> None:
    tight = shown.stream(Plan(with_keys(seeded(), {"privacy.epsilon": ASKED}, name="tight")))
    interval = main(tight).interval
    assert interval is None or covers(interval, 0.0)
    assert tight.status == "warming"
    assert "has mixed" in tight.reason


def test_shuffled_flights_are_another_path_to_the_same_point(
    shown: Flights, final: EstimateMessage, pooled: list[float]
) -> None:
    shuffled = shown.stream(Plan(seeded()), shuffle=1)
    assert shuffled.status == "ready"
    assert (shuffled.records, shuffled.clients) == (final.records, final.clients)
    assert main(shuffled).value != main(final).value
    interval = main(shuffled).interval
    assert interval is not None
    assert covers(interval, pooled[PLACE])
