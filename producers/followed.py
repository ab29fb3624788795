"""A study that another takes the place of, against its releases topic.

A client begins the later study where the earlier one ended. A folder that was put back, however
whole, may know an earlier end than the true one: then records of releases that it has lost would
be released again, and what it has lost of the later study would be counted from the wrong place.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from pipeline.errors import LedgerBehind
from pipeline.messages.topics import Topics
from pipeline.settings import Settings
from pipeline.study import Study
from producers.client_store import ClientStore
from producers.reconcile import Lost, end_of


def check_followed(
    study: Study,
    settings: Settings,
    store: ClientStore,
    lost: Lost,
    say: Callable[[str], None],
    stopped: Callable[[], bool],
) -> None:
    """Refuse to begin behind studies of which this database has lost releases.

    lost: What it has lost of the study that begins.
    say, stopped: As `lost_releases` takes them.

    Raises LedgerBehind if it has, or if something is lost and nobody can tell; ConfigError if Kafka
    does not let the topic be read; BrokerError if it does not answer.
    """
    if store.peek(study.name).next_seq:
        return
    seen, before = {study.name}, study.study.follows
    while before is not None and before not in seen and not stopped():
        known = store.peek(before)
        end = end_of(_topic(study, before), settings, store, known.sent, say, stopped)
        if end is not None and end > known.next_seq:
            raise LedgerBehind(
                f"study.follows: this client's database has {known.next_seq} releases of study "
                f"{before!r}, the releases topic has {end}: the database was restored from an old "
                "copy. Put the newest one back. If it is gone, start the producer once with the "
                f"file of study {before!r} and --skip-lost, and then with this one; nothing was "
                "spent"
            )
        if end is None and lost.seqs and known.next_seq:
            raise LedgerBehind(
                f"study.follows: this client's database has lost releases, and the releases topic "
                f"of study {before!r} no longer shows where that one ended: put the newest "
                "database back; if it is gone, begin a study of another name that follows none, "
                "on records that come from now on"
            )
        seen.add(before)
        # one that has released had the last word of those before it
        before = None if known.next_seq else store.follows(before)


def _topic(study: Study, name: str) -> str:
    named = msgspec.structs.replace(study.study, name=name)
    return Topics.of(msgspec.structs.replace(study, study=named)).releases.name
