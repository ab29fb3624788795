"""When estimates and models are due, and what a model says that it has seen."""

from __future__ import annotations

import itertools

import pytest

from agents.publishing import Counts, Due
from pipeline.errors import PayloadError
from pipeline.messages.model import read_model, write_model
from pipeline.methods import task_of
from pipeline.release.model import round_model
from pipeline.release.policy import SECONDS, Rhythm
from pipeline.release.task import Task
from pipeline.stream.in_process import OfflineRun
from pipeline.stream.merge import model_after
from pipeline.study.model import Publish
from pipeline.study_file.load import parse_study
from tests.builders import folded, relogged, sample_log, study_text

GROWS = Rhythm(True, 8, 2)


@pytest.mark.parametrize(
    ("rhythm", "counts", "wait"),
    [
        (GROWS, (1000, 1039, 1, 1), None),
        (GROWS, (1000, 1040, 1, 1), 0.0),
        (GROWS, (0, 1, 1, 1), 0.0),
        # somebody waits for it
        (GROWS, (1000, 1001, 2, 2), 0.03),
        (Rhythm(True, 8, 0), (1000, 1001, 2, 2), None),
        (GROWS, (1000, 1001, 7, 1), None),
        (GROWS, (1000, 1001, 8, 1), SECONDS),
        # where each window stands by itself, growth is no reason
        (Rhythm(False, 8, 4), (1000, 2000, 7, 3), None),
        (Rhythm(False, 8, 4), (1000, 2000, 7, 4), 0.03),
    ],
)
def test_a_model_is_due_when_slots_have_grown_or_a_client_waits_or_many_releases_came(
    rhythm: Rhythm, counts: tuple[int, int, int, int], wait: float | None
) -> None:
    assert rhythm.wait(*counts, least=0.03) == wait


def test_no_rhythm_of_estimates_holds_a_model_back() -> None:
    due = Due(Publish(releases=100, seconds=60.0, pause=30.0), GROWS)
    first = Counts(10, 1000, 12)
    assert (due.estimate(first, 5.0), due.model(first, 0, 5.0)) == (0.0, 0.0)
    due.estimated(first, 5.0)
    due.moved(first, 5.0, 0.2)
    assert (due.estimate(first, 6.0), due.model(first, 0, 6.0)) == (None, None)
    grown = Counts(11, 1040, 13)
    assert (due.estimate(grown, 5.0), due.model(grown, 1, 5.0)) == (60.0, 0.0)
    # the last one took a fifth of a second, and folding has as long before the next
    held = Counts(12, 1001, 14)
    assert due.model(held, 2, 5.05) == pytest.approx(0.15)
    assert due.model(held, 1, 5.0) == 60.0
    # what was refused is worth telling, and no estimate
    refused = Counts(10, 1000, 13)
    assert (due.estimate(refused, 6.0), due.model(refused, 1, 6.0)) == (None, 59.0)


def test_an_estimate_follows_growth_whatever_its_pause_is() -> None:
    due = Due(Publish(releases=2, seconds=60.0, pause=30.0), GROWS)
    due.estimated(Counts(10, 1000, 10), 0.0)
    assert due.estimate(Counts(11, 1099, 11), 1.0) == 59.0
    assert due.estimate(Counts(12, 1099, 12), 1.0) == 29.0
    assert due.estimate(Counts(11, 1100, 11), 1.0) == 0.0


def test_what_studies_wait_for_by_default_and_what_they_say() -> None:
    def found(task: Task) -> tuple[int, int, Rhythm]:
        return task.most_in_flight, task.most_at_start, task.rhythm

    private = task_of(parse_study(study_text(releases=20)))
    assert found(private) == (2, 4, Rhythm(True, 8, 2))
    without = task_of(parse_study(study_text(releases=20, private=False)))
    assert found(without) == (4, 4, Rhythm(False, 20, 4))
    said = task_of(parse_study(f"{study_text(releases=3)}max_in_flight_windows = 1\n"))
    assert found(said) == (1, 1, Rhythm(True, 3, 1))


def test_a_model_says_how_far_it_has_read_each_partition() -> None:
    task = task_of(parse_study(study_text(p=2, records=30) + "partitions = 3\n"))
    log = sample_log(task, releases=12, clients=3, start=2)
    parts = [relogged([e for e in log if e.key == key]) for key in sorted({e.key for e in log})]
    partitions = {number: folded(task, part[:number]) for number, part in enumerate(parts)}
    point = task.first_model.coefficients, (1.0, 1.0)
    model = model_after(task, partitions, point, 7, 90)
    assert model.offsets == (0, 1, 2)
    payload = write_model(task, model, "2026-01-01T00:00:00Z")
    assert read_model(task, payload).offsets == (0, 1, 2)
    # one that does not say is a model, too
    assert read_model(task, write_model(task, round_model(7, *point), "t")).offsets == ()
    for bad in (b"[0,1]", b"[0,1,-2]", b"[0,1,2.5]", b"[0,1,2,3]"):
        with pytest.raises(PayloadError):
            read_model(task, payload.replace(b"[0,1,2]", bad))


def test_models_of_a_file_follow_growth_from_the_end_of_the_start() -> None:
    task = task_of(parse_study(study_text(p=2, records=30, releases=8)))
    run, seen = OfflineRun(task), list[tuple[int, int]]()
    for _, client in zip(range(30 * 60), itertools.cycle(["a", "b", "c"]), strict=False):
        run.take(client, (None,))
        seen.append((run.model.version, run.model.watermark))
    models = sorted(set(seen))
    # eight releases of the start, or four of one client; then one whenever slots grow by 4 %
    assert models[:2] == [(0, 0), (1, 8 * 30)]
    assert [version for version, _ in models] == list(range(len(models)))
    for (_, before), (_, after) in itertools.pairwise(models[1:]):
        assert 25 * (after - before) >= before
        assert after - before <= max(30, before // 5)
