"""The studies that another takes the place of, against their releases topics.

A client begins the later study where the earlier one ended. A folder that was put back, however
whole, may know an earlier end than the true one: then records of releases that it has lost would
be released again, and what it has lost of the later study would be counted from the wrong place.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from infra.keyring import client_path, pinned
from infra.topics import are_there
from pipeline.errors import LedgerBehind
from pipeline.messages.topics import Topics
from pipeline.release.task import Task
from pipeline.settings import Settings
from pipeline.study.model import Study
from pipeline.study.release_tables import Trust
from pipeline.words import counted
from producers.client_store import ClientStore
from producers.membership import Membership
from producers.reconcile import FORGED, Lost, end_of


def check_followed(
    task: Task,
    settings: Settings,
    store: ClientStore,
    source: str,
    lost: Lost,
    say: Callable[[str], None],
    stopped: Callable[[], bool],
) -> None:
    """Refuse to begin behind studies of which this database has lost releases.

    source: Whose records are released.
    lost: What it has lost of the study that begins.
    say, stopped: As `lost_releases` takes them.

    Raises LedgerBehind if it has, or if something is lost and nobody can tell; ConfigError if Kafka
    does not let the topic be read; BrokerError if it does not answer.
    """
    if store.peek(task.study.name).next_seq:
        return
    for before in store.following.line(task.study.study.before, source):
        if stopped():
            return
        known, study = store.peek(before), _earlier(task.study, before)
        member = _membership(study, settings, store.client, say)
        topic = Topics.of(study).releases.name
        end = end_of(topic, settings, store, known.sent, say, stopped, member)
        if end is not None and end > known.next_seq:
            forged = "" if member else f". If it was not restored, {FORGED}"
            raise LedgerBehind(
                f"study.follows: this client's database has "
                f"{counted(known.next_seq, 'release')} of study "
                f"{before!r}, the releases topic has {end}: the database was restored from an old "
                "copy. Put the newest one back. If it is gone, start the producer once with the "
                f"file of study {before!r} and --skip-lost, and then with this one{forged}. "
                "Nothing was spent"
            )
        if end is None and lost.seqs and known.next_seq:
            raise LedgerBehind(
                f"study.follows: this client's database has lost releases, and the releases topic "
                f"of study {before!r} no longer shows where that one ended: put the newest "
                "database back; if it is gone, begin a study of another name that follows none, "
                "on records that come from now on"
            )


def _earlier(study: Study, name: str) -> Study:
    """Return what is known of an earlier study without its file: its name, and where its keys are.

    Its own file may have had no [trust]: see `_membership`.
    """
    named = msgspec.structs.replace(study.study, name=name)
    return msgspec.structs.replace(study, study=named, trust=Trust(releases="authenticated"))


def _membership(
    study: Study, settings: Settings, client: str, say: Callable[[str], None]
) -> Membership | None:
    """Return what tells a client's own releases for an earlier study from what others forged.

    None if any release may be its own: the study was open when this folder took part in it, or has
    known this client under a key that is not here.
    """
    if pinned(settings, study.name) is None or not client_path(settings, client).exists():
        return None
    if not are_there(settings, [Topics.of(study).clients.name]):
        return None
    member = Membership(study, settings, client, say, looking=True)
    return member if member.has_all_keys else None
