"""The demonstration on a year of flights: a regression with intervals, against the pooled fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console

from pipeline.cli.context import say
from pipeline.cli.stage import Demonstration, Site, same_state
from pipeline.errors import RecordError
from pipeline.library.comparing import comparison, counts, covers, half, half_widths
from pipeline.library.numbers import value
from pipeline.messages.estimate import Coefficient, EstimateMessage
from pipeline.methods import task_of
from pipeline.records.encode import Encoder, Row
from pipeline.release.task import Task
from pipeline.study_file.edit import with_keys
from producers.sources.flights import AIRLINES, flights

#: The coefficient that the study is about.
MAIN = "dep_delay"
#: The budget that people ask for first.
ASKED = 1.0
#: Seed of a random order of the flights.
SHUFFLE = 1
#: In one process a model follows a round of all airlines: one estimate for each window would take
#: most of the time.
ROUND = {"stream.publish.releases": len(AIRLINES)}


class Flights(Demonstration):
    """The flights of 2013, each airline a client."""

    seconds = 48.0
    ahead = 15.0

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.sites = [Site(code, f"flights:{code}", count) for code, count in AIRLINES.items()]

    def close(self, final: EstimateMessage, same: bool) -> dict[str, object]:
        """Set the estimate beside the pooled fit, a smaller budget, and flights in random order."""
        say("fitting all flights without privacy, and streaming them again in one process ...")
        exact = self.exact()
        pooled = [row.value for row in exact.coefficients]
        study = with_keys(self._task.study, ROUND, name="flights")
        tight = self.stream(task_of(with_keys(study, {"privacy.epsilon": ASKED}, name="flights")))
        timed = self.stream(task_of(study))
        shuffled = self.stream(task_of(study), shuffle=SHUFFLE)
        runs = {"live": final, "in time": timed, "shuffled": shuffled}
        runs[f"epsilon {ASKED:g}"] = tight
        say(
            "The second table: live is the stream above; in time, the same flights in one process, "
            f"without delay; shuffled, the same in random order; epsilon {ASKED:g}, in time with "
            "that budget instead of the study's."
        )
        Console().print(comparison(final, exact), half_widths(runs))
        longer = _longer(timed, shuffled)
        for text in (
            *_words(final, pooled, tight, timed),
            *_order(timed, shuffled, pooled, longer),
        ):
            say(text)
        say(same_state(same))
        main = _main(final)
        return {
            "flights": len(self.slots),
            "coefficient": MAIN,
            "estimate": round(main.value, 3),
            "interval": _ends(main),
            "pooled": round(pooled[final.coefficients.index(main)], 3),
            "exact_interval": _ends(_main(exact)),
            "covered": _covered(final, pooled),
            "covered_in_time": _covered(timed, pooled),
            "covered_shuffled": [_covered(shuffled, pooled)],
            "coefficients": len(pooled),
            **counts(final, exact),
            "in_time_over_shuffled": {name: round(ratio, 2) for name, ratio in longer.items()},
            f"at_epsilon_{ASKED:g}": {"status": tight.status, "interval": _main(tight).interval},
            "staleness": final.diagnostics.staleness and round(final.diagnostics.staleness),
        }

    def _slots(self) -> Iterator[tuple[str, Row | None]]:
        encoder = Encoder(self._task.study)
        for record in flights():
            airline = str(record["carrier"])
            try:
                yield airline, encoder.encode(record)
            except RecordError:
                yield airline, None


def _words(
    final: EstimateMessage,
    pooled: Sequence[float],
    tight: EstimateMessage,
    timed: EstimateMessage,
) -> Iterator[str]:
    main, small = _main(final), _main(tight)
    reason = f" ({final.reason})" if final.reason else ""
    if main.interval is None:
        yield f"In words: no interval: {final.reason}."
        if timed.status == "ready":
            yield (
                "Without delay the same flights have intervals at the same budget: this machine is "
                "too slow for so many flights a second, or has other work."
            )
    else:
        zero = "holds zero" if covers(main.interval, 0.0) else "excludes zero"
        yield (
            f"In words: the interval of {MAIN} {zero}; the intervals hold {_covered(final, pooled)}"
            f" of the {len(pooled)} coefficients of the pooled fit{reason}."
        )
    promise = f"At epsilon {ASKED:g} the same flights give {value(tight, small.value)} for {MAIN}"
    if small.interval is None:
        yield f"{promise} and no interval: {tight.reason}."
    else:
        yield f"{promise}, plus or minus {half(small.interval):.3g}."


def _order(
    timed: EstimateMessage,
    shuffled: EstimateMessage,
    pooled: Sequence[float],
    longer: Mapping[str, float],
) -> Iterator[str]:
    """Say what the order of time does to intervals, in one process and without delay."""
    held = (_covered(run, pooled) for run in (timed, shuffled))
    first, other = ("none shown" if count is None else count for count in held)
    yield (
        "Intervals suppose independent draws, and flights of one day or season are none. In one "
        f"process, without delay, flights in the order of time have intervals that hold "
        f"{first} of {len(pooled)} coefficients of the pooled fit; shuffled flights "
        f"{other}."
    )
    if longer:
        told = ", ".join(f"{name} {ratio:.1f}" for name, ratio in longer.items())
        yield (
            f"Lengths in the order of time, as multiples of shuffled ones: {told}. Each length is "
            "itself a matter of chance."
        )


def _longer(timed: EstimateMessage, shuffled: EstimateMessage) -> dict[str, float]:
    """Return how many times as long intervals in time are as those of shuffled flights."""
    other = _halves(shuffled)
    return {name: mine / other[name] for name, mine in _halves(timed).items() if name in other}


def _main(message: EstimateMessage) -> Coefficient:
    return next(row for row in message.coefficients if row.name == MAIN)


def _ends(row: Coefficient) -> list[float] | None:
    return row.interval and [round(end, 3) for end in row.interval]


def _covered(message: EstimateMessage, pooled: Sequence[float]) -> int | None:
    """Return how many intervals hold the pooled fit; None where no interval is shown."""
    if not any(row.interval for row in message.coefficients):
        return None
    pairs = zip(message.coefficients, pooled, strict=True)
    return sum(bool(row.interval and covers(row.interval, to)) for row, to in pairs)


def _halves(message: EstimateMessage) -> Mapping[str, float]:
    """Return half the length of each interval, by coefficient; empty without intervals."""
    return {row.name: half(row.interval) for row in message.coefficients if row.interval}
