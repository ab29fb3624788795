"""Methods that run over files, beside a study: no record is learnt before it is predicted."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.backtest import backtest
from pipeline.backtest.run import ends_of
from pipeline.backtest.scores import Judge, Tally
from pipeline.errors import ConfigError
from pipeline.methods import OFFLINE, load, task_of
from pipeline.records.encoder import Arrays, Encoder
from pipeline.study_file.load import read_study
from pipeline.types import Matrix, Vector
from tests.published import run
from tests.unit.test_backtest import STUDIES

TEXT = STUDIES["weighted"]
STUDY = read_study(TEXT)


def table(count: int = 900, seed: int = 1) -> dict[str, Any]:
    """Records of three clients in turn, every ninth without a response."""
    rng = np.random.default_rng(seed)
    a, b = rng.uniform(-1, 1, count), rng.uniform(-2, 2, count)
    y = np.where(0.3 + a - 0.5 * b + rng.logistic(0, 0.7, count) > 0, "yes", "no").astype(object)
    y[::9] = "?"
    return {"a": a, "b": b, "y": y, "who": np.array([f"c{n % 3}" for n in range(count)])}


def encoded(history: dict[str, Any]) -> tuple[Matrix, Vector]:
    encoder = Encoder(STUDY)
    x = [encoder.encode({"a": a, "b": b, "y": "yes"}).features
         for a, b in zip(history["a"], history["b"], strict=True)]  # fmt: skip
    y = np.array([{"yes": 1.0, "no": -1.0}.get(one, np.nan) for one in history["y"]])
    return np.array(x), y


@pytest.mark.parametrize("kind", [kind for kind in OFFLINE if kind.startswith("online")])
def test_each_record_is_predicted_by_the_fit_of_the_batches_before_it(kind: str) -> None:
    history = table()
    [other] = backtest(STUDY, history, client_column="who", beside=(kind,)).beside.others
    task = task_of(load(kind).beside(STUDY, 0))
    x, y = encoded(history)
    tally, judge = Tally(), Judge(task_of(STUDY))
    # three clients in turn: batch b is the records from 150 b on
    for end in range(150, 900, 150):
        past = {str(c): Arrays(x[c:end:3], y[c:end:3]) for c in range(3)}
        point = load(kind).fit(task, past).coefficients
        next_ones = np.arange(end, end + 150)
        sound = next_ones[~np.isnan(y[next_ones])]
        tally.add(judge, y[sound], x[sound] @ point[1:] + point[0])
    assert other.before == tally.scores
    assert other.before.records == np.count_nonzero(~np.isnan(y[150:]))


def test_in_the_end_all_records_are_predicted_by_the_last_coefficients() -> None:
    history = table()
    result = backtest(STUDY, history, client_column="who", beside=tuple(OFFLINE))
    x, y = encoded(history)
    sound, judge = ~np.isnan(y), Judge(task_of(STUDY))
    past = {str(c): Arrays(x[c::3], y[c::3]) for c in range(3)}
    for other in result.beside.others:
        task = task_of(load(other.kind).beside(STUDY, 0))
        fit, tally = load(other.kind).fit(task, past), Tally()
        tally.add(judge, y[sound], judge.predictor(x[sound], fit.coefficients))
        assert other.after == tally.scores
        assert (other.before is None) != load(other.kind).online
        assert other.guarantee == load(other.kind).guarantee(task, 3).guarantee
    assert [other.kind for other in result.beside.others] == list(OFFLINE)
    assert result.beside.own.records == sound.sum()
    # the study's own estimate, on the same records
    values = np.array([row.value for row in result.estimate.coefficients])
    own = Tally()
    own.add(judge, y[sound], judge.predictor(x[sound], values))
    assert result.beside.own == own.scores


def test_a_batch_ends_with_its_last_record_and_never_before_the_one_in_front() -> None:
    places = {
        "a": np.array([0, 1, 2, 7, 8]),
        "b": np.array([3, 4]),
        "c": np.array([5, 6, 9]),
    }
    assert ends_of(places, 2) == [6, 9, 9]
    assert ends_of({"a": np.array([0, 9]), "b": np.array([1, 2])}, 1) == [1, 9]


def test_a_method_without_an_estimate_says_why_and_the_others_go_on() -> None:
    text = TEXT.replace("[estimator]", "[estimator]\nridge = 0")
    history = table()
    history["y"] = np.where(history["a"] > 0, "yes", "no")
    result = backtest(read_study(text), history, beside=("pooled", "online-newton-distributed"))
    pooled, other = result.beside.others
    assert pooled.after is None
    assert "separable" in pooled.reason
    assert other.after is not None
    assert dict(result.beside.said())["pooled"].startswith("no privacy: ")
    assert "no estimate: " in dict(result.beside.said())["pooled"]


@pytest.mark.parametrize(
    ("study", "options", "words"),
    [
        ("weighted", {"beside": ("offnp",)}, "no method 'offnp'; allowed: pooled, .*distributed"),
        ("numbers", {"beside": ("pooled",)}, "--beside pooled: estimator.loss.* has gdwd"),
        ("weighted", {"beside": ("pooled",), "label_delay": "9 records"}, "--label-delay out"),
    ],
)
def test_what_does_not_go_together_is_refused_before_anything_is_read(
    study: str, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        backtest(read_study(STUDIES[study]), "nothing.csv", **options)


def test_the_command_prints_scores_and_what_is_really_kept(tmp_path: Path) -> None:
    history, page = table(450), tmp_path / "page.html"
    lines = [",".join(history), *(",".join(map(str, row)) for row in zip(*history.values(), strict=True))]  # fmt: skip  # noqa: E501
    (tmp_path / "h.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "study.toml").write_text(TEXT)
    command = ["backtest", str(tmp_path / "study.toml"), "--input", str(tmp_path / "h.csv"),
               "--client-column", "who", "--beside", "pooled, online-newton-gaussian"]  # fmt: skip
    shown = run(*command, "--report", str(page))
    assert shown.exit_code == 0, shown.output
    text = " ".join(shown.stdout.split())
    kept = (
        "pooled: no privacy: the raw records of all clients lie in one place",
        "online-newton-gaussian: not guaranteed over a stream: (epsilon, delta) = (2, 1e-06) is",
    )
    found = json.loads(run(*command, "--json").stdout)["beside"]
    score = f"{found['others'][1]['before']['auc']:.4g}"
    for words in ("this study", "pooled", score, *kept):
        assert words in text
    assert found["others"][0]["guarantee"] in kept[0]
    assert found["others"][0]["before"] is None
    for words in ("Beside other methods", score, *kept):
        assert html.escape(words) in page.read_text()
    for more, words in (
        (("--grid", "privacy.epsilon=1,2"), "--beside: it goes with one setting"),
        (("--draws", "2"), "--beside: it goes with one setting"),
    ):
        refused = run(*command, *more)
        assert isinstance(refused.exception, ConfigError)
        assert words in str(refused.exception)
