"""A rare class: plans, designs, simulations and waiting estimates know that its count is noised."""

from __future__ import annotations

import csv
import math
import re
from pathlib import Path

import numpy as np
import pytest

from pipeline.api.check import check_study
from pipeline.api.sample import of_sample
from pipeline.errors import ConfigError
from pipeline.estimators.population import Population
from pipeline.methods import method_of, revision_of, task_of
from pipeline.methods.plan_words import classes, told
from pipeline.methods.renewable.client import RenewableTask
from pipeline.methods.renewable.expected import Windows
from pipeline.methods.renewable.method import COUNTS_PLANNED, MOST_COUNTS, records_until
from pipeline.simulate.coverage import Releases, simulated
from pipeline.study.model import Study
from pipeline.study_file.edit import with_keys
from pipeline.study_file.load import parse_study
from tests.builders import study_text

RECORDS, CLIENTS = 4_000, 5
RARE = 0.13


def study_with(typical: float | None, **more: object) -> Study:
    study = parse_study(study_text(**{"loss": "logistic", "p": 9, "epsilon": 1.0} | more))  # type: ignore[arg-type]
    if typical is None:
        return study
    return with_keys(study, {"data.response.typical": typical}, name="rare")


def streamed(study: Study, number: int) -> tuple[str, str, bool]:
    """Return status and reason of a stream with a rare class, and whether it had an interval."""
    rare = simulated(with_keys(study, {"data.response.typical": RARE}, name="rare"))
    releases = Releases(Population.of(rare), CLIENTS, 5, number)
    for _ in releases.models(RECORDS):
        pass
    found = releases.estimate()
    return found.status, found.reason, found.standard_errors() is not None


def test_the_guess_is_of_plans_alone() -> None:
    first, other = (task_of(study_with(typical)) for typical in (None, RARE))
    assert first.revision == other.revision
    assert first.layout == other.layout


@pytest.mark.parametrize("typical", ["0", "1", "1.5", "-0.1", "nan"])
def test_a_share_that_is_none_is_refused(typical: str) -> None:
    text = study_text(loss="logistic").replace(
        'negative = "0"', f'negative = "0", typical = {typical}'
    )
    with pytest.raises(ConfigError, match=r"data\.response\.typical"):
        parse_study(text)


def test_counts_have_a_typical_mean_and_a_plan_says_which() -> None:
    text = study_text(loss="poisson", most=15, epsilon=4.0, delta=1e-6)
    usual, rare = parse_study(text), parse_study(text.replace("max = 15", "max = 15, typical = 1"))
    assert revision_of(usual) == revision_of(rare)
    halves, said = [], []
    for study in (usual, rare):
        found = method_of(study).plan(task_of(study), 200_000, CLIENTS)
        halves.append(found.usual_half)
        said.append(told(found, study, 200_000, CLIENTS)["counts"])
    assert "a mean count of 3.75 (a quarter of the largest" in said[0]
    assert "a mean count of 1 (as data.response.typical says)" in said[1]
    # noise stays, and a record tells a log mean by its mean: 3.75 times less
    assert 2 < halves[1] / halves[0] < 4.5
    for wrong in ("0", "16"):
        with pytest.raises(ConfigError, match=r"data\.response\.typical"):
            parse_study(text.replace("max = 15", f"max = 15, typical = {wrong}"))


def test_numbers_have_no_share() -> None:
    with pytest.raises(ConfigError, match=r"data\.response\.typical.*does not go"):
        with_keys(parse_study(study_text(loss="linear")), {"data.response.typical": 0.1}, name="x")


@pytest.mark.parametrize("share", [0.5, RARE, 1 - RARE, 0.01])
def test_no_size_of_a_plan_is_below_that_of_the_counts(share: float) -> None:
    task = task_of(study_with(share, ridge=0.3))
    assert isinstance(task, RenewableTask)
    found = method_of(task.study).plan(task, RECORDS, CLIENTS)
    assert task.update_channels.counts is not None
    assert found.classes is not None
    assert found.first is not None
    assert found.latest is not None
    assert min(found.usual, found.latest, found.first) >= found.classes
    # by hand: n r is five deviations of the noise in the counts, to 1 %
    windows, rarer = Windows(task, CLIENTS), min(share, 1 - share)

    def deviations(records: float) -> float:
        later = windows.noise(0.0, windows.released(records)) if records > windows.begun else 0.0
        noise = windows.begun / task.slots + later
        deviation = task.update_channels.counts.standard_deviation  # type: ignore[union-attr]
        return float(rarer * records / (deviation * math.sqrt(noise)))

    assert deviations(found.classes) >= COUNTS_PLANNED
    assert found.classes == windows.begun or deviations(0.98 * found.classes) < COUNTS_PLANNED


def test_noise_that_remembers_shows_a_rare_class_far_sooner() -> None:
    one, other = (
        records_until(task, 0.002, CLIENTS)
        for task in map(task_of, (study_with(None), study_with(None, noise_memory=0, growth=0.0)))
        if isinstance(task, RenewableTask)
    )
    assert (one or 0) < 0.4 * (other or 0)


def test_a_design_for_a_rare_class_gives_its_count_more() -> None:
    studies = [study_with(typical, p=2) for typical in (None, 0.02)]
    even, rare = (method_of(study).propose(study, RECORDS, CLIENTS) for study in studies)
    assert "privacy.split" not in even.changes
    assert 0.05 < rare.changes["privacy.split"]["counts"] <= MOST_COUNTS
    assert "a class with 0.02 of" in rare.reasons["privacy.split"]


@pytest.mark.slow
def test_a_design_says_that_no_share_of_the_budget_shows_a_class_in_time() -> None:
    study = study_with(0.001, p=2)
    rarer = method_of(study).propose(study, RECORDS, CLIENTS)
    assert "not in time" in rarer.reasons["privacy.split"]
    changed = with_keys(study, rarer.changes, name="rarer")
    assert method_of(changed).plan(task_of(changed), RECORDS, CLIENTS).usual > RECORDS


@pytest.mark.takes("two streams of 4,000 records")
def test_streams_whose_counts_are_hidden_say_so() -> None:
    study = with_keys(study_with(None), {"privacy.epsilon": 0.1}, name="hidden")
    for number in range(2):
        status, reason, given = streamed(study, number)
        assert (status, given) == ("warming", False)
        found = re.search(r"moves by up to ([\d,]+), and intervals need ([\d,]+)", reason)
        if found is not None:
            noise, needed = (float(text.replace(",", "")) for text in found.groups())
            # two deviations beside the three that are needed
            assert noise == pytest.approx(2 / 3 * needed, abs=1.0)


def test_what_is_assumed_is_said() -> None:
    for typical, said in ((None, "0.5 of the records"), (0.9, "0.1 of the records")):
        study = study_with(typical, p=2)
        outlook = method_of(study).plan(task_of(study), RECORDS, CLIENTS)
        assert said in classes(outlook, study)
        found = check_study(study, records=RECORDS, clients=CLIENTS)["intervals"]
        assert isinstance(found, dict)
        assert said in found["classes"]


@pytest.mark.parametrize("share", [0.02, 0.3, 0.9])
def test_simulations_draw_classes_with_the_share(share: float) -> None:
    population = Population.of(task_of(study_with(share)))
    _, responses = population.draw(np.random.default_rng(5), 100_000)
    # the sample of the reference has 16,384 records
    error = math.sqrt(share * (1 - share) * (1 / 100_000 + 1 / 2**14))
    assert float(np.mean(responses > 0)) == pytest.approx(share, abs=4 * error)


def test_a_sample_says_how_rare_a_class_is(tmp_path: Path) -> None:
    study, path = study_with(None), tmp_path / "sample.csv"
    names = study.feature_names
    rows = np.random.default_rng(3).uniform(-1, 1, (1000, len(names))).tolist()
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*names, study.data.response.name])
        writer.writerows([*row, int(i % 10 == 0)] for i, row in enumerate(rows))
    found = of_sample(task_of(study), str(path))
    assert found["share_of_positive"] == 0.1
    assert "10 % of 1,000 responses are positive" in str(found["positive"])
    assert "data.response.typical is not given" in str(found["classes"])
    told = of_sample(task_of(study_with(0.1)), str(path))
    assert "classes" not in told
    assert "is 0.9" in str(of_sample(task_of(study_with(0.9)), str(path))["classes"])
    # a file of features alone says nothing of it
    path.write_text("\n".join([",".join(names), *(",".join(map(str, row)) for row in rows)]) + "\n")
    assert "share_of_positive" not in of_sample(task_of(study), str(path))


def test_of_counts_no_class_is_assumed() -> None:
    study = parse_study(study_text(loss="poisson", least=0.0, most=9.0))
    study = with_keys(study, {"data.response.typical": 3.0}, name="study.toml")
    assert classes(method_of(study).plan(task_of(study), 20_000, 3), study) == ""
