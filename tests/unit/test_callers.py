"""Who calls whom on the way from records to the wire, read from the source of the product.

A function that makes, seals or sends a release has the callers listed here and no others, and the
code that sees raw data has no other way out: it opens no connection, writes no log, prints nothing.
"""

from __future__ import annotations

import ast
from collections import UserDict
from collections.abc import Iterator
from functools import cache, cached_property
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("pipeline", "producers", "agents", "state", "infra")


class Trees(UserDict[str, ast.Module]):
    """The product's files, parsed when a test first asks: collecting tests does not wait for it."""

    def __init__(self) -> None:
        pass

    @cached_property
    def data(self) -> dict[str, ast.Module]:  # type: ignore[override]
        return {
            str(path.relative_to(ROOT)): ast.parse(path.read_text(encoding="utf-8"))
            for package in PACKAGES
            for path in sorted((ROOT / package).rglob("*.py"))
        }


TREES = Trees()
RELEASING, PRIVATISE = "pipeline/stream/release.py", "pipeline/release/privatise.py"
RELEASE, MAKING = "pipeline/messages/release.py", "producers/client.py"
FORM = "pipeline/release/layout.py"
#: What sums a window up, by method, with its door: where `Task.query` ends.
WINDOW, SUMS = "pipeline/methods/renewable/client.py", "pipeline/methods/renewable/client.py"
RECORDS, GRADIENTS = "pipeline/methods/ldp_sgd/client.py", "pipeline/methods/ldp_sgd/client.py"
SITES = "pipeline/methods/noisy_mle/client.py"
ROUNDS = "pipeline/methods/age_aware/client.py"
#: A site's own fit, whose copies leave.
COPIES = "pipeline/methods/noisy_copies/client.py"
#: A suite for methods: it makes releases of records that its caller gives, and keeps them.
CHECKS = "pipeline/simulate/method_checks.py"
VAULT, SENDER = "producers/store.py", "producers/sender.py"
LEDGER_TOPIC = "producers/prior_spend.py"
#: Sends words of the operator, which holds the study's key and sees no record.
ADMISSIONS = "infra/admissions.py"
#: Sends releases again that are in the topic of dead letters, as they came.
AGAIN_AS_IT_CAME = "infra/dead_letters.py"
#: Makes and closes producers, for the three that may ask it.
CLOSING = "infra/kafka.py"

#: Function to the files that may import it, or reach for it in its module.
USERS = {
    "seal": {RELEASING, CHECKS},
    "privatise": {CHECKS},
    "privatise_behind": {RELEASING},
    "disclose": {RELEASING, CHECKS},
    # nothing asks a task but a release, and a task itself for its blocks; sums of records are for
    # their own module alone
    "query": {RELEASING, CHECKS, "pipeline/release/task.py"},
    "query_blocks": {
        "pipeline/stream/release.py",
        "pipeline/methods/noisy_mle/client.py",
        "pipeline/methods/renewable/client.py",
    },
    "open_query": {RELEASING, CHECKS},
    "query_of": set(),
    "open_query_of": set(),
    "summarise": set(),
    "summarise_bounded": set(),
    "bounded_gradients": set(),
    "open_gradients": set(),
    "record_gradients": set(),
    "local_fit": set(),
    "linear_fit": set(),
    "logistic_fit": set(),
    "normal_numbers": {"pipeline/methods/noisy_copies/client.py"},
    # noise of a seed: drawn by the mechanism of simulations and by copies of one
    "seeded": {"pipeline/privacy/accounting.py"},
    "SimulatedGaussian": {"pipeline/privacy/mechanism.py"},
    "SeededStream": {RELEASING, CHECKS, "pipeline/simulate/coverage.py"},
    # the beginning of a release, and a release without numbers to judge others by
    "common_bytes": {RELEASE, FORM},
    "blank": {FORM, "pipeline/messages/release.py"},
    "release_of": {MAKING, "pipeline/stream/in_process.py"},
    "_SEAL": set(),
    "KafkaProducer": {CLOSING},
    "record_producer": {SENDER, ADMISSIONS},
    "producing": {AGAIN_AS_IT_CAME},
    "write_one": {"infra/topics.py", LEDGER_TOPIC},
    # to the topic, and to a file that the client asks for
    "write_spends": {LEDGER_TOPIC, "pipeline/cli/privacy.py"},
    "announce": {"agents/announcing.py", "pipeline/cli/topics.py"},
    "AIOKafkaProducer": {"agents/link.py"},
}
#: Class to the files that may make one.
MAKERS = {
    "Answer": {PRIVATISE},
    "OpenAnswer": {PRIVATISE},
    "Parts": {PRIVATISE},
    "Query": {WINDOW, RECORDS, SITES, ROUNDS, COPIES, "pipeline/release/query.py"},
    "CopiedPart": {COPIES},
    "Law": {COPIES},
    "OpenQuery": {WINDOW, RECORDS},
    "VectorPart": {WINDOW, SITES, ROUNDS},
    "MatrixPart": {WINDOW, RECORDS, SITES},
    "RecordsPart": {RECORDS},
    "Summary": {SUMS},
    "BoundedSums": {SUMS},
    "OpenSums": {GRADIENTS},
    "RecordSums": {GRADIENTS},
    "Release": {RELEASE},
    "Header": {RELEASE},
    "Form": {"pipeline/release/task.py"},
    "Outgoing": {MAKING, VAULT},
    "KafkaProducer": {CLOSING},
}
#: Where classes are from whose names others have, too: a calibration is answered, a file summed up.
HOMES = {"Answer": "pipeline.release.privatise", "Summary": "pipeline.methods.renewable.client"}
#: What sees raw records, or sums of them.
CLIENT_SIDE = (
    *(
        "producers/",
        "pipeline/records/",
        "pipeline/release/",
        "pipeline/methods/renewable/",
        "pipeline/methods/ldp_sgd/",
        "pipeline/methods/noisy_mle/",
        "pipeline/methods/noisy_copies/",
        "pipeline/methods/age_aware/",
        "pipeline/losses.py",
        "pipeline/privacy/",
        "pipeline/linalg.py",
    ),
    *(
        RELEASING,
        RELEASE,
        FORM,
        CHECKS,
        "pipeline/stream/in_process.py",
        "pipeline/backtest/",
        "pipeline/types.py",
    ),
)
#: Modules that carry data out of a process, or make objects past their constructors.
OUTWARD = {"socket", "ssl", "http", "urllib.request", "requests", "aiohttp", "aiokafka", "faust",
           "redis", "smtplib", "ftplib", "subprocess", "multiprocessing", "logging", "syslog",
           "warnings", "traceback", "tempfile", "click", "rich"}  # fmt: skip
#: Sources to which others connect, or that answer: what they say back is looked at below.
ANSWERING = {
    "producers/sources/push.py": {"aiohttp", "aiohttp.web", "socket", "ssl"},
    "producers/sources/mqtt.py": {"ssl"},
}
#: What client modules load by a name instead of an import, which would be seen otherwise.
LOADED = {
    ("producers/sources/__init__.py", "f\"producers.sources.{name or 'arrow'}\""),
    ("producers/sources/arrow.py", "'pyarrow'"),
    ("producers/sources/arrow.py", "'pyarrow.parquet'"),
    ("producers/sources/arrow.py", "'fsspec.core'"),
    ("producers/sources/databases.py", "'adbc_driver_postgresql.dbapi'"),
    ("producers/sources/databases.py", "'duckdb'"),
    ("producers/sources/databases.py", "'pyarrow'"),
    ("producers/sources/mqtt.py", "'paho.mqtt.client'"),
    ("producers/sources/mqtt.py", "'paho.mqtt.packettypes'"),
    ("producers/sources/mqtt.py", "'paho.mqtt.properties'"),
}
#: A worker's copy of a path, which was walked on noised gradients.
COPIES = {"pipeline/methods/ldp_sgd/state.py": {"copy"}}
FORGING = {"pickle", "copy", "copyreg", "marshal", "shelve", "ctypes", "gc"}
PAST_CONSTRUCTORS = {"__new__", "__setattr__", "__setstate__", "__reduce__", "__dict__"}


@cache
def nodes(tree: ast.AST) -> list[ast.AST]:
    """Return a tree's nodes, which dozens of tests look through."""
    return list(ast.walk(tree))


def imports(tree: ast.AST) -> Iterator[str]:
    """Yield the modules that a file imports, with the names it takes from them."""
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@cache
def attributes(tree: ast.AST) -> set[str]:
    """Return every name that stands behind a dot."""
    return {node.attr for node in nodes(tree) if isinstance(node, ast.Attribute)}


def calls(tree: ast.AST, name: str) -> list[ast.Call]:
    """Return the calls of a function or method of some name."""
    return all_calls(tree).get(name, [])


@cache
def all_calls(tree: ast.AST) -> dict[str, list[ast.Call]]:
    """Return the calls of each name, in the order of their lines."""
    found: dict[str, list[ast.Call]] = {}
    for node in nodes(tree):
        if isinstance(node, ast.Call):
            called = node.func
            for name in {getattr(called, "id", None), getattr(called, "attr", None)} - {None}:
                found.setdefault(name, []).append(node)
    return {name: sorted(some, key=lambda call: call.lineno) for name, some in found.items()}


@cache
def bases(tree: ast.AST) -> set[str | None]:
    """Return what classes of a file are made from."""
    return {
        getattr(base, "id", getattr(base, "attr", None))
        for node in nodes(tree)
        if isinstance(node, ast.ClassDef)
        for base in node.bases
    }


def is_client_side(path: str) -> bool:
    return path.startswith(CLIENT_SIDE)


@pytest.mark.parametrize("name", USERS)
def test_a_step_to_the_wire_has_its_known_users(name: str) -> None:
    users = {path for path, tree in TREES.items() if name in attributes(tree) | taken(tree)}
    assert users == USERS[name]


@cache
def taken(tree: ast.AST) -> set[str]:
    """Return the last words of the names, not modules, that a file imports."""
    return {
        f"{node.module}.{alias.name}".rsplit(".", 1)[-1]
        for node in nodes(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


@pytest.mark.parametrize("name", MAKERS)
def test_what_leaves_is_made_in_known_places_and_by_no_subclass(name: str) -> None:
    home = HOMES.get(name)
    makers = {path for path, tree in TREES.items() if calls(tree, name)}
    assert {p for p in makers if home is None or not is_another(TREES[p], name, home)} == (
        MAKERS[name]
    )
    for path, tree in TREES.items():
        assert name not in bases(tree), path


def is_another(tree: ast.AST, name: str, home: str) -> bool:
    """Whether a file has a class of this name of its own, and none of the other's home."""
    defined = any(isinstance(n, ast.ClassDef) and n.name == name for n in nodes(tree))
    own = str(Path(home.replace(".", "/")).with_suffix(".py"))
    return defined and TREES[own] is not tree and home not in imports(tree)


def test_nobody_makes_objects_past_their_constructors() -> None:
    for path, tree in TREES.items():
        if is_client_side(path):
            forging = FORGING - COPIES.get(path, set())
            assert not forging & {name.split(".")[0] for name in imports(tree)}, path
            assert not PAST_CONSTRUCTORS & attributes(tree), path


def assigned(tree: ast.AST, name: str) -> list[ast.expr]:
    """Return all that is assigned to a variable."""
    return [
        node.value
        for node in nodes(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and target.id == name
    ]


def names(tree: ast.AST) -> set[str]:
    """Return the variables that an expression has."""
    return {node.id for node in nodes(tree) if isinstance(node, ast.Name)}


def test_what_a_mechanism_made_goes_straight_to_be_sealed() -> None:
    """Nothing in between could write into its arrays: each result is sealed, and else only counted.

    A query without privacy goes straight from the task to the mechanism.
    """
    tree = TREES[RELEASING]
    sealed = [call.args[1] for call in calls(tree, "seal")]
    [noised], [opened] = calls(tree, "privatise_behind"), calls(tree, "disclose")
    assert [opened.args[1]] == calls(tree, "open_query")
    assert [getattr(argument, "id", None) for argument in sealed] == ["answer", "answer"]
    given = [
        node.value
        for node in nodes(tree)
        if isinstance(node, ast.Assign)
        and "answer" in {n.id for n in nodes(node.targets[0]) if isinstance(n, ast.Name)}
    ]
    assert given == [noised, opened]
    counted = [
        node.value
        for node in nodes(tree)
        if isinstance(node, ast.Attribute) and node.attr == "slots"
    ]
    uses = [
        n
        for n in nodes(tree)
        if isinstance(n, ast.Name) and n.id == "answer" and isinstance(n.ctx, ast.Load)
    ]
    assert all(use in sealed or use in counted for use in uses)


def test_the_outbox_gets_what_was_sealed_and_the_vault_what_was_charged() -> None:
    """From a release's function to the outbox in one transaction with the charge, nowhere else."""
    making = TREES[MAKING]
    [made] = calls(making, "Outgoing")
    payload = made.args[1]
    assert isinstance(payload, ast.Name)
    # the argument of one function, whose callers hand on what a release function gave
    added = [call.args[0] for call in calls(making, "_add")]
    assert {getattr(argument, "id", None) for argument in added} == {payload.id}
    made_by = [
        node.value
        for node in nodes(making)
        if isinstance(node, ast.Assign) and payload.id in names(node.targets[0])
    ]
    assert made_by == [*calls(making, "release_of"), *calls(making, "release_behind")]
    assert len(added) == 2
    writers = {p for p, tree in TREES.items() if "INSERT INTO outbox" in strings(tree)}
    assert writers == {VAULT}
    release = next(n for n in nodes(TREES[VAULT]) if getattr(n, "name", None) == "release")
    [block] = [n for n in nodes(release) if isinstance(n, ast.With) and calls(n, "charge")]
    assert "INSERT INTO outbox" in strings(block)
    assert any(calls(item.context_expr, "transaction") for item in block.items)


def strings(tree: ast.AST) -> str:
    """Return all text constants, joined."""
    return "\n".join(
        node.value
        for node in nodes(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def test_only_the_sender_sends_and_only_bytes_of_the_outbox() -> None:
    for path, tree in TREES.items():
        if path.startswith("producers/"):
            senders = (SENDER, "producers/rollback.py")
            assert bool(calls(tree, "send")) == (path in senders), path
            assert bool(calls(tree, "write_one")) == (path == LEDGER_TOPIC), path
            assert not calls(tree, "send_and_wait"), path
    claim, call = sorted(calls(TREES[SENDER], "send"), key=lambda call: ast.unparse(call.args[0]))
    assert ast.unparse(claim) == (
        "self._producer.send(self._settings.ledger_topic, key=key, value=claim, partition=0)"
    )
    # what is claimed is what `Claims` makes of counts
    [made] = calls(TREES["producers/rollback.py"], "send")
    assert ast.unparse(made) == "send(claim.key, write_claim(claim, self._secret))"
    [counts] = calls(TREES["producers/rollback.py"], "Claim")
    assert ast.unparse(counts) == (
        "Claim(store.client, store.ledger, self._run, self._asked, held, line)"
    )
    # slots of full windows are public; how many of them were empty is nobody's business
    claiming = next(
        node for node in nodes(TREES["producers/rollback.py"])
        if getattr(node, "name", None) == "_claim"
    )  # fmt: skip
    [slots] = [
        node for node in nodes(claiming) if isinstance(node, ast.Assign) and calls(node, "slots")
    ]
    assert ast.unparse(slots) == "held, _ = store.slots(line)"
    assert sum(node.id == "_" for node in nodes(claiming) if isinstance(node, ast.Name)) == 1
    sent = {word.arg: ast.unparse(word.value) for word in call.keywords}
    [loop] = [n for n in nodes(TREES[SENDER]) if isinstance(n, ast.For) and calls(n, "send")]
    assert ast.unparse(loop.iter) == "items"
    assert {ast.unparse(value) for value in assigned(TREES[SENDER], "items")} == {
        "self._store.unsent(self._study, self._handed, room)",
        "[item for item in items if item.seq < end]",
    }
    item = ast.unparse(loop.target)
    assert sent == {
        "key": "self._key",
        "value": f"self._leaving({item}.payload, at)",
        "headers": f"{item}.headers",
        "timestamp_ms": "at",
        "partition": "self._partition",
    }
    assert f"at = _time_of({item})" in map(ast.unparse, loop.body)
    assert ast.unparse(call.args[0]) == "self._topic"
    leaving = next(n for n in nodes(TREES[SENDER]) if getattr(n, "name", None) == "_leaving")
    [given] = [n.value for n in nodes(leaving) if isinstance(n, ast.Return)]
    assert ast.unparse(given) == (
        "payload if self._membership is None else self._membership.stamp(payload, at)"
    )


def test_the_ledger_topic_gets_accounts_of_what_was_spent_alone() -> None:
    [tree] = [n for n in nodes(TREES[LEDGER_TOPIC]) if getattr(n, "name", "") == "LedgerTopic"]
    [send] = calls(tree, "write_one")
    assert [ast.unparse(given) for given in send.args] == ["self._settings", "self._topic"]
    sent = {word.arg: ast.unparse(word.value) for word in send.keywords}
    assert sent == {
        "otherwise": "fault('written')",
        "patience": "PATIENCE",
        "key": "self._client.encode()",
        "value": "write_spends(message)",
    }
    written = {ast.unparse(call.args[0]) for call in calls(tree, "write_spends")}
    assert written == {"message"}
    made = {ast.unparse(value) for value in assigned(tree, "message")}
    replaced = "msgspec.structs.replace(own, sources=merge([*own.sources, *others]))"
    assert made == {replaced, "own", "read_spends(payload)", "None"}
    assert [ast.unparse(value) for value in assigned(tree, "own")] == [
        "hide(self._heritage.account())"
    ]


def test_no_part_of_the_product_runs_the_checks_of_methods() -> None:
    users = [
        path
        for path, tree in TREES.items()
        if "pipeline.simulate.method_checks" in set(imports(tree))
    ]
    assert users == []


def test_what_sees_raw_data_has_no_other_way_out() -> None:
    kafka = {
        SENDER,
        "producers/models.py",
        "producers/rollback.py",
        "producers/sources/kafka.py",
    }
    seen = [path for path in TREES if is_client_side(path)]
    assert len(seen) > 30
    for path in seen:
        names = set(imports(TREES[path]))
        outward = {name for name in names if {name, name.split(".")[0]} & OUTWARD}
        assert not outward - ANSWERING.get(path, set()), path
        assert path in kafka or not any(name.split(".")[0] == "kafka" for name in names), path
        assert not calls(TREES[path], "print"), path
        assert not {"stdout", "stderr", "__stderr__"} & attributes(TREES[path]), path


def test_who_posts_records_is_told_fixed_words_and_two_counts() -> None:
    tree = TREES["producers/sources/push.py"]
    answers = {ast.unparse(call.args[0]) for call in calls(tree, "json_response")}
    assert answers == {"{'error': reason}", "{'records': len(lines), 'new': new}"}
    told = calls(tree, "_answer")
    assert len(told) >= 4
    assert all(isinstance(given, ast.Constant) for call in told for given in call.args[:2])
    assert "write" not in attributes(tree)


def test_a_subscription_acknowledges_and_publishes_nothing() -> None:
    for path in ("producers/sources/mqtt.py", "producers/sources/mqtt.py"):
        assert not {"publish", "will_set", "enable_logger"} & attributes(TREES[path]), path


def test_what_clients_load_by_name_is_known() -> None:
    loaded = {
        (path, ast.unparse(call.args[0]))
        for path in TREES
        if path.startswith("producers/")
        for name in ("extra", "import_module")
        for call in calls(TREES[path], name)
    }
    assert loaded == LOADED
