"""With exactly the rights that `study acls` prints each role works, and with any one less it fails.

On a real Kafka, as users of SASL SCRAM; and on a real Redis. Over TLS each role works, and it is
refused without, where a connection costs a third: rights are the same.
"""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kafka.admin import (
    ACL,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    KafkaAdminClient,
    ResourcePattern,
    ResourcePatternFilter,
    ResourceType,
)

from infra.deploy import ROLES, kafka_commands, kafka_rights, redis_command
from pipeline.cli.client import admit_here
from pipeline.errors import ConfigError, StaleSnapshot, VeilstreamError
from pipeline.methods import task_of
from pipeline.page.content import Watched
from pipeline.page.server import Reading
from pipeline.settings import Settings
from pipeline.stream.partition import Partition
from pipeline.study_file.load import parse_study
from state import RedisStore
from state.connection import redis_client
from tests.builders import folded, sample_log
from tests.builders import study_text as plain_study
from tests.redis_server import redis_server
from tests.secured import LATE_PASSWORD, Secured
from tests.stage import Stage, send, study_text, until, write_csv
from tests.trusted import TRUST

#: A right: whether of a topic or a group, its name, and the operation.
One = tuple[str, str, str]
#: Clients that are admitted: one for each right of a client, and two more.
MOST = 24
OPERATIONS = {"DescribeConfigs": ACLOperation.DESCRIBE_CONFIGS}


def acl(user: str, right: One) -> ACL:
    kind, name, operation = right
    known = OPERATIONS.get(operation) or ACLOperation[operation.upper()]
    pattern = ResourcePattern(ResourceType[kind.upper()], name)
    return ACL(f"User:{user}", "*", known, ACLPermissionType.ALLOW, pattern)


def told(commands: list[str]) -> list[tuple[str, One]]:
    """Return user and rights that printed commands name."""
    found = []
    for command in commands:
        words = shlex.split(command)
        assert words[:4] == ["kafka-acls.sh", "--bootstrap-server", words[2], "--add"]
        pairs = list(zip(words[4::2], words[5::2], strict=True))
        user = dict(pairs)["--allow-principal"].removeprefix("User:")
        kind, name = next((k[2:], v) for k, v in pairs if k in ("--topic", "--group"))
        found += [(user, (kind, name, v)) for k, v in pairs if k == "--operation"]
    return found


@dataclass
class Rights:
    """What Kafka permits, as a test changes it."""

    admin: Any

    def give(self, user: str, rights: list[One]) -> None:
        assert self.admin.create_acls([acl(user, right) for right in rights])

    def take(self, user: str, rights: list[One]) -> None:
        filters = []
        for right in rights:
            one = acl(user, right)
            pattern = ResourcePatternFilter(
                one.resource_pattern.resource_type,
                one.resource_pattern.resource_name,
                one.resource_pattern.pattern_type,
            )
            filters.append(
                ACLFilter(one.principal, one.host, one.operation, one.permission_type, pattern)
            )
        self.admin.delete_acls(filters)

    @contextmanager
    def without(self, user: str, right: One) -> Iterator[None]:
        self.take(user, [right])
        yield
        self.give(user, [right])


@pytest.fixture
def rights(secured: Secured) -> Iterator[Rights]:
    with KafkaAdminClient(bootstrap_servers=secured.plain.kafka) as admin:
        yield Rights(admin)


@pytest.fixture
def stage(secured: Secured, redis_url: str, tmp_path: Path) -> Iterator[Stage]:
    """Yield an authenticated study whose topics the operator has made.

    An open one asks for the same rights, less those on the clients topic.
    """
    text = study_text(partitions=1, releases=1) + TRUST
    with Stage(tmp_path, secured.plain.kafka, redis_url, text) as made:
        assert made.run("topics", made.study).returncode == 0
        yield made


def be(stage: Stage, at: Settings, role: str) -> None:
    """Let the processes of a stage be a user of a listener."""
    stage.environment |= {
        "VEILSTREAM_KAFKA": at.kafka,
        "VEILSTREAM_KAFKA_SECURITY": at.kafka_security,
        "VEILSTREAM_KAFKA_SASL": at.kafka_sasl,
        "VEILSTREAM_KAFKA_CA": at.kafka_ca,
        "VEILSTREAM_KAFKA_USERNAME": role,
        "VEILSTREAM_KAFKA_PASSWORD": LATE_PASSWORD,
    }


def least(stage: Stage, role: Any) -> list[One]:
    """Return the rights of a role, as the command prints them."""
    done = stage.run("study", "acls", stage.study, "--role", role, "--user", role)
    assert done.returncode == 0
    printed = [line for line in done.stdout.splitlines() if line.startswith("kafka-acls.sh")]
    found = told(printed)
    assert {user for user, _ in found} == {role}
    return [right for _, right in found]


#: Of how many rights of a client one is taken away: of each in the slow tests.
EVERY = pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.slow)])


def check(
    stage: Stage, secured: Secured, rights: Rights, role: str, works: Callable[[], tuple[int, str]],
    every: int = 1,
) -> None:  # fmt: skip
    """Let a role work with its rights, and see it refused with one of them less."""
    wanted = least(stage, role)
    be(stage, secured.scram, role)
    rights.give(role, wanted)
    code, said = works()
    assert code == 0, said
    be(stage, secured.users, role)
    for right in wanted[::every]:
        with rights.without(role, right):
            code, said = works()
            assert code == 10, (right, code, said)
            assert right[1] in said, (right, said)
    assert works()[0] == 0
    rights.take(role, wanted)


@EVERY
@pytest.mark.takes("a client for some of its rights")
def test_a_client_has_the_least_rights(
    stage: Stage, secured: Secured, rights: Rights, every: int
) -> None:
    names = itertools.count()
    admit_here(stage.task.study, stage.settings, [f"c{n}" for n in range(MOST)])

    def works() -> tuple[int, str]:
        number = next(names)
        source = write_csv(stage.folder / f"{number}.csv", 20, seed=number)
        stage.produce(f"c{number}", source)
        return stage.code(f"c{number}"), stage.said(f"c{number}")

    check(stage, secured, rights, "client", works, every)


@pytest.mark.slow
def test_a_worker_has_the_least_rights(stage: Stage, secured: Secured, rights: Rights) -> None:
    feeding = Stage(
        stage.folder / "feeding", stage.settings.kafka, stage.settings.redis,
        stage.study.read_text(), ledger=stage.settings.ledger_topic,
    )  # fmt: skip
    feeding.environment["VEILSTREAM_FOLDER"] = stage.settings.folder
    names = itertools.count()
    admit_here(stage.task.study, stage.settings, ["north"])
    feeding.produced("north", write_csv(stage.folder / "north.csv", 40))
    bad = {"key": b"x", "value": b"no release"}
    send(stage.settings.kafka, stage.topics.releases.name, [bad])

    def published() -> list[int]:
        topics = (stage.topics.estimates, stage.topics.latest, stage.topics.models)
        return [len(stage.read(topic.name)) for topic in topics]

    def works() -> tuple[int, str]:
        number = next(names)
        # or the worker would have nothing to say in the clients topic
        assert stage.run("study", "keys", stage.study, "--rotate").returncode == 0
        # it folds the whole log, publishes, and writes a dead letter each time
        if keys := stage.stored_keys():
            stage.redis.delete(*keys)
        before = published()
        name = f"w{number}"
        # under one name: Kafka would hold its partitions for a while if it were another
        process = stage.start(name, "worker", stage.study, "--instance", "w")
        # the model is written behind the estimate, and a worker that may not ends only then
        until(
            lambda: (
                process.poll() is not None
                or all(now > then for now, then in zip(published(), before, strict=True))
            ),
            "an estimate and a model, or an end",
        )
        if (code := process.poll()) is None:
            stage.caught_up()
            stage.kill(name)
            code = 0
        return code, stage.said(name)

    check(stage, secured, rights, "worker", works)


@pytest.mark.slow
def test_a_reader_has_the_least_rights(stage: Stage, secured: Secured, rights: Rights) -> None:
    admit_here(stage.task.study, stage.settings, ["north"])
    stage.worker()
    stage.produced("north", write_csv(stage.folder / "a.csv", 200))
    stage.until(lambda: stage.read(stage.topics.latest.name), "an estimate")
    stage.caught_up()
    stage.kill("w0")

    def works() -> tuple[int, str]:
        asked = (
            ("watch", stage.study, "--count", "1", "--json"),
            ("watch", stage.study, "--save-model", stage.folder / "model.json"),
            ("replay", stage.study, "--check"),
        )
        for words in asked:
            done = stage.run(*words)
            if done.returncode:
                return done.returncode, done.stderr
        study, settings = stage.task.study, Settings.read(stage.environment)
        try:
            Reading(study, settings, Watched(study)).stop()
        except VeilstreamError as error:
            return error.exit_code, str(error)
        return 0, ""

    check(stage, secured, rights, "reader", works)


@pytest.mark.slow
def test_an_operator_has_the_least_rights(stage: Stage, secured: Secured, rights: Rights) -> None:
    enrolled = stage.folder / "north.json"
    enrolled.write_text(stage.run("client", "enrol", "--client", "north").stdout)

    def works() -> tuple[int, str]:
        asked = (
            ("topics", stage.study),
            ("study", "keys", stage.study),
            ("client", "admit", stage.study, enrolled),
            ("client", "revoke", stage.study, "north"),
            ("state", "rebuild", stage.study, "--yes"),
        )
        for words in asked:
            if words[0] == "state":
                # no worker has set it aside: the rebuild does
                bad = {"key": b"x", "value": b"no release"}
                send(stage.settings.kafka, stage.topics.releases.name, [bad])
            done = stage.run(*words)
            if done.returncode:
                return done.returncode, done.stderr
        return 0, ""

    wanted = least(stage, "operator")
    be(stage, secured.scram, "operator")
    rights.give("operator", wanted)
    assert works() == (0, "")
    be(stage, secured.users, "operator")
    # what exists is not made again, and what is written there already not written again
    making = [r for r in wanted if r[2] == "Create" or r[1:] == (stage.topics.study.name, "Write")]
    for right in [*[right for right in wanted if right not in making], *making]:
        with rights.without("operator", right):
            if right in making and right[1] in rights.admin.list_topics():
                rights.admin.delete_topics([right[1]])
                until(lambda name=right[1]: name not in rights.admin.list_topics(), "no topic")
            code, said = works()
            assert code == 10, (right, code, said)
            assert right[1] in said, (right, said)
    assert stage.run("topics", stage.study).returncode == 0
    rights.take("operator", wanted)


def test_the_printed_commands_name_every_right() -> None:
    study = parse_study(study_text())
    given = told(kafka_commands(study, "worker", "w", Settings(kafka="a:1")))
    assert given == [
        ("w", (right.kind, right.name, operation))
        for right in kafka_rights(study, "worker", Settings())
        for operation in right.operations
    ]


REDIS_TASK = task_of(parse_study(plain_study(p=1, records=8, name="rights")))


@pytest.fixture
def redis_admin(tmp_path: Path) -> Iterator[tuple[Settings, Any]]:
    """Yield a Redis whose users a test may change."""
    with redis_server(tmp_path) as settings, redis_client(settings) as client:
        yield settings, client


def worker_at(store: RedisStore) -> None:
    """Do all that a worker does at Redis."""
    state = folded(REDIS_TASK, sample_log(REDIS_TASK, releases=4, clients=2))
    state.sums.removed.add("9.gone")
    store.load(0)
    store.commit(0, state, expected=0)
    store.summed([0, 1], {})
    store.store_model(1, b"m")
    store.newest_model()
    store.standing(0)
    store.doubt(1, "so")


def operator_at(store: RedisStore) -> None:
    """Do all that an operator's commands do at Redis."""
    state = folded(REDIS_TASK, sample_log(REDIS_TASK, releases=4, clients=2))
    store.replace(0, state)
    store.load(0)
    store.watermark(0)
    store.doubt(0, None)
    state.erased = frozenset({"c"})
    store.erase({0: state}, "c")
    with pytest.raises(StaleSnapshot):
        store.erase({0: Partition.empty(REDIS_TASK)}, "c")


AT_REDIS: dict[str, Callable[[RedisStore], object]] = {
    "worker": worker_at,
    "operator": operator_at,
    "reader": RedisStore.erased,
}


@pytest.mark.parametrize(
    "role",
    [
        pytest.param(role, marks=[pytest.mark.slow] * (role == "operator"))
        for role in ROLES
        if redis_command(REDIS_TASK.study, role, "u")
    ],
)
def test_a_user_of_redis_has_the_least_rights(redis_admin: tuple[Settings, Any], role: Any) -> None:
    settings, admin = redis_admin

    def works(command: str) -> None:
        admin.flushall()
        admin.script_flush()
        admin.execute_command(*shlex.split(command.replace("PASSWORD", LATE_PASSWORD)))
        own = Settings(redis=settings.redis, redis_username="u", redis_password=LATE_PASSWORD)
        client = redis_client(own)
        try:
            AT_REDIS[role](RedisStore(client, REDIS_TASK))
        finally:
            client.close()

    whole = redis_command(REDIS_TASK.study, role, "u")
    works(whole)
    words = whole.split()
    for word in [word for word in words if word.startswith("+")]:
        with pytest.raises(ConfigError, match="Redis does not permit"):
            works(" ".join(other for other in words if other != word))
    with pytest.raises(ConfigError, match="Redis does not permit"):
        works(whole.replace("{rights}", "{other}"))
    works(whole)


def test_a_client_needs_no_redis() -> None:
    assert redis_command(REDIS_TASK.study, "client", "u") == ""
