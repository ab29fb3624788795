"""Files of keys that are cut, of somebody else, or for everybody to read; studies without any."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from infra.keyring import (
    StudyPairs,
    client_path,
    enrolled,
    pin,
    pinned,
    read_client,
    read_study,
    study_path,
    write_study,
)
from pipeline.errors import ConfigError
from pipeline.methods import task_of
from pipeline.privacy.randomness import SecureStream
from pipeline.settings import Settings
from pipeline.stream.release import release_of
from pipeline.study_file.load import parse_study
from pipeline.trust import Pair
from tests.stage import study_text
from tests.trusted import TRUST, World


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(folder=str(tmp_path))


def test_a_study_key_that_is_cut_anywhere_is_refused(settings: Settings) -> None:
    path = write_study(settings, "blocks", StudyPairs([Pair.drawn(1), Pair.drawn(2)]))
    whole = path.read_bytes()
    assert len(read_study(settings, "blocks").pairs) == 2
    for length in range(len(whole.rstrip())):
        path.write_bytes(whole[:length])
        with pytest.raises(ConfigError, match=f"{path} is not a complete key file"):
            read_study(settings, "blocks")


def test_a_client_key_that_is_cut_anywhere_is_refused(settings: Settings) -> None:
    enrolled(settings, "north")
    path = client_path(settings, "north")
    whole = path.read_bytes()
    for length in range(len(whole.rstrip())):
        path.write_bytes(whole[:length])
        with pytest.raises(ConfigError, match=f"{path} is not a complete key file"):
            read_client(settings, "north")


def test_a_key_of_another_study_or_for_all_to_read_is_refused(settings: Settings) -> None:
    path = write_study(settings, "blocks", StudyPairs([Pair.drawn()]))
    named = replace(settings, study_key=str(path))
    with pytest.raises(ConfigError, match="has the keys of study 'blocks'"):
        read_study(named, "meters")
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_study(settings, "blocks")
    path.unlink()
    with pytest.raises(ConfigError, match=str(study_path(settings, "blocks"))):
        read_study(settings, "blocks")


def test_a_known_public_key_that_is_cut_anywhere_is_refused(settings: Settings) -> None:
    public = Pair.drawn().public
    path = pin(settings, "blocks", public)
    whole = path.read_text()
    assert pinned(settings, "blocks") == public
    for length in range(len(whole)):
        path.write_text(whole[:length])
        with pytest.raises(ConfigError, match=f"{path} is not a complete key"):
            pinned(settings, "blocks")


def test_what_an_old_study_without_trust_released_does_not_count_once_it_has_some() -> None:
    text = study_text("trusted", partitions=1)
    old, world = task_of(parse_study(text)), World(task_of(parse_study(text + TRUST)))
    world.admit("north")
    for seq in range(2):
        value = release_of(
            old, [], old.first_model, SecureStream(), client="north", ledger="l-north", seq=seq
        )
        # as it came, and with the MAC that an admitted client could put on it
        world.append("north", value if seq else world.stamp("north")(value))
    world.send("north", 0)
    state, letters = world.folded()
    assert letters == [(1, "wrong-revision"), (2, "undecodable")]
    assert state.head.folded == 1
