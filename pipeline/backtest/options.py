"""How a backtest is run: everything beside the study and the history."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.backtest.clients import ByColumn, Clients, Dealt
from pipeline.backtest.clock import Delay, delay_of, seconds_of
from pipeline.errors import ConfigError
from pipeline.methods import require_live, require_noise, task_of
from pipeline.study.model import Study
from pipeline.study.release_tables import require_no_level_column
from pipeline.study.variants import simulated, without_privacy


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a backtest is run.

    client_column: Column that says whose record it is; default: all belong to one client.
    split, by: Deal records to so many clients by a rule instead; see `clients.Dealt`.
    event_time: Column with the time of each record, RFC 3339 or seconds since 1970.
    late: What becomes of a record whose time lies before an earlier one's: "refuse" or "keep".
    start, end: Only records with an event time from `start` on and before `end`.
    delay: Of the network, each way: "30s", "exponential:30s" or "500 records".
    label_delay: How long after a record its response is known: "1000 records" or "3600s".
    freeze: Also score the estimate of this time, which learns no more, on all later records;
        without event time the number of a record.
    without_privacy: Run the same study without noise.
    simulate: Draw noise of the same size from this seed: repeatable, and it protects nobody.
    shuffle: Take the records in a random order of this seed, all of them in memory at once.
    seed: Of delays and of the rule "dirichlet".
    bins: The most bins of time, in [2, 1000].
    pooled: Whether to fit all records without privacy as well, and see which intervals hold that.
    beside: Kinds of methods that run over files alone, to score on the same records.

    Raises ConfigError if options do not go together.
    """

    client_column: str | None = None
    split: int | None = None
    by: str = "round-robin"
    event_time: str | None = None
    late: str = "refuse"
    start: str | float | None = None
    end: str | float | None = None
    delay: str = "0"
    label_delay: str = "0"
    freeze: str | float | None = None
    without_privacy: bool = False
    simulate: int | None = None
    shuffle: int | None = None
    seed: int = 0
    bins: int = 60
    pooled: bool = True
    beside: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse options that do not go together."""
        timed = self.event_time is not None
        if self.client_column is not None and self.split is not None:
            raise ConfigError("--client-column and --split: give one of the two")
        if self.split is not None and not 1 <= self.split <= 100_000:
            raise ConfigError("--split: it must be in [1, 100000]")
        if self.split is None and self.by != "round-robin":
            raise ConfigError("--by: it says how --split deals records; give both")
        if self.late not in ("refuse", "keep"):
            raise ConfigError('--late: it must be "refuse" or "keep"')
        if not timed and (self.start is not None or self.end is not None):
            raise ConfigError("--from and --to need --event-time, the column with the times")
        if self.without_privacy and self.simulate is not None:
            raise ConfigError("--without-privacy and --simulate: give one of the two")
        if not 2 <= self.bins <= 1000:
            raise ConfigError("--bins: it must be in [2, 1000]")
        if min(self.seed, self.simulate or 0, self.shuffle or 0) < 0:
            raise ConfigError("--seed, --simulate and --shuffle: they must be 0 or more")
        if timed and self.shuffle is not None:
            raise ConfigError(
                "--shuffle and --event-time: records with times have an order; give one of the two"
            )
        if self.network.mean and (self.network.of == "seconds") != timed:
            raise ConfigError(
                "--delay: it is in seconds where there is an --event-time, and in records where "
                "there is none"
            )
        if self.labels.exponential:
            raise ConfigError("--label-delay: all labels are equally late; leave exponential: out")
        if self.labels.of == "seconds" and not timed:
            raise ConfigError("--label-delay: in seconds it needs --event-time; give records")

    @property
    def network(self) -> Delay:
        """The network's delay."""
        return delay_of(self.delay, "--delay")

    @property
    def labels(self) -> Delay:
        """The labels' delay."""
        return delay_of(self.label_delay, "--label-delay")

    def clock(self, value: str | float | None, option: str) -> float | None:
        """Return a time of an option, seconds since 1970, or the number of a record.

        Raises ConfigError if it is no time.
        """
        if value is None or isinstance(value, (int, float)):
            return value
        if self.event_time is not None:
            return seconds_of(value, option)
        if not value.isdecimal():
            raise ConfigError(f"{option}: without --event-time it must be the number of a record")
        return float(value)

    def study_of(self, study: Study) -> Study:
        """Return the study that is run.

        Raises ConfigError if its kind has no live stream, or none without noise, or its noise
        cannot be simulated.
        """
        require_live(study, "a backtest")
        require_no_level_column(study.privacy, "a backtest")
        if self.without_privacy:
            found = without_privacy(study)
            require_noise(found)
            return found
        return study if self.simulate is None else simulated(study, self.simulate)

    def clients_of(self, study: Study) -> Clients:
        """Return who the records belong to."""
        if self.client_column is not None:
            return ByColumn(self.client_column)
        names = ["client"]
        if self.split is not None:
            # a method may name the first of them
            named = task_of(study).clients[: self.split]
            names = [*named, *(f"client-{n}" for n in range(len(named), self.split))]
        return Dealt(names, self.by, seed=self.seed, study=study)
