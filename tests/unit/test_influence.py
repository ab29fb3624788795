"""What `study check` says of one release's largest move, against releases that try to move more."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.linalg import pack_upper
from pipeline.messages.form import form_of
from pipeline.methods import server_of
from pipeline.methods.renewable.design import reference_bread
from pipeline.methods.renewable.influence import OPEN, influence, largest_move
from pipeline.methods.renewable.private_estimate import estimate_private
from pipeline.methods.renewable.task import RenewableTask
from pipeline.study import parse_study
from pipeline.types import Matrix, Vector
from tests.builders import study_text

KINDS = [{"loss": "logistic"}, {"loss": "gdwd"}]


def task_of(**settings: object) -> RenewableTask:
    return RenewableTask(parse_study(study_text(p=3, records=100, **settings)))  # type: ignore[arg-type]


def moved(task: RenewableTask, releases: int, gradient: Vector, curvature: Matrix) -> float:
    """Return how far the estimate goes from models at it if one release has these sums."""
    server, columns = server_of(task), form_of(task).layout.columns(1)
    rows = np.zeros(releases, form_of(task).dtype)
    rows["version"], channels = 1, task.update_channels
    assert channels.curvature is not None
    honest = pack_upper((reference_bread(task) - np.diag(task.penalty)) * task.slots)
    rows["sums"][:, columns["curvature"]] = np.rint(honest / channels.curvature.unit)
    state = server.empty()
    rows["sums"][0, columns["gradient"]] = gradient
    rows["sums"][0, columns["curvature"]] = pack_upper(curvature)
    server.fold(state, rows)
    # all of them were at zero, so that this is where the estimate would be
    return float(np.linalg.norm(estimate_private(task, state).coefficients))  # type: ignore[arg-type]


@pytest.mark.parametrize("settings", KINDS)
@pytest.mark.parametrize(("releases", "attained"), [(40, 1.0), (400, 0.2), (4000, 0.5)])
def test_no_release_moves_more_and_the_worst_one_comes_near(
    settings: dict[str, str], releases: int, attained: float
) -> None:
    task, rng = task_of(**settings), np.random.default_rng(8)
    largest = largest_move(task, releases)
    fields = {field.name: int(field.largest) for field in task.layout.later}
    _, vectors = np.linalg.eigh(reference_bread(task))
    found = []
    for direction in (*vectors.T, *rng.normal(size=(20, task.size))):
        signs = np.sign(direction)
        gradient = fields["gradient"] * signs
        for bent in (-np.outer(signs, signs), -np.eye(task.size), np.zeros((task.size, task.size))):
            found.append(moved(task, releases, gradient, fields["curvature"] * bent))
    assert max(found) <= largest * (1 + 1e-9)
    # few releases: one can take the longest step. Many: d / (d + sqrt(d)) of the bound at the most,
    # since the others' gradients are nil here, and less as some directions bend more than others
    assert max(found) >= attained * largest


def test_a_study_says_from_where_on_it_is_less_than_an_interval() -> None:
    said = influence(task_of())
    slots = int(str(said["less_than_an_interval"]).split()[2].replace(",", ""))
    assert slots > 100
    assert isinstance(said["one_release_moves_at_most"], float)
    assert influence(task_of(private=False)) == {"one_release_moves_at_most": OPEN}
