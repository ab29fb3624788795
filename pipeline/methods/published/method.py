"""A published method as the rest of the program sees it: what it checks, keeps, gives and costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import msgspec
import numpy as np

from pipeline.errors import ConfigError, NumericError
from pipeline.losses import GeneralisedDWD, Loss
from pipeline.methods.base import Clients, OfflineFit
from pipeline.methods.published.fits import Problem, problem_of
from pipeline.methods.published.noise import least_stabiliser
from pipeline.methods.published.online import OnlineFit, Run, fold
from pipeline.methods.published.spec import Online, Spec, Trusted, Undamped, spec_of
from pipeline.privacy.guarantee import NO_PRIVACY, Guarantee
from pipeline.records.encoder import Arrays
from pipeline.release.budget import Budget
from pipeline.release.layout import Layout
from pipeline.release.model import Model
from pipeline.release.task import Task
from pipeline.study.model import DEFAULT_KIND, Study
from pipeline.study.tables import strict
from pipeline.study.versions import without_privacy
from pipeline.types import Vector


class OfflineTask(Task):
    """As `Task`: bounds alone; asking it for a release is an error."""

    def make_budget(self, level: str | None) -> Budget:
        """As `Task.make_budget`: nothing is noised record by record."""
        return Budget(self.study, level, touched=0)

    def check_fit(self) -> None:
        """As `Task.check_fit`: there is no lattice."""

    @property
    def layout(self) -> Layout:
        """As `Task.layout`: nothing is released."""
        return Layout.without_noise(self.size, 0.0, ())

    def query(self, window: Arrays, model: Model) -> NoReturn:
        """Refuse, as `Task.query` cannot be answered."""
        del window, model
        raise ConfigError(
            f'estimator.kind = "{self.study.estimator.kind}" has no releases: run `veilstream fit`'
        )

    open_query = query


#: Losses of two classes: the published methods know no other response.
CLASSIFICATION: tuple[str, ...] = ("gdwd", "logistic")
#: Claimed where the study itself has no such number.
USUAL_EPSILON, USUAL_DELTA = 1.0, 1e-5
#: Keys of [estimator] that all of them take as the study has them.
_COMMON = ("loss", "q", "smoothing", "ridge", "norm_bound", "level")


@dataclass(frozen=True, slots=True)
class Published:
    """One kind; the attributes on top of those of `OfflineMethod` say how it is made.

    keys: Type of its table [estimator.method].
    claim, counts: What it keeps private, by task and number of clients; and the same of counts.
    start: The stream of an online method before its first batch; None of the others.
    weighted: Whether it has class weights.
    wide: Whether its loss has the smoother curvature, which needs less noise.
    """

    kind: str
    label: str
    meaning: str
    needs: str
    keys: type[Spec]
    run: Run
    claim: Callable[[Task, int | None], str]
    counts: str
    start: Callable[[Problem[Any]], OnlineFit] | None = None
    weighted: bool = False
    wide: bool = False

    @property
    def online(self) -> bool:
        """Whether it sees each record once, in batches."""
        return self.start is not None

    @property
    def noised(self) -> bool:
        """Whether it adds (simulated) noise."""
        return "seed" in self.keys.__struct_fields__

    def check(self, study: Study) -> None:
        """Refuse what does not go with the kind, with the way out."""
        keys, estimator, kind = spec_of(study, self.keys), study.estimator, self.kind
        if study.privacy.mechanism != "none":
            # a budget next to a method that does not keep it would be a false promise
            claim = "put epsilon into [estimator.method], as a claim; " if self.noised else ""
            raise ConfigError(
                f'privacy.mechanism: kind = "{kind}" does not keep the guarantee of a study, so '
                f'only "none" is allowed, without epsilon and delta; {claim}kind = '
                f'"{DEFAULT_KIND}" is the one that keeps a guarantee'
            )
        if estimator.forgetting is not None:
            raise ConfigError(
                f'estimator.forgetting: kind = "{kind}" weighs all records alike, as published; '
                f'remove the key, or set kind = "{DEFAULT_KIND}"'
            )
        if estimator.loss not in CLASSIFICATION:
            raise ConfigError(
                f'estimator.loss: kind = "{kind}" has {", ".join(CLASSIFICATION)}; choose one of '
                f'them, or kind = "{DEFAULT_KIND}"'
            )
        if estimator.class_weights is not None and not self.weighted:
            raise ConfigError(
                f'estimator.class_weights: kind = "{kind}" has none, as published; remove the key, '
                "or choose a kind that has them"
            )
        ridged = getattr(keys, "ridge_matrix", "") in ("identity", "as-printed")
        _check_curvature(keys, kind, estimator.loss, ridged=ridged and estimator.ridge > 0)

    def task(self, study: Study, revision: str = "", level: str | None = None) -> OfflineTask:
        return OfflineTask(study, revision, level)

    def guarantee(self, task: Task, clients: int | None = None) -> Guarantee:
        """Return what it keeps private; PrivacyError as its noise."""
        said = self.claim(task, clients)
        return msgspec.structs.replace(NO_PRIVACY, guarantee=said, counts=self.counts)

    def fit(self, task: Task, clients: Clients) -> OfflineFit:
        """Run it over all records.

        Raises DataError if no slot holds a record; NumericError, PrivacyError if the method has no
        finite estimate for these records, or no scale of its noise.
        """
        problem = self._problem(task, clients)
        # what overflows shows as a number that is not finite, and is refused below
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            try:
                found = self.run(problem)
            except np.linalg.LinAlgError as error:
                raise NumericError(f"a matrix of this fit cannot be decomposed: {error}") from error
        if not np.all(np.isfinite(found.coefficients)):
            raise NumericError(
                f'kind = "{self.kind}" ran away to a number that is not finite: a larger '
                "estimator.ridge, larger windows or another kind is needed"
            )
        return found

    def path(self, task: Task, clients: Clients) -> Iterator[Vector]:
        """Yield the coefficients after each batch; none of a method that is not online."""
        if self.start is not None:
            problem = self._problem(task, clients)
            yield from fold(problem, self.start(problem))

    def beside(self, study: Study, seed: int) -> Study:
        """Return a study with this method for the same data, loss and ridge.

        It claims the study's epsilon and delta, or 1 and 1e-5; R is the identity, as in the paper's
        tables, where the method cannot start without; the stabiliser is the least that its own
        condition allows. Whether the method can go with the study is for the caller to check.
        """
        tables = msgspec.to_builtins(study)
        given = tables["estimator"]
        estimator = {key: given[key] for key in _COMMON}
        if self.weighted:
            estimator["class_weights"] = given["class_weights"]
        names = self.keys.__struct_fields__
        epsilon = study.privacy.epsilon or USUAL_EPSILON
        usual = {"epsilon": epsilon, "delta": study.privacy.delta or USUAL_DELTA, "seed": seed}
        keys: dict[str, Any] = {name: value for name, value in usual.items() if name in names}
        if issubclass(self.keys, Undamped):
            keys |= {"rounds": 1, "ridge_matrix": "identity"}
        if issubclass(self.keys, Trusted):
            task = OfflineTask(without_privacy(study))
            bound = _loss_of(task).curvature_bound
            held = least_stabiliser(epsilon, task.norm_bound, bound)
            keys |= {"stabiliser": held}
        tables["estimator"] = {**estimator, "kind": self.kind, "method": keys}
        tables["privacy"] = {"mechanism": "none"}
        return strict(tables, Study)

    def _problem(self, task: Task, clients: Clients) -> Problem[Any]:
        loss = _loss_of(task, wide=self.wide)
        return problem_of(task, spec_of(task.study, self.keys), loss, clients)


class RampedDWD(GeneralisedDWD):
    """V'' with a ramp that ends at u0 + e, where V'' is T, in place of its jump.

    Published methods add noise to each sum by itself, in proportion to the largest curvature: what
    a step gains beside a full slope is lost on them. And Newton's steps go to the end on a ramp.

    q, smoothing: As `GeneralisedDWD` takes them; e is by default half of the largest smoothing.
    symmetric: Whether the ramp begins at u0 - e, as in the paper, which leaves out up to half of
        the area there; else where the area comes out right. Source: Guo et al. 2025.
    """

    def __init__(
        self, q: float = 1.0, smoothing: float | None = None, *, symmetric: bool = False
    ) -> None:
        super().__init__(q, self.most_smoothing(q) / 2 if smoothing is None else smoothing)
        self.curvature_bound, self.top = self.height, self.knee + self.smoothing
        gained = -math.expm1((q + 1) * math.log(self.knee / self.top))
        self.foot = self.top - 2 * gained / self.height
        if symmetric:
            self.foot = self.knee - self.smoothing

    def curvature(self, predictor: Vector, response: Vector) -> Vector:
        """Return the ramped V''(u), shape (n,), in [0, curvature_bound]."""
        margin = response * predictor
        ramp = np.maximum(self.height * (margin - self.foot) / (self.top - self.foot), 0.0)
        return np.where(margin >= self.top, self.sharp_curvature(predictor, response), ramp)


def _loss_of(task: Task, *, wide: bool = False) -> Loss:
    """Return the loss of a study as published methods have it; without noise a sharper one."""
    given = task.study.estimator
    if given.loss != "gdwd":
        return task.loss
    usual = GeneralisedDWD.most_smoothing(given.q) / (2 if wide else 10)
    return RampedDWD(given.q, usual if given.smoothing is None else given.smoothing)


def _check_curvature(keys: Spec, kind: str, loss: str, *, ridged: bool) -> None:
    """Refuse a method that would need a curvature where it has none."""
    if isinstance(keys, Trusted) and not (ridged or keys.stabiliser):
        raise ConfigError(
            f'estimator.method.stabiliser: kind = "{kind}" has no noise scale without a curvature '
            'that is positive in every direction: set stabiliser > 0, or ridge_matrix = "identity" '
            '(or "as-printed") with estimator.ridge > 0'
        )
    literal = isinstance(keys, Online) and keys.start == "one-step"
    if (isinstance(keys, Undamped) or literal) and loss == "gdwd" and not ridged:
        raise ConfigError(
            "estimator.method.ridge_matrix: gdwd has no curvature at zero, so a first step from "
            'there needs a ridge > 0 on every coefficient: set ridge_matrix = "identity" (or '
            '"as-printed") and estimator.ridge > 0, or another kind or start'
        )
