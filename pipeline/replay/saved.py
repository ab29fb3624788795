"""A replay as bytes: to go on where it was interrupted, with the same estimates."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from pipeline.errors import ConfigError, StateError
from pipeline.reducer import Partition
from pipeline.replay.ranges import Span
from pipeline.replay.run import Replay

#: Raised when the form of the file changes.
SCHEMA = 1
_Natural = Annotated[int, Meta(ge=0)]


class SavedPartition(msgspec.Struct, frozen=True):
    """One partition: its span, the state as Redis would have it, and its clock."""

    start: _Natural
    stop: _Natural
    clock: _Natural
    fields: dict[str, bytes]
    clients: dict[str, bytes]


class Saved(msgspec.Struct, frozen=True):
    """An interrupted replay.

    command: What was asked for, by option: only the same can go on.
    written, estimates: Bytes and estimates that the output holds.
    """

    command: dict[str, str]
    written: _Natural
    estimates: _Natural
    since: _Natural
    tick: _Natural
    erased: list[str]
    partitions: dict[int, SavedPartition]
    schema: int = SCHEMA

    @classmethod
    def of(cls, replay: Replay, command: dict[str, str], *, written: int, estimates: int) -> Saved:
        """Save a replay as it stands; what waits is folded first."""
        replay.settle()
        return cls(
            command=command,
            written=written,
            estimates=estimates,
            since=replay.since,
            tick=replay.tick,
            erased=sorted(replay.erased),
            partitions={
                number: SavedPartition(
                    start=span.start,
                    stop=span.stop,
                    clock=replay.clocks.get(number, 0),
                    fields=replay.partitions[number].fields(everything=True),
                    clients=replay.partitions[number].client_fields(everything=True),
                )
                for number, span in replay.spans.items()
            },
        )

    def encode(self) -> bytes:
        """Write as MessagePack."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, data: bytes, command: dict[str, str], erased: frozenset[str]) -> Saved:
        """Read what `encode` wrote.

        command: What is asked for now.
        erased: The clients that are taken out now.

        Raises StateError if it is not that, or a client has been taken out since; ConfigError if
        something else is asked for.
        """
        try:
            saved = msgspec.msgpack.decode(data, type=cls)
        except msgspec.DecodeError:
            saved = None
        if saved is None or saved.schema != SCHEMA:
            raise StateError(
                "the file of the interrupted replay is none of this version: remove it, and start "
                "the replay again"
            )
        for option in sorted(command.keys() | saved.command.keys()):
            before, now = saved.command.get(option, ""), command.get(option, "")
            if before != now:
                raise ConfigError(
                    f"{option}: the interrupted replay had {before!r}, and this one has {now!r}: "
                    "repeat its command, or remove its file to start again"
                )
        if frozenset(saved.erased) != erased:
            raise StateError(
                "clients have been taken out since the replay was interrupted: remove its file, "
                "and start it again"
            )
        return saved

    def restore(self, replay: Replay) -> None:
        """Bring a replay of the same command to where this one was.

        StateError if a state cannot be read.
        """
        replay.since, replay.tick = self.since, self.tick
        for number, held in self.partitions.items():
            state = Partition.decode(replay.task, held.fields, held.clients, replay.erased, number)
            state.midway = held.start > 0
            replay.partitions[number] = state
            if held.clock:
                replay.clocks[number] = held.clock

    @property
    def spans(self) -> dict[int, Span]:
        """The range, as it was resolved at the start."""
        return {n: Span(held.start, held.stop) for n, held in sorted(self.partitions.items())}
