"""A study has the revision that it had: a client of another one would refuse to go on."""

from __future__ import annotations

from tests.golden import revisions


def test_every_recorded_study_has_its_revision() -> None:
    recorded = revisions.load()
    assert len(set(recorded.values())) > 100
    now = {text: revisions.current(text) for text in recorded}
    assert [(was, now[text]) for text, was in recorded.items() if now[text] != was] == []
