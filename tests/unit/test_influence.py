"""What `study check` says of one release's largest move, against releases that try to move more."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.linalg import pack_upper
from pipeline.methods import revision_of, server_of
from pipeline.methods.renewable.client import RenewableTask
from pipeline.methods.renewable.estimate import estimate_private
from pipeline.methods.renewable.expected import reference_of
from pipeline.methods.renewable.plan import OPEN, influence, largest_move
from pipeline.release.task import form_of
from pipeline.study_file.load import parse_study
from pipeline.types import Matrix, Vector
from tests.builders import study_text

KINDS = [{"loss": "logistic"}, {"loss": "gdwd"}]


def task_of(**settings: object) -> RenewableTask:
    study = parse_study(study_text(p=3, records=100, **settings))  # type: ignore[arg-type]
    return RenewableTask(study, revision_of(study))


def moved(
    task: RenewableTask, releases: int, blocks: int, gradient: Vector, curvature: Matrix
) -> float:
    """Return how far the estimate goes from models at it if one release has these sums.

    releases: All together, of a window's slots each; that one has `blocks` times as many.
    """
    server, columns = server_of(task), form_of(task).layout.columns(1)
    rows = np.zeros(releases - blocks + 1, form_of(task).dtype)
    rows["version"], rows["records"], channels = 1, task.slots, task.update_channels
    if task.remembers:
        rows["number"], rows["starts"] = np.arange(1, len(rows) + 1), 1
    assert channels.curvature is not None
    honest = pack_upper(reference_of(task).curvature * task.slots)
    rows["sums"][:, columns["curvature"]] = np.rint(honest / channels.curvature.unit)
    state = server.empty()
    rows["records"][0] = blocks * task.slots
    rows["sums"][0, columns["gradient"]] = gradient
    rows["sums"][0, columns["curvature"]] = pack_upper(curvature)
    server.fold(state, rows)
    # all of them were at zero, so that this is where the estimate would be
    return float(np.linalg.norm(estimate_private(task, state).coefficients))  # type: ignore[arg-type]


@pytest.mark.parametrize("settings", KINDS)
@pytest.mark.parametrize(
    ("releases", "growth", "attained"),
    [(40, 0.0, 1.0), (400, 0.0, 0.2), (4000, 0.0, 0.2), (400, 0.1, 0.2)],
)
def test_no_release_moves_more_and_the_worst_one_comes_near(
    settings: dict[str, str], releases: int, growth: float, attained: float
) -> None:
    memory = 7 if growth else 0
    task, rng = task_of(**settings, growth=growth, noise_memory=memory), np.random.default_rng(8)
    # a client of ten has a hundredth of all slots in its largest window
    clients, slots = 10, float(releases * task.slots)
    blocks = task.growth.next_window(int(slots / clients)) // task.slots
    assert blocks == (releases // 100 if growth else 1)
    largest = largest_move(task, slots, clients)
    channels = task.update_channels
    fields = {
        name: part.largest(blocks * task.slots) // 1
        for name, part in (("gradient", channels.gradient), ("curvature", channels.curvature))
        if part is not None
    }
    _, vectors = np.linalg.eigh(reference_of(task).curvature)
    found = []
    for direction in (*vectors.T, *rng.normal(size=(20, task.size))):
        signs = np.sign(direction)
        gradient = fields["gradient"] * signs
        for bent in (-np.outer(signs, signs), -np.eye(task.size), np.zeros((task.size, task.size))):
            found.append(moved(task, releases, blocks, gradient, fields["curvature"] * bent))
    assert max(found) <= largest * (1 + 1e-9)
    # few releases: one can take the longest step. Many: d / (d + sqrt(d)) of the bound at the most,
    # since the others' gradients are nil here, and less as some directions bend more than others
    assert max(found) >= attained * largest


def test_a_study_says_how_far_one_release_moves_it() -> None:
    said = influence(task_of(loss="logistic"), 300, 9000)
    assert isinstance(said["one_release_moves_at_most"], float)
    assert "as one of 300" in str(said["in"])
    # of more clients each has less, and windows that grow are always a part of all
    task = task_of(loss="logistic", epsilon=8.0)
    few, many, later = (largest_move(task, n, k) for n, k in ((1e6, 30), (1e6, 300), (1e7, 300)))
    assert many < few / 5
    assert later == pytest.approx(many, rel=0.1)
    assert influence(task_of(private=False), 3, 30) == {"one_release_moves_at_most": OPEN}
