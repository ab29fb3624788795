"""Who is believed in a log: admissions, keys and MACs, what they cost, and damaged key files."""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest import mock

import msgspec
import pytest

from infra.admissions import Roll, _tell, tell
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
from pipeline.cli.context import study_keys
from pipeline.errors import ConfigError, PayloadError
from pipeline.messages import authentic
from pipeline.messages.admission import (
    KEYS,
    LAST_SERIAL,
    Admission,
    Enrolment,
    Entry,
    Link,
    Standing,
    StudyKeys,
    read_enrolment,
    write_signed,
)
from pipeline.messages.authentic import Authenticator
from pipeline.methods import task_of
from pipeline.privacy.randomness import SecureStream
from pipeline.release.layout import HEADER
from pipeline.release.model import VERSION_LIMIT, WATERMARK_LIMIT
from pipeline.settings import Settings
from pipeline.stream.fold import CHUNK, Reducer
from pipeline.stream.partition import Partition, differences
from pipeline.stream.release import release_of
from pipeline.study_file.load import parse_study
from pipeline.trust import MAC_SIZE, Pair, check_plain, check_signed, derived, signed
from tests.builders import LogEntry
from tests.stage import OPEN as NO_PRIVACY
from tests.stage import study_text
from tests.trusted import TRUST, World, trusted_task


@pytest.fixture
def world() -> World:
    made = World()
    made.admit("north")
    made.admit("south")
    return made


def at(name: str) -> int:
    place = HEADER.fields[name][1]  # type: ignore[index]
    assert isinstance(place, int)
    return place


def changed(payload: bytes, name: str, number: int) -> bytes:
    """Return a release with another number in its header."""
    place = at(name)
    return payload[:place] + struct.pack("<q", number) + payload[place + 8 :]


def test_the_state_that_is_stored_knows_who_was_admitted(world: World) -> None:
    world.send("north", 0)
    world.say("south", None)
    first, _ = world.folded()
    stored = Partition.decode(
        world.task, first.fields(everything=True), first.client_fields(everything=True), number=0
    )
    world.send("north", 1)
    world.send("south", 0)
    letters = Reducer(world.task, trust=world.authority).fold(stored, world.log)
    assert [letter.fault.reason for letter in letters] == ["revoked"]
    whole, _ = world.folded()
    assert differences(whole, stored) == []


def test_every_bit_of_a_release_is_under_its_mac(world: World) -> None:
    good = world.stamp("north")(world.bare("north", 0, world.model()))
    chance = random.Random(1)
    places = [
        *range(8 * HEADER.itemsize),
        *chance.sample(range(8 * HEADER.itemsize, 8 * len(good)), 300),
    ]
    for place in places:
        bad = bytearray(good)
        bad[place // 8] ^= 1 << place % 8
        world.append("north", bytes(bad))
    world.append("south", good)
    state, letters = world.folded()
    assert len(letters) == len(places) + 1
    assert state.head.folded == 0
    assert not state.clients


def test_forged_next_numbers_lock_nobody_out(world: World) -> None:
    # whoever reads the log knows ids and ledgers, and could send each client's next number
    for seq in range(3):
        world.send("north", seq)
    for seq in range(3, 34):
        world.append("north", world.bare("north", seq))
        world.append("north", world.stamp("north", own=Pair(b"x" * 32))(world.bare("north", seq)))
        world.append("north", world.stamp("south")(world.bare("north", seq)))
    world.send("north", 3)
    state, letters = world.folded()
    assert [reason for _, reason in letters] == ["undecodable", "forged", "forged"] * 31
    assert (state.clients["north"].highest, state.head.missing) == (3, 0)


def test_an_admitted_client_cannot_choose_its_own_point_or_version(world: World) -> None:
    honest = world.model(3)
    seq = 0
    for name, number in (("version", VERSION_LIMIT), ("version", 4), ("model_watermark", 41),
                         ("partition_watermark", 1)):  # fmt: skip
        world.append(
            "north", world.stamp("north")(changed(world.bare("north", seq, honest), name, number))
        )
    point = bytearray(world.bare("north", seq, honest))
    point[HEADER.itemsize] ^= 1
    start = bytearray(world.bare("north", seq))
    start[HEADER.itemsize] ^= 1
    for forged in (bytes(point), bytes(start)):
        world.append("north", world.stamp("north")(forged))
    other = World(pairs=[Pair(b"o" * 32)]).model(3)
    world.append("north", world.stamp("north")(world.bare("north", seq, other)))
    bare = world.bare("north", seq, honest)
    world.append("north", world.stamp("north")(bare[: at("ticket")] + bytes(16) + bare[128:]))
    # a model of another epoch is not one at which its chain says that it was taken, either
    world.append("north", world.stamp("north")(changed(bare, "model_watermark", 7)))
    state, letters = world.folded()
    assert [reason for _, reason in letters] == ["unpublished-model"] * 8 + ["wrong-place"]
    assert state.head.folded == 0


def test_a_study_without_noise_binds_version_and_age_to_the_ticket() -> None:
    world = World(trusted_task(privacy=NO_PRIVACY))
    world.admit("north")
    world.send("north", 0)
    world.send("north", 1, world.model())
    bare = world.bare("north", 2, world.model())
    world.append("north", world.stamp("north")(changed(bare, "version", 2**37)))
    state, letters = world.folded()
    assert letters == [(3, "unpublished-model")]
    assert state.head.folded == 2


def test_a_client_at_the_start_cannot_choose_its_age() -> None:
    text = study_text("old", partitions=1, privacy=NO_PRIVACY) + TRUST
    forgetting = 'forgetting = { half_life = 1000, of = "records" }'
    text = text.replace('loss = "logistic"', f'loss = "logistic"\n{forgetting}')
    world = World(task_of(parse_study(text)))
    world.admit("north")
    honest = world.send("north", 0)
    for seq in range(1, 81):
        bare = world.bare("north", seq)
        sent = changed(bare, "model_watermark", WATERMARK_LIMIT - 1 - 200 * seq)
        world.append("north", world.stamp("north")(sent))
    bare = world.bare("north", 81)
    world.append("north", world.stamp("north")(changed(bare, "partition_watermark", 0)))
    state, letters = world.folded()
    refused = range(honest.offset + 1, len(world.log))
    assert letters == [(offset, "unpublished-model") for offset in refused]
    assert len(state.sums.states) == 1
    assert (state.head.folded, state.head.forgotten) == (1, 0)


def test_clocks_that_are_wrong_change_nothing_that_counts(world: World) -> None:
    """Times of records come from whoever sends them: of a client's clock, or the operator's."""
    world.send("north", 0)
    world.send("south", 0)
    world.say("south", None)
    world.send("south", 1)
    right, letters = world.folded()
    assert letters == [(5, "revoked")]
    chance = random.Random(1)
    for _ in range(5):
        world.log = [
            replace(entry, timestamp=chance.choice([-1, 0, 1, 2**40, 2**62])) for entry in world.log
        ]
        state, told = world.folded(2)
        assert told == letters
        # when the newest came is all that a time says
        assert set(differences(state, right)) <= {"head"}
        assert msgspec.structs.replace(state.head, newest=0) == msgspec.structs.replace(
            right.head, newest=0
        )


def test_no_release_counts_at_another_time_than_its_clients() -> None:
    """Where releases fade by seconds, whoever may write to the log could make an old one new."""
    text = study_text("trusted", partitions=1) + TRUST
    fades = 'loss = "logistic"\nforgetting = { half_life = 60, of = "seconds" }'
    world = World(task_of(parse_study(text.replace('loss = "logistic"', fades))), bound=True)
    world.admit("north")
    old = world.stamp("north")(world.bare("north", 0), 1000)
    for moment in (10**9, 1001, 0, -1000):
        world.append("north", old, moment)
    world.append("north", old)
    # a MAC of before is over no time, and an admission of today has none of those
    stamp = replace(world.stamp("north"), since=0)
    world.append("north", stamp(world.bare("north", 1)))
    world.send("north", 2, time=2**40)
    for sizes in ((), (1,) * 7, (3, 2)):
        state, letters = world.folded(*sizes)
        assert letters == [(at, "forged") for at in (1, 2, 3, 4, 6)]
        assert sorted(state.sums.states) == [0, 8 * 2**40 // 60_000]


def test_what_a_client_sent_while_it_was_revoked_is_not_counted_by_a_copy() -> None:
    world = World(bound=True)
    world.admit("north")
    world.send("north", 0)
    world.say("north", None)
    aside = world.append("north", world.stamp("north")(world.bare("north", 1), 1000))
    before = World(bound=True)
    before.admit("north")
    sent = world.append("north", before.stamp("north")(world.bare("north", 2), 1000))
    world.admit("north")
    for copied in (aside, sent):
        world.append("north", copied.value)
    world.send("north", 3)
    state, letters = world.folded()
    assert letters == [(3, "revoked"), (4, "revoked"), (6, "forged"), (7, "forged")]
    assert (state.head.folded, state.clients["north"].highest) == (2, 3)
    # a stored state knows it as well
    fields, clients = state.fields(everything=True), state.client_fields(everything=True)
    known = Partition.decode(world.task, fields, clients, number=0).admissions.clients
    assert known["north"].since == world.serial == 3


def test_a_revoked_client_counts_up_to_its_revocation_and_its_admission_cannot_be_repeated(
    world: World,
) -> None:
    admission = world.say("east", world.client("east"))
    world.send("east", 0)
    revocation = world.say("east", None)
    world.send("east", 1)
    world.append("east", admission)
    world.send("east", 2)
    state, letters = world.folded()
    assert letters == [(5, "revoked"), (7, "revoked")]
    assert state.clients["east"].highest == 0
    world.admit("east")
    world.append("east", revocation)
    world.send("east", 1)
    state, letters = world.folded(3, 1)
    assert len(letters) == 2
    assert state.clients["east"].highest == 1


def test_whoever_had_a_key_of_the_study_leaves_none_admitted_for_ever(world: World) -> None:
    """Words of a stolen key hold until it is retired: the study must have one that follows them."""
    thief = Pair(b"t" * 32)
    for serial, key in ((LAST_SERIAL - 1, thief), (LAST_SERIAL, thief), (LAST_SERIAL, None)):
        world.serial = serial - 1
        world.say("north", key)
        world.append("north", world.stamp("north", own=thief)(world.bare("north", serial % 9)))
    _, letters = world.folded()
    last = len(world.log)
    assert letters == [(last - 4, "undecodable"), (last - 1, "revoked")]
    # and the command does not say that it was done
    standing = Standing("trusted", "north", [Entry(LAST_SERIAL - 1, "", 0, 1)])
    with pytest.raises(ConfigError, match="used up its serials"):
        _tell(
            mock.Mock(), world.task.study, StudyPairs(world.pairs, 1), standing, thief.public.hex()
        )


def test_of_two_admissions_the_later_counts(world: World) -> None:
    old = world.stamp("north")
    world.send("north", 0)
    world.clients["north"] = Pair(b"n" * 32)
    world.admit("north")
    world.append("north", old(world.bare("north", 1)))
    world.send("north", 1)
    _, letters = world.folded()
    assert letters == [(4, "forged")]


def test_words_that_the_study_has_not_signed_are_dead_letters(world: World) -> None:
    thief = Pair(b"t" * 32)
    world.say("thief", thief, by=thief)
    world.append("thief", b'{"type":"admission/1"}')
    elsewhere = World(trusted_task("elsewhere"), world.pairs)
    world.append("thief", elsewhere.say("thief", thief))
    world.retire(2, thief)
    world.send("thief", 0)
    world.send("north", 0)
    state, letters = world.folded()
    assert [place for place, _ in letters] == [2, 3, 4, 5, 6]
    assert state.head.folded == 1
    assert state.admissions.least == 1


def test_an_old_key_of_the_study_counts_until_it_is_retired(world: World) -> None:
    first, second = world.pairs[0], Pair(b"2" * 32, 2)
    old, older = world.stamp("north"), world.model(1)
    world.send("north", 0, older)
    world.pairs.append(second)
    # a release that waited while the study changed its key, and one at a model of before
    world.append("north", old(world.bare("north", 1, older)))
    world.send("north", 2, older)
    world.send("north", 3, world.model(2))
    # who has stolen the first key cannot retire the second
    world.retire(2, first)
    world.retire(2, second)
    world.append("north", old(world.bare("north", 4)))
    world.send("north", 4, older)
    world.say("thief", Pair(b"t" * 32), by=first)
    world.send("north", 4, world.model(3))
    whole, letters = world.folded()
    assert letters == [
        (6, "undecodable"), (8, "old-key"), (9, "unpublished-model"), (10, "undecodable"),
    ]  # fmt: skip
    assert whole.clients["north"].highest == 4
    for sizes in ((1,) * 12, (5, 3)):
        assert differences(whole, world.folded(*sizes)[0]) == []


@pytest.mark.parametrize("said", ["admission", "revocation", "retirement", "ticket"])
@pytest.mark.parametrize("size", [1, 100])
def test_a_worker_that_runs_believes_what_a_newer_key_says(said: str, size: int) -> None:
    world, first, second = World(), Pair(b"s" * 32), Pair(b"2" * 32, 2)
    world.admit("north")
    world.send("north", 0)
    old = world.stamp("north", first)
    world.pairs.append(second)
    if said == "admission":
        world.admit("south")
    if said == "revocation":
        world.say("north", None)
    if said == "retirement":
        world.retire(2, second)
    at_model = world.model(1, second) if said == "ticket" else None
    world.append("north", old(world.bare("north", 1, at_model)))
    fresh, expected = world.folded()
    running = type(world.authority)(world.task, [first], again=lambda: world.pairs)
    state, reducer = Partition.empty(world.task, number=0), Reducer(world.task, trust=running)
    letters = [
        (letter.offset, letter.fault.reason)
        for start in range(0, len(world.log), size)
        for letter in reducer.fold(state, world.log[start : start + size])
    ]
    reasons = {"revocation": ["revoked"], "retirement": ["old-key"]}
    assert [reason for _, reason in expected] == reasons.get(said, [])
    assert letters == expected
    assert differences(fresh, state) == []
    # what another worker publishes under the new key is believed, too
    later = type(running)(world.task, [first], again=lambda: world.pairs)
    later.check(signed(b'{"version":1}', second))


def test_words_of_strangers_stay_dead_letters_and_do_not_end_a_worker(world: World) -> None:
    asked, thief = [0], Pair(b"t" * 32, 2)

    def again() -> list[Pair]:
        asked[0] += 1
        return []

    running = type(world.authority)(world.task, world.pairs, again=again)
    world.append("thief", b'{"type":"admission/1"}')
    world.append("thief", b'{"type":"admission/1","signature":"00"}')
    state, reducer = Partition.empty(world.task, number=0), Reducer(world.task, trust=running)
    assert [x.offset for x in reducer.fold(state, world.log)] == [2, 3]
    assert asked == [0]
    world.say("thief", thief, by=thief)
    world.append("thief", world.stamp("thief", thief)(world.bare("thief", 0)))
    world.send("north", 0)
    reasons = [letter.fault.reason for letter in reducer.fold(state, world.log)]
    assert reasons == ["undecodable", "not-admitted"]
    assert asked == [1]
    assert state.head.folded == 1


def test_an_authenticated_study_is_never_folded_without_its_keys() -> None:
    with pytest.raises(ConfigError, match="VEILSTREAM_STUDY_KEY"):
        Reducer(trusted_task())


def test_a_stamp_is_the_same_each_time_and_one_on_top_of_another_replaces_it(world: World) -> None:
    bare, stamp = world.bare("north", 0), world.stamp("north")
    assert stamp(bare) == stamp(bare) == stamp(world.stamp("south")(bare))
    assert stamp.fits(stamp(bare))
    assert not stamp.fits(bare)
    assert bare[-MAC_SIZE:] == bytes(MAC_SIZE)


def test_both_sides_agree_on_a_key_and_nobody_else_does() -> None:
    study, client = Pair.drawn(), Pair.drawn()
    names = {"study": "s", "client": "c", "generation": 1}
    one = client.mac_key(study.public, **names)  # type: ignore[arg-type]
    assert one == study.mac_key(client.public, **names)  # type: ignore[arg-type]
    others = [
        client.mac_key(study.public, **(names | change))  # type: ignore[arg-type]
        for change in ({"study": "t"}, {"client": "d"}, {"generation": 2})
    ]
    assert len({one, *others, Pair.drawn().mac_key(study.public, **names)}) == 5  # type: ignore[arg-type]
    assert derived(b"s", "a", "bc") != derived(b"s", "ab", "c")
    with pytest.raises(ConfigError, match="enrol"):
        study.mac_key(bytes(64), **names)  # type: ignore[arg-type]


def test_a_key_that_nobody_agrees_with_is_not_admitted_and_stops_no_fold(world: World) -> None:
    signer = Pair(b"e" * 32)
    # both are of low order: zero, and one
    for low in (bytes(32), b"\1".ljust(32, b"\0")):
        public = signer.public[:32] + low
        with pytest.raises(PayloadError, match="none that a client draws"):
            read_enrolment(write_signed(Enrolment("evil", public.hex()), signer))
        with pytest.raises(ConfigError, match="do not admit it"):
            tell(world.task.study, Settings(), StudyPairs(world.pairs, 1), "evil", public)
        # an older release of ours may have admitted it
        world.serial += 1
        word = Admission(world.task.study.name, "evil", world.serial, public.hex())
        world.append("evil", write_signed(word, world.pairs[-1]))
        refused = world.send("evil", 0).offset
        taken = world.send("north", world.serial)
        state, letters = world.folded()
        assert letters[-1] == (refused, "forged")
        assert state.clients["north"].highest == world.serial
        assert state.head.next_offset == taken.offset + 1
    assert read_enrolment(write_signed(Enrolment("good", signer.public.hex()), signer)).client


def test_a_pair_that_is_shown_shows_no_secret() -> None:
    pair = Pair.drawn()
    assert pair.seed.hex() not in repr(pair)
    assert str(pair.seed) not in repr(pair)


def test_signed_json_is_checked_to_the_last_bit() -> None:
    pair = Pair.drawn()
    whole = signed(b'{"type":"model/2","version":1}', pair)
    check_signed(whole, [Pair.drawn().public, pair.public])
    for place in range(8 * len(whole)):
        bad = bytearray(whole)
        bad[place // 8] ^= 1 << place % 8
        with pytest.raises(PayloadError):
            check_signed(bytes(bad), [pair.public])
    with pytest.raises(PayloadError, match="forged"):
        check_signed(whole, [])


@pytest.mark.parametrize(
    "text",
    ["\\u001b[2J", "\\u009b2J", "\\u007F", "\\u202e", "\\n", "\x1b", "\x7f", "\x9b", "\u202e"],
)
def test_what_a_terminal_obeys_is_refused_however_it_is_written(text: str) -> None:
    with pytest.raises(PayloadError, match="control-characters"):
        check_plain(f'{{"name":"{text}"}}'.encode())
    check_plain('{"name":"Grüße, 温度 \\u00e9 \\"quoted\\" \\\\"}'.encode())


def test_a_folder_that_knows_a_key_makes_no_other_in_its_place(tmp_path: Path) -> None:
    study, settings = trusted_task().study, Settings(folder=str(tmp_path))
    made = study_keys(study, settings)
    pin(settings, study.name, made.newest.public)
    assert study_keys(study, settings).newest.public == made.newest.public
    path = study_path(settings, study.name)
    kept = path.rename(tmp_path / "kept")
    with pytest.raises(ConfigError, match="copy the key file here"):
        study_keys(study, settings)
    assert not path.exists()
    kept.rename(path)
    assert study_keys(study, settings).newest.public == made.newest.public


def test_processes_of_one_folder_pin_a_key_at_once(tmp_path: Path) -> None:
    """Each writes a file of its own first: one that another has moved away would be missing."""
    settings, public = Settings(folder=str(tmp_path)), Pair(b"s" * 32).public
    moved = Path.replace

    def late(path: Path, target: Path) -> Path:
        # the other process is done between the two steps of this one
        with mock.patch.object(Path, "replace", moved), mock.patch("os.getpid", return_value=1):
            pin(settings, "study", public)
        return moved(path, target)

    with mock.patch.object(Path, "replace", late):
        pin(settings, "study", public)
    assert pinned(settings, "study") == public
    assert len(list((tmp_path / "keys").iterdir())) == 1


def world_of_north() -> World:
    world = World()
    world.admit("north")
    return world


def many_models(count: int) -> World:
    """A client that releases each time at a model that it has not used before."""
    world = world_of_north()
    for seq in range(count):
        world.send("north", seq, world.model(1 + seq))
    return world


def many_false_models(count: int) -> World:
    """A client that makes a ticket of its own for each release."""
    world, own = world_of_north(), Pair(b"o" * 32)
    for seq in range(count):
        world.send("north", seq, world.model(1 + seq, own))
    return world


@pytest.mark.parametrize(
    "made", [many_models, pytest.param(many_false_models, marks=pytest.mark.slow)]
)
def test_no_client_makes_a_batch_dearer_than_its_releases(made: Callable[[int], World]) -> None:
    # a cost in proportion to the models of a batch would be several times as much here
    few, many = (each_costs(made(count)) for count in (CHUNK // 30, CHUNK // 3))
    assert many < 2.0 * few


def with_gaps(gaps: int) -> World:
    """A client that leaves gaps, and repeats its oldest release ever after."""
    world = world_of_north()
    for seq in range(gaps):
        world.send("north", 2 * seq)
    for _ in range(CHUNK - gaps):
        world.append("north", world.log[1].value or b"")
    return world


@pytest.mark.slow
def test_gaps_of_a_client_make_its_repeats_no_dearer() -> None:
    # to look through all gaps took seven times as long here
    assert each_costs(with_gaps(900)) < 3.0 * each_costs(with_gaps(9))


@pytest.mark.slow
def test_what_is_too_old_to_be_kept_costs_no_sums_of_its_own() -> None:
    # a client that writes a time of its own into each record: sums for each took 40 times as long
    text = study_text("fading", partitions=1) + TRUST
    text += '\n[estimator.forgetting]\nhalf_life = 8\nof = "seconds"\n'
    world = World(task_of(parse_study(text)))
    world.admit("north")
    for seq in range(CHUNK):
        world.send("north", seq)
    spread = [LogEntry(e.offset, e.key, e.value, timestamp=1000 * e.offset) for e in world.log]
    together, world.log = each_costs(world), spread
    assert each_costs(world) < 12.0 * together


def each_costs(world: World) -> float:
    """Return the processor seconds of a release, the least of some folds of the whole log."""
    found = []
    for _ in range(5):
        trust = Authenticator(world.task, world.pairs)
        state, reducer = Partition.empty(world.task, number=0), Reducer(world.task, trust=trust)
        begun = time.process_time()
        reducer.fold(state, world.log)
        found.append((time.process_time() - begun) / len(world.log))
    return min(found)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(folder=str(tmp_path))


def study_file(settings: Settings) -> Path:
    return write_study(settings, "blocks", StudyPairs([Pair.drawn(1), Pair.drawn(2)]))


def client_file(settings: Settings) -> Path:
    enrolled(settings, "north")
    return client_path(settings, "north")


def public_file(settings: Settings) -> Path:
    return pin(settings, "blocks", Pair.drawn().public)


@pytest.mark.parametrize(
    ("made", "name", "read"),
    [
        (study_file, "blocks", read_study),
        (client_file, "north", read_client),
        (public_file, "blocks", pinned),
    ],
)
def test_a_key_file_that_is_cut_anywhere_is_refused(
    made: Callable[[Settings], Path], name: str, read: Callable[[Settings, str], object],
    settings: Settings,
) -> None:  # fmt: skip
    path = made(settings)
    whole = path.read_bytes()
    assert read(settings, name)
    for length in range(len(whole.rstrip())):
        path.write_bytes(whole[:length])
        with pytest.raises(ConfigError, match=f"{path} is not a complete key"):
            read(settings, name)


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


@pytest.fixture
def empty() -> World:
    return World()


@pytest.fixture
def standings(empty: World) -> dict[str, bytes]:
    """What the study has signed of a client that it admitted and then revoked."""
    pair, name = empty.pairs[0], empty.task.study.name
    keys = StudyKeys(name, [Link(1, pair.public.hex())])
    first = Entry(1, empty.client("evil").public.hex(), 0, 0)
    old, new = Standing(name, "evil", [first]), Standing(name, "evil", [first, Entry(2, "", 0, 9)])
    return {n: write_signed(m, pair) for n, m in (("keys", keys), ("old", old), ("new", new))}


def test_what_is_said_of_a_client_counts_under_its_own_key_alone(
    empty: World, standings: dict[str, bytes]
) -> None:
    roll = Roll(empty.task.study, empty.pairs[0].public)
    roll.take(KEYS, standings["keys"])
    roll.take(b"other", standings["old"])
    assert (roll.clients, roll.refused) == ({}, 1)
    for name in ("old", "new", "old"):
        roll.take(b"evil", standings[name])
    assert (roll.standing("evil").key, roll.standing("evil").serial) == ("", 2)
    assert roll.says({b"evil": standings["new"]}, roll.standing("evil"))
    for last in (standings["old"], standings["new"][:-9], None):
        assert not roll.says({b"evil": last}, roll.standing("evil"))


def test_a_single_newer_word_counts_for_more_than_many_old_ones(
    empty: World, standings: dict[str, bytes]
) -> None:
    """Whoever lost the history of a client says the newest word of its partition alone."""
    roll = Roll(empty.task.study, empty.pairs[0].public)
    again = Standing(empty.task.study.name, "evil", [Entry(3, "ab" * 64, 0, 0)])
    for key, value in (
        (KEYS, standings["keys"]),
        (b"evil", standings["new"]),
        (b"evil", write_signed(again, empty.pairs[0])),
    ):
        roll.take(key, value)
    assert roll.standing("evil") == again


def test_a_log_that_lost_its_beginning_believes_no_key_that_was_retired_there() -> None:
    """Wherever the log is cut, the rest is judged as in the whole log."""
    old, new = Pair(b"s" * 32, 1), Pair(b"t" * 32, 2)
    empty = World(pairs=[old])
    empty.admit("north")
    empty.send("north", 0)
    empty.pairs.append(new)
    empty.append("north", empty.stamp("north", pair=old)(empty.bare("north", 1)))
    empty.send("north", 2)
    retired = len(empty.log)
    empty.retire(2, new)
    empty.append("north", empty.stamp("north", pair=old)(empty.bare("north", 3)))
    empty.say("thief", empty.client("thief"), by=old)
    empty.append("thief", empty.stamp("thief", pair=old)(empty.bare("thief", 0)))
    empty.send("north", 4)
    whole = empty.folded()[1]
    assert [reason for _, reason in whole] == ["old-key", "undecodable", "not-admitted"]
    held = StudyPairs(empty.pairs, 2, {2: {0: retired}})
    for cut in range(1, len(empty.log)):
        state = Partition.empty(empty.task, number=0).starting_at(cut)
        state.admissions.retire(held.least_at(0, cut))
        state.admissions.enter("north", Entry(1, empty.client("north").public.hex(), 0, 0))
        letters = Reducer(empty.task, trust=empty.authority).fold(state, empty.log[cut:])
        found = [(letter.offset, letter.fault.reason) for letter in letters]
        assert found == [letter for letter in whole if letter[0] >= cut], cut


def test_a_retirement_that_nobody_finds_any_more_has_always_been() -> None:
    pairs = [Pair(bytes([n]) * 32, n) for n in (1, 2, 3)]
    assert StudyPairs(pairs).least_at(0, 9) == 1
    # cut off between the key file and the log, and a file of before
    for held in (StudyPairs(pairs, 3, {2: {0: 5}, 3: {}}), StudyPairs(pairs, 3)):
        assert (held.least_at(0, 0), held.least_at(0, 1)) == (1, 3)
    twice = StudyPairs(pairs, 3, {2: {0: 5}, 3: {0: 8}})
    assert [twice.least_at(0, cut) for cut in (5, 6, 8, 9)] == [1, 2, 2, 3]


def test_a_word_that_is_repeated_is_verified_and_splits_a_batch_once(
    empty: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, reads, folds = empty.admit("north"), list[bytes](), list[int]()
    for seq in range(20):
        empty.send("north", seq)
        empty.append("x", old)
    read, fold = authentic.read_word, Reducer._fold_releases
    monkeypatch.setattr(authentic, "read_word", lambda p, *a: reads.append(p) or read(p, *a))
    monkeypatch.setattr(
        Reducer, "_fold_releases", lambda s, st, r: folds.append(len(r)) or fold(s, st, r)
    )
    state, letters = empty.folded()
    assert (letters, state.head.words, state.head.folded) == ([], 21, 20)
    assert (reads, folds) == ([old], [20])
    for sizes in ([1] * 41, [7, 9]):
        assert differences(empty.folded(*sizes)[0], state) == []


def test_a_client_that_nobody_admitted_moves_nothing(world: World) -> None:
    world.send("north", 0)
    before, _ = world.folded()
    far = world.model(2**37)
    for seq in range(80):
        world.send("nobody", seq, far)
    state, letters = world.folded()
    assert {reason for _, reason in letters} == {"not-admitted"}
    assert len(letters) == 80
    assert state.sums.encode(everything=True) == before.sums.encode(everything=True)
    assert "nobody" not in state.clients
