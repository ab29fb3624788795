"""Dead letters of one place: which are repeated, and which are new."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from infra import dead_letters
from pipeline.errors import PayloadError
from pipeline.messages.envelope import DeadLetter, dlq_headers
from tests.trusted import trusted_task


@pytest.mark.parametrize("number", [0, None])
def test_a_letter_behind_the_note_that_it_is_done_with_is_new(
    monkeypatch: pytest.MonkeyPatch, number: int | None
) -> None:
    """Of a log that was made anew: sent again to the place where it stood, it has failed again."""
    fault = PayloadError("not-admitted", "why")
    failed = DeadLetter(4, b"c", b"bytes", (), fault).annotated("log", 0)
    marks = {"done": "replayed", "partition": 0, "offset": 4}
    done = dlq_headers(marks if number is None else {**marks, "letter": number})
    topic: list[Any] = []

    def found() -> list[tuple[int, str]]:
        monkeypatch.setattr(dead_letters, "read_partition", lambda *_: iter(topic))
        letters = dead_letters.read_letters(trusted_task().study, None)  # type: ignore[arg-type]
        return [(letter.number, letter.done) for letter in letters]

    def add(headers: Any, value: bytes | None) -> None:
        topic.append(
            SimpleNamespace(offset=len(topic), key=b"c", value=value, headers=headers, timestamp=1)
        )

    add(failed, b"bytes")
    # a worker repeats it after a crash
    add(failed, b"bytes")
    assert found() == [(0, "")]
    add(done, None)
    add(failed, b"bytes")
    assert found() == [(0, "replayed"), (3, "")]
