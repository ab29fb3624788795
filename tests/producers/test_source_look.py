"""What `doctor connect --source` says of a file: as a client would take it."""

from __future__ import annotations

from pathlib import Path

import pytest

from agents.preflight import look
from pipeline.errors import DataError
from pipeline.methods import task_of
from pipeline.settings import Settings
from pipeline.study_file.load import parse_study
from producers.source_check import look_at_source
from tests.stage import HEADER, lines, study_text, write_csv

TASK = task_of(parse_study(study_text()))


def test_a_good_source_is_no_warning(tmp_path: Path) -> None:
    found = look_at_source(TASK, Settings.read({}), str(write_csv(tmp_path / "a.csv", 300)))
    assert found == ("200 of its first 200 records can be used", False)


def test_a_column_outside_its_range_is_a_warning_with_its_share(tmp_path: Path) -> None:
    cold = [f"{-50 - i / 10},{line.partition(',')[2]}" for i, line in enumerate(lines(300))]
    (tmp_path / "a.csv").write_text(HEADER + "".join(cold))
    finding = look(
        "source", lambda: look_at_source(TASK, Settings.read({}), str(tmp_path / "a.csv"))
    )
    assert finding.word == "WARNING"
    assert "heat 100%" in finding.said
    assert "`min` and `max`" in finding.said
    assert "-50" not in finding.said
    # as far outside as the range is wide, and further
    (tmp_path / "a.csv").write_text(HEADER + "".join(line.replace("-", "-1", 1) for line in cold))
    with pytest.raises(DataError, match=r"will refuse it: nearly all .* outside its range than"):
        look_at_source(TASK, Settings.read({}), str(tmp_path / "a.csv"))


@pytest.mark.parametrize(("bad", "refused"), [(40, False), (150, True)])
def test_misspelt_classes_are_a_warning_or_what_a_client_refuses(
    bad: int, refused: bool, tmp_path: Path
) -> None:
    # evenly: a client looks at fewer of the first than are told
    spelt = (line.replace("yes", "YES!").replace("no", "NO!") for line in lines(bad))
    sound = iter(lines(200 - bad, seed=1))
    text = "".join(next(spelt if at * bad % 200 < bad else sound) for at in range(200))
    (tmp_path / "a.csv").write_text(HEADER + text)
    if refused:
        with pytest.raises(DataError, match=r"will refuse it: too many .* does not declare"):
            look_at_source(TASK, Settings.read({}), str(tmp_path / "a.csv"))
        return
    found = look_at_source(TASK, Settings.read({}), str(tmp_path / "a.csv"))
    assert found.warning
    assert "on noise alone" in found.said
    assert "unknown class" in found.said
