"""One record of a site moves no sum further than the noise of its release is calibrated to."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pipeline.methods.noisy_mle.client import SiteTask
from pipeline.records.encoder import Arrays
from pipeline.release.model import round_model
from tests.sites import study_text, task_of


def moved(task: SiteTask, one: Arrays, other: Arrays, version: int) -> dict[str, float]:
    """Return how far two windows lie apart, over the distance that the noise is calibrated to."""
    model = round_model(version, np.full(task.size, 0.3), (1.0, 1.0), 40)
    found = {}
    model = model if version else task.first_model
    parts = [task.query(window, model).parts for window in (one, other)]
    channels = task.channels(version)
    for name, channel in (("gradient", channels.gradient), ("curvature", channels.curvature)):
        total = 0.0
        for before, after in zip(parts[0][name].pieces(), parts[1][name].pieces(), strict=True):
            weight = 1.0 if before.channel is channel else math.sqrt(2)
            total += weight * float(np.abs(before.values - after.values).sum())
        found[name] = total * channel.unit / channel.sensitivity
    return found


@pytest.mark.parametrize("neighbours", ["zero-out", "replace-one"])
@pytest.mark.parametrize("norm_bound", ["typical", 1.05, 1.3, 2.0])
@pytest.mark.parametrize("loss", ["logistic", "linear"])
def test_a_long_record_moves_no_sum_further_than_laplace_noise_is_for(
    loss: str, norm_bound: object, neighbours: str
) -> None:
    reached = dict.fromkeys(("gradient", "curvature"), 0.0)
    for p in (1, 2, 5, 20):
        task = task_of(
            study_text(
                loss=loss, p=p, mechanism="discrete-laplace", neighbours=neighbours,
                norm_bound=norm_bound, scaling="unit",
            )
        )  # fmt: skip
        zero, ones = np.zeros((1, p)), np.ones((1, p))
        signs = np.where(np.arange(p) % 2 == 0, 1.0, -1.0)[None, :]
        for features in (ones, signs, ones * 0.3):
            for version in (0, 3):
                for y, z in ((1.0, 1.0), (1.0, -1.0), (-1.0, 1.0)):
                    window = Arrays(features, np.array([y]))
                    if neighbours == "zero-out":
                        others = [Arrays(zero[:0], np.zeros(0))]
                    else:
                        others = [Arrays(-features, np.array([z])), Arrays(zero, np.array([z]))]
                    for other in others:
                        for name, share in moved(task, window, other, version).items():
                            assert share <= 1, (p, name)
                            reached[name] = max(reached[name], share)
    assert reached["gradient"] > 0.5
