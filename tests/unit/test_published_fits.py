"""Kinds of a study other than the live one: checks of the file, fits, guarantees, refusals."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pipeline.errors import ConfigError, NumericError, PrivacyError, VeilstreamError
from pipeline.learning import StreamClassifier
from pipeline.methods import OFFLINE, revision_of
from pipeline.methods import task_of as make_task
from pipeline.prediction.estimators import LinearClassifier
from pipeline.stream.in_process import OfflineRun
from pipeline.study_file.load import parse_study
from pipeline.types import Matrix, Vector
from tests.builders import oracle, rows_of, study_text
from tests.published import (
    KEYS,
    NOISED,
    SLOTS,
    by_client,
    fit_of,
    method_of,
    rows_by_client,
    run,
    sample,
    task_of,
    text_of,
    write,
)

# --- fits ------------------------------------------------------------------------------------


def test_every_kind_but_the_live_ones_is_tried_here() -> None:
    assert set(KEYS) == set(OFFLINE)


def test_the_pooled_fit_of_a_study_is_that_of_an_independent_solver() -> None:
    x, y = sample()
    fit = fit_of(task_of("pooled"), {"all": [*rows_of(x, y)]})
    # the oracle stops at a gradient of 1e-12, over a curvature of at least 0.05
    assert_allclose(fit.coefficients, oracle(x, y, np.ones(len(y)), q=1.0, ridge=0.1), atol=1e-8)


def test_class_weights_are_those_of_the_exact_counts() -> None:
    x, y = sample()
    keep = (y > 0) | (np.arange(len(y)) % 4 == 0)
    x, y = x[keep], y[keep]
    fit = fit_of(task_of("pooled", maximum=8.0), {"all": [*rows_of(x, y)]})
    weight = np.where(y > 0, len(y) / (2 * np.sum(y > 0)), len(y) / (2 * np.sum(y < 0)))
    assert_allclose(fit.coefficients, oracle(x, y, weight, q=1.0, ridge=0.1), atol=1e-8)
    for kind in ("online-newton", "online-newton-distributed", "federated-newton"):
        assert fit_of(task_of(kind, maximum=8.0), rows_by_client(x, y)).weights[0] > 1.5


@pytest.mark.parametrize(("kind", "keys"), [
    ("pooled", ""), ("pooled-mm", ""), ("federated-newton", ""),
    ("federated-newton-undamped", 'rounds = 2, ridge_matrix = "as-printed"'),
])  # fmt: skip
def test_one_class_has_no_fit_where_the_intercept_is_free(kind: str, keys: str) -> None:
    x, _ = sample()
    with pytest.raises(NumericError, match="one class only"):
        fit_of(task_of(kind, keys), rows_by_client(x, np.ones(len(x))))


# --- guarantees ------------------------------------------------------------------------------

SENTENCES = {
    "pooled": "no privacy: the raw records",
    "pooled-mm": "no privacy: the raw records",
    "federated-newton": "no differential privacy: clients send exact sums",
    "federated-newton-undamped": "no differential privacy: clients send exact sums",
    "online-newton": "no differential privacy: clients send exact sums",
    "online-newton-laplace": "not guaranteed over a stream: the stated budget is for one release",
    "online-newton-gaussian": "not guaranteed over a stream: (epsilon, delta) = (0.8, 1e-05)",
    "online-newton-distributed": "none: its noise is a simulation",
}


@pytest.mark.parametrize("kind", KEYS)
def test_the_guarantee_is_in_text_json_check_and_the_saved_model(kind: str, tmp_path: Path) -> None:
    arguments = write(tmp_path, text_of(kind), by_client(*sample()))
    model = tmp_path / "model.json"
    shown = run(*arguments, "--save-model", str(model))
    assert shown.exit_code == 0, shown.output
    checked = run("study", "check", arguments[1], "--json")
    facts = json.loads(checked.stdout)
    assert facts["estimator"]["kind"] == kind
    document = json.loads(run(*arguments, "--json").stdout)
    file = LinearClassifier.load(model).file
    assert file.status == ("ready" if document["interval_method"] != "none" else "point")
    for text in (
        " ".join(shown.stdout.split()),
        document["privacy"]["guarantee"],
        facts["privacy"]["guarantee"],
        file.privacy.guarantee,
    ):
        assert SENTENCES[kind] in text
    assert document["privacy"]["epsilon"] is None
    if kind in NOISED:
        assert "protects nobody" in document["privacy"]["guarantee"]
    predicted = run("predict", arguments[1], "--input", arguments[3], "--model", str(model))
    assert predicted.exit_code == 0, predicted.output


def test_distributed_noise_states_its_assumptions() -> None:
    task = task_of("online-newton-distributed")
    said = method_of(task).guarantee(task, 3).guarantee
    for words in ("secure aggregation", "at least 2 of 3 clients", "do not collude"):
        assert words in said


def test_as_many_tolerated_as_clients_is_refused() -> None:
    keys = KEYS["online-newton-distributed"].replace("tolerated = 1", "tolerated = 3")
    with pytest.raises(PrivacyError, match="tolerated"):
        fit_of(task_of("online-newton-distributed", keys), rows_by_client(*sample()))


# --- what a study file may say ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "keys", "settings", "words"),
    [
        ("pooled", "", {"private": True}, r'privacy\.mechanism.*"none".*kind = "renewable"'),
        ("online-newton-gaussian", None, {"private": True}, r"epsilon into \[estimator\.method"),
        ("pooled", "epsilon = 1.0", {}, r"method\.epsilon: unknown key.*ridge_matrix"),
        ("renewable", "seed = 1", {}, r"estimator\.method"),
        ("online-newton-laplace", "epsilon = 0.8, delta = 1e-5, seed = 1", {}, r"\.delta: unknown"),
        (
            "online-newton-gaussian",
            "epsilon = 0.8, seed = 1",
            {},
            r"\.delta: .*delta = 1e-05",
        ),
        ("online-newton-laplace", "epsilon = 0.8", {}, r"\.seed: .*required.*seed = 1"),
        ("federated-newton-undamped", "", {}, r"\.rounds: .*required"),
        ("federated-newton-undamped", "rounds = 1", {}, "no curvature at zero.*identity"),
        ("online-newton", 'start = "one-step"', {}, "no curvature at zero.*identity"),
        ("online-newton-laplace", "epsilon = 1.0, seed = 1", {}, r"\.stabiliser: .*no noise scale"),
        ("pooled", 'ridge_matrix = "as-printed"', {}, r"ridge_matrix: .*intercept-free.*identity"),
        ("pooled-mm", "seed = 1", {}, r"method\.seed: unknown key.*no key"),
        ("pooled-mm", "", {"maximum": 4.0}, r"class_weights: .*remove"),
        ("online-newton", 'start = "warm"', {}, r"method\.start: .*allowed: "),
        ("online-newton", "strat = 1", {}, "did you mean 'start'"),
    ],
)
def test_keys_that_do_not_go_together_are_refused_with_the_way_out(
    kind: str, keys: str | None, settings: dict[str, object], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        task_of(kind, keys, **settings)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("epsilon", "0.0"), ("epsilon", "inf"), ("delta", "0.0"), ("delta", "0.6"), ("seed", "-1"),
        ("l1_bound", "1.0"), ("l2_bound", "1.0"), ("l2_bound", "inf"), ("step_bound", "-0.1"),
        ("step_bound", "inf"), ("stabiliser", "-1.0"), ("rounds", "0"), ("tolerated", "-1"),
    ],
)  # fmt: skip
def test_a_number_out_of_range_is_refused_with_an_example(key: str, value: str) -> None:
    kinds = {"delta": "online-newton-gaussian", "rounds": "federated-newton-undamped",
             "tolerated": "online-newton-distributed"}  # fmt: skip
    kind = kinds.get(key, "online-newton-laplace")
    keys = ", ".join(part for part in KEYS[kind].split(", ") if not part.startswith(f"{key} "))
    with pytest.raises(ConfigError, match=rf"estimator\.method\.{key}: .*allowed: .*example: "):
        task_of(kind, f"{keys}, {key} = {value}")


def test_an_unknown_kind_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"estimator\.kind.*pooled.*online-newton-distributed"):
        parse_study(text_of("pooled").replace('"pooled"', '"offnp"'))


def test_the_old_name_of_the_table_says_where_its_keys_are_now() -> None:
    old = text_of("online-newton-gaussian").replace("method = {", "reproduction = {")
    with pytest.raises(ConfigError, match=r"estimator\.reproduction: .*\[estimator\.method\] now"):
        parse_study(old)


def test_a_kind_gives_a_revision_of_its_own_and_its_absence_none() -> None:
    plain = study_text(p=2, private=False, ridge=0.1, records=SLOTS)
    revisions = {revision_of(parse_study(text)) for text in (plain, *map(text_of, KEYS))}
    assert len(revisions) == len(KEYS) + 1
    named = plain.replace("[estimator]\n", '[estimator]\nkind = "renewable"\n')
    assert revision_of(parse_study(named)) == revision_of(parse_study(plain))


# --- live commands ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        ["worker"],
        ["produce"],
        ["state", "show"],
        *(
            pytest.param(command, marks=pytest.mark.slow)
            for command in (["watch"], ["state", "verify"], ["predict"])
        ),
    ],
)
def test_live_commands_refuse_before_they_look_for_a_broker(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("VEILSTREAM_KAFKA", "VEILSTREAM_REDIS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("VEILSTREAM_FOLDER", str(tmp_path / "nothing"))
    arguments = write(tmp_path, text_of("pooled"), by_client(*sample()))
    more = {
        "produce": ["--client", "c", "--source", arguments[3]],
        "predict": ["--input", arguments[3]],
    }.get(command[0], [])
    done = run(*command, arguments[1], *more)
    assert isinstance(done.exception, ConfigError)
    for words in ("all raw records in one place", 'kind = "renewable"', "`veilstream fit`"):
        assert words in str(done.exception)


def test_the_functions_behind_them_refuse_as_well() -> None:
    study = parse_study(text_of("online-newton"))
    with pytest.raises(ConfigError, match="window of every client"):
        OfflineRun(make_task(study))
    with pytest.raises(ConfigError, match="window of every client"):
        StreamClassifier(study).fit(*sample())


def test_without_privacy_belongs_to_the_live_kind(tmp_path: Path) -> None:
    arguments = write(tmp_path, text_of("pooled"), by_client(*sample()))
    done = run(*arguments, "--without-privacy")
    assert isinstance(done.exception, ConfigError)
    assert "--without-privacy" in str(done.exception)


# --- bad data --------------------------------------------------------------------------------


def _bad(case: str) -> tuple[Matrix, Vector, dict[str, object]]:
    rng = np.random.default_rng(3)
    count, p = (6, 8) if case == "more features than records" else (400, 2)
    x = rng.uniform(-1, 1, (count, p))
    y = np.where(x[:, 0] + rng.normal(0, 0.5, count) > 0, 1.0, -1.0)
    settings: dict[str, object] = {"p": p, "records": 20}
    if case.startswith("separable"):
        y = np.where(x[:, 0] > 0, 1.0, -1.0)
    if case == "separable, logistic":
        settings["loss"] = "logistic"
    if case == "one class":
        y = np.ones(count)
    if case == "one class at a time":
        order = np.argsort(y)
        x, y = x[order], y[order]
    if case == "constant column":
        x[:, 1] = 0.3
    if case == "collinear columns":
        x[:, 1] = x[:, 0]
    if case.startswith("q = "):
        settings["q"] = float(case[4:])
    return x, y, settings


CASES = [
    "separable", "separable, logistic", "one class", "one class at a time", "constant column",
    "collinear columns", "more features than records", "q = 1e-3", "q = 1e3", "empty client",
]  # fmt: skip
LEARNT = {**dict.fromkeys(["renewable", "private"], ""), **KEYS}


@pytest.mark.parametrize("ridge", [0.0, pytest.param(1e-3, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("kind", "case"),
    [
        pytest.param(kind, case, marks=[pytest.mark.slow] * ((i + k) % 3 > 0))
        for i, kind in enumerate(LEARNT)
        for k, case in enumerate(CASES)
    ],
)
def test_bad_data_end_in_an_error_or_a_finite_estimate_with_a_true_status(
    kind: str, case: str, ridge: float, tmp_path: Path
) -> None:
    x, y, settings = _bad(case)
    private = kind == "private"
    try:
        text = (
            study_text(**settings, ridge=ridge, private=private)  # type: ignore[arg-type]
            if kind in ("renewable", "private")
            else text_of(kind, ridge=ridge, **settings)
        )
        parse_study(text)
    except ConfigError:
        # undamped steps from zero need a ridge
        assert (kind, ridge) == ("federated-newton-undamped", 0.0)
        return
    parts = by_client(x, y) if len(y) > 90 else [(x, y)]
    if case == "empty client":
        parts[1] = (np.full_like(parts[1][0], np.nan), parts[1][1])
    done = run(*write(tmp_path, text, parts), "--json")
    if done.exception is not None:
        assert isinstance(done.exception, (NumericError, PrivacyError)), repr(done.exception)
        assert isinstance(done.exception, VeilstreamError)
        return
    found = json.loads(done.stdout)
    assert all(np.isfinite(c["value"]) for c in found["coefficients"])
    sure = found["status"] in ("ready", "converged")
    if not sure:
        assert found["reason"]
        assert all(c["interval"] is None for c in found["coefficients"])
    # no best fit exists, or nothing says which of many it is
    # (noised sums of some hundred records do not show that no record lies on the wrong side)
    sums_tell = not (private and case == "separable")
    endless = (
        ridge == 0 and sums_tell and case in ("separable", "constant column", "collinear columns")
    )
    if endless or case in ("one class", "more features than records"):
        assert all(c["interval"] is None for c in found["coefficients"])
    if endless and kind not in NOISED:
        assert kind in ("renewable", "private")
        assert found["status"] == "warming"
    if found["status"] == "ready":
        assert max(abs(c["value"]) for c in found["coefficients"]) < 1e3


def test_a_regression_has_the_live_kind_alone() -> None:
    text = text_of("pooled").replace(
        'positive = "1", negative = "0"', 'kind = "count", max = 9'
    ).replace('loss = "gdwd"\nq = 1.0', 'loss = "poisson"')  # fmt: skip
    with pytest.raises(ConfigError, match=r'estimator\.loss: kind = "pooled" has gdwd, logistic'):
        parse_study(text)
