from __future__ import annotations

import os
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from pipeline.privacy import randomness
from pipeline.privacy.randomness import SecureStream

#: Requests on both sides of every length at which the stream works in another way.
COUNTS = [1, 7, 65, 511, 512, 513, 2_048, 16_384, 16_385, 40_000]


def in_a_child(make: Callable[[], NDArray[np.uint64]]) -> NDArray[np.uint64]:
    """Draw in a forked child, and hand the numbers back through a pipe."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with os.fdopen(write, "wb") as pipe:
                pipe.write(make().tobytes())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        data = pipe.read()
    os.waitpid(child, 0)
    return np.frombuffer(data, dtype="<u8")


@pytest.mark.parametrize(
    ("taken", "count"),
    # each count with numbers in stock and each stock with a short count and a long one
    [*((500, count) for count in (1, 512, 513, 40_000)), *product((0, 3, 20_000), (7, 16_385))],
)
def test_a_child_repeats_nothing_of_its_parent_for_any_count(count: int, taken: int) -> None:
    """Before the fork, after it, and in a second child; with and without numbers in stock."""
    stream = SecureStream()
    parts = [stream.uint64(taken)]
    for _ in range(2):
        parts += [in_a_child(lambda: stream.uint64(count)), stream.uint64(count)]
    everything = np.concatenate(parts)
    assert len(everything) == taken + 4 * count
    # 2e5 numbers: a repeat has probability 1e-9
    assert len(np.unique(everything)) == len(everything)


def test_a_grandchild_repeats_nothing_either() -> None:
    stream = SecureStream()
    before = stream.uint64(10)

    def child() -> NDArray[np.uint64]:
        own = stream.uint64(10)
        return np.concatenate([own, in_a_child(lambda: stream.uint64(10)), stream.uint64(10)])

    everything = np.concatenate([before, in_a_child(child), stream.uint64(10)])
    assert len(everything) == 50
    assert len(np.unique(everything)) == 50


def test_requests_of_all_lengths_share_nothing() -> None:
    stream = SecureStream()
    parts = [stream.uint64(count) for _ in range(3) for count in (*COUNTS, *reversed(COUNTS))]
    held = [part.copy() for part in parts]
    everything = np.concatenate(parts)
    assert len(np.unique(everything)) == len(everything)
    # what was handed out is never written again
    stream.uint64(1000)
    assert all(np.array_equal(a, b) for a, b in zip(parts, held, strict=True))


def test_numbers_are_the_key_stream_of_aes_256_in_counter_mode(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a known key: each number is 8 bytes of one key stream, which is never rewound."""
    asked: list[int] = []

    def known(size: int) -> bytes:
        asked.append(size)
        return bytes(range(size))

    monkeypatch.setattr(randomness.os, "urandom", known)
    stream = SecureStream()
    assert sorted(asked) == [16, 32]
    whole = Cipher(algorithms.AES256(bytes(range(32))), modes.CTR(bytes(range(16)))).encryptor()
    wanted = np.frombuffer(whole.update(bytes(8 * 300_000)), dtype="<u8").tolist()
    place, at = {number: i for i, number in enumerate(wanted)}, 0
    for count in (*COUNTS, 1, 1, 7, 513, *COUNTS):
        for number in stream.uint64(count).tolist():
            # small requests may leave a part of a stock unused, or be served from an older one
            assert number in place
            del place[number]
        at += count
    assert len(wanted) - len(place) == at
    assert len(asked) == 2  # one key for all


def test_every_bit_is_fair() -> None:
    numbers = SecureStream().uint64(200_000)
    bits = np.unpackbits(numbers.view(np.uint8).reshape(-1, 8), axis=1)
    # 64 bits, two-sided: 6.2 standard errors make a false alarm rarer than 64 * 6e-10 = 4e-8
    assert np.all(np.abs(bits.mean(axis=0) - 0.5) < 6.2 * 0.5 / np.sqrt(200_000))


def test_nothing_is_drawn_for_no_number() -> None:
    assert SecureStream().uint64(0).shape == (0,)
