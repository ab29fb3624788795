"""Ids of clients are plain."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.errors import ConfigError
from pipeline.methods import task_of
from pipeline.settings import Settings
from pipeline.study.tables import is_plain
from pipeline.study_file.load import parse_study
from producers.database import check_id, shown
from producers.start import Job, run_client
from tests.stage import study_text


@pytest.mark.parametrize("client", ["a", "7", "ward-7", "Ward_7.north", "AA", "x" * 200])
def test_plain_ids_are_allowed(client: str) -> None:
    check_id(client)
    assert shown(client) == client


@pytest.mark.parametrize(
    "client",
    [
        "", "x" * 201, "two words", " word", "word ", "a\nb", "a\x1b[2J", "a\x00",
        "../a", "a/b", "-a",
        ".a",
        "a:b", "süd", "a\u202eb", "a\n",
    ],
)  # fmt: skip
def test_other_ids_are_refused_before_anything_is_opened_and_not_repeated(
    client: str, tmp_path: Path
) -> None:
    task = task_of(parse_study(study_text()))
    settings = Settings(kafka="127.0.0.1:9", redis="", folder=str(tmp_path))
    with pytest.raises(ConfigError, match="an id has 1 to 200 characters") as caught:
        run_client(task, settings, Job(client, "none.csv"), report=lambda *_: None)
    assert not client or client not in str(caught.value)
    assert not list(tmp_path.iterdir())
    assert shown(client).isprintable()
    assert not is_plain(client)
