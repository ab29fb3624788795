"""What a release must be before it is folded; every failure is a dead letter with a reason."""

from __future__ import annotations

from pipeline.errors import PayloadError
from pipeline.local.model import COEFFICIENT_EXPONENT
from pipeline.local.plan import Plan
from pipeline.messages.release import OpenRelease, PrivateRelease, Release, Tensor


class Layout:
    """The only form in which one array of a release may come."""

    __slots__ = ("_bytes", "_dtype", "_exponent", "_shape")

    def __init__(self, dtype: str, length: int, exponent: int) -> None:
        self._dtype, self._shape, self._exponent = dtype, (length,), exponent
        self._bytes = 8 * length

    def check(self, name: str, tensor: Tensor) -> None:
        """Refuse any other form.

        Raises
        ------
        PayloadError
            Naming the array and its form.
        """
        if (
            tensor.shape != self._shape
            or len(tensor.data) != self._bytes
            or tensor.dtype != self._dtype
        ):
            raise PayloadError(
                "wrong-shape", f"{name} must be {self._shape[0]} numbers of type {self._dtype}"
            )
        if tensor.exponent != self._exponent:
            raise PayloadError("wrong-unit", f"{name} must be in units of 2^{self._exponent}")


class Checker:
    """Checks the parts of a release that need no arithmetic, against one study.

    Parameters
    ----------
    plan
        The study's public numbers.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        size, packed = plan.size, plan.size * (plan.size + 1) // 2
        floats = {"expansion": size, "gradient": size, "curvature": packed, "scores": packed}
        self._open = {name: Layout("<f8", n, 0) for name, n in {**floats, "counts": 2}.items()}
        if plan.study.private:
            start, step, policy = plan.start, plan.step, plan.guarantee
            if step.curvature is None:
                raise ValueError("a step releases its curvature")
            self._expansion = Layout("<i8", size, COEFFICIENT_EXPONENT)
            self._start = Layout("<i8", 2 * size, start.gradient.exponent)
            self._start_counts = Layout("<i8", 2, start.counts.exponent)
            self._gradient = Layout("<i8", size, step.gradient.exponent)
            self._curvature = Layout(
                "<i8", packed, step.curvature.exponent if step.curvature else 0
            )
            self._counts = Layout("<i8", 2, step.counts.exponent)
            self._claim = (plan.slots, policy.mechanism, policy.epsilon, policy.delta)

    def check(self, release: Release, key: bytes | None) -> None:
        """Check one release.

        Raises
        ------
        PayloadError
            With a stable reason; the detail names the field and what was expected.
        """
        if release.revision != self._plan.revision:
            raise PayloadError(
                "wrong-revision",
                f"made under another study revision than {self._plan.revision}; update the "
                "client's study file",
            )
        if key is None or key != release.client.encode():
            raise PayloadError("wrong-key", "the record's key is not the client id of its payload")
        if isinstance(release, PrivateRelease):
            self._check_private(release)
        else:
            self._check_open(release)

    def _check_private(self, release: PrivateRelease) -> None:
        if not self._plan.study.private:
            raise PayloadError("wrong-kind", "a private release in a study without privacy")
        claim = (release.slots, release.mechanism, release.epsilon, release.delta)
        if claim != self._claim:
            raise PayloadError(
                "wrong-claim", "slots, mechanism, epsilon or delta are not those of the study"
            )
        self._expansion.check("expansion", release.expansion)
        if release.version == 0:
            if release.curvature is not None:
                raise PayloadError("wrong-shape", "a release at the start has no curvature")
            self._start.check("gradient", release.gradient)
            self._start_counts.check("counts", release.counts)
            return
        if release.curvature is None:
            raise PayloadError("wrong-shape", "a release after the start needs its curvature")
        self._gradient.check("gradient", release.gradient)
        self._curvature.check("curvature", release.curvature)
        self._counts.check("counts", release.counts)

    def _check_open(self, release: OpenRelease) -> None:
        if self._plan.study.private:
            raise PayloadError("wrong-kind", "a release without privacy in a private study")
        if release.records > self._plan.slots:
            raise PayloadError("wrong-claim", "more records than the window has slots")
        for name, layout in self._open.items():
            layout.check(name, getattr(release, name))
