"""When the first model may go out: not before enough releases, and never too late for a client."""

from __future__ import annotations

import pytest

from pipeline.methods import task_of
from pipeline.release.task import Task
from pipeline.stream.merge import start_is_over
from pipeline.study_file.load import parse_study
from tests.builders import folded, relogged, sample_log, study_text


def task_with(*, releases: int, lead: int, private: bool = True) -> Task:
    text = study_text(p=2, records=30, releases=releases, private=private)
    return task_of(parse_study(f"{text}max_in_flight_windows = {lead}\n"))


@pytest.mark.parametrize(
    ("releases", "lead", "clients", "came", "over"),
    [
        # max_in_flight_windows = 0: no client ever waits
        (8, 0, 3, 0, False),
        (8, 0, 3, 7, False),
        (8, 0, 3, 8, True),
        (1, 0, 3, 1, True),
        # a client that has sent all its lead waits for a model
        (8, 2, 3, 3, False),
        (8, 2, 3, 4, True),
        (8, 4, 1, 3, False),
        (8, 4, 1, 4, True),
        (8, 1, 3, 1, True),
    ],
)
def test_the_start_ends_with_enough_releases_or_with_a_client_that_waits(
    releases: int, lead: int, clients: int, came: int, over: bool
) -> None:
    task = task_with(releases=releases, lead=lead)
    log = sample_log(task, releases=came, clients=clients, start=100)
    assert start_is_over(task, [folded(task, log)]) is over
    # however they are spread over partitions
    parts = [[e for e in log if e.key == key] for key in {e.key for e in log}]
    spread = [folded(task, relogged(part)) for part in parts]
    assert start_is_over(task, spread) is over


def test_the_start_is_over_once_a_client_has_seen_a_model() -> None:
    """Also where the version is lost: a client cannot go back to the start."""
    task = task_with(releases=100, lead=0)
    log = sample_log(task, releases=6, clients=3, start=1)
    assert start_is_over(task, [folded(task, log)])


def test_without_privacy_there_is_nothing_to_wait_for() -> None:
    task = task_with(releases=100, lead=0, private=False)
    log = sample_log(task, releases=1, clients=1, start=1)
    assert start_is_over(task, [folded(task, log)])
