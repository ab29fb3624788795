"""What authentication costs, and a million mutated messages of which none may count.

`python -m benchmarks.trust [--payloads N] [--rounds R]`. One process, no servers. Times are
processor time, with authentication and without in turn over the same releases; only their ratio
means anything on a shared machine. Prints a summary and writes `benchmarks/results/trust.json`;
ends with 1 if a message crashed a reader or was accepted.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

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
from pipeline.stream.fold import OFFLINE, Reducer
from pipeline.stream.merge import combine
from pipeline.stream.partition import Partition
from pipeline.study_file.load import parse_study
from pipeline.trust import check_signed
from tests.builders import LogEntry, study_text
from tests.trusted import TRUST, World

RESULTS = Path(__file__).parent / "results" / "trust.json"
CLIENTS, BATCH = 8, 2000


def main() -> int:
    """Run both parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--payloads", type=int, default=1_000_000)
    parser.add_argument("--releases", type=int, default=16_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    found = {**timed(options.releases, options.rounds), **fuzzed(options.payloads)}
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))
    return int(bool(found["crashes"] or found["accepted"] or not found["letters_exact"]))


def begun(p: int = 9) -> World:
    """Return an authenticated study of ten coefficients whose clients are admitted."""
    text = study_text(p=p, records=50) + TRUST
    world = World(task_of(parse_study(text.replace("[stream]\n", "[stream]\npartitions = 1\n"))))
    for number in range(CLIENTS):
        world.admit(f"client-{number}")
    return world


def timed(count: int, rounds: int) -> dict[str, float]:
    """Return processor time for each release, in microseconds, with authentication and without."""
    world = begun()
    bare, marked = [], list(world.log)
    stamps = [world.stamp(f"client-{n}") for n in range(CLIENTS)]
    stamping = 0.0
    for i in range(count):
        client, seq = i % CLIENTS, i // CLIENTS
        payload = world.bare(f"client-{client}", seq)
        key = f"client-{client}".encode()
        bare.append(LogEntry(i, key, payload, timestamp=1000))
        before = time.process_time()
        payload = stamps[client](payload)
        stamping += time.process_time() - before
        marked.append(LogEntry(len(marked), key, payload, timestamp=1000))

    def fold(reducer: Reducer, log: list[LogEntry]) -> float:
        state, before = Partition.empty(world.task, number=0), time.process_time()
        for start in range(0, len(log), BATCH):
            assert reducer.fold(state, log[start : start + BATCH]) == []
        taken = time.process_time() - before
        assert state.head.folded == count
        return 1e6 * taken / count

    pairs = []
    for _ in range(rounds + 1):
        plain = fold(Reducer(world.task, trust=OFFLINE), bare)
        pairs.append((plain, fold(Reducer(world.task, trust=world.authority), marked)))
    before = time.process_time()
    for seq in range(200):
        world.bare("client-0", seq)
    making = 1e6 * (time.process_time() - before) / 200
    # the first pair fills caches
    plain, trusted = (statistics.median(column) for column in zip(*pairs[1:], strict=True))
    return {
        "payload_bytes": len(bare[0].value),
        "fold_us": round(plain, 2),
        "fold_authenticated_us": round(trusted, 2),
        "fold_ratio": round(statistics.median(p / t for p, t in pairs[1:]), 3),
        "release_us": round(making, 1),
        "stamp_us": round(1e6 * stamping / count, 2),
        "client_ratio": round(making / (making + 1e6 * stamping / count), 4),
    }


def fuzzed(count: int) -> dict[str, object]:
    """Feed mutated messages of every kind to whoever reads them."""
    chance, world = random.Random(1), begun(3)
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
    crashes, accepted, read = Counter[str](), Counter[str](), Counter[str]()
    reducer, batch, letters, sent = Reducer(task, trust=world.authority), [], 0, 0
    early = 0
    while sum(read.values()) < count:
        kind = chance.choices(["release", "word", *texts, "ledger"], [12, 3, 1, 1, 1, 1, 1])[0]
        read[kind] += 1
        if kind in {"release", "word"}:
            source = chance.choice(releases if kind == "release" else words)
            value = mutated(source, chance, releases)
            if value in known:
                read[kind] -= 1
                continue
            offset = state.head.next_offset + len(batch)
            key = chance.choice([b"client-0", b"client-1", b"client-7", b"nobody", b"", b"\xff"])
            batch.append(LogEntry(offset, key, value, timestamp=1000))
            if len(batch) == BATCH:
                letters, sent, batch = _folded(reducer, state, batch, letters, sent, crashes)
        else:
            text, reads = texts.get(kind, (account, read_spends))
            value = mutated(text, chance, releases)
            if value == text:
                read[kind] -= 1
                continue
            try:
                reads(value)
                accepted[kind] += kind != "ledger"
            except (VeilstreamError, msgspec.DecodeError, UnicodeDecodeError):
                pass
            except Exception as error:
                crashes[f"{kind}: {type(error).__name__}"] += 1
        if not early and sum(read.values()) > count // 5:
            early = resident()
    letters, sent, batch = _folded(reducer, state, batch, letters, sent, crashes)
    accepted["release"] += state.head.folded - 20
    accepted["word"] += state.head.words - CLIENTS
    return {
        "payloads": sum(read.values()),
        "by_kind": dict(read),
        "crashes": dict(crashes),
        "accepted": {kind: number for kind, number in accepted.items() if number},
        "letters_exact": letters == sent == state.head.dead_letters,
        "clients_kept": len(state.clients),
        "resident_mib_early_late": [early, resident()],
    }


def _folded(
    reducer: Reducer, state: Partition, batch: list[LogEntry], letters: int, sent: int,
    crashes: Counter[str],
) -> tuple[int, int, list[LogEntry]]:  # fmt: skip
    try:
        found = reducer.fold(state, batch)
    except Exception as error:
        crashes[f"fold: {type(error).__name__}"] += 1
        found = []
    return letters + len(found), sent + len(batch), []


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


def resident() -> int:
    """Return the memory of this process, MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 // 2**20


if __name__ == "__main__":
    sys.exit(main())
