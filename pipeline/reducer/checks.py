"""What a release must be before it is folded; every failure is a dead letter with a reason."""

from __future__ import annotations

from pipeline.errors import PayloadError
from pipeline.local.model import COEFFICIENT_EXPONENT
from pipeline.local.plan import Plan
from pipeline.messages.release import Numbers, OpenRelease, PrivateRelease, Release


class Layout:
    """The only form in which one vector of a release may come."""

    __slots__ = ("_bytes", "_dtype", "_exponents", "_length", "_name")

    def __init__(self, name: str, dtype: str, length: int, exponents: tuple[int, ...]) -> None:
        self._name, self._dtype, self._length, self._exponents = name, dtype, length, exponents
        self._bytes = 8 * length

    def check(self, numbers: Numbers) -> None:
        """Refuse any other form.

        Raises
        ------
        PayloadError
            Naming the vector and its form.
        """
        if (
            numbers.length != self._length
            or len(numbers.data) != self._bytes
            or numbers.dtype != self._dtype
        ):
            raise PayloadError(
                "wrong-shape", f"{self._name} must be {self._length} numbers of type {self._dtype}"
            )
        if numbers.exponents != self._exponents:
            raise PayloadError(
                "wrong-unit", f"{self._name} must be in units of 2 to the {self._exponents}"
            )


class Checker:
    """Checks the parts of a release that need no arithmetic, against one study.

    Parameters
    ----------
    plan
        The study's public numbers.
    revision
        The one that releases must name; default: the plan's.
    """

    def __init__(self, plan: Plan, revision: str = "") -> None:
        self._private, self._revision = plan.study.noised, revision or plan.revision
        self._slots = plan.slots
        self._claim = plan.claim
        size, packed = plan.size, plan.size * (plan.size + 1) // 2
        if plan.by_record:
            numbers = plan.slots * size + plan.beside
            form, exponents = ("<i8", plan.step.exponents) if self._private else ("<f8", (0,))
            self._expansion = Layout(
                "expansion", form, size, (COEFFICIENT_EXPONENT,) if self._private else (0,)
            )
            count = numbers if self._private else numbers + 2
            self._start = self._step = Layout("sums", form, count, exponents)
        elif self._private:
            self._expansion = Layout("expansion", "<i8", size, (COEFFICIENT_EXPONENT,))
            first, later = plan.groups * size + plan.counted(0), size + packed + plan.counted(1)
            self._start = Layout("sums", "<i8", first, plan.start.exponents)
            self._step = Layout("sums", "<i8", later, plan.step.exponents)
        else:
            self._expansion = Layout("expansion", "<f8", size, (0,))
            self._step = Layout("sums", "<f8", size + 2 * packed + 2, (0,))

    def check(self, release: Release, key: bytes | None) -> None:
        """Check one release.

        Raises
        ------
        PayloadError
            With a stable reason; the detail names the field and what was expected.
        """
        if release.revision != self._revision:
            raise PayloadError(
                "wrong-revision",
                f"made under another study revision than {self._revision}; update the "
                "client's study file",
            )
        if key is None or key != release.client.encode():
            raise PayloadError("wrong-key", "the record's key is not the client id of its payload")
        if isinstance(release, PrivateRelease):
            self._check_private(release)
        else:
            self._check_open(release)

    def _check_private(self, release: PrivateRelease) -> None:
        if not self._private:
            raise PayloadError("wrong-kind", "a private release in a study without privacy")
        if release.claim != self._claim or release.slots != self._slots:
            raise PayloadError(
                "wrong-claim", f"the slots or the policy are not the study's: {self._claim}"
            )
        self._expansion.check(release.expansion)
        (self._step if release.version else self._start).check(release.sums)

    def _check_open(self, release: OpenRelease) -> None:
        if self._private:
            raise PayloadError("wrong-kind", "a release without privacy in a private study")
        if release.records > self._slots:
            raise PayloadError("wrong-claim", "more records than the window has slots")
        self._expansion.check(release.expansion)
        self._step.check(release.sums)
