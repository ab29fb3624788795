"""The soak before a release: memory that grows is seen, and a short one holds (`make soak`)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import soak
from benchmarks.soak import LIFE, WARM, Sample, grown


def life(name: str, pid: int, seconds: float, mib: float, per_hour: float) -> list[Sample]:
    """Return a life that takes its memory while it warms up, and grows at a rate from then on."""
    return [
        Sample(at, name, pid, mib * min(at / WARM, 1) + per_hour * max(at - WARM, 0) / 3600)
        for at in range(round(seconds))
    ]


def test_memory_that_grows_over_a_long_life_is_seen() -> None:
    found = grown(life("w0", 1, 3600, 120, 100) + life("w1", 2, 3600, 120, 5))
    assert [(one["name"], one["flat"]) for one in found] == [("w0", False), ("w1", True)]
    # between the middles of the first and the last third of what is left after it is warm
    apart = (3600 - WARM) * 2 / 3
    assert found[0]["last"] - found[0]["first"] == pytest.approx(100 * apart / 3600, rel=0.01)


def test_a_start_is_no_growth_and_a_short_life_says_nothing() -> None:
    # one name, started again: two lives, each with a start of its own
    again = life("w0", 1, 600, 120, 0) + life("w0", 2, 600, 120, 0)
    assert [one["flat"] for one in grown(again)] == [True, True]
    assert grown(life("w0", 1, LIFE - 1, 120, 1000)) == []


@pytest.mark.slow
def test_half_a_minute_of_kills_holds_and_leaves_a_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, picture = tmp_path / "soak.json", tmp_path / "soak.png"
    code = soak.main(["--seconds", "30", "--out", str(out), "--picture", str(picture)])
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert code == 0, result
    assert result["held"]
    assert result["faults"] == []
    assert min(result["kills"].values()) >= 1
    assert result["records"] == result["releases"] * soak.SLOTS > 0
    assert json.loads(out.read_text()) == result
    assert picture.read_bytes().startswith(b"\x89PNG")
