"""`veilstream topics`: a study's topics before anything runs, and which revision runs.

What `veilstream study change --apply` and `veilstream study recover` write to them: in an order
that may be cut off anywhere and repeated.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import click

from agents.announcing import authenticator, store_of
from agents.history import log_ends, refold
from infra.admissions import admit_new, announce_keys, read_roll, retire, say_again, tell_again
from infra.dead_letters import Keeper
from infra.kafka import read_partition
from infra.keyring import read_study
from infra.local import connected
from infra.topics import (
    announce,
    are_there,
    check_copies,
    ensure_topics,
    keep_for,
    known_revision,
    other_revision,
)
from pipeline.cli.context import AS_JSON, STUDY, live_task_of, put, say, study_keys
from pipeline.errors import ConfigError, NumericError, OffsetGap, PayloadError, StateError
from pipeline.messages.authentic import Authenticator
from pipeline.messages.envelope import rfc3339
from pipeline.messages.model import Newest, is_possible, read_model, write_model
from pipeline.messages.spend import ledger_topic
from pipeline.messages.topics import Topics
from pipeline.release.task import Task, release_bytes
from pipeline.settings import Settings
from pipeline.stream.merge import expansion_of, model_after, slots_seen, start_is_over
from pipeline.stream.partition import Partition
from pipeline.words import counted, listed
from producers.database import shown
from state import RedisStore


@click.command()
@STUDY
@AS_JSON
@click.option(
    "--replace", is_flag=True,
    help=(
        "Make this file the running one, in place of another revision. Releases of that revision "
        "then become dead letters."
    ),
)  # fmt: skip
@click.option(
    "--retention", "keeps", is_flag=True,
    help="Make topics that exist keep releases and estimates for stream.retention, too. Kafka "
    "removes what is older.",
)  # fmt: skip
def topics(study: Path, as_json: bool, replace: bool, keeps: bool) -> None:
    """Make the topics of STUDY, and write its revision for clients to compare theirs with.

    The topic of all ledgers is made with them. Clients and workers also make topics, if they have
    the right; a worker also writes the revision. Without --retention existing topics are not
    changed.
    """
    task = live_task_of(study, "`veilstream topics`")
    settings = connected(Settings.read())
    own = Topics.of(task.study, release_bytes(task))
    wanted = [*own.all(), ledger_topic(task.study, settings)]
    created = ensure_topics(settings, wanted)
    changed = keep_for(settings, [own.releases, own.estimates]) if keeps else []
    for warning in check_copies(settings, wanted):
        say(f"WARNING: {warning}")
    announce(task, settings, overrule=replace, say=say)
    if as_json:
        put(
            {
                "study": task.study.name,
                "revision": task.revision,
                "created": created,
                "changed": changed,
            }
        )
        return
    for topic in wanted:
        done = "made" if topic.name in created else "is there"
        kept = f", keeps records for {task.study.stream.retention} now"
        click.echo(f"{topic.name}: {done}{kept if topic.name in changed else ''}")
    click.echo(f"the running revision is {task.revision}")


def applied(before: Task, after: Task, settings: Settings, *, is_new_study: bool) -> list[str]:
    """Do what is the operator's to do, and return it in words.

    Raises ConfigError if the old file is not the running one, another file has the new one's name,
    or the new one names a key that is not its study's; BrokerError if Kafka fails.
    """
    settings = connected(settings)
    ensure_topics(settings, Topics.of(before.study).all())
    held = known_revision(before, settings)
    if held not in (None, before.revision):
        raise other_revision(before, held)
    return (_begin if is_new_study else _go_on)(before, after, settings)


def _go_on(before: Task, after: Task, settings: Settings) -> list[str]:
    """Bring the settings of topics up to date; everything else is read from the file."""
    topics = Topics.of(after.study)
    changed = keep_for(settings, [topics.releases, topics.estimates])
    return [f"{name}: keeps records for stream.retention" for name in changed]


def _begin(before: Task, after: Task, settings: Settings) -> list[str]:
    """Make all that the new study needs; its record, by which clients know it, comes last."""
    wanted = [*Topics.of(after.study).all(), ledger_topic(after.study, settings)]
    done = [f"{name}: made" for name in ensure_topics(settings, wanted)]
    held = known_revision(after, settings)
    if held not in (None, after.revision):
        raise other_revision(after, held)
    if after.study.authenticated:
        done += _admit(before, after, settings)
    announce(after, settings, overrule=False, say=say)
    if held is None:
        done.append(f"study {after.study.name!r} is said to run under revision {after.revision}")
    return done


def _admit(before: Task, after: Task, settings: Settings) -> list[str]:
    """Make the new study's key, and admit who is admitted to the old one."""
    pairs = study_keys(after.study, settings)
    public, trust = pairs.newest.public.hex(), after.study.trust
    if trust is not None and trust.key not in (None, public):
        raise ConfigError(
            f"trust.key: study {after.study.name!r} has the key {public}, and NEW names another: "
            "put this one in"
        )
    announce_keys(after.study, settings, pairs)
    done = [f"trust.key = {public}"]
    if before.study.authenticated:
        roll = read_roll(before.study, settings, say)
        keys = {name: roll.standing(name).key for name in roll.clients}
        publics = {name: bytes.fromhex(key) for name, key in keys.items() if key}
        new = admit_new(after.study, settings, pairs, publics)
        done += [f"{shown(name)}: admitted" for name in new]
    return done


CLOSED = (
    "recovered. Look at `veilstream client list`: revoke whom you do not know, and take out what "
    "it sent with `veilstream state forget`. Then start the workers, and each client again"
)
OPEN = (
    "recovered. Start the workers, and each client again. This study is open: what strangers have "
    "sent as clients is in its state, and `veilstream state forget` takes a client out"
)

#: What clients have sent between the loss of a log and its recovery.
AFTER_ALL = (
    "`veilstream dlq list` names them; `veilstream dlq replay --reason not-admitted` has those "
    "folded after all whose clients are admitted again"
)
#: Where releases that were numbered are gone.
SHARES = (
    "WARNING: trust.largest_share: clients go on with their numbers, and count as large as ever "
    "beside a log that begins anew: those above their share of it wait, all of them perhaps for "
    "ever. If that is so, make a study of a new name that `follows` this one (`veilstream study "
    "change` looks at it): each client goes on behind what it has released, with numbers from 0"
)


def tell_losses(task: Task, settings: Settings) -> None:
    """Say what is lost where the state stands beyond the log's end; errors as `recovered`.

    Changes nothing: whoever is asked whether to recover must know it.
    """
    store, name = store_of(task, settings), Topics.of(task.study).releases.name
    ends = log_ends(task, settings) if are_there(settings, [name]) else {}
    for number in range(task.study.stream.partitions):
        try:
            state = store.load(number, doubted=True)
        except StateError:
            continue
        head, end = state.head, ends.get(number, 0)
        if head.next_offset <= end:
            continue
        releases = sum(p.highest + 1 - p.missing for p in state.clients.values())
        held = f"{counted(releases, 'release')} ({counted(head.slots, 'record slot')})"
        say(
            f"partition {number}: the state stands at {head.next_offset} and the log ends at "
            f"{end}, so of {held} in the state those are lost that the log has no longer: the "
            "estimate begins again with what it has, and their privacy budget stays spent"
        )


def recovered(task: Task, settings: Settings) -> None:
    """Bring a study back; VeilstreamError if Kafka, Redis or the study's keys are not usable."""
    topics, store = Topics.of(task.study), store_of(task, settings)
    trust = authenticator(task, settings)
    ensure_topics(settings, topics.all())
    states = _folded(task, settings, store)
    if trust is not None:
        held = read_study(settings, task.study.name)
        announce_keys(task.study, settings, held)
        if any(state.admissions.least < held.least for state in states.values()):
            retire(task.study, settings, held)
            say(
                "the log had lost from where on older keys of the study count no more, and has it "
                "again"
            )
        admitted = {n: state.admissions.clients for n, state in states.items()}
        if lost := tell_again(task.study, settings, held, admitted):
            names = listed([*map(shown, lost)], "client")
            say(f"the log had lost who may release, and has it again: {names}")
        if found := say_again(task.study, settings, held, admitted):
            names = listed([*map(shown, found)], "client")
            say(f"the clients topic says anew who may release: {names}")
    _publish(task, store, states, trust, _highest(task, settings, store))
    say(CLOSED if trust is not None else OPEN)


def _folded(task: Task, settings: Settings, store: RedisStore) -> dict[int, Partition]:
    """Fold the log again and store it; where its beginning is gone, what is stored stays."""
    erased, states, keeper = store.erased(), {}, Keeper(task.study, settings)
    for number in range(task.study.stream.partitions):
        try:
            states[number] = refold(task, settings, number, erased=erased, set_aside=keeper.keep)
        except OffsetGap:
            states[number] = store.load(number)
            say(f"partition {number}: the log has lost its beginning; its state stays as it is")
            continue
        if store.watermark(number) > states[number].head.next_offset:
            say(f"partition {number}: the log was made anew, and what it held is lost")
            if task.study.largest_share is not None:
                say(SHARES)
        store.replace(number, states[number])
        say(f"partition {number}: folded again up to {states[number].head.next_offset}")
    if keeper.sent:
        say(f"{counted(keeper.sent, 'dead letter')} that no worker had set aside. {AFTER_ALL}")
    return states


def _highest(task: Task, settings: Settings, store: RedisStore) -> int:
    """Return a version that no client can hold a newer one of, and whose successor they take.

    Clients prefer what the logs explain to any version that they do not, and refuse what follows
    one of those: a forged version counts only where nothing is explained. So do models that are not
    believed: a client that took one believed another key.
    """
    versions = [0]
    try:
        held = store.newest_model()
        versions += [] if held is None else [held[0]]
    except StateError:
        say("the model in Redis is damaged and goes away")
    releases = sum(log_ends(task, settings).values())
    believed = Newest(task, lambda: releases, time.time)
    for record in read_partition(settings, Topics.of(task.study).models.name, 0):
        try:
            model = read_model(task, record.value or b"")
        except PayloadError:
            continue
        believed.take(record.offset, model)
        versions.append(model.version)
    if believed.explained:
        return believed.model.version
    now = time.time()
    return max(version for version in versions if is_possible(task.study, version, now))


def _publish(
    task: Task, store: RedisStore, states: Mapping[int, Partition],
    trust: Authenticator | None, floor: int,
) -> None:  # fmt: skip
    """Put a model of the state in place of the one in Redis; a worker sends it when it starts."""
    store.remove_model()
    if not start_is_over(task, states.values()):
        say(
            f"no model yet: the log has too few releases for one; versions go on above {floor}"
            if floor
            else "no model: clients begin at the public start"
        )
        return
    now, watermark = time.time(), slots_seen(states.values())
    try:
        expansion = expansion_of(task, [states[number] for number in sorted(states)])
        model = model_after(task, states, expansion, floor + 1, watermark)
    except NumericError as error:
        say(f"no model yet: {error}")
        return
    payload = write_model(task, model if trust is None else trust.ticketed(model), rfc3339(now))
    store.store_model(model.version, payload if trust is None else trust.sign(payload))
    say(f"the next model has version {model.version}")
