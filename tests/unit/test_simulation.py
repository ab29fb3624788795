"""Simulated noise: the same in every run, the right size, and never taken for protection."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from scipy import stats

from pipeline.cli.main import cli
from pipeline.errors import PrivacyError
from pipeline.messages.estimate import write_estimate
from pipeline.methods.renewable.client import query_of, summarise_bounded
from pipeline.privacy.accounting import total_mu
from pipeline.privacy.events import NonPrivate
from pipeline.privacy.guarantee import Guarantee
from pipeline.privacy.randomness import SecureStream, SeededStream, SimulatedGaussian
from pipeline.release.model import start_model
from pipeline.release.privatise import privatise
from pipeline.release.task import Task
from pipeline.stream.fold import Reducer
from pipeline.stream.merge import combine
from pipeline.stream.partition import Partition
from pipeline.stream.release import release_of
from tests.builders import LogEntry, rows_of, simulate, some_model, study_text, task_of
from tests.wire import edited, numbers_of

SIMULATED = task_of(p=2, mechanism="insecure-simulation", seed=5)
REAL = task_of(p=2)
LAPLACE = task_of(p=2, mechanism="discrete-laplace")
ROWS = rows_of(*simulate(np.random.default_rng(0), 50, 2))


def released(task: Task, *, client: str = "c", seq: int = 0, version: int = 1) -> bytes:
    model = some_model(task, version) if version else start_model(task.size)
    return release_of(task, ROWS, model, client=client, ledger="l", seq=seq)


def sums_of(payload: bytes) -> np.ndarray:
    return numbers_of(SIMULATED, payload)


# --- reproducible ----------------------------------------------------------------------------


def test_a_release_is_the_same_in_every_run() -> None:
    for version in (0, 1):
        assert released(SIMULATED, version=version) == released(SIMULATED, version=version)
    again = task_of(p=2, mechanism="insecure-simulation", seed=5)
    assert released(again) == released(SIMULATED)


def test_another_seed_client_or_number_has_other_noise() -> None:
    base = sums_of(released(SIMULATED))
    others = [
        released(task_of(p=2, mechanism="insecure-simulation", seed=6)),
        released(task_of(p=2, mechanism="insecure-simulation", seed=2**61)),
        released(SIMULATED, client="d"),
        released(SIMULATED, seq=1),
        released(SIMULATED, seq=2**40),
    ]
    everything = [base, *map(sums_of, others)]
    for i, one in enumerate(everything):
        for two in everything[:i]:
            # noise of 2^14 units and more: a number agrees with probability below 1e-4
            assert np.count_nonzero(one == two) <= 2


def test_simulated_noise_is_normal_and_of_the_size_that_real_noise_has() -> None:
    """10^6 draws: mean, variance and a Kolmogorov-Smirnov test, alarm 1e-6 each."""
    sigma, n = 20_000.0, 10**6
    draws = SimulatedGaussian(sigma).draw(n, SeededStream(1, "c", 0)).astype(float)
    reach = stats.norm.isf(5e-7)
    assert abs(draws.mean()) < reach * sigma / n**0.5
    assert abs(draws.var() / sigma**2 - 1) < reach * (2 / n) ** 0.5
    assert stats.kstest(draws, stats.norm(scale=sigma).cdf).pvalue > 1e-6
    assert SIMULATED.layout.text == REAL.layout.text
    for simulated, real in (
        (SIMULATED.initial_channels, REAL.initial_channels),
        (SIMULATED.update_channels, REAL.update_channels),
    ):
        for name in ("gradient", "curvature", "counts", "off_diagonal"):
            ours, theirs = getattr(simulated, name), getattr(real, name)
            assert (ours is None) == (theirs is None)
            if ours is not None:
                assert isinstance(ours.noise, SimulatedGaussian)
                # rounding's twelfth, beside 2^28
                assert ours.standard_deviation == pytest.approx(theirs.standard_deviation, rel=1e-8)


# --- never taken for protection --------------------------------------------------------------


def test_simulated_noise_refuses_the_cryptographic_stream() -> None:
    with pytest.raises(PrivacyError, match="seeded generator only"):
        SimulatedGaussian(1.0).draw(3, SecureStream())
    sums = summarise_bounded(SIMULATED, *simulate(np.random.default_rng(0), 50, 2),
                             some_model(SIMULATED, 1))  # fmt: skip
    with pytest.raises(PrivacyError, match="seeded generator only"):
        privatise(SIMULATED, query_of(SIMULATED, sums), SecureStream())


def test_a_seeded_stream_gives_real_noise_no_seed() -> None:
    """Handed to a real study by mistake, it draws from the operating system all the same."""
    sums = summarise_bounded(REAL, *simulate(np.random.default_rng(0), 50, 2),
                             some_model(REAL, 1))  # fmt: skip
    query = query_of(REAL, sums)
    one, two = (privatise(REAL, query, SeededStream(1, "c", 0)).parts["gradient"] for _ in range(2))
    assert not np.any(one == two)


def test_the_guarantee_and_the_claim_say_what_it_is() -> None:
    guarantee = SIMULATED.budget.guarantee
    assert guarantee.mechanism == "insecure-simulation"
    assert guarantee.guarantee.startswith("none: insecure-simulation of (2, 1e-05)")
    assert "whoever has the seed can take the noise away" in guarantee.guarantee
    nothing = ("epsilon", "delta", "mu", "unit", "unit_records", "neighbours", "adversary")
    assert [getattr(guarantee, name) for name in nothing] == [None] * len(nothing)
    assert guarantee.claim.startswith("insecure-simulation ")
    claim = edited(SIMULATED, released(SIMULATED), claim=guarantee.claim)
    assert claim == released(SIMULATED)
    assert not SIMULATED.study.private
    assert SIMULATED.budget.event == NonPrivate()


def test_the_claims_of_real_mechanisms_say_which() -> None:
    assert REAL.budget.guarantee.claim == "discrete-gaussian 2.0 1e-05 record zero-out"
    assert LAPLACE.budget.guarantee.claim == "discrete-laplace 2.0 0.0 record zero-out"
    assert "local (2, 1e-05)-differential privacy" in REAL.budget.guarantee.guarantee
    assert "local 2-differential privacy" in LAPLACE.budget.guarantee.guarantee
    assert LAPLACE.budget.guarantee.mu == total_mu([LAPLACE.budget.event])


def test_every_estimate_says_that_it_is_simulated() -> None:
    state = Partition.empty(SIMULATED)
    entries = [
        LogEntry(i, b"c", released(SIMULATED, seq=i, version=min(i, 1)), timestamp=1)
        for i in range(6)
    ]
    assert Reducer(SIMULATED).fold(state, entries) == []
    _, message = combine(SIMULATED, {0: state}, topic="t", model_version=None, published_at=0.0)
    assert message.privacy.mechanism == "insecure-simulation"
    written = json.loads(write_estimate(message))["privacy"]
    assert written["mechanism"] == "insecure-simulation"
    assert written["guarantee"].startswith("none: ")
    assert written["epsilon"] is None
    assert isinstance(message.privacy, Guarantee)


@pytest.mark.parametrize("mechanism", ["insecure-simulation", "discrete-laplace"])
def test_the_command_line_warns_of_a_simulation(tmp_path: Path, mechanism: str) -> None:
    study = tmp_path / "study.toml"
    study.write_text(study_text(p=2, mechanism=mechanism), encoding="utf-8")
    done = CliRunner().invoke(cli, ["study", "check", str(study), "--json"])
    assert done.exit_code == 0, done.output
    warned = "nobody's data is protected" in done.stderr
    assert warned == (mechanism == "insecure-simulation")
    assert json.loads(done.stdout)["privacy"]["mechanism"] == mechanism
