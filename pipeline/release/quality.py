"""Whether a source holds records that a study can use: at the first start, and later.

Whether a client goes on is public, so tests of a private study are noised: no slot is in two that
pass, and an observer learns epsilon / 4 of a unit from them, see docs/privacy/limitations.md. Words
on the client's own screen are exact.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from pipeline.records.batch import Reasons
from pipeline.release.task import Task
from pipeline.types import Integers

#: So many slots are looked at, at most: they are held in memory.
MOST = 50_000
#: Slots over which the share of unusable ones is taken, and fewer at the end of a source.
BLOCK, FEWEST = 250, 20
#: Noise is smaller than so many of its scales but once in 300,000 draws.
SURELY = 12
#: A jump is of so much at least, and of so many standard errors.
JUMP, ERRORS = 0.1, 4.0
#: Kinds of faults that are named.
NAMED = 4
#: What to do about values outside their range.
CUT = (
    "They are cut to it, and spent all the same: stop now with Ctrl-C if the range is wrong; the "
    "operator must see to `min` and `max` in the study's [data]"
)


@dataclass(frozen=True, slots=True)
class Trial:
    """The test of the first slots of a source.

    slots: How many are looked at, where the source has so many.
    scale: Of the discrete Laplace noise on each of two counts: of slots that can be used, and of
        those with a class or a level that the study does not declare, or a number in a form that
        is not read; 0: no noise.
    """

    slots: int
    scale: float

    @classmethod
    def of(cls, task: Task) -> Trial:
        """Return the test of a study's sources.

        No slot is in both counts. So taking the unit of a private study away moves them together by
        its records r, and noise of scale 4 r / epsilon on each costs epsilon / 4; of the strictest
        epsilon where there are levels. Replacing it can move both, by 2 r together.
        """
        privacy = task.study.privacy
        if not task.study.private:
            return cls(min(task.slots, MOST), 0.0)
        strictest = min(epsilon for epsilon in task.budget.epsilons if epsilon is not None)
        moves = privacy.records or 1
        if privacy.neighbours == "replace-one":
            moves *= 2
        slots = max(task.slots, math.ceil(28 * 4 * moves / strictest))
        return cls(min(slots, MOST), 4 * moves / strictest)

    @classmethod
    def later(cls, task: Task) -> Trial:
        """Return the test of the windows that follow, of which none is held back for it.

        With so many slots a source whose every fourth can be used is stopped with probability
        exp(-9) / 2 a test.
        """
        scale = cls.of(task).scale
        return cls(max(BLOCK, math.ceil(60 * scale)), scale)

    def stops(self, usable: int, tested: int, noise: int) -> bool:
        """Whether a stream is stopped, since hardly any of the last slots can be used."""
        return usable + noise < tested / 10

    def threshold(self, tested: int) -> float:
        """Return the noised count below which `tested` slots are refused; 0 or less: no test.

        A quarter of the slots, or less where they are few: a source whose slots are all good is
        refused with probability exp(-12) / 2 at most.
        """
        return min(tested / 4, tested - SURELY * self.scale)

    def refuses(self, usable: int, tested: int, noise: int) -> bool:
        """Whether a source is refused.

        usable, tested: How many of so many slots hold a record that can be used, without those of
            which a value is so far outside its range that its unit must be another one.
        noise: A draw of the noise.
        """
        threshold = self.threshold(tested)
        return threshold > 0 and usable + noise < threshold

    def mistakes(self, undeclared: int, tested: int, noise: int) -> bool:
        """Whether a source is refused since it and the study spell values differently.

        A class that is misspelt is lost as a whole, and what is left of the source may be most of
        it. A tenth of the slots is enough, or what noise hides: a source without any such value is
        refused with probability exp(-12) / 2 at most.

        undeclared: How many of so many slots hold a class or level that the study does not declare,
            or a number in a form that is not read.
        """
        return undeclared + noise > max(tested / 10, SURELY * self.scale)


def refusal_of(task: Task, usable: int, undeclared: int, slots: int, far: int = 0) -> str:
    """Return why a client would refuse a source like this at its start; empty if it would not.

    usable, undeclared, slots: Of its first slots, as many as `Trial.slots` or as it has: as for
        `Trial.refuses` and `Trial.mistakes`.
    far: How many of the usable ones have a value further outside its range than that is wide.
    """
    trial = Trial.of(task)
    if trial.threshold(slots) <= 0:
        return ""
    if trial.refuses(usable, slots, 0):
        return "hardly any of its records can be used"
    if trial.refuses(usable - far, slots, 0):
        return (
            "nearly all of its records have a value further outside its range than that is wide, "
            "as one of another unit has"
        )
    if trial.mistakes(undeclared, slots, 0):
        return (
            "too many of its records hold a class or a level that the study does not declare, or a "
            "number in a form that is not read"
        )
    return ""


def worded(faults: Counter[str]) -> str:
    """Return kinds of faults with their counts, the most frequent first."""
    most = faults.most_common(NAMED)
    named = [f"{count} x {kind}" for kind, count in most]
    others = sum(faults.values()) - sum(count for _, count in most)
    return "; ".join([*named, *([f"{others} x others"] if others else [])])


def in_blocks(flags: NDArray[np.bool_], before: int) -> tuple[Integers, list[int]]:
    """Return the sums of some slots' flags, (n, ...), by block of slots, and how many each has.

    before: Slots that the first block has already.
    """
    edges = [0, *range(BLOCK - before, len(flags), BLOCK)]
    sizes = [end - start for start, end in pairwise([*edges, len(flags)])]
    # no sum is larger than a byte can be
    sums = np.add.reduceat(flags.view(np.uint8), edges, axis=0, dtype=np.uint8)
    return sums.astype(np.int64), sizes


class Jumps:
    """Watches the share of unusable slots, and tells of each jump once.

    slots, unusable: What has come before.
    """

    def __init__(self, slots: int = 0, unusable: int = 0) -> None:
        self._before, self._unusable = slots, unusable
        self._slots = self._bad = 0
        self._parts: list[tuple[Reasons, slice]] = []

    def take(self, reasons: Reasons) -> list[str]:
        """Take the next slots, and return what to say."""
        said, done = list[str](), 0
        counts, sizes = in_blocks(reasons.codes != 0, self._slots)
        for bad, size in zip(counts.tolist(), sizes, strict=True):
            self._slots += size
            self._bad += bad
            self._parts.append((reasons, slice(done, done := done + size)))
            if self._slots == BLOCK and (line := self.close()):
                said.append(line)
        return said

    def close(self) -> str:
        """End the block of slots, at the end of a source; return what to say."""
        slots, bad, parts = self._slots, self._bad, self._parts
        if slots < FEWEST:
            return ""
        before = self._unusable / self._before if self._before else 0.0
        pooled = (bad + self._unusable) / (slots + self._before)
        shares = 1 / slots + (1 / self._before if self._before else 0.0)
        error = math.sqrt(pooled * (1 - pooled) * shares)
        first, share = not self._before, bad / slots
        # what follows is compared with the new share, whichever way it went
        changed = abs(share - before) >= max(JUMP, ERRORS * error)
        self._before = slots if changed else self._before + slots
        self._unusable = bad if changed else self._unusable + bad
        self._slots, self._bad, self._parts = 0, 0, []
        if not changed or share < before:
            return ""
        told = f"of the last {slots} record slots cannot be used, {before:.0%} before"
        if first:
            told = f"of the first {slots} record slots cannot be used"
        faults = sum((reasons.count(part) for reasons, part in parts), Counter[str]())
        del faults[""]
        return (
            f"WARNING: {share:.0%} {told}: {worded(faults)}. They are spent like others, on noise "
            "alone: the data owner must look at the source"
        )


class Clips:
    """Watches the share of values that are cut to their range, and tells of each column once.

    names: Of the columns, k of them.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names, self._told = names, set[str]()
        self._slots, self._cut = 0, np.zeros(len(names), dtype=np.int64)

    def take(self, beyond: NDArray[np.bool_]) -> list[str]:
        """Take which values of the next slots are cut, shape (n, k), and return what to say."""
        said = list[str]()
        counts, sizes = in_blocks(beyond, self._slots)
        counts[0] += self._cut
        sizes[0] += self._slots
        for at in np.flatnonzero((counts >= JUMP * BLOCK).any(axis=1)).tolist():
            if sizes[at] == BLOCK:
                self._slots, self._cut = BLOCK, counts[at]
                said += filter(None, [self.close()])
        full = sizes[-1] == BLOCK
        self._slots, self._cut = 0 if full else sizes[-1], counts[-1] * (not full)
        return said

    def close(self) -> str:
        """End the block of slots, at the end of a source; return what to say."""
        slots, cut = self._slots, self._cut
        if slots < FEWEST:
            return ""
        self._slots, self._cut = 0, np.zeros(len(self._names), dtype=np.int64)
        shares = dict(zip(self._names, (cut / slots).tolist(), strict=True))
        new = {n: s for n, s in shares.items() if s >= JUMP and n not in self._told}
        if not new:
            return ""
        self._told.update(new)
        named = ", ".join(f"{name} {share:.0%}" for name, share in new.items())
        return (
            f"WARNING: of the last {slots} values so many were outside their range: {named}. {CUT}"
        )
