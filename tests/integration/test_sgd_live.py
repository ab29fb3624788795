"""A path of locally private gradients, live: clients, a worker that is killed, the same bits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.reducer import Reducer, differences, estimate_of
from tests.builders import LogEntry
from tests.sgd import TRUTH, drawn, study_text
from tests.stage import Stage, until

CLIENTS, RECORDS, SLOTS = 3, 12_000, 50


@pytest.mark.parametrize("releases", ["gradients", "gradients+curvature+products"])
def test_a_path_survives_its_worker_and_is_what_an_offline_fold_gives(
    tmp_path: Path, kafka: str, redis_url: str, releases: str
) -> None:
    path = f'behind = 2000, releases = "{releases}"'
    name = f"path-live-{releases.count('+')}"
    text = study_text(records=SLOTS, publish=8, path=path, name=name)
    with Stage(tmp_path, kafka, redis_url, text) as stage:
        stage.ensure_topics()
        stage.worker("w0")
        for k in range(CLIENTS):
            stage.produce(f"client-{k}", write_csv(stage.folder / f"client-{k}.csv", k))
        until(lambda: stage.watermarks()[0] > 20, "the worker folds")
        stage.kill("w0")
        stage.worker("w1")
        for k in range(CLIENTS):
            assert stage.code(f"client-{k}") == 0, stage.said(f"client-{k}")
        stage.caught_up()
        estimate = stage.final_estimate()
        assert stage.verified()
        checked = stage.run("replay", stage.study, "--check", "--json")
        assert checked.returncode == 0, checked.stderr
        assert json.loads(checked.stdout)["compared"] == len(stage.estimates()) > 10

        assert estimate.releases == CLIENTS * RECORDS // SLOTS
        assert (estimate.diagnostics.missing, estimate.diagnostics.dead_letters) == (0, 0)
        assert estimate.diagnostics.staleness is not None
        [held] = stage.partitions()
        log = [
            LogEntry(r.offset, r.key, r.value, r.timestamp, tuple(r.headers or ()))
            for r in stage.releases()
        ]
        folded = type(held).empty(stage.plan)
        assert Reducer(stage.plan).fold(folded, log, holes=True) == []
        assert differences(folded, held) == []
        offline = estimate_of(stage.plan, [folded])
        values = [row.value for row in estimate.coefficients]
        assert values == [10 * value for value in offline.coefficients.tolist()]
        assert max(abs(a - b) for a, b in zip(values, TRUTH, strict=True)) < 0.2


def write_csv(path: Path, seed: int) -> Path:
    features, responses = drawn("linear", RECORDS, seed)
    lines = ["x0,x1,x2,y"]
    lines += [
        ",".join(map(str, [*row, y])) for row, y in zip(features.tolist(), responses, strict=True)
    ]
    path.write_text("\n".join(lines) + "\n")
    return path
