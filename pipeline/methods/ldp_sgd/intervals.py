"""All intervals that the releases of a study allow, by method, and what each one needs and costs.

Random scaling reads the path; plug-in intervals are sandwiches of what was released.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from scipy.special import ndtri

from pipeline.errors import NumericError
from pipeline.methods.ldp_sgd import plug_in
from pipeline.methods.ldp_sgd.bending import straightened
from pipeline.methods.ldp_sgd.plug_in import PlugIn, PooledPlugIn
from pipeline.methods.ldp_sgd.random_scaling import RandomScaling
from pipeline.methods.ldp_sgd.settings import scaling_of
from pipeline.methods.ldp_sgd.spec import INTERVALS
from pipeline.methods.ldp_sgd.sums import Sums
from pipeline.methods.ldp_sgd.task import GradientTask
from pipeline.privacy.policy import PUBLISHED
from pipeline.types import Vector

#: Half the length of the intervals at a level, shape (d,).
HalfWidth = Callable[[float], Vector]


def plug_ins(task: GradientTask, parts: Sequence[Sums]) -> dict[str, PooledPlugIn]:
    """Return the plug-in estimates by the names of their intervals, without those that fail yet.

    One that fails for one of several pooled paths fails for all.

    parts: The sums of each path, or of each log of a shared one, after its burn-in.
    """
    made: dict[str, Callable[[Sequence[Sums]], PlugIn]] = {"plug-in": plug_in.without_release}
    scaling = scaling_of(task)
    if scaling is not None:
        made["plug-in-curvature"] = lambda logs: plug_in.with_curvature(logs, scaling)
    if scaling is not None and "products" in task.shares:
        noise = gradient_noise(task) ** 2
        made["plug-in-products"] = lambda logs: plug_in.moved(
            logs, plug_in.published_middle(plug_in.released_mean(logs, 1), noise), scaling
        )
    paths = [[part] for part in parts] if task.partition_strategy == "pooled" else [parts]
    found = {}
    for name, make in made.items():
        try:
            each = tuple(make(logs) for logs in paths)
        except NumericError:
            continue
        found[name] = straightened(task, paths, each)
    return found


def gradient_noise(task: GradientTask) -> float:
    """Return the standard deviation of the noise of one gradient entry; 0 without noise."""
    return task.channels.gradient.standard_deviation if task.study.noised else 0.0


def half_widths(scaling: RandomScaling, plugs: Mapping[str, PooledPlugIn]) -> dict[str, HalfWidth]:
    """Return half the lengths of all intervals by method.

    A plug-in whose regressed curvature has directions below their noise gives none.
    """
    found: dict[str, HalfWidth] = {"random-scaling": scaling.half_width}
    for name, plug in plugs.items():
        # where a curvature is released, its width says what may be shown
        if not plug.floored or plug.centre is not None:
            found[name] = partial(_normal, plug_in.standard_errors(plug))
    return found


def needs(task: GradientTask, method: str) -> str:
    """Say what an interval of a study of single records needs, and what it costs."""
    used = INTERVALS[method].split("+")
    said = f"reads {_and(used)}"
    if not task.study.noised:
        return f"{said}; nothing is noised"
    if len(used) == 1:
        return f"{said}; costs nothing beyond gradients"
    unit = "mu" if task.budget.mechanism.order == 2 else "epsilon"
    each = _and([f"{task.budget.allocation[name]:.3g}" for name in used])
    said += f", which cost {unit} {each} of a record's {task.budget.per_record:.3g}"
    return f"{said}; {PUBLISHED}" if "products" in used else said


def _and(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _normal(errors: Vector, level: float) -> Vector:
    """Return half the length of normal intervals."""
    return float(ndtri((1 + level) / 2)) * errors
