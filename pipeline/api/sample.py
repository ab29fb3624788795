"""What a sample file says of a study's ranges, classes and order: of raw records, NOT private.

What is expected without one is public: it asks the reference population alone.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import logit

from pipeline.errors import DataError
from pipeline.methods import offline_method
from pipeline.records.batch import Column, Columns
from pipeline.records.encoder import Encoder
from pipeline.records.features import Features, response_of
from pipeline.records.order import ORDERED, going_with_the_order, told
from pipeline.release.quality import worded
from pipeline.release.task import Task
from pipeline.study.data import TRANSFORMS, Feature, transformed
from pipeline.study.reference import MOST_SEEN, longer, norms, norms_of, typical_norm_bound
from pipeline.study_file import edit
from pipeline.study_file.edit import Like
from pipeline.types import Matrix, Vector
from producers.sources import read_batches
from producers.sources.base import Slot, Source

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
        found[f"share_shortened_of_{law}_records"] = float(
            longer(norms(task.encoding, law), limit).mean()
        )
    typical = typical_norm_bound(task.encoding)
    if task.study.estimator.norm_bound is None and limit > GAIN * typical:
        found["advice"] = (
            f'the ranges allow records of norm {limit:.4g}, and norm_bound = "typical" keeps '
            f"{typical:.4g}: {limit / typical:.2g} times less noise of gradients and "
            f"{(limit / typical) ** 2:.2g} times less of curvatures; longer records are shortened"
        )
    return found


def of_sample(
    task: Task, path: str, form: str = "csv", sample: Sample | None = None
) -> dict[str, object]:
    """Return the same of the records of a file, and features that use a sliver of their range.

    The file needs the features alone, or the response where there are none. If it has responses,
    a record counts as usable only where its response can be read, and how frequent classes are is
    said, too, and what goes with the order of the records. None of it is private.
    sample: What the file holds, where it has been read.

    Raises DataError if the file cannot be read, lacks a column, or has no record that can be used.
    """
    features = Features.of(task.study)
    if not features.names:
        return _of_response(task, path, form)
    sample = sample or read_sample(task, path, form)
    values, responses, read = sample.values, sample.responses, sample.read
    inside = features.clip(values)
    columns = features.encode(inside)
    wrong = _too_small(task, sample)
    lengths = norms_of(columns)
    shortened = float(longer(lengths, task.kept_norm).mean())
    norm = float(np.quantile(lengths, 0.99))
    names = [response_of(task.study).name, *task.study.coefficient_names[1:]]
    going = going_with_the_order(dict(zip(names, [responses, *columns.T], strict=True)))
    return {
        "records": read,
        "unusable": read - len(values),
        **({"faults": dict(sample.faults)} if sample.faults else {}),
        **({"refused": sample.refused} if sample.refused else {}),
        "outside_ranges": dict(sample.outside),
        "ranges_that_cut_much": wrong,
        "share_shortened": shortened,
        "norm_of_99_percent": norm,
        **({"shortened": _much_shortened(shortened, norm)} if shortened > CUT else {}),
        "features_to_declare_otherwise": _slivers(features, inside, wrong),
        **classes_of(task, responses),
        **({"goes_with_the_order": told(going), "order": ORDERED} if going else {}),
    }


def _much_shortened(share: float, norm: float) -> str:
    return (
        f"WARNING: {share:.0%} of these records are longer than estimator.norm_bound and would be "
        "shortened to it. Every coefficient is then that of shortened records, and no interval "
        "says so: declare the features that are named here otherwise, or give a larger "
        f"estimator.norm_bound ({math.ceil(100 * norm) / 100:g} shortens 1 % of these)"
    )


def _of_response(task: Task, path: str, form: str) -> dict[str, object]:
    """Return how the responses of a file fit their range, for a study that has no features."""
    encoder, parts, read, start = Encoder(task.study), [np.zeros(0)], 0, _Start(task)
    response, (low, high) = encoder.response, task.study.data.response.ends
    for batch in read_batches(path, [response.name], form=form, first=start):
        block = encoder.block(batch.slots)
        parts.append(block.written[block.reasons.codes == 0])
        read += len(batch.slots)
        if read >= MOST_SEEN:
            break
    values = np.concatenate(parts)
    if not len(values):
        raise DataError(f"{path}: none of its {read} records has a value of {response.name!r}")
    outside = encoder.clipped[response.name]
    least, most = np.quantile(values, WITHIN).tolist()
    found = {
        "records": read,
        "unusable": read - len(values),
        **({"refused": start.refused} if start.refused else {}),
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


def _too_small(task: Task, sample: Sample) -> dict[str, str]:
    """Return what to do about columns of which many values lie outside their range."""
    features, response = task.encoding.features.items(), task.study.data.response
    ends = {name: one.ends for name, one in features if one.kind == "number"}
    if response.kind != "class":
        ends[response.name] = response.ends
    return {
        name: (
            f"{count} of {len(sample.values)} values are outside {low:g} to {high:g} and would be "
            "cut: declare the range that the instrument or the form can show, from what is public "
            "and not from these values"
        )
        for name, (low, high) in ends.items()
        if (count := sample.outside[name]) > CUT * len(sample.values)
    }


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


#: What is said of a record that is none.
UNREAD = "the line cannot be read"


@dataclass(frozen=True, slots=True)
class Sample:
    """What a file holds.

    values, responses: Of the usable records, shapes (n, k) and (n,); responses are encoded, and NaN
        in a file without them.
    read: How many records there are.
    faults: How many records have which fault first. The words name a column, never a value.
    outside: How many values lie outside their range, by column.
    refused: Why `veilstream produce` will refuse such a source; empty if it will not.
    """

    values: Matrix
    responses: Vector
    read: int
    faults: Counter[str]
    outside: Counter[str]
    refused: str


def read_sample(task: Task, path: str, form: str = "csv") -> Sample:
    """Read a file with the features of a study, and with its responses if it has them.

    Raises DataError if the file cannot be read, lacks a feature, or has no record that can be used.
    """
    encoder, start = Encoder(task.study), _Start(task)
    features, name = encoder.features, encoder.response.name
    parts, responses, faults, read = [], [np.zeros(0)], Counter[str](), 0
    more = [name, *encoder.level_columns]
    for batch in read_batches(path, features.columns, form=form, optional=more, first=start):
        columns, size = batch.slots.columns(encoder.columns), len(batch.slots)
        if name in batch.absent:
            columns[name] = Column([encoder.dummy[name]] * size)
        block = encoder.block(Columns(columns, size, dict.fromkeys(batch.slots.lost, UNREAD)))
        good = block.reasons.codes == 0
        faults += block.reasons.count()
        parts.append(block.values[good])
        found = block.arrays.responses[good]
        responses.append(np.full(len(found), np.nan) if name in batch.absent else found)
        read += size
        if read >= MOST_SEEN:
            break
    del faults[""]
    values = np.concatenate(parts) if parts else np.zeros((0, len(features.names)))
    if not len(values):
        raise DataError(
            f"{path}: none of its {read} records could be used: {worded(faults) or 'it has none'}. "
            "The operator must declare in [data] what its values are, or the data owner must "
            "correct them"
        )
    return Sample(values, np.concatenate(responses), read, faults, encoder.clipped, start.refused)


def like(task: Task, path: str, form: str = "csv") -> tuple[Like, dict[str, object]]:
    """Return what a plan by the records of a file is of, and what `of_sample` says of them.

    A study without features needs none of them. Errors as those of `of_sample`.
    """
    features = Features.of(task.study)
    if not features.names:
        return (task.study, None), of_sample(task, path, form)
    sample = read_sample(task, path, form)
    columns = features.encode(features.clip(sample.values))
    return edit.like(task.study, columns, sample.responses), of_sample(task, path, form, sample)


class _Start:
    """Looks at the first records of a file as a client does at its start.

    refused: Why that would refuse it; empty if it would not.
    """

    def __init__(self, task: Task) -> None:
        self._task, self.refused = task, ""

    def __call__(self, source: Source) -> list[Slot]:
        """Return the slots that were read; what runs in `fit` alone has no clients."""
        # it knows Kafka, which no plan without a sample needs
        from producers.source_check import Held, refusal  # noqa: PLC0415

        held = Held()
        if offline_method(self._task.study) is None:
            try:
                self.refused, _ = refusal(self._task, source, held)
            except DataError as error:
                self.refused = str(error)
        return held.slots


#: A guess of how frequent a class is is wrong from this ratio of odds on.
WRONG = 1.5


def classes_of(task: Task, responses: Vector) -> dict[str, object]:
    """Return how frequent the positive class is, and whether the study's guess is far from it.

    responses: Encoded; NaN where a record has none. Empty for responses without classes.
    """
    known = responses[np.isfinite(responses)]
    if not task.classes or not len(known):
        return {}
    share, response = float(np.mean(known > 0)), task.study.data.response
    supposed = 0.5 if response.typical is None else response.typical
    guess = "the study supposes" if response.typical is None else "the study guesses"
    found: dict[str, object] = {
        "share_of_positive": share,
        "positive": (
            f"{100 * share:.2g} % of {len(known):,} responses are positive; {guess} "
            f"{100 * supposed:.3g} %"
        ),
    }
    said = "is not given" if response.typical is None else f"is {response.typical:g}"
    if share in {0.0, 1.0}:
        found["classes"] = (
            f"only one class in these {len(known):,} records: there is nothing to estimate. If "
            "the file is sorted by its response, shuffle it first"
        )
    elif abs(float(logit(share) - logit(supposed))) > math.log(WRONG):
        found["classes"] = (
            f"data.response.typical {said}, so plans without a sample count with {supposed:g}. "
            "Choose a guess by what is public"
        )
    return found
