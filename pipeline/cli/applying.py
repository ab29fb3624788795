"""The operator's part of a changed study, in an order that may be cut off anywhere and repeated."""

from __future__ import annotations

from infra.admissions import admit_new, announce_keys, read_roll
from infra.local import connected
from infra.topics import announce, ensure_topics, keep_for, known_revision, other_revision
from pipeline.cli.context import say
from pipeline.cli.keys import study_keys
from pipeline.errors import ConfigError
from pipeline.messages.spend import ledger_topic
from pipeline.messages.topics import Topics
from pipeline.release.task import Task
from pipeline.settings import Settings
from producers.database import shown


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
