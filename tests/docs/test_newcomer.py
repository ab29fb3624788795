"""A newcomer's whole way, as one program that runs it (`make newcomer`)."""

import json

import pytest

from benchmarks import newcomer


@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.redis
def test_a_newcomer_comes_to_intervals_a_replay_a_backtest_and_the_library(
    tmp_path, monkeypatch, capsys
):
    # who runs the tests may have settings, which a newcomer has not
    monkeypatch.setenv("VEILSTREAM_KAFKA", "nowhere:1")
    code = newcomer.main(["--records", "10000", "--folder", str(tmp_path)])
    said = capsys.readouterr()
    assert code == 0, said.out + said.err
    reached = json.loads(said.out.splitlines()[-1])
    assert 0 < reached["minutes_to_the_first_interval"] <= reached["minutes"]
    assert reached["records_at_the_first_interval"] <= 30_000
    for step in ("study init", "doctor connect", "kafka://site-4", "replay", "backtest", "vs.fit"):
        assert step in said.out


@pytest.mark.slow
def test_a_step_that_fails_ends_with_1(tmp_path, capsys):
    (tmp_path / "pumps.toml").write_text("")
    assert newcomer.main(["--records", "10", "--folder", str(tmp_path)]) == 1
    assert "study ended with 10" in capsys.readouterr().err
