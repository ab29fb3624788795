"""Estimates as tables, lines and numbers, and when all intervals come: pure rendering."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from datetime import datetime
from itertools import pairwise

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from pipeline.messages.estimate import EstimateMessage
from pipeline.messages.results import FitMessage
from pipeline.methods import method_of
from pipeline.study.model import Study
from pipeline.words import counted, rounded_up

#: From this share of its record slots on, an estimate is as precise as if all counted in full,
#: and no word of it is needed.
IN_FULL = 0.99
#: More missing records than these will not come.
MOST_RECORDS = 10**9
#: Before the first model a share says how near that is, and nothing of what comes then.
BEFORE_MODELS = "too early to say how many records intervals take"
#: Stands in the place of a sampling error that the noise hides.
HIDDEN = "below noise"
#: Noise moves a number by so many of its standard deviations at most, in 95 of 100 cases.
REACH = 1.96
#: So many coefficients of one kind are named.
NAMED = 4


def table(message: EstimateMessage, study: Study) -> RenderableType:
    """Return an estimate of a study as a table with its provenance below."""
    below = [
        *unit_lines(message),
        hidden_line(message),
        target_line(message),
        spread_line(message, study),
        line(message),
        information_line(message),
        *method_of(study).report.lines(study, message.details),
    ]
    told = [Text(text) for text in below if text]
    dim = Text(privacy_line(message), style="dim")
    return Group(_grid(message, study, len(message.coefficients)), *told, dim)


def on_screen(
    message: EstimateMessage, study: Study, console: Console, words: str = ""
) -> RenderableType:
    """Return the table and words below it, or the short one where the screen is too low for it."""
    whole = Group(table(message, study), *([Text(words)] if words else []))
    if len(console.render_lines(whole, pad=False)) <= console.height:
        return whole
    above = "; ".join(filter(None, [words, progress_line(message)]))
    few = short_table(message, study, console.height)
    return Group(Text(above, no_wrap=True, overflow="ellipsis"), few) if above else few


def short_table(message: EstimateMessage, study: Study, height: int) -> RenderableType:
    """Return the same for a screen of few lines: how it stands, and the first coefficients.

    height: Of the screen, in lines; a table has five around its rows, and a note may take two.
    """
    count = len(message.coefficients)
    # the first line of what a method says, which may be that somebody is left out
    own = list(method_of(study).report.lines(study, message.details))[:1]
    rows = max(1, min(count, height - 10 - len(own)))
    left = f"{counted(count - rows, 'more coefficient')}, " if count > rows else ""
    return Group(
        Text(line(message, brief=True)),
        *(Text(text, no_wrap=True, overflow="ellipsis") for text in own),
        _grid(message, study, rows),
        Text(f"{left}what the numbers mean and what is promised: in a taller window, or --json"),
    )


def _grid(message: EstimateMessage, study: Study, rows: int) -> Table:
    level = f"{message.level:.0%}"
    grid = Table(title=title(message, study), expand=False)
    # on a narrow screen names are folded, and numbers stay whole
    grid.add_column("coefficient", overflow="fold", min_width=4)
    for name in ("estimate", f"{level} interval", "sampling se", "privacy se"):
        grid.add_column(name, justify="right", no_wrap=True)
    for row in message.coefficients[:rows]:
        grid.add_row(
            row.name,
            value(message, row.value),
            interval(message, row.interval),
            # in files of older estimates it is 0
            number_of(message, row.sampling_se or None, nothing=HIDDEN if row.interval else "-"),
            number_of(message, row.privacy_se),
        )
    return grid


def intervals_table(message: EstimateMessage, study: Study) -> RenderableType:
    """Return all intervals of an estimate side by side, with what each one needs and costs."""
    given = any(row.interval for row in message.coefficients)
    if given and not message.intervals and not method_of(study).intervals(study):
        return Text(
            f"this kind of study has one kind of interval, that above ({message.interval_method}): "
            "there is nothing to compare"
        )
    if not message.intervals:
        return Text(f"no intervals to compare: {message.reason or message.interval_method}")
    grid = Table(title=f"{message.study}: {message.level:.0%} intervals by method", expand=False)
    grid.add_column("coefficient")
    for name in message.intervals:
        grid.add_column(name, justify="right")
    for i, row in enumerate(message.coefficients):
        cells = (interval(message, ends[i]) for ends in message.intervals.values())
        grid.add_row(row.name, *cells)
    known = method_of(study).intervals(study)
    missing = [f"{name}: not known yet" for name in known if name not in message.intervals]
    told = [f"{name}: {needs}" for name, needs in message.interval_needs.items()]
    return Group(grid, *map(Text, [*told, *missing]))


def title(message: EstimateMessage | FitMessage, study: Study) -> str:
    """Return what is estimated, and the unit of the coefficients."""
    response, scaling = study.data.response, f"{message.scaling} scaling"
    if response.kind == "class":
        return f"{message.study}: {message.loss}, {scaling}"
    unit = f"the unit of {response.name}"
    if response.kind == "count":
        unit = f"log mean of {response.name}"
    return f"{message.study}: {message.loss} regression, {scaling}, in {unit}"


def unit_lines(message: EstimateMessage | FitMessage) -> list[str]:
    """Return what step of a feature each coefficient stands for: one line for those alike."""
    if len(message.coefficients) == 1:
        # an intercept alone: there is no feature to speak of
        return _meaning(message)
    unit = message.scaling == "unit"
    rest = "a step of half the feature's public range" if unit else "one unit of the feature"
    alike: dict[str, list[str]] = {}
    for row in message.coefficients:
        if row.step:
            alike.setdefault(row.step, []).append(row.name)
    if not alike:
        zero = "every feature in the middle of its range" if unit else "every feature at 0"
        return [f"each coefficient: for {rest}; the intercept: with {zero}", *_meaning(message)]
    lines = [
        f"{', '.join(names[:NAMED])}{', ...' if len(names) > NAMED else ''}: {step}"
        for step, names in alike.items()
    ]
    zero = "its 0, by default the middle of its range" if unit else "0"
    rest += f"; the intercept: with every number at {zero}, and every category at its base level"
    return [*lines, f"every other coefficient: for {rest}", *_meaning(message)]


def _meaning(message: EstimateMessage | FitMessage) -> list[str]:
    """Return what coefficients of a loss do not mean, where readers may take them for it."""
    if message.loss != "gdwd":
        return []
    return [
        (
            "gdwd: coefficients tell signs and relative sizes; they are not log odds, and there "
            "are no probabilities"
        )
    ]


def hidden_line(message: EstimateMessage) -> str:
    """Return what is meant where a sampling error is not given beside an interval."""
    if any(row.interval and not row.sampling_se for row in message.coefficients):
        return f"{HIDDEN}: too small to be seen beside the noise"
    return ""


def target_line(message: EstimateMessage) -> str:
    """Return in one line which fit the intervals hold, and what its ridge takes of the slopes."""
    slopes = message.coefficients[1:]
    kept = [row.kept for row in slopes if row.kept is not None]
    if message.ridge == 0 or not any(row.interval for row in slopes):
        return ""
    said = f"intervals are for the fit with ridge {message.ridge:.3g}, not for the fit without"
    if not kept:
        return said
    least, most = (f"{math.floor(100 * share)}" for share in (min(kept), max(kept)))
    share = f"{least}" if least == most else f"{least} to {most}"
    if len(slopes) == 1:
        return f"{said}: its slope keeps about {share}% of its size"
    return (
        f"{said}: with the others fixed, each slope keeps about {share}% of its size; where "
        "features go together, a ridge also moves size between them, and may turn a sign"
    )


def spread_line(message: EstimateMessage, study: Study) -> str:
    """Return how far responses spread about their means, in one line.

    Empty for classes, and for methods without features, which fit nothing that leaves residuals.
    """
    kind = study.data.response.kind
    if kind == "class" or not method_of(study).spec.features:
        return ""
    found, error = message.dispersion, message.details.get("dispersion_error")
    given = study.estimator.noise_scale is not None
    reach = REACH * error if isinstance(error, float) and not given else 0.0
    if found is None or reach > found:
        said = "not yet known"
    elif kind == "count":
        said = f"{found:.4g}{_by_noise(reach)}"
    else:
        root = math.sqrt(found)
        # a response that the features explain in full has none of either
        by_noise = _by_noise(reach / (2 * root) if reach else 0.0)
        said = f"{root:.4g} ({'known' if given else 'estimated'}{by_noise})"
    if kind == "count":
        return f"dispersion (variance / mean): {said}; 1 for Poisson counts"
    return f"noise scale (standard deviation of the residuals): {said}"


def _by_noise(reach: float) -> str:
    return f", give or take {reach:.2g} for the privacy noise" if reach else ""


def fit_table(message: FitMessage, study: Study) -> RenderableType:
    """Return the fit of a published method as a table, with how it ended below."""
    grid = Table(title=title(message, study), expand=False)
    for name in ("coefficient", "estimate", f"{message.level:.0%} interval", "standard error"):
        grid.add_column(name, justify="left" if name == "coefficient" else "right")
    for row in message.coefficients:
        cells = (
            value(message, row.value),
            interval(message, row.interval),
            number_of(message, row.standard_error),
        )
        grid.add_row(row.name, *cells)
    score = "" if message.score is None else f", score {message.score:.1e}"
    counts = ", ".join(
        counted(number, noun)
        for number, noun in (
            (message.records, "record slot"),
            (message.clients, "client"),
            (message.rounds, "round"),
        )
    )
    lines = (
        *unit_lines(message),
        f"{message.estimator} ({message.method})",
        counts + score,
        f"{message.status}: {message.reason}" if message.reason else message.status,
    )
    return Group(grid, *map(Text, lines), Text(privacy_line(message), style="dim"))


def line(message: EstimateMessage, *, brief: bool = False) -> str:
    """Return the state of an estimate in one line; a brief one leaves the reason out."""
    parts = [
        counted(message.records, "record slot"),
        # records without releases: an exact fit has read them itself
        "one fit to all of them"
        if message.records and not message.releases
        else counted(message.releases, "release"),
        counted(message.clients, "client"),
        # a replay publishes none, and at the public start there is none yet
        *([] if message.model_version is None else [f"model {message.model_version}"]),
        state_of(message) + (f": {message.reason}" if message.reason and not brief else ""),
    ]
    found = message.diagnostics
    for count, word in (
        (found.missing, "missing"),
        (found.duplicates, "duplicates dropped"),
        (found.dead_letters, "dead letters"),
        (found.forgotten, "too old to count"),
        (found.erased, "of erased clients"),
    ):
        if count:
            parts.append(f"{count} {word}")
    return ", ".join(parts)


def information_line(message: EstimateMessage) -> str:
    """Return in one line how much information there is, and what limits it."""
    found = message.diagnostics
    parts = [progress_line(message)] if progress_line(message) else []
    if found.effective_records is not None and found.effective_records < IN_FULL * message.records:
        parts.append(
            f"aims at the fit to the records that count, {found.effective_records:,.0f} of "
            f"{message.records:,} ({found.effective_records / message.records:.0%}): empty slots, "
            "and releases that are old or at the first models, have less weight or none"
        )
    if found.privacy_share:
        parts.append(f"{found.privacy_share:.0%} of the variance comes from the privacy noise")
    if found.floor_active:
        of = f"{found.floored} of {len(message.coefficients)}"
        parts.append(
            f"in {of} combinations of coefficients the noise is larger than what the records say"
        )
    if message.details.get("design_effect", 1.0) is None and message.status == "ready":
        parts.append(
            "intervals suppose that records do not depend on each other in time: nothing here "
            "tells whether they do (no design effect)"
        )
    return "; ".join(parts)


def state_of(message: EstimateMessage) -> str:
    """Return the status in words, with how many intervals there are if not all."""
    rows = message.coefficients
    have = sum(row.interval is not None for row in rows)
    if message.status != "ready" or have == len(rows):
        return message.status
    return f"ready ({have} of {counted(len(rows), 'interval')})"


def progress_line(message: EstimateMessage) -> str:
    """Return how far the stream is on the way to all intervals; empty where it has them."""
    found = message.progress
    if found is None or found.share >= 1:
        return ""
    if message.status == "starting":
        return BEFORE_MODELS
    said = f"{math.floor(100 * found.share)}% of the way to all intervals"
    if found.missing_records is None:
        return f"{said}; it is too early to say how many more records that takes"
    if found.missing_records > MOST_RECORDS:
        return f"{said}; by records alone it would take over {MOST_RECORDS:,} more"
    return f"{said}, about {rounded_up(found.missing_records, 2):,} more record slots"


def privacy_line(message: EstimateMessage | FitMessage) -> str:
    """Return the guarantee in one line."""
    return f"privacy: {message.privacy.guarantee}"


#: Losses whose coefficients have the response's unit.
IN_UNITS = ("linear", "expectile")


def value(message: EstimateMessage | FitMessage, number: float, decimals: int = 4) -> str:
    """Return a coefficient with its sign; one with a unit by its leading digits."""
    return f"{number:+.5g}" if message.loss in IN_UNITS else f"{number:+.{decimals}f}"


def interval(message: EstimateMessage | FitMessage, ends: tuple[float, float] | None) -> str:
    """Return an interval, or that there is none."""
    if ends is None:
        return "-"
    form = ".5g" if message.loss in IN_UNITS else ".3f"
    return f"[{ends[0]:{form}}, {ends[1]:{form}}]"


def number_of(
    message: EstimateMessage | FitMessage, number: float | None, *, nothing: str = "-"
) -> str:
    """Return a number beside coefficients; None is `nothing`."""
    if number is None:
        return nothing
    if number == 0:
        return "0"
    return f"{number:.3g}" if message.loss in IN_UNITS else f"{number:.4f}"


#: A forecast looks at so many estimates: what one says is missing hangs on its noise.
LOOK_BACK = 20
#: Both ends of a range are alike up to this ratio.
ALIKE = 1.25
#: A stream without estimates has stopped after so many of its longest pauses, and so many seconds;
#: after more of them where two pauses are not known.
PAUSES, QUIET_SECONDS, STOPPED_SECONDS = 3, 5.0, 60.0
UNITS = (("day", 86_400), ("hour", 3600), ("minute", 60), ("second", 1))


class Forecast:
    """The range of what the last estimates have said that all intervals need.

    clock: Seconds since 1970; `steady`: seconds that never go back.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock, self._steady = clock, steady
        self._needed: deque[int] = deque(maxlen=LOOK_BACK)
        #: When they were published, and how many records were behind them.
        self._seen: deque[tuple[float, int]] = deque(maxlen=LOOK_BACK)
        self._newest: EstimateMessage | None = None
        self._came = 0.0

    def take(self, message: EstimateMessage, *, live: bool = True) -> None:
        """Take the next estimate.

        live: It has just been published; the age of an older one is told from its own time.
        """
        published = datetime.fromisoformat(message.published_at).timestamp()
        self._came = self._steady() - (0.0 if live else max(0.0, self._clock() - published))
        self._newest = message
        self._seen.append((published, message.records))
        found = message.progress
        if found is None or found.missing_records is None or found.share >= 1:
            self._needed.clear()
        else:
            self._needed.append(message.records + found.missing_records)

    @property
    def age(self) -> float | None:
        """Seconds since the newest estimate; None before the first."""
        return None if self._newest is None else max(0.0, self._steady() - self._came)

    @property
    def stopped(self) -> bool:
        """Whether no estimate comes any more, as no record does, or no worker runs."""
        least = QUIET_SECONDS if len(self._seen) > 2 else STOPPED_SECONDS
        return self.age is not None and self.age >= max(least, PAUSES * self._pause())

    def told(self) -> str:
        """Return in words when all intervals come, or nothing.

        The middle half of what the last estimates have said counts: single ones jump. What was
        promised comes nearer with time, and time alone brings no intervals. Before the first model
        nothing is promised.
        """
        message, age = self._newest, self.age
        if message is None or age is None or not self._needed:
            return ""
        ordered, quarter = sorted(self._needed), len(self._needed) // 4
        ends = (ordered[quarter], ordered[-1 - quarter])
        if self.stopped:
            return (
                f"no new estimate for {_range(age, age)}: no more records are coming, or no worker "
                "runs; without new records there will be no further intervals"
            )
        if message.status == "starting" or not (rate := self._rate(message)):
            return ""
        soon, late = (max(1.0, end - message.records) / rate - age for end in ends)
        if late < 0:
            # by now one would have come, had the rate lasted
            return "" if age < QUIET_SECONDS else f"no new estimate for {_range(age, age)}"
        each = f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"
        return f"all intervals in about {_range(soon, late)} if {each} records a second keep coming"

    def _rate(self, message: EstimateMessage) -> float:
        """Return how many records come each second.

        A client that has ended is still in the rate of the last minutes, and soon no longer in that
        of the last estimates: the lower one counts.
        """
        found = (message.progress and message.progress.records_per_second) or 0.0
        (first, before), (last, now) = self._seen[0], self._seen[-1]
        return min(found, max(0.0, now - before) / (last - first)) if last > first else found

    def _pause(self) -> float:
        """Return the longest time between two of the last estimates."""
        return max((after - before for (before, _), (after, _) in pairwise(self._seen)), default=0)


def _range(soon: float, late: float) -> str:
    """Return a range of seconds in the unit of its end."""
    unit, length = next((u for u in UNITS if late >= 2 * u[1]), UNITS[-1])
    first, last = (f"{max(1.0, seconds / length):,.0f}" for seconds in (soon, late))
    if late <= ALIKE * soon or first == last:
        return f"{last} {unit}{'' if last == '1' else 's'}"
    return f"{first} to {last} {unit}s"


def comparison(private: EstimateMessage, exact: EstimateMessage) -> RenderableType:
    """Return an estimate beside the exact fit of the same records, which keeps no privacy."""
    title = f"{private.study}: what privacy costs"
    # two intervals side by side fit into 80 columns, and names are folded before they are
    grid = Table(title=title, expand=False, box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    grid.add_column("coefficient", overflow="fold")
    for name in ("private", f"{private.level:.0%} interval", "exact", "its interval", "held"):
        grid.add_column(name, justify="right", no_wrap=True)
    for one, other in zip(private.coefficients, exact.coefficients, strict=True):
        held = "-" if one.interval is None else "no"
        if one.interval is not None and covers(one.interval, other.value):
            held = "yes"
        grid.add_row(
            one.name,
            value(private, one.value, 3),
            interval(private, one.interval),
            value(exact, other.value, 3),
            interval(exact, other.interval),
            held,
        )
    lines = [
        ": ".join(filter(None, [name, message.status, message.reason]))
        for name, message in (("private", private), ("exact", exact))
    ]
    fit = f"the same penalised fit (ridge {exact.ridge:.3g})" if exact.ridge else "the same fit"
    lines.append(f"exact: {fit} to all records, without privacy")
    lines.append("held: whether the private interval contains it")
    return Group(grid, *map(Text, lines))


def counts(private: EstimateMessage, exact: EstimateMessage) -> dict[str, int]:
    """Return how many coefficients have intervals, exclude zero, and hold the exact fit."""
    pairs = [
        (one.interval, other.value)
        for one, other in zip(private.coefficients, exact.coefficients, strict=True)
        if one.interval is not None
    ]
    return {
        "intervals": len(pairs),
        "excluding_zero": sum(not covers(ends, 0.0) for ends, _ in pairs),
        "covering_fit": sum(covers(ends, number) for ends, number in pairs),
    }


def covers(interval: tuple[float, float], number: float) -> bool:
    """Whether an interval holds a number."""
    return interval[0] <= number <= interval[1]
