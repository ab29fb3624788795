"""Standard input that is read once: the slots of a file, whatever pieces it comes in."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import DataError
from producers.sources import open_once, open_source
from producers.sources.base import Slot
from producers.sources.text import RECORD_LIMIT
from tests.compliance.sources import drain


class Pieces(io.RawIOBase):
    """A pipe that gives its bytes in pieces of given sizes, and then as they come."""

    def __init__(self, data: bytes, sizes: list[int]) -> None:
        self._data, self._sizes = data, sizes

    def read(self, size: int = -1) -> bytes:
        size = min(size, self._sizes.pop(0) if self._sizes else size)
        piece, self._data = self._data[:size], self._data[size:]
        return piece


def seen(slots: list[Slot]) -> list[tuple[object, object, int]]:
    return [(slot.record, slot.fault, slot.line) for slot in slots]


CSV = 'x,y\n1,2\n\n"a\nb","c""d"\n1,2,3\n1,"2"x\n\n\n7,é\nlast,9'.encode()
JSONL = b'{"x": 1}\n\n{"x": \n[1]\n{"x": NaN}\r\n{"x": "\xc3\xa9"}\n\n{"x": 3}'


@pytest.mark.parametrize(("form", "data"), [("csv", CSV), ("jsonl", JSONL)])
@given(sizes=st.lists(st.integers(1, 12)))
def test_a_pipe_has_the_slots_and_lines_of_a_file(
    form: str, data: bytes, sizes: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / f"pipe.{form}"
    path.write_bytes(data)
    file = drain(open_source(str(path), None, folder=Path()))
    pipe = drain(open_once("-", form=form, stream=Pieces(data, sizes)))
    assert seen(pipe) == seen(file)
    assert [slot.fault for slot in pipe if slot.fault and str(slot.line) not in slot.fault] == []


def test_lines_are_those_where_records_begin() -> None:
    lines = [slot.line for slot in drain(open_once("-", stream=io.BytesIO(CSV)))]
    assert lines == [2, 4, 6, 7, 10, 11]


def test_records_come_while_the_pipe_is_open() -> None:
    source = open_once("-", stream=Pieces(b"x\n1\n2\n3", [2, 2, 3]))
    assert [slot.record for slot in source.read(10, 0.1)] == [{"x": "1"}]
    assert [slot.record for slot in source.read(10, 0.1)] == [{"x": "2"}]
    assert not source.ended
    assert [slot.record for slot in drain(source)] == [{"x": "3"}]


def test_a_line_that_is_too_long_is_one_bad_record() -> None:
    data = b"x\n1\n" + b"7" * (RECORD_LIMIT + 5) + b"\n2\n"
    slots = drain(open_once("-", stream=io.BytesIO(data)))
    assert [(slot.record, slot.line) for slot in slots] == [
        ({"x": "1"}, 2),
        (None, 3),
        ({"x": "2"}, 4),
    ]


@pytest.mark.parametrize(("data", "word"), [(b"", "no header line"), (b"x,x\n", "alike")])
def test_a_pipe_without_a_usable_header_is_refused(data: bytes, word: str) -> None:
    with pytest.raises(DataError, match=word):
        open_once("-", stream=io.BytesIO(data))


def test_a_pipe_that_cannot_be_read_says_who_must_act() -> None:
    closed = io.BytesIO(b"x\n")
    closed.close()
    with pytest.raises(DataError, match=r"cannot be read .* the data owner"):
        open_once("-", stream=closed)
    with pytest.raises(DataError, match="choose csv or jsonl"):
        open_once("-", form="xml", stream=io.BytesIO(b""))
