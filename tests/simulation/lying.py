"""A Kafka whose operator lies about releases.

It acknowledges what it never shows, shows it late, shows it again, and in partitions where it does
not belong.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

from pipeline.messages.topics import Topics, partition_of
from tests.simulation.standins import Kafka, Record

#: Of how many releases the broker withholds, delays, repeats, misplaces one.
LIES = {"withheld": 0.06, "delayed": 0.15, "repeated": 0.15, "misplaced": 0.08}


class LyingKafka(Kafka):
    """The stand-in, of another mind.

    Attributes
    ----------
    sent
        What clients have given it, by client.
    delayed
        What it will show later.
    """

    def __init__(self, topics: Topics, chance: random.Random) -> None:
        super().__init__(topics)
        self._topic, self._chance = topics.releases.name, chance
        self.sent: dict[bytes, set[bytes]] = {}
        self.delayed: list[tuple[Any, ...]] = []
        self.lies: Counter[str] = Counter()

    def append(self, topic: str, key: bytes, value: bytes | None, headers: Any = ()) -> Record:
        """Do with a client's release as it likes; all else comes as it is."""
        if topic != self._topic:
            return super().append(topic, key, value, headers)
        self.sent.setdefault(key, set()).add(value or b"")
        [lie] = self._chance.choices([*LIES, "none"], [*LIES.values(), 1 - sum(LIES.values())])
        self.lies[lie] += 1
        number = partition_of(key, self.partitions[topic])
        log = self.logs[topic, number]
        if lie in ("withheld", "delayed"):
            if lie == "delayed":
                self.delayed.append((topic, key, value, headers))
            return Record(topic, number, len(log), key, value, headers, 0)
        record = super().append(topic, key, value, headers)
        if lie == "repeated":
            old = self._chance.choice(log)
            super().append(topic, old.key or b"", old.value, old.headers)
        elif lie == "misplaced":
            other = (number + 1) % self.partitions[topic]
            held = self.logs[topic, other]
            held.append(replace(record, partition=other, offset=len(held)))
        if self.delayed and self._chance.random() < 0.3:
            self.show(self._chance.randrange(len(self.delayed)))
        return record

    def show(self, at: int) -> None:
        """Show a release that was delayed, behind others that came later."""
        super().append(*self.delayed.pop(at))
