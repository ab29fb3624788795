"""What `veilstream client list` says of clients whom the log of releases does not admit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from infra.admissions import Roll
from pipeline.cli import client
from pipeline.messages.admission import KEYS, Entry, Link, Standing, StudyKeys, write_signed
from tests.trusted import World


class Log:
    """A log of one partition, as `History` reads it; `first`: what retention has left."""

    def __init__(self, world: World, first: int = 0) -> None:
        self._log, self._first = world.log, first

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *_: object) -> None: ...

    def extents(self) -> dict[int, Any]:
        return {0: SimpleNamespace(first=self._first, after=len(self._log))}

    def seek(self, spans: dict[int, Any]) -> None:
        self._span = spans[0]

    def records(self, _number: int) -> Any:
        return iter(self._log[self._span.start : self._span.stop])


def warned(
    monkeypatch: pytest.MonkeyPatch, world: World, said: dict[str, Entry], first: int = 0
) -> str:
    """Return the warning of a clients topic that says this."""
    study, pair = world.task.study, world.pairs[0]
    roll, lines = Roll(study, pair.public), list[str]()
    keys = StudyKeys(study.name, [Link(1, pair.public.hex())])
    roll.take(KEYS, write_signed(keys, pair))
    roll.clients = {name: Standing(study.name, name, [entry]) for name, entry in said.items()}
    monkeypatch.setattr(client, "history_of", lambda *_: Log(world, first))
    monkeypatch.setattr(client, "say", lines.append)
    client._warn_of_lost(world.task, None, roll)  # type: ignore[arg-type]
    return "".join(lines)


@pytest.mark.parametrize("offset", [0, 2, 9])
def test_a_word_that_was_said_again_is_found_wherever_the_log_has_it(
    monkeypatch: pytest.MonkeyPatch, offset: int
) -> None:
    """A worker that says it again from the log knows no place: it may be before that, or behind."""
    world = World()
    for name in ("b", "a", "b"):
        world.admit(name)
    said = {"a": Entry(2, world.client("a").public.hex(), 0, offset)}
    assert warned(monkeypatch, world, said) == ""


def test_a_log_that_lacks_a_word_is_said_by_a_name_that_a_terminal_bears(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, name = World(), "\x1b[31ma"
    # an older word about it is not that one
    world.admit(name)
    world.admit("b")
    said = {name: Entry(3, world.client(name).public.hex(), 0, 0)}
    found = warned(monkeypatch, world, said)
    assert "WARNING" in found
    assert "1 client: '\\x1b[31ma'" in found
    # what retention has taken, nobody can tell
    assert warned(monkeypatch, world, said, first=1) == ""
