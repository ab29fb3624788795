"""The study of the second demonstration, in one process: what its last words rest on."""

from collections import Counter
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from pipeline.api.table import covers
from pipeline.cli.demo import MAIN, Flights
from pipeline.messages.estimate import Coefficient, EstimateMessage
from pipeline.methods import task_of
from pipeline.release.task import Task
from pipeline.study.model import Study
from pipeline.study_file.edit import with_keys
from pipeline.study_file.load import load_study, parse_study
from producers.sources.samples import AIRLINES
from tests.builders import run_rows

FILE = Path(str(files("pipeline.study") / "examples" / "flights.toml"))
#: Flights of two months: what is said of paths that are too short, or late, needs no more of them.
FEW = 60_000
#: A budget that people ask for first.
ASKED = 1.0
PLACE = list(load_study(FILE).coefficient_names).index(MAIN)


def seeded() -> Study:
    """Return the study with noise that a test can repeat."""
    mechanism = 'mechanism = "discrete-gaussian"'
    text = FILE.read_text(encoding="utf-8")
    assert text.count(mechanism) == 1
    return parse_study(text.replace(mechanism, 'mechanism = "insecure-simulation"\nseed = 1'))


def stream(shown: Flights, task: Task, shuffle: int | None = None) -> EstimateMessage:
    """Stream all flights in one process; shuffle: seed of a random order of them."""
    order = range(len(shown.slots))
    if shuffle is not None:
        order = np.random.default_rng(shuffle).permutation(len(shown.slots)).tolist()
    return run_rows(task, (shown.slots[number] for number in order)).estimate(0.0)[1]


@pytest.fixture(scope="module")
def shown() -> Flights:
    return Flights(task_of(load_study(FILE)))


@pytest.fixture(scope="module")
def pooled(shown: Flights) -> list[float]:
    return [row.value for row in shown.exact().coefficients]


@pytest.fixture(scope="module")
def final(shown: Flights) -> EstimateMessage:
    return stream(shown, task_of(seeded()))


@pytest.fixture(scope="module")
def early(shown: Flights) -> Flights:
    part = Flights(task_of(load_study(FILE)))
    part.slots = shown.slots[:FEW]
    return part


@pytest.fixture(scope="module")
def tight(early: Flights) -> EstimateMessage:
    return stream(early, task_of(with_keys(seeded(), {"privacy.epsilon": ASKED}, name="tight")))


def main(message: EstimateMessage) -> Coefficient:
    return message.coefficients[PLACE]


@pytest.mark.slow
def test_every_flight_is_there_and_those_that_never_arrived_keep_their_slots(
    shown: Flights,
) -> None:
    assert Counter(airline for airline, _ in shown.slots) == AIRLINES
    # the package's own counts: 336,776 flights, of which 9,430 have no arrival delay
    assert len(shown.slots) == 336_776
    assert sum(row is None for _, row in shown.slots) == 9_430
    assert {site.name: site.records for site in shown.sites} == AIRLINES


@pytest.mark.slow
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


@pytest.mark.slow
def test_the_last_line_says_what_the_interval_says(
    early: Flights, tight: EstimateMessage, capsys: pytest.CaptureFixture[str]
) -> None:
    told = early.close(tight, same=True)
    assert main(tight).interval is not None
    assert (told["coefficient"], told["interval"] is None) == (MAIN, False)
    assert f"the interval of {MAIN}" in capsys.readouterr().err
    few = Flights(task_of(seeded()))
    few.slots = early.slots[:3000]
    short = stream(few, task_of(seeded()))
    assert short.status == "warming"
    assert few.close(short, same=False)["interval"] is None
    said = capsys.readouterr().err
    assert f"no interval of {MAIN}: " in said
    assert "NOT the same" in said
