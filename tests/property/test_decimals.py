"""Many short texts become the numbers that Python reads, bit by bit."""

from __future__ import annotations

import re
import struct

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.records.batch import Mask
from pipeline.records.decimals import LONGEST, decimals
from pipeline.types import Vector

PLAIN = re.compile(r"-?([0-9]+\.?[0-9]*|\.[0-9]+)")
DIGITS = st.text("0123456789", max_size=20)
WRITTEN = st.tuples(st.sampled_from(["", "-"]), DIGITS, st.sampled_from(["", "."]), DIGITS)
TEXTS = st.one_of(
    WRITTEN.map("".join),
    st.floats(allow_nan=False).map(repr),
    st.integers(-(10**17), 10**17).map(str),
    st.text("0123456789.-+eE_ x\u0663\0/:;", max_size=20),
)


def read(texts: list[str]) -> tuple[Vector, Mask]:
    """Read texts, each with a comma behind it."""
    ends = np.cumsum([len(text.encode()) + 1 for text in texts], dtype=np.int64) + LONGEST - 1
    data = b"9" * LONGEST + "".join(f"{text}," for text in texts).encode()
    starts = np.concatenate([[LONGEST], ends[:-1] + 1])[: len(texts)]
    return decimals(np.frombuffer(data, dtype=np.uint8), starts, ends)


@example(texts=[])
@example(texts=["9007199254740992", "9007199254740993", "-9.007199254740993"])
@example(texts=["-0", "-", ".", "-.", "", "5.", ".5", "--5", "1-2", "1.2.3", "0000000000000007"])
# half-way between two numbers, or next to it; 19 and 20 digits; 22 and 23 behind the point
@example(texts=["9007199254740993.0", "9007199254740993.001", "9007199254740992.999", "1e22"])
@example(texts=["18439999999999999999", "18999999999999999999", "99999999999999999999", "5e-324"])
@example(texts=[".0000987654321098765432", ".00009876543210987654321", ".00001234567890123456789"])
@example(texts=["0.30000000000000004", ".00007777777777777777777", ".00005551115123125782702"])
@given(texts=st.lists(TEXTS, max_size=30))
def test_what_is_read_has_the_bits_that_python_gives(texts: list[str]) -> None:
    values, sure = read(texts)
    for text, value, known in zip(texts, values.tolist(), sure.tolist(), strict=True):
        plain = PLAIN.fullmatch(text)
        short = plain and len(text.lstrip("-")) <= 16
        assert known or not short
        assert plain or not known
        assert struct.pack("d", value) == struct.pack("d", float(text) if known else 0.0)


def test_numbers_as_python_prints_them_are_read() -> None:
    rng = np.random.default_rng(20261128)
    texts = [repr(number) for number in rng.uniform(-1e3, 1e3, 20_000).tolist()]
    values, sure = read(texts)
    assert np.mean(sure) == 1
    assert values.tolist() == [float(text) for text in texts]
