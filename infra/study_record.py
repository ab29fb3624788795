"""The record that says which revision of a study is the running one: read, and written.

Workers write it, and `veilstream topics`. Two workers of different revisions that both start first
may both write: the later record counts, and the state in Redis refuses one of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from infra.connection import read_all, write_one
from pipeline.errors import ConfigError
from pipeline.messages.admission import Known, write_study
from pipeline.messages.topics import Topics
from pipeline.release.task import Task
from pipeline.settings import Settings


def known_revision(task: Task, settings: Settings) -> str | None:
    """Return the running revision of a study; None if nothing says it.

    BrokerError if Kafka does not answer.
    """
    known = Known(task.study.name)
    for _, value in read_all(settings, Topics.of(task.study).study.name):
        known.take(value)
    return known.revision


def check_running(task: Task, settings: Settings) -> None:
    """Refuse another revision than the running one; ConfigError, BrokerError as `announce`."""
    held = known_revision(task, settings)
    if held not in (None, task.revision):
        raise other_revision(task, str(held))


def announce(task: Task, settings: Settings, *, overrule: bool, say: Callable[[str], None]) -> None:
    """Write the record of a study, unless it is there.

    overrule: Whether this revision is right whatever the record says.
    say: Told of a record that was overruled.

    Raises ConfigError if the record names another revision; BrokerError if Kafka does not answer.
    """
    held = known_revision(task, settings)
    if held == task.revision:
        return
    if held is not None:
        if not overrule:
            raise other_revision(task, held)
        say(
            f"WARNING: the record of study {task.study.name!r} named revision {held}; it names "
            f"{task.revision} now. Clients of another revision stop"
        )
    topic, key = Topics.of(task.study).study.name, task.study.name.encode()
    value, marks = write_study(task, time.time())
    write_one(settings, topic, key=key, value=value, headers=marks)


def other_revision(task: Task, held: str) -> ConfigError:
    """Return the error for a study file that is not the running one."""
    name = task.study.name
    return ConfigError(
        f"study {name!r} runs under revision {held}, and this file is revision {task.revision}: "
        "releases of one are dead letters to the other. Nothing was spent for it. The operator "
        f"must give this process the file of revision {held}, or the changed study a new name "
        "(`veilstream study change` says how); if nothing of the other is wanted any more, "
        "`veilstream topics STUDY --replace` makes this file the running one"
    )
