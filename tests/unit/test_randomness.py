from __future__ import annotations

import os

import numpy as np

from pipeline.privacy.randomness import SecureStream


def in_a_child(stream: SecureStream, count: int) -> np.ndarray:
    """Draw in a forked child, and hand the numbers back through a pipe."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, stream.uint64(count).tobytes())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        data = pipe.read()
    os.waitpid(child, 0)
    return np.frombuffer(data, dtype="<u8")


def test_a_forked_child_never_repeats_the_parent_or_its_sibling() -> None:
    stream = SecureStream()
    before = stream.uint64(64)
    one, two = in_a_child(stream, 64), in_a_child(stream, 64)
    after = stream.uint64(64)
    everything = np.concatenate([before, one, two, after])
    assert len(everything) == 256
    # 256 uniform 64-bit numbers repeat with probability 2e-15
    assert len(np.unique(everything)) == 256


def test_a_stream_does_not_repeat_and_two_streams_share_nothing() -> None:
    one, two = SecureStream(), SecureStream()
    numbers = np.concatenate([one.uint64(50_000), one.uint64(50_000), two.uint64(100_000)])
    # 2e5 numbers: a repeat has probability 1e-9
    assert len(np.unique(numbers)) == len(numbers)


def test_every_bit_is_fair() -> None:
    numbers = SecureStream().uint64(200_000)
    bits = np.unpackbits(numbers.view(np.uint8).reshape(-1, 8), axis=1)
    # 64 bits, two-sided: 6.2 standard errors make a false alarm rarer than 64 * 6e-10 = 4e-8
    assert np.all(np.abs(bits.mean(axis=0) - 0.5) < 6.2 * 0.5 / np.sqrt(200_000))


def test_nothing_is_drawn_for_no_number() -> None:
    assert SecureStream().uint64(0).shape == (0,)
