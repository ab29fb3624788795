"""How the budget of a release is shared: what a study has by default, and what is refused."""

from __future__ import annotations

import re

import numpy as np
import pytest

from pipeline.errors import ConfigError, PrivacyError
from pipeline.linalg import pack_upper
from pipeline.methods import revision_of, server_of
from pipeline.methods.renewable.client import RenewableTask
from pipeline.methods.renewable.estimate import estimate_private
from pipeline.methods.renewable.expected import reference_of
from pipeline.methods.renewable.method import OPEN, influence, largest_move
from pipeline.release.task import form_of
from pipeline.study_file.load import parse_study
from pipeline.types import Matrix, Vector
from tests import sgd
from tests.builders import study_text, task_of

LOGISTIC: dict[str, object] = {"loss": "logistic", "epsilon": 1.0, "delta": 1e-6, "p": 7}


def left(gradient: float, middle: float = 0.05, counts: float = 0.05) -> float:
    """Return what g p^2 + h 16 p^2 (1 - p)^2 + m p^4 + c <= 1 leaves to h, from a fine grid."""
    p = np.linspace(0.4, 0.9999, 1_000_001)
    over = 1 - counts - gradient * p**2 - middle * p**4
    return float(np.min(over / (4 * p * (1 - p)) ** 2))


@pytest.mark.parametrize(
    ("settings", "shares"),
    [
        (LOGISTIC, (0.9, 0.6716, 0.05, 0.05)),
        ({}, (0.63, 0.8262, 0.05, 0.05)),
        ({"loss": "linear"}, (0.63, 0.27, 0.05, 0.05)),
        ({"loss": "poisson", "most": 9.0}, (0.63, 0.27, 0.05, 0.05)),
        # nothing is counted
        ({"loss": "linear", "noise_scale": 0.5}, (0.63, 0.32, 0.05, 0.0)),
        # where counts have more, the gradient has less
        ({"loss": "logistic", "split": "counts = 0.2"}, (0.75, left(0.75, counts=0.2), 0.05, 0.2)),
        ({"loss": "linear", "split": "counts = 0.2"}, (0.525, 0.225, 0.05, 0.2)),
        ({"loss": "logistic", "split": "middle = 0"}, (0.9, left(0.9, middle=0), 0.0, 0.05)),
        ({"loss": "logistic", "split": "gradient = 0.7"}, (0.7, left(0.7), 0.05, 0.05)),
    ],
)
def test_a_study_has_the_largest_share_of_the_curvature_that_no_record_can_break(
    settings: dict[str, object], shares: tuple[float, ...]
) -> None:
    split = task_of(**settings).split
    found = (split.gradient, split.curvature, split.middle, split.counts)
    assert found == pytest.approx(shares, abs=1.1e-4)


def test_joint_shares_need_less_noise_and_the_middle_is_free() -> None:
    """Gradient .665 to .9, curvature .285 to .6716 of the squared budget."""
    new = task_of(**LOGISTIC)
    old = task_of(**LOGISTIC, split="gradient = 0.665, curvature = 0.285, counts = 0.05")
    for name, wanted in (("gradient", 0.860), ("curvature", 0.652), ("counts", 1.0)):
        one, two = (task.update_channels.parts[name] for task in (new, old))
        # what rounding to the lattice can add
        assert one.standard_deviation / two.standard_deviation == pytest.approx(wanted, rel=4e-3)
    assert new.update_channels.middle is not None
    assert old.update_channels.middle is None
    assert [field.name for field in new.layout.later] == [
        "gradient", "curvature", "middle", "counts",
    ]  # fmt: skip
    assert [field.name for field in old.layout.later] == ["gradient", "curvature", "counts"]
    assert [field.name for field in new.layout.start] == ["gradient", "counts"]


def test_with_pure_epsilon_the_condition_has_no_squares() -> None:
    """Of .95 - .9 p - .05 p^2 = .05 (1 - p) (19 + p) the curvature 4 p (1 - p) leaves a quarter."""
    split = task_of(**{**LOGISTIC, "mechanism": "discrete-laplace"}).split
    assert split.curvature == pytest.approx(0.25, abs=1e-3)


@pytest.mark.parametrize(
    ("split", "key", "said"),
    [
        ("gradient = 0.9, curvature = 0.68, middle = 0.05", "curvature", "0.6716"),
        ("gradient = 0.9, curvature = 0.73, middle = 0", "curvature", "0.6792"),
        ("gradient = 0.96", "gradient", "nothing for the curvature"),
        ("counts = 0.97", "gradient", "nothing for the curvature"),
    ],
)
def test_shares_that_a_record_can_break_are_refused_with_what_is_allowed(
    split: str, key: str, said: str
) -> None:
    with pytest.raises(PrivacyError, match=rf"privacy\.split\.{key}") as caught:
        task_of(**LOGISTIC, split=split)
    assert said in str(caught.value)
    [example] = re.findall(r"split = \{ (.*?) \}", str(caught.value))
    assert isinstance(task_of(**LOGISTIC, split=example), RenewableTask)


def test_the_revision_is_of_the_shares_and_not_of_how_they_are_written() -> None:
    whole = "gradient = 0.9, curvature = 0.6716, middle = 0.05, counts = 0.05"
    plain, written, other = (
        task_of(**LOGISTIC, split=split) for split in (None, whole, "middle = 0.04")
    )
    assert plain.revision == written.revision != other.revision
    # without a middle shares are scaled by their sum: another noise
    alone = task_of(**LOGISTIC, split="gradient = 0.9, curvature = 0.6716, counts = 0.05")
    assert alone.revision != task_of(**LOGISTIC, split=f"{whole.replace('0.05,', '0,')}").revision


def test_only_renewable_estimation_has_a_middle() -> None:
    text = study_text(loss="logistic", split="middle = 0.05")
    with pytest.raises(ConfigError, match=r"privacy\.split\.middle"):
        parse_study(text.replace("[estimator]\n", '[estimator]\nkind = "noisy-mle"\n'))
    gradients = sgd.study_text().replace("[window]", "split = { middle = 0.1 }\n[window]")
    with pytest.raises(ConfigError, match=r"privacy\.split\.middle"):
        parse_study(gradients)


def test_the_numbers_that_a_record_touches_are_counted() -> None:
    """Two gradients at most, matrices, counts; finer draws of noise that remembers cost less."""
    packed = 8 * 9 // 2
    for settings, numbers in (
        (LOGISTIC, 2 * 8 + 2 * packed + 2),
        ({**LOGISTIC, "split": "middle = 0"}, 2 * 8 + packed + 2),
    ):
        assert task_of(**settings).budget._touched == numbers


KINDS = [{"loss": "logistic"}, {"loss": "gdwd"}]


def influenced(**settings: object) -> RenewableTask:
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
    [
        (40, 0.0, 0.97),
        (400, 0.0, 0.2),
        (400, 0.1, 0.2),
        pytest.param(4000, 0.0, 0.2, marks=pytest.mark.slow),
    ],
)
def test_no_release_moves_more_and_the_worst_one_comes_near(
    settings: dict[str, str], releases: int, growth: float, attained: float
) -> None:
    memory = 7 if growth else 0
    task, rng = influenced(**settings, growth=growth, noise_memory=memory), np.random.default_rng(8)
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
        # the last one raises the weight of records, by which the mean of predictors is taken
        raised = -np.outer(signs, signs)
        raised[0], raised[:, 0] = -raised[0], -raised[:, 0]
        raised[0, 0] = 1.0
        for bent in (-np.outer(signs, signs), -np.eye(task.size), 0 * raised, raised):
            found.append(moved(task, releases, blocks, gradient, fields["curvature"] * bent))
    assert max(found) <= largest * (1 + 1e-9)
    # few releases: one takes the longest step, less for the curvature that it needs. Many: d / (d
    # + sqrt(d)) of the bound at most, since the others' gradients are nil here, and less as some
    # directions bend more than others
    assert max(found) >= attained * largest


def test_a_study_says_how_far_one_release_moves_it() -> None:
    said = influence(influenced(loss="logistic"), 300, 9000)
    assert isinstance(said["one_release_moves_at_most"], float)
    assert "as one of 300" in str(said["in"])
    # of more clients each has less, and windows that grow are always a part of all
    task = influenced(loss="logistic", epsilon=8.0)
    few, many, later = (largest_move(task, n, k) for n, k in ((1e6, 30), (1e6, 300), (1e7, 300)))
    assert many < few / 5
    assert later == pytest.approx(many, rel=0.1)
    assert influence(influenced(private=False), 3, 30) == {"one_release_moves_at_most": OPEN}
