"""What is said again and again is said calmly."""

from __future__ import annotations

import socket
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from pipeline.cli import produce, stage
from pipeline.cli.main import cli
from pipeline.cli.privacy import _lines
from pipeline.study_file.load import parse_study
from producers.client import Progress
from tests.stage import study_text


def test_at_a_terminal_a_client_says_how_far_it_is_each_ten_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, told = [1000.0], list[str]()
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr(produce, "time", SimpleNamespace(monotonic=lambda: now[0]))
    report = produce._report(parse_study(study_text()), told.append)
    for second in range(31):
        now[0] = 1000.0 + second
        report(Progress(records=second, releases=0, waiting_for=""))
    assert [line.split()[0] for line in told] == ["0", "10", "20", "30"]


def test_a_demonstration_tells_its_page_once_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    told = list[str]()
    monkeypatch.setattr(stage, "say", told.append)
    shown: Any = object.__new__(stage.Stage)
    with socket.socket() as page:
        page.bind(("127.0.0.1", 0))
        shown._page = page.getsockname()[1]
        address = f"http://127.0.0.1:{shown._page}/"
        shown._tell_page()
        assert told == []
        page.listen()
        shown._tell_page()
        shown._tell_page()
    assert len(told) == 1
    assert address in told[0]


def test_times_of_an_account_are_told_to_the_second() -> None:
    at = "2026-01-02T03:04:05.000000Z"
    study = {
        "study": "s", "mechanism": "m", "mu": None, "releases": 1, "releases_lost": 0,
        "first": at, "last": at,
    }  # fmt: skip
    facts = {
        "protects": "one record", "limit": None, "spent": None, "studies": [study],
        "elsewhere": [], "warnings": [],
        "refusals": [{"study": "s", "at": at, "reason": "spent"}],
    }  # fmt: skip
    said = "\n".join(_lines("c", "csv:a", facts))
    assert "2026-01-02T03:04:05Z to 2026-01-02T03:04:05Z" in said
    assert ".000000" not in said


def test_a_question_that_nobody_hears_is_an_error_that_says_how_to_answer() -> None:
    command = "state", "rebuild"
    done = CliRunner().invoke(cli, [*command, "none.toml"], input="")
    assert done.exit_code == 2
    assert "nobody answered, and nothing was done" in done.stderr
    assert "--yes" in done.stderr
    # a shell that completes words asks nothing
    done = CliRunner().invoke(
        cli, input="", prog_name="veilstream",
        env={"_VEILSTREAM_COMPLETE": "bash_complete", "COMP_CWORD": "3",
             "COMP_WORDS": f"veilstream {' '.join(command)} "},
    )  # fmt: skip
    assert "[y/N]" not in done.output
    # whoever answers no has said so
    done = CliRunner().invoke(cli, [*command, "none.toml"], input="n\n")
    assert done.exit_code == 1
    assert "--yes" not in done.stderr
