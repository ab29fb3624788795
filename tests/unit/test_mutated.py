"""Mutated messages of every kind."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import msgspec

from pipeline.errors import VeilstreamError
from pipeline.messages.admission import (
    Entry,
    Link,
    Standing,
    StudyKeys,
    read_keys,
    read_signed,
    write_signed,
)
from pipeline.messages.estimate import read_estimate, write_estimate
from pipeline.messages.model import read_model, write_model
from pipeline.messages.spend import SpendsMessage, read_spends, write_spends
from pipeline.methods import task_of
from pipeline.stream.fold import Reducer
from pipeline.stream.merge import combine
from pipeline.study_file.load import parse_study
from pipeline.trust import check_signed
from tests.builders import LogEntry, study_text
from tests.trusted import TRUST, World

CLIENTS, BATCH, MESSAGES = 8, 2000, 3000


def begun() -> World:
    """Return an authenticated study of four coefficients whose clients are admitted."""
    text = study_text(records=50) + TRUST
    world = World(task_of(parse_study(text.replace("[stream]\n", "[stream]\npartitions = 1\n"))))
    for number in range(CLIENTS):
        world.admit(f"client-{number}")
    return world


def test_no_mutated_message_crashes_a_reader_or_counts() -> None:
    chance, world = random.Random(1), begun()
    task, publics = world.task, [pair.public for pair in world.pairs]
    model = world.authority.ticketed(task.first_model)
    for seq in range(20):
        world.send("client-0", seq)
    state, _ = world.folded()
    words = [entry.value for entry in world.log[:CLIENTS]]
    releases = [entry.value for entry in world.log[CLIENTS:]]
    _, message = combine(task, {0: state}, topic="t", model_version=None, published_at=1.0)
    link = Link(1, world.pairs[0].public.hex())
    known = dict.fromkeys((*words, *releases), True)
    sign = world.authority.sign
    texts: dict[str, tuple[bytes, Callable[[bytes], object]]] = {
        "model": (
            sign(write_model(task, replace(model, version=1), "2026-01-01T00:00:00Z")),
            lambda b: (check_signed(b, publics), read_model(task, b)),
        ),
        "estimate": (
            sign(write_estimate(message)), lambda b: (check_signed(b, publics), read_estimate(b)),
        ),
        "standing": (
            write_signed(
                Standing(task.study.name, "client-0", [Entry(1, "0a" * 64, 0, 0)]), world.pairs[0]
            ),
            lambda b: read_signed(b, Standing, publics),
        ),
        "keys": (
            write_signed(StudyKeys(task.study.name, [link]), world.pairs[0]),
            lambda b: read_keys(b, task.study.name, publics[0]),
        ),
    }  # fmt: skip
    account = write_spends(SpendsMessage("north", "0a" * 8, []))
    accepted, read = set[str](), Counter[str]()
    reducer, batch, letters, sent = Reducer(task, trust=world.authority), list[LogEntry](), 0, 0

    def fold() -> None:
        nonlocal letters, sent
        letters += len(reducer.fold(state, batch))
        sent += len(batch)
        batch.clear()

    while read.total() < MESSAGES:
        kind = chance.choices(["release", "word", *texts, "ledger"], [12, 3, 1, 1, 1, 1, 1])[0]
        if kind in {"release", "word"}:
            value = mutated(
                chance.choice(releases if kind == "release" else words), chance, releases
            )
            if value in known:
                continue
            offset = state.head.next_offset + len(batch)
            key = chance.choice([b"client-0", b"client-1", b"client-7", b"nobody", b"", b"\xff"])
            batch.append(LogEntry(offset, key, value, timestamp=1000))
            if len(batch) == BATCH:
                fold()
        else:
            text, reads = texts.get(kind, (account, read_spends))
            value = mutated(text, chance, releases)
            if value == text:
                continue
            # any other error is a crash
            with suppress(VeilstreamError, msgspec.DecodeError, UnicodeDecodeError):
                reads(value)
                accepted.add(kind)
        read[kind] += 1
    fold()
    assert set(read) == {"release", "word", *texts, "ledger"}
    assert accepted <= {"ledger"}
    assert (state.head.folded, state.head.words) == (20, CLIENTS)
    assert letters == sent == state.head.dead_letters
    assert len(state.clients) == 1


def mutated(payload: bytes, chance: random.Random, others: list[bytes]) -> bytes:
    """Return a payload with a few changes."""
    data = bytearray(payload)
    for _ in range(chance.choice([1, 1, 1, 2, 8])):
        place = chance.randrange(len(data)) if data else 0
        kind = chance.randrange(7)
        if kind <= 2 and data:
            data[place] ^= 1 << chance.randrange(8)
        elif kind == 3:
            data[place : place + 8] = chance.randbytes(8)
        elif kind == 4:
            del data[place : place + chance.randrange(1, 40)]
        elif kind == 5:
            data[place:place] = chance.randbytes(chance.randrange(1, 40))
        else:
            other = chance.choice(others)
            data[place : place + 16] = other[place : place + 16]
    return bytes(data)
