"""What a backtest says, for programs and people."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pipeline.backtest.scores import ProbabilityGroup, Scores
from pipeline.messages.envelope import rfc3339
from pipeline.messages.estimate import EstimateMessage, write_estimate
from pipeline.settings import extra
from pipeline.words import counted, digits

#: Shades behind the bins of each status.
SHADES = {"none": "0.85", "empty": "0.85", "starting": "0.9", "warming": "0.95"}
#: Goes with every result.
NOT_PRIVATE = (
    "Scores, clipping rates, coverage, spans of time and counts in this result are computed from "
    "raw records and are not private: show it only to those who may see the data. No ledger was "
    "charged."
)


@dataclass(frozen=True, slots=True)
class Bin:
    """One bin of time.

    start, end: Arrival times of its records, end exclusive: seconds since 1970, or numbers of
        records.
    records, unusable, unscored: Record slots; those without a sound record; sound ones before the
        first estimate.
    scores, frozen: Of the updating estimate on all its scored records; of the frozen one on those
        after the freeze.
    status, releases, width, privacy_share, coverage: Of the newest estimate that was published by
        its end: its status ("none" before the first), releases behind it, median width of the
        intervals in the unit of the coefficients, share of the variance due to privacy, and share
        of the coefficients whose interval holds the pooled fit of the whole history.
    coefficients, intervals: The same estimate's values and intervals, in the unit of the
        coefficients; None before the first, and for an interval that is not known.
    """

    start: float
    end: float
    records: int
    unusable: int
    unscored: int
    scores: Scores
    frozen: Scores | None
    status: str
    releases: int
    width: float | None
    privacy_share: float | None
    coverage: float | None
    coefficients: list[float] | None
    intervals: list[tuple[float, float] | None] | None


@dataclass(frozen=True, slots=True)
class Frozen:
    """Two estimates on the same records, those that came from `since` on.

    since: When one of them stopped learning.
    frozen, updating: Scores of the one that stopped, and of the one that went on.
    """

    since: float
    frozen: Scores
    updating: Scores


@dataclass(frozen=True, slots=True)
class Pooled:
    """The pooled fit without privacy of the whole history, in the unit of the coefficients.

    coefficients: The intercept first; None where there is none, and `reason` says why.
    intervals: Its own, by the sandwich of all records: what privacy would have to be compared with.
    covered: For each coefficient whether the last interval holds it; None without an interval.
    coverage: Share of the intervals that do; None without any.
    """

    coefficients: list[float] | None
    intervals: list[tuple[float, float] | None]
    covered: list[bool | None]
    coverage: float | None
    reason: str


@dataclass(frozen=True, slots=True)
class Budget:
    """What a live study of these records would have been charged for; nothing was charged here.

    epsilon, delta, unit, neighbours: Of the study: what all its releases together may cost one
        unit. None where the study keeps no guarantee.
    scope: "record": a client spends it with its first release, and later ones cost nothing more, as
        a record enters one release; else each release costs a part.
    clients: How many have spent of it.
    releases: The fewest, median and most releases of a client.
    """

    epsilon: float | None
    delta: float | None
    unit: str
    neighbours: str
    scope: str
    clients: int
    releases: tuple[int, float, int]


@dataclass(frozen=True, slots=True)
class Other:
    """One method beside the study.

    kind, method: `estimator.kind`, and what it is in the field's words.
    before: Scores of records that were predicted before they were learnt; None of a method that is
        not online.
    after: Scores of all records in the end; None without an estimate, and `reason` says why.
    guarantee: What the method really keeps private.
    """

    kind: str
    method: str
    before: Scores | None
    after: Scores | None
    guarantee: str
    reason: str


@dataclass(frozen=True, slots=True)
class Beside:
    """The last estimate of the study on all records, and the same of other methods."""

    own: Scores
    others: tuple[Other, ...]

    def compared(self, score: str, before: Scores) -> Iterator[tuple[str, str, str]]:
        """Yield "this study" and each kind, with a score before learning and in the end.

        score: Its name in `Scores`.
        before: The study's own prequential scores.
        """
        rows: list[tuple[str, Scores | None, Scores | None]]
        rows = [("this study", before, self.own)]
        rows += [(other.kind, other.before, other.after) for other in self.others]
        for kind, first, last in rows:
            yield kind, digits(getattr(first, score, None)), digits(getattr(last, score, None))

    def said(self) -> Iterator[tuple[str, str]]:
        """Yield what each method really keeps private; kinds that keep the same are together."""
        found: dict[str, list[str]] = {}
        for other in self.others:
            said = f"{other.guarantee}; no estimate: {other.reason}"
            text = (said if other.guarantee else said[2:]) if other.reason else other.guarantee
            found.setdefault(text, []).append(other.kind)
        for text, kinds in found.items():
            yield ", ".join(kinds), text


@dataclass(frozen=True, slots=True)
class BacktestResult:
    """The result of one backtest; `to_dict` is what `--json` prints.

    Attributes
    ----------
    study, revision, mechanism
        What was run; a simulation and a run without privacy have names and revisions of their own.
    options
        How, as `Options` has it.
    timed
        Whether times are event time in seconds since 1970; else they are numbers of records.
    records, unusable, late, untimed, unscored, clients
        Record slots; those without a sound record; those whose time lay before an earlier one's;
        those without a readable time; sound ones before the first estimate; clients that released.
    faults
        In how many records which column cannot be read; "(line)" is a record as a whole.
    first, last
        When the first and the last record arrived.
    scores
        Prequential scores of the updating estimate.
    calibration
        Its predicted probabilities beside what came, in ten groups of about as many records; empty
        for losses without probabilities.
    freeze
        Scores beside those of a frozen estimate; None if none was asked for.
    estimate
        The last estimate, as a worker would publish it.
    pooled
        What its intervals aim at.
    publications, failures
        How many estimates were published, and how often none could be formed.
    clipped
        By column, which share of the usable values lay outside the public range.
    shortened
        Which share of the usable records is longer than the norm that the study keeps: they are
        shortened to it, or weigh less, also in the pooled fit.
    order
        At most five columns that go with the order of the records by more than chance, with the
        share (.1 or more) of what sorting by each could put between ten consecutive parts. Empty
        if none does, of fewer than 200 records, and with event time, whose order is that of time.
    budget
        What a live study would have been charged for.
    bins
        The same over time, in order.
    seconds
        How long the run took.
    beside
        Other methods on the same records; None if none was asked for.
    """

    study: str
    revision: str
    mechanism: str
    options: dict[str, Any]
    timed: bool
    records: int
    unusable: int
    faults: dict[str, int]
    late: int
    untimed: int
    unscored: int
    clients: int
    first: float
    last: float
    scores: Scores
    calibration: list[ProbabilityGroup]
    freeze: Frozen | None
    estimate: EstimateMessage
    pooled: Pooled
    publications: int
    failures: int
    clipped: dict[str, float]
    shortened: float
    order: dict[str, float]
    budget: Budget
    bins: list[Bin]
    seconds: float
    beside: Beside | None = None

    @property
    def main_score(self) -> tuple[str, float | None]:
        """The score that says most in one number: the AUC of classes, else the MAE.

        A rare class hardly ever has the larger probability, and the ranking still says something.
        """
        if self.estimate.class_weights:
            return "auc", self.scores.auc
        return "mean_absolute_error", self.scores.mean_absolute_error

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data for JSON; times of event time are RFC 3339."""
        found: dict[str, Any] = {"type": "backtest/1", "not_private": NOT_PRIVATE}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            plain = isinstance(value, type) or not dataclasses.is_dataclass(value)
            found[field.name] = value if plain else dataclasses.asdict(value)
        found["estimate"] = json.loads(write_estimate(self.estimate))
        found["bins"] = self.rows()
        found["calibration"] = [dataclasses.asdict(group) for group in self.calibration]
        for name in ("first", "last"):
            found[name] = self._time(found[name])
        if found["freeze"] is not None:
            found["freeze"]["since"] = self._time(found["freeze"]["since"])
        return found

    def rows(self) -> list[dict[str, Any]]:
        """Return the bins as flat rows, one score a column; columns are the same in all of them."""
        return [self._row(span) for span in self.bins]

    def to_pandas(self) -> Any:
        """Return the bins as a pandas data frame, with times where there is event time.

        Raises
        ------
        ConfigError
            If pandas is not installed.
        """
        pd = extra("pandas", "to_pandas")
        frame = pd.DataFrame(self.rows())
        if self.timed:
            for name in ("start", "end"):
                frame[name] = pd.to_datetime(frame[name], utc=True, format="ISO8601")
        return frame

    def plot(self) -> Any:
        """Return a matplotlib figure of scores, widths and status over time.

        Raises
        ------
        ConfigError
            If matplotlib is not installed.
        """
        name, _ = self.main_score
        figure = extra("matplotlib.figure", "plot").Figure(figsize=(8, 5), layout="constrained")
        top, bottom = figure.subplots(2, 1, sharex=True)
        spans = self.bins
        middles = [self.moment((span.start + span.end) / 2) for span in spans]
        top.plot(middles, [getattr(span.scores, name) for span in spans], label="updating")
        if self.freeze is not None:
            frozen = [getattr(span.frozen, name) if span.frozen else None for span in spans]
            top.plot(middles, frozen, label="frozen", linestyle="--")
            top.legend()
        top.set_ylabel(name.replace("_", " "))
        bottom.plot(middles, [span.width for span in spans])
        bottom.set_ylabel("median interval width")
        bottom.set_xlabel("event time" if self.timed else "record")
        for span in spans:
            if span.status in SHADES:
                for axes in (top, bottom):
                    axes.axvspan(self.moment(span.start), self.moment(span.end),
                                 color=SHADES[span.status], zorder=0)  # fmt: skip
        top.set_title(f"{self.study} ({self.mechanism}); computed from raw records, not private")
        return figure

    def moment(self, clock: float) -> float | datetime:
        """Return what an axis of time has for a bin's end."""
        return datetime.fromtimestamp(clock, UTC) if self.timed else clock

    def _row(self, span: Bin) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for field in dataclasses.fields(span):
            value = getattr(span, field.name)
            if field.name == "scores":
                # its own count of records would hide the bin's
                scores = dataclasses.asdict(value)
                found["scored"] = scores.pop("records")
                found |= scores
            elif field.name == "frozen":
                if self.freeze is not None:
                    frozen = dataclasses.asdict(value)
                    found |= {f"frozen_{name}": score for name, score in frozen.items()}
            elif field.name not in ("coefficients", "intervals"):
                found[field.name] = value
        for index, coefficient in enumerate(self.estimate.coefficients):
            ends = None if span.intervals is None else span.intervals[index]
            found[f"estimate_{coefficient.name}"] = (
                None if span.coefficients is None else span.coefficients[index]
            )
            found[f"lower_{coefficient.name}"] = None if ends is None else ends[0]
            found[f"upper_{coefficient.name}"] = None if ends is None else ends[1]
        found["start"], found["end"] = self._time(span.start), self._time(span.end)
        return found

    def _time(self, clock: float) -> str | int:
        return rfc3339(clock) if self.timed else round(clock)

    def __repr__(self) -> str:
        name, score = self.main_score
        told = "none" if score is None else f"{score:.4g}"
        return (
            f"<BacktestResult {self.study} ({self.mechanism}): {counted(self.records, 'record')}, "
            f"{counted(self.estimate.releases, 'release')} of {counted(self.clients, 'client')}, "
            f"{name.replace('_', ' ')} {told}, {self.estimate.status}; not private>"
        )
