"""Studies of single records at the command line: check, and all intervals side by side."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.methods.ldp_sgd.spec import INTERVALS
from tests.sgd import drawn, study_text
from tests.stage import Stage

ALL = 'releases = "gradients+curvature+products"'


def stage_of(folder: Path, **settings: object) -> Stage:
    """Return a study that no server stands behind."""
    text = study_text(epsilon=18.163, records=50, **settings)  # type: ignore[arg-type]
    return Stage(folder, "127.0.0.1:9", "redis://127.0.0.1:9/0", text)


def write_csv(path: Path, count: int) -> Path:
    features, responses = drawn("linear", count, 3)
    rows = (",".join(map(str, [*x, y])) for x, y in zip(features.tolist(), responses, strict=True))
    path.write_text("\n".join(["x0,x1,x2,y", *rows]) + "\n")
    return path


@pytest.mark.slow
def test_fit_shows_all_intervals_with_what_each_needs_and_the_json_says_the_same(
    tmp_path: Path,
) -> None:
    # steps that fall so slowly that the path mixes, too
    stage = stage_of(tmp_path, path=f"behind = 0, alpha = 0.501, eta0 = 20, {ALL}")
    source = write_csv(tmp_path / "records.csv", 20_000)
    done = stage.ran("fit", stage.study, "--input", source, "--intervals")
    shown = " ".join(done.stdout.split())
    assert "plug-in: reads gradients; costs nothing beyond gradients" in shown
    assert "which cost mu 1.73 and 1.73 of a record's 3" in shown
    assert "three releases at mu each mu-GDP, and they are sqrt(3) mu-GDP" in shown
    done = stage.run("fit", stage.study, "--input", source, "--intervals", "--json")
    message = json.loads(done.stdout)
    assert set(message["intervals"]) == set(message["interval_needs"]) == set(INTERVALS)


def test_check_says_what_each_release_costs_and_how_far_one_moves_the_path(tmp_path: Path) -> None:
    stage = stage_of(tmp_path, path=ALL)
    done = stage.run("study", "check", stage.study, "--json")
    path = json.loads(done.stdout)["path"]
    for part in ("gradients", "curvature", "products"):
        assert path[f"{part}_mu"] == pytest.approx(3 / 3**0.5, rel=1e-3)
    assert path["curvature_sd"] > 0 < path["products_sd"]
    assert path["intervals"].split(", ") == list(INTERVALS)
    assert 0 < path["one_release_moves_at_most"] < 10
    assert "WARNING" not in done.stderr
    (tmp_path / "wild").mkdir()
    wild = stage_of(tmp_path / "wild", path="eta0 = 1e6, kappa = 1e9, curvature = 1e-6, behind = 0")
    done = wild.run("study", "check", wild.study)
    assert "WARNING: one release can move the path by" in done.stderr
