"""Canaries: values that raw records carry, and the search for them in what a system puts out.

A canary is searched for in every form in which a program could let it slip: as text, clipped,
in UTF-16, base64 or hex, as a float of either size and byte order, as it is and as it is scaled.
"""

from __future__ import annotations

import base64
import json
import math
import random
import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

LABEL, TEXT, COLUMN = "canary-label-7f3a", "canary-text-91bc", "canary-column-c41d"
NOTE, TORN, QUOTED = "canary-note-55e0", "canary-torn-2ab9", "canary-quoted-8b3e"
LONG, BYTES, MARKED = "canary-long-e07c", "canary-bytes-c3d8", "canary-marked-06fd"
#: What all text canaries have in common: a clipped one is one too.
STEM = "canary"
TEXTS = (LABEL, TEXT, COLUMN, NOTE, TORN, QUOTED, LONG, BYTES, MARKED, STEM)
#: Within the public ranges 0 to 100 and -1 to 1, and far outside the first.
HEAT, LOAD, BEYOND = 73.19284637, 0.38461729, 918273.645
#: Raw, and mapped from the public range to [-1, 1]; a load is the same in both.
NUMBERS = (HEAT, LOAD, BEYOND, (HEAT - 50) / 50, (BEYOND - 50) / 50)
HEADER = f"heat,load,failed,{COLUMN}\n"
_FOR_URLS = bytes.maketrans(b"+/", b"-_")


@dataclass(frozen=True)
class Form:
    """One form of a canary.

    `bounded` says that it is so short that it counts only as a whole number, `folded` that upper
    case counts as lower case.
    """

    name: str
    needle: bytes
    bounded: bool = False
    folded: bool = False

    def within(self, data: bytes, lower: bytes) -> bool:
        """Whether the form stands in some bytes, given also in lower case."""
        if self.needle not in (lower if self.folded else data):
            return False
        if not self.bounded:
            return True
        return bool(re.search(rb"(?<![\d.])" + re.escape(self.needle) + rb"(?![\d.])", lower))


@dataclass(frozen=True)
class Output:
    """Something that the system has put out.

    Attributes
    ----------
    place
        Where it was found.
    data
        Its bytes.
    local
        Whether it is for the eyes of who may see the raw data: it may hold counts of records, and
        no values.
    plain
        Its numbers as text, where a count of records would be seen; empty where the bytes hold
        noised numbers, among which any count stands by chance.
    """

    place: str
    data: bytes
    local: bool = False
    plain: str = field(default="", repr=False)


def text(place: str, said: str | bytes, *, local: bool = False) -> Output:
    """Return an output that is text."""
    data = said if isinstance(said, bytes) else said.encode(errors="surrogateescape")
    return Output(place, data, local, data.decode(errors="replace"))


def forms() -> list[Form]:
    """Return every form of every canary."""
    return [
        *(form for canary in TEXTS for form in forms_of_text(canary)),
        *(form for canary in NUMBERS for form in forms_of_number(canary)),
    ]


def forms_of_text(canary: str) -> Iterator[Form]:
    """Return the forms of a word."""
    yield Form(f"{canary} as text", canary.encode(), folded=True)
    for code in ("utf-16-le", "utf-16-be"):
        yield Form(f"{canary} in {code}", canary.encode(code), folded=True)
    yield Form(f"{canary} in hex", canary.encode().hex().encode(), folded=True)
    yield from _in_base64(canary, canary.encode())


def forms_of_number(canary: float) -> Iterator[Form]:
    """Return the forms of a number, of either sign where it is binary."""
    for digits in (4, 6, 7, 8):
        short = f"{canary:.{digits}g}".encode()
        yield Form(f"{canary} to {digits} digits", short, bounded=True)
    # what goes on behind eight digits is the same number, or as good as it
    head = re.match(r"[0.]*(?:\d\.?){8}", repr(canary))
    whole = head[0] if head else repr(canary)
    yield Form(f"{canary} as text", whole.encode())
    yield Form(f"{canary} as a hexadecimal float", canary.hex().encode(), folded=True)
    for code in ("utf-16-le", "utf-16-be"):
        yield Form(f"{canary} in {code}", whole.encode(code))
    yield Form(f"the text of {canary} in hex", whole.encode().hex().encode(), folded=True)
    yield from _in_base64(f"the text of {canary}", whole.encode())
    for value in (canary, -canary):
        for kind in ("<d", ">d", "<f", ">f"):
            data = struct.pack(kind, value)
            yield Form(f"{value} as {kind}", data)
            yield Form(f"{value} as {kind} in hex", data.hex().encode(), folded=True)
            if kind[1] == "d":  # of a short float, too few letters are left to tell it from chance
                yield from _in_base64(f"{value} as {kind}", data)


def count_forms(counts: Iterable[int]) -> list[tuple[int, re.Pattern[str]]]:
    """Return what finds each count as a number of its own, also as 137.0."""
    return [(n, re.compile(rf"(?<![\w.]){n}(?:\.0+)?(?!\w|\.\d)")) for n in counts]


def found(outputs: Iterable[Output], searched: Iterable[Form]) -> list[tuple[str, str]]:
    """Return where which form stands."""
    searched = list(searched)
    seen = []
    for output in outputs:
        lower = output.data.lower()
        seen += [(output.place, f.name) for f in searched if f.within(output.data, lower)]
    return seen


def counts_found(outputs: Iterable[Output], counts: Iterable[int]) -> list[tuple[str, int]]:
    """Return where which count stands."""
    searched = count_forms(counts)
    return [(o.place, n) for o in outputs for n, pattern in searched if pattern.search(o.plain)]


@dataclass(frozen=True)
class Mix:
    """How many records of which kind a window is to hold."""

    rejected: int
    positive: int
    negative: int
    clipped: int

    @property
    def used(self) -> int:
        """Records that enter."""
        return self.positive + self.negative

    @property
    def slots(self) -> int:
        """Records, good and bad."""
        return self.used + self.rejected

    @property
    def counts(self) -> set[int]:
        """Every number that says something about the records."""
        return {self.rejected, self.positive, self.negative, self.clipped, self.used, self.slots}

    def __add__(self, other: Mix) -> Mix:
        """Return what two windows hold together."""
        pairs = zip(self._parts(), other._parts(), strict=True)
        return Mix(*(one + two for one, two in pairs))

    def _parts(self) -> tuple[int, int, int, int]:
        return self.rejected, self.positive, self.negative, self.clipped

    def csv(self, seed: int) -> list[bytes]:
        """Return the records as CSV, in no order."""
        chance = random.Random(seed)
        notes = (NOTE, f'"{QUOTED}, and more"', f'"{QUOTED}\nin two lines"')
        made = []
        for heat, label in self._good(chance):
            load = LOAD if chance.random() < 0.3 else chance.uniform(-1, 1)
            quoted = f'"{label}"' if chance.random() < 0.2 else label
            made.append(f"{heat!r},{load!r},{quoted},{chance.choice(notes)}\n".encode())
        made += [bad_csv(i) for i in range(self.rejected)]
        chance.shuffle(made)
        return made

    def json(self, seed: int) -> list[bytes]:
        """Return the records as JSON lines, in no order."""
        chance = random.Random(seed)
        made = [
            json.dumps({"heat": heat, "load": LOAD, "failed": label, COLUMN: NOTE}).encode() + b"\n"
            for heat, label in self._good(chance)
        ]
        made += [bad_json(i) for i in range(self.rejected)]
        chance.shuffle(made)
        return made

    def _good(self, chance: random.Random) -> list[tuple[float, str]]:
        labels = ["yes"] * self.positive + ["no"] * self.negative
        chance.shuffle(labels)
        inside = [
            HEAT if chance.random() < 0.3 else chance.uniform(0, 100)
            for _ in range(self.used - self.clipped)
        ]
        return list(zip([BEYOND] * self.clipped + inside, labels, strict=True))


def bad_csv(i: int) -> bytes:
    """Return a CSV record that is set aside, of the kind number i."""
    kinds = [
        f"50,0.5,{LABEL},{NOTE}".encode(),
        f"{TEXT},0.5,yes,{NOTE}".encode(),
        f"{HEAT!r},{TEXT},no,{NOTE}".encode(),
        f"{HEAT!r},{TORN}".encode(),
        f"{HEAT!r},0.5,yes,{NOTE},{TORN}".encode(),
        f'50,0.5,"{TORN}"x,{NOTE}'.encode(),
        f"{HEAT!r},0.5,yes,{BYTES}".encode() + b"\xff\xfe",
        f"{HEAT!r}e999,0.5,yes,{NOTE}".encode(),
        f",{LOAD!r},yes,{NOTE}".encode(),
        MARKED.encode("utf-16"),  # with a byte order mark
    ]
    # these two once: one is a mebibyte long, the other is read up to the next quote
    if i == len(kinds):
        return f"{HEAT!r},0.5,yes,{LONG * math.ceil((1 << 20) / len(LONG))}\n".encode()
    if i == len(kinds) + 1:
        return f'50,0.5,yes,"{TORN}\n'.encode()
    return kinds[i % len(kinds)] + b"\n"


def bad_json(i: int) -> bytes:
    """Return a line that is no good JSON record, of the kind number i."""
    kinds = [
        f'{{"heat": {HEAT!r}, "load": 0.5, "failed": "{LABEL}"}}',
        f'{{"heat": "{TEXT}", "load": 0.5, "failed": "yes"}}',
        f'{{"heat": {HEAT!r}, "load": ["{TEXT}"], "failed": "yes"}}',
        f'{{"heat": {HEAT!r}, "load": 0.5, "failed": "{TORN}',
        f'{{"heat": {HEAT!r}, "load": NaN, "failed": "yes", "{COLUMN}": "{NOTE}"}}',
        f'["{TEXT}", {HEAT!r}]',
        f'{{"heat": {HEAT!r}, "failed": "yes", "{COLUMN}": "{NOTE}"}}',
    ]
    line = kinds[i % len(kinds)].encode()
    return (line + b"\xff\n") if i % 11 == 10 else line + b"\n"


def _in_base64(name: str, data: bytes) -> Iterator[Form]:
    """Yield the letters that are the same whatever stands before and behind, for each alignment."""
    for before in range(3):
        first, last = math.ceil(before * 8 / 6), (before + len(data)) * 8 // 6
        letters = base64.b64encode(bytes(before) + data)
        yield Form(f"{name} in base64", letters[first:last])
        yield Form(f"{name} in base64 for addresses", letters[first:last].translate(_FOR_URLS))
