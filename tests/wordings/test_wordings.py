"""Every error's wording is written down, and reads as a sentence for somebody who must act."""

from __future__ import annotations

import ast
import re

from tests.wordings.collect import KINDS, SNAPSHOT, changes, sentences


def test_the_wordings_are_those_that_are_written_down() -> None:
    different = changes()
    assert not different, "\n".join(
        [*different, "if this is meant, run `make wordings` and commit tests/wordings/errors.txt"]
    )


def test_a_changed_sentence_is_found() -> None:
    [one] = sentences(ast.parse('raise ConfigError(f"window.records: {least} is " + "too few")'))
    assert one == "10 ConfigError: window.records: {least} is too few"


def test_no_wording_ends_as_if_it_went_on() -> None:
    lines = [line for line in SNAPSHOT.read_text(encoding="utf-8").splitlines() if line[:2] == "  "]
    assert len(lines) > 200
    assert len({line.split()[1].rstrip(":") for line in lines} & set(KINDS)) > 10
    assert not [line for line in lines if re.search(r"[,;:]$|\s\s\S.*\s\s", line.strip())]
