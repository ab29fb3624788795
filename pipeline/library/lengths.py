"""How many records are longer than the norm that is kept of them: expected, and in a sample file.

The first is public: it asks the reference population alone. The second reads raw data, for the eyes
of whoever holds the file.
"""

from __future__ import annotations

import math
from collections.abc import Container
from typing import Any

import numpy as np

from pipeline.errors import DataError
from pipeline.library.planning import CLIENTS
from pipeline.library.sample_values import RECORDS, read_sample
from pipeline.library.sampled import classes_of, order_of
from pipeline.records.features import Features, response_of
from pipeline.release.task import Task
from pipeline.study.data_tables import Feature
from pipeline.study.features import TRANSFORMS, transformed
from pipeline.study.reference import norms, typical_norm_bound
from pipeline.types import Matrix, Vector
from producers.sources.tables import read_batches

NOT_PRIVATE = (
    "what follows is counted from raw records and is NOT private: show it only to those who may "
    "see the data. Ranges, typical values and units that are chosen by it reveal something about "
    "these records; choose them by what is public, or by records that take no part in the study"
)
#: Between these shares of the values most of them lie.
WITHIN = (0.05, 0.95)
#: A feature whose values span less of its encoded range is in a sliver, or its middle further off.
SLIVER, OFF = 0.1, 0.5
#: Where a larger share of its values is cut, the range is wrong, and nothing else of it matters.
CUT = 0.05
#: From this gain on a typical norm bound is worth a word.
GAIN = 1.25


def expected(task: Task) -> dict[str, object]:
    """Return the norm that is kept, and what share of a public population is longer."""
    limit, found = task.kept_norm, dict[str, object]()
    found["kept"], found["longest"] = limit, task.longest
    for law in ("typical", "uniform"):
        found[f"share_shortened_of_{law}_records"] = _beyond(norms(task.encoding, law), limit)
    typical = typical_norm_bound(task.encoding)
    if task.study.estimator.norm_bound is None and limit > GAIN * typical:
        found["advice"] = (
            f'the ranges allow records of norm {limit:.4g}, and norm_bound = "typical" keeps '
            f"{typical:.4g}: {limit / typical:.2g} times less noise of gradients and "
            f"{(limit / typical) ** 2:.2g} times less of curvatures; longer records are shortened"
        )
    return found


def of_sample(
    task: Task, path: str, form: str = "csv", *, clients: int = CLIENTS
) -> dict[str, object]:
    """Return the same of the records of a file, and features that use a sliver of their range.

    The file needs the features alone, or the response where there are none. If it has responses,
    a record counts as usable only where its response can be read, and how frequent classes are is
    said, too, and what goes with the order of the records. None of it is private.
    clients: How many are expected.

    Raises DataError if the file cannot be read, lacks a column, or has no record that can be used.
    """
    features = Features.of(task.study)
    if not features.names:
        return _of_response(task, path, form)
    sample = read_sample(task, path, form)
    values, responses, read = sample.values, sample.responses, sample.read
    inside = features.clip(values)
    columns = features.encode(inside)
    wrong = _too_small(features, values)
    lengths = np.sqrt(1.0 + np.sum(columns * columns, axis=1))
    return {
        "records": read,
        "unusable": read - len(values),
        **({"faults": dict(sample.faults)} if sample.faults else {}),
        **({"refused": sample.refused} if sample.refused else {}),
        "outside_ranges": dict(sample.outside),
        "ranges_that_cut_much": wrong,
        "share_shortened": _beyond(lengths, task.kept_norm),
        "norm_of_99_percent": float(np.quantile(lengths, 0.99)),
        "features_to_declare_otherwise": _slivers(features, inside, wrong),
        **classes_of(task, responses, clients),
        **order_of(task, columns, responses),
    }


def _of_response(task: Task, path: str, form: str) -> dict[str, object]:
    """Return how the responses of a file fit their range, for a study that has no features."""
    response, (low, high) = response_of(task.study), task.study.data.response.ends
    parts, read = [np.zeros(0)], 0
    for batch in read_batches(path, [response.name], form=form):
        written = response.of_column(batch.columns[response.name])[1]
        parts.append(written[np.isfinite(written) & ~batch.lost])
        read += len(batch)
        if read >= RECORDS:
            break
    values = np.concatenate(parts)
    if not len(values):
        raise DataError(f"{path}: none of its {read} records has a value of {response.name!r}")
    outside = int(np.count_nonzero((values < low) | (values > high)))
    least, most = np.quantile(values, WITHIN).tolist()
    found = {
        "records": read,
        "unusable": read - len(values),
        "outside_range": outside,
        "nine_tenths_lie": f"from {least:g} to {most:g}",
    }
    if outside > CUT * len(values) or most - least < SLIVER * (high - low):
        found["advice"] = (
            f"the range of data.response is {low:g} to {high:g}: check that these values are in "
            "its unit, and declare the range that the instrument can show, not that of these "
            "values"
        )
    return found


def _too_small(features: Features, values: Matrix) -> dict[str, str]:
    """Return what to do about features of which many values lie outside their range."""
    outside = features.outside(values)
    return {
        name: (
            f"{count} of {len(values)} values are outside {feature.ends[0]:g} to "
            f"{feature.ends[1]:g} and would be cut: declare the range that the instrument or the "
            "form can show, from what is public and not from these values"
        )
        for name, feature in features.encoding.features.items()
        if (count := outside[name]) > CUT * len(values) and feature.kind == "number"
    }


def _beyond(lengths: Vector, limit: float) -> float:
    # a record on the bound is not longer than it; its norm is rounded
    return float(np.mean(lengths > limit * (1.0 + 2.0**-40)))


def _slivers(features: Features, inside: Matrix, wrong: Container[str]) -> dict[str, str]:
    """Return what would spread the values of features that are in a sliver of their range.

    wrong: Features whose range itself is: nothing within it would be right.
    """
    encoding, found = features.encoding, dict[str, str]()
    scaled = encoding.scale(inside)
    for index, (name, feature) in enumerate(encoding.features.items()):
        if feature.kind != "number" or name in wrong:
            continue
        low, high = (float(end[index]) for end in encoding.scaled_ends)
        least, middle, most = np.quantile(scaled[:, index], (WITHIN[0], 0.5, WITHIN[1])).tolist()
        zero = 0.0 if encoding.unit else (low + high) / 2
        share, off = (most - least) / (high - low), abs(middle - zero) / (high - low) * 2
        if share < SLIVER or off > OFF:
            found[name] = (
                f"90 % of its values span {share:.1%} of its encoded range, {off:.2g} half ranges "
                f"from its 0; {_better(name, feature, inside[:, index], share)}"
            )
    return found


def _better(name: str, feature: Feature, values: Vector, share: float) -> str:
    """Return the declaration that spreads values best, or that none does."""
    best, spread = feature, share
    size = float(np.quantile(np.abs(values), 0.5)) or 1.0
    # round numbers: a close one would say more of these records
    unit = 10.0 ** math.floor(math.log10(size))
    plain = Feature(min=feature.min, max=feature.max)
    for kind, transform in TRANSFORMS.items():
        if feature.ends[0] < 0 and not transform.signed:
            continue
        one: Any = Feature(
            min=feature.min, max=feature.max, transform=kind,  # type: ignore[arg-type]
            unit=unit if transform.scaled else None,
        )  # fmt: skip
        found = _spread(one, values)
        if found > 2 * spread:
            best, spread = one, found
    if best is feature and spread < SLIVER and feature.transform is None:
        return "no transform spreads them: a narrower range would, if what is public allows it"
    best = plain if best is feature and feature.transform is None else best
    middle = float(np.median(values))
    typical = float(f"{middle:.1g}")
    typical = min(max(typical, feature.ends[0]), feature.ends[1])
    words = [f"min = {feature.ends[0]:g}, max = {feature.ends[1]:g}", f"typical = {typical:g}"]
    words += [f'transform = "{best.transform}"'] if best.transform else []
    words += [f"unit = {best.unit:g}"] if best.unit else []
    return f"such as {name} = {{ {', '.join(words)} }} spans {spread:.1%}"


def _spread(feature: Feature, values: Vector) -> float:
    low, high = transformed(feature, np.array(feature.ends)).tolist()
    least, most = np.quantile(transformed(feature, values), WITHIN).tolist()
    return float((most - least) / (high - low))
