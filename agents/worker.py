"""Running a worker: checks first, then Faust; faults of the infrastructure end the process."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import faust
import mode
from aiokafka.errors import KafkaError

from agents.announcing import authenticator, say_all, store_of
from agents.app import create_app
from infra import process as saying
from infra.kafka import told
from infra.local.processes import hold
from infra.topics import check_broker, check_copies, ensure_topics
from pipeline.errors import AlreadyRunning, LocalStoreError, VeilstreamError
from pipeline.messages.topics import Topics
from pipeline.methods import require_live
from pipeline.release.task import Task, release_bytes
from pipeline.settings import Settings

#: Of a study whose releases are open.
OPEN = (
    'WARNING: trust.releases is "open" or not given: whoever can write to this study\'s topics '
    "can move its estimate in the name of any client. New studies are authenticated; "
    "docs/admission.md says how"
)


def run_worker(
    task: Task, settings: Settings, *, instance: str, folder: Path,
    health: tuple[str, int] | None = None, verify: tuple[Path, float] | None = None,
) -> None:  # fmt: skip
    """Run one worker until a signal or a fault ends it; it does not return.

    BrokerError, StoreError, ConfigError if Kafka or Redis is not usable at the start, or
    another revision of the study runs; AlreadyRunning, LocalStoreError as `alone`.
    """
    require_live(task.study, "a worker")
    with alone(task.study.name, instance, folder):
        _run(task, settings, instance, folder, health, verify)


def _run(
    task: Task, settings: Settings, instance: str, folder: Path, health: tuple[str, int] | None,
    verify: tuple[Path, float] | None,
) -> None:  # fmt: skip
    store = store_of(task, settings)
    # a state that this worker must refuse is refused before it joins the group, where it would
    # hold partitions that others could serve
    states = [store.load(number) for number in range(task.study.stream.partitions)]
    trust = authenticator(task, settings)
    check_broker(settings)
    topics = Topics.of(task.study, release_bytes(task)).all()
    ensure_topics(settings, topics)
    for warning in check_copies(settings, topics):
        _say(f"WARNING: {warning}")
    say_all(task, settings, dict(enumerate(states)), _say)
    if trust is None:
        _say(OPEN)
    # its errors come many times a second; what they mean is said once, when the worker ends
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    # what these guess at for pages is said in a line, see `agents.app.tell_of_waits`
    for name in ("faust.transport.drivers.aiokafka", "faust.assignor.partition_assignor"):
        logging.getLogger(name).addFilter(lambda record: bool(record.exc_info))
    saying.say(
        f"veilstream worker {instance}: folding study {task.study.name} (revision {task.revision})"
    )
    app = create_app(
        task,
        settings,
        instance=instance,
        folder=folder,
        health=health,
        fatal=stop,
        trust=trust,
        say=_say,
        verify=verify,
    )
    worker = _Worker(
        app,
        loglevel="warning",
        quiet=True,
        redirect_stdouts=False,
        logging_config=saying.logging_config(),
        workdir=str(folder),
    )
    # the cursor codes of a spinner have no place in a log
    worker.spinner = None
    # what lives now lives for ever; the collector need not look at it again
    gc.freeze()
    begin(worker, settings)


class _Worker(faust.Worker):  # type: ignore[misc]
    """Ends at once when it is told to, as a crash would.

    Faust would close one thing after the other, and wait without a limit for threads and tasks of
    which one may wait for another that is closed. There is nothing to close: what was not
    committed is read again.
    """

    def install_signal_handlers(self) -> None:
        """Handle what a supervisor sends."""
        super().install_signal_handlers()
        for number in (signal.SIGINT, signal.SIGTERM):
            self.loop.add_signal_handler(number, _end, 0)


@contextmanager
def alone(study: str, instance: str, folder: Path) -> Iterator[None]:
    """Hold the name of a worker of a study in its folder, until the process ends, however it does.

    Kafka gives the partitions of one name to whoever came last: two workers of one name would take
    them from each other without a word.

    AlreadyRunning if another process has it; LocalStoreError if the folder cannot be written.
    """
    with ExitStack() as held:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            held.enter_context(hold(folder, f"{study}.lock", wait=False))
        except AlreadyRunning:
            raise AlreadyRunning(
                f"a worker {instance} of study {study!r} runs already on this machine; stop it, or "
                "give this one an --instance of its own"
            ) from None
        except OSError as error:
            raise LocalStoreError(
                f"{folder} cannot be written ({error.strerror}): check the disk and the folder, "
                "or name another folder in VEILSTREAM_FOLDER"
            ) from error
        yield


def begin(worker: mode.Worker, settings: Settings) -> None:
    """Let Faust run; it does not return.

    Kafka may go away between the worker's own look at it and the start of Faust's consumer, whose
    fault comes to nobody who could tell what it means.
    """
    fault: BaseException
    try:
        worker.loop.run_until_complete(worker.start())
        fault = worker.crash_reason or RuntimeError("Faust has ended without a reason")
    except Exception as error:
        fault = error
    if isinstance(fault, KafkaError):
        otherwise = f"Kafka at {settings.kafka} cannot be reached ({type(fault).__name__})"
        fault = told(settings, fault, otherwise, what="the cluster", operation="Describe")
    stop(fault)


def _say(line: str) -> None:
    saying.say(f"veilstream worker: {line}")


def stop(error: BaseException) -> None:
    """End the process at once, with the exit code of the error.

    An orderly stop would let Faust acknowledge what this worker did not fold.
    """
    code = error.exit_code if isinstance(error, VeilstreamError) else 1
    if isinstance(error, VeilstreamError):
        saying.say(f"veilstream worker: {error}", "error", exit_code=code)
    else:
        logging.getLogger("veilstream").critical("the worker failed", exc_info=error)
    _end(code)


def _end(code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
