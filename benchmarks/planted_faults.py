"""The faults of `benchmarks.planted`: what to change where, and the tests that ought to see it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    name, file: In words, and where.
    old, new: The text that it changes, which occurs there once, and what it becomes.
    tests: Files or tests for pytest.
    test_is_new: Whether it passed every test when it was first planted.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    test_is_new: bool = False


_SGD, _LEDGER = "tests/unit/test_sgd_study.py", "tests/producers/test_ledger.py"
_SENSITIVITY, _PERSONAL = "tests/property/test_sensitivity.py", "tests/unit/test_personal.py"
_ACCOUNTING = "tests/unit/test_accounting.py"
_MECHANISMS, _LOST = "tests/unit/test_mechanisms.py", "tests/producers/test_lost_databases.py"
_TOGETHER = "tests/property/test_one_budget.py"
_SEARCH = "tests/producers/test_newest_release.py"
_BUDGET, _NEWEST = "pipeline/release/budget.py", "tests/unit/test_newest.py"
_RENEWABLE = "pipeline/methods/renewable/client.py"

FAULTS = (
    Fault("a user's records compose as a root although they share a matrix",
          "pipeline/methods/ldp_sgd/client.py",
          "noise_per_record=not self.extra_numbers",
          "noise_per_record=True", (_SGD,), test_is_new=True),
    Fault("a user's records in windows compose as a root", _BUDGET,
          "whole = mechanism.budget(self._touched * records * self.releases) / share",
          "whole = mechanism.budget(self._touched * records * self.releases) / math.sqrt(records)",
          (_MECHANISMS, _LEDGER)),
    Fault("class counts outside of the shares", _RENEWABLE,
          "else sum(shares.values())",
          'else sum(v for name, v in shares.items() if name != "counts")', (_MECHANISMS,)),
    Fault("a loss's curvature said to be small where slopes are not", "pipeline/losses.py",
          "return ends[1:], 4 * ends[:-1] * (1 - ends[:-1])",
          "return ends[1:], 4 * ends[1:] * (1 - ends[1:])",
          ("tests/unit/test_families.py", _TOGETHER)),
    Fault("gradients left out of what one record uses up", "pipeline/methods/renewable/spec.py",
          'moved = {"gradient": slope, "curvature"',
          'moved = {"gradient": 0 * slope, "curvature"', (_TOGETHER, "tests/unit/test_shares.py")),
    Fault("a middle calibrated for slopes, not for their squares", _RENEWABLE,
          '("middle", slope * slope)',
          '("middle", slope)', (_TOGETHER, _SENSITIVITY)),
    Fault("short records that replace each other taken for parallel ones", _RENEWABLE,
          "if self.split.middle is None:\n            return sensitivity.of_curvature",
          "if factor:\n            return sensitivity.of_curvature",
          (_TOGETHER,), test_is_new=True),
    Fault("noise that remembers without the norm of its memory", "pipeline/privacy/mechanism.py",
          "scale *= memory.NORM * 2**memory.BITS",
          "scale *= 2**memory.BITS",
          (_MECHANISMS, _TOGETHER, "tests/property/test_chain_attack.py")),
    Fault("products calibrated for slopes, not for their squares",
          "pipeline/methods/ldp_sgd/client.py",
          'matrix("products", self.loss.slope_bound**2)',
          'matrix("products", self.loss.slope_bound)',
          ("tests/unit/test_sgd_intervals.py", _SENSITIVITY)),
    Fault("a looser level than the client's own", "pipeline/methods/ldp_sgd/client.py",
          "np.minimum(np.where(known, self.levels, 0), self.ceiling)",
          "np.where(known, self.levels, 0)", (_PERSONAL,)),
    Fault("the diagonal of a matrix with the noise of its other entries",
          "pipeline/release/query.py",
          "Piece(on, values[on], self.diagonal)",
          "Piece(on, values[on], self.off_diagonal)", (_MECHANISMS,)),
    Fault("orthogonal products taken for parallel ones", "pipeline/privacy/sensitivity.py",
          "factor * norm * norm * (math.sqrt(2) if",
          "factor * norm * norm * (1.0 if", (_SENSITIVITY,)),
    Fault("an exchanged class counted once", "pipeline/privacy/sensitivity.py",
          "return 2.0 if order == 1 else math.sqrt(2)",
          "return 1.0", (_SENSITIVITY,)),
    Fault("rounding of a matrix left out", "pipeline/privacy/sensitivity.py",
          "return size + math.sqrt(2) * size * (size - 1) / 2 if order == 1 else float(size)",
          "return 0.0", (_SENSITIVITY, _MECHANISMS)),
    Fault("the start calibrated for half of its slopes", _RENEWABLE,
          "return self._channels(shares, self.loss.start_slope_bound)",
          "return self._channels(shares, self.loss.start_slope_bound / 2)", (_SENSITIVITY,)),
    Fault("a replacement charged as one absence", "pipeline/privacy/accounting.py",
          "changes = 2 if twice else 1",
          "changes = 1", (_ACCOUNTING, _LEDGER)),
    Fault("a group charged as one record", "pipeline/privacy/accounting.py",
          "return group(event, changes * self.records)",
          "return group(event, changes)", (_ACCOUNTING, _LEDGER)),
    Fault("stored costs read as noised apart", "producers/budget.py",
          "noise_per_record=self.noise_per_record",
          "noise_per_record=True", (_LEDGER,)),
    Fault("a looser level later on is free", "producers/budget.py",
          "        if total == before and not each:\n",
          "        if before is not None and not each:\n", (_LEDGER,)),
    Fault("the limit of a source passed by a tenth", "producers/budget.py",
          "        if epsilon > limit * (1 + HAIR):",
          "        if epsilon > limit * 1.1:", (_LEDGER,)),
    Fault("lost releases charged at the client's own level", "producers/store.py",
          "dict.fromkeys(seqs, task.budget.largest_event)",
          "dict.fromkeys(seqs, task.budget.event)", (_LEDGER,)),
    Fault("lost releases not charged", "producers/store.py",
          "            self._budgets.charge(task, source, most, refuse=False)\n",
          "",
          ("tests/producers/test_client_store.py::test_lost_releases_are_charged_and_passed_over",
           _LOST)),
    Fault("the folder forgets how many releases there were", "producers/store.py",
          "        self._count(study, len(group))\n",
          "", (_LOST,)),
    Fault("the first lost release taken for the newest", "producers/rollback.py",
          "if self.newest is None or release.seq >= self.newest.seq:",
          "if self.newest is None:", (_SEARCH,)),
    Fault("another ledger's releases taken for this one's", "producers/rollback.py",
          "        if release.ledger != self._ledger:\n",
          "        if not release.ledger:\n", (_SEARCH,)),
    Fault("versions in models that no release can say", "pipeline/messages/model.py",
          "Meta(ge=1, le=VERSION_LIMIT)",
          "Meta(ge=1, lt=2**53)", (_NEWEST,), test_is_new=True),
    Fault("noise of the start changed without a new revision",
          "pipeline/methods/renewable/method.py",
          'START_SEMANTICS = {"logistic": 2}',
          "START_SEMANTICS: dict[str, int] = {}", ("tests/unit/test_study.py",), test_is_new=True),
)  # fmt: skip
