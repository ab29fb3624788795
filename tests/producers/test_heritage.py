"""What was spent elsewhere counts: exports, imports, and what a topic may say."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from pipeline.cli.privacy import privacy
from pipeline.errors import BudgetExceeded, ConfigError, LocalStoreError
from pipeline.messages.spend import (
    SpendsMessage,
    hashed,
    hide,
    read_spends,
    worse,
    write_spends,
)
from pipeline.methods import task_of as make_task
from pipeline.privacy.accounting import event_of, mu_of_pure, total_epsilon, total_mu
from pipeline.privacy.events import Gaussian, NonPrivate, Pure, compose
from pipeline.release.task import Task
from pipeline.study_file.load import parse_study
from producers.budget import Limit
from producers.database import Whole, vault_path
from producers.report import account_of, ledger
from producers.store import ClientStore, Outgoing, Tally
from tests.databases import sqlite_file
from tests.stage import study_text

SOURCE = "csv:data.csv"


def task_of(name: str, epsilon: float = 1.0) -> Task:
    budget = f'mechanism = "discrete-gaussian"\nepsilon = {epsilon}\ndelta = 1e-5'
    return make_task(parse_study(study_text(name, privacy=budget)))


def release(store: ClientStore, task: Task, seq: int = 0, source: str = SOURCE) -> None:
    store.release(
        task, source, [Outgoing(seq, b"bytes", [])], position=b"place", now=1e9,
        tally=Tally(20, {}, 0),
    )  # fmt: skip


def spent(folder: Path, *studies: str, limit: float = 1.0) -> SpendsMessage:
    """Let client site spend in a folder, and return its account."""
    path = vault_path(folder, "site")
    with ClientStore(path, "site") as store:
        for name in studies:
            store.open_stream(task_of(name), SOURCE, Limit(limit, 1e-5))
            release(store, task_of(name))
    return account_of(path)


def command(folder: Path, *arguments: object) -> tuple[int, str]:
    environment = {"VEILSTREAM_FOLDER": str(folder)}
    done = CliRunner().invoke(
        privacy, ["ledger", *map(str, arguments)], env=environment, standalone_mode=False
    )
    if done.exception is None:
        return 0, done.output
    return getattr(done.exception, "exit_code", -1), str(done.exception)


def test_an_export_read_into_an_empty_folder_gives_the_same_account(tmp_path: Path) -> None:
    was = spent(tmp_path / "old", "first", "second", limit=2.0)
    file = tmp_path / "site.json"
    assert command(tmp_path / "old", "--export", file)[0] == 0
    assert read_spends(file.read_bytes()) == was
    for changed in (2, 0):
        code, said = command(tmp_path / "new", "site", "--import", file)
        assert code == 0, said
        assert f"{changed} spends" in said
    assert account_of(vault_path(tmp_path / "new", "site")).sources == was.sources
    old, new = (
        ledger(vault_path(tmp_path / name, "site"))[SOURCE]["spent"] for name in ("old", "new")
    )
    assert old == new


def test_what_was_imported_counts_against_the_limit(tmp_path: Path) -> None:
    """The same source in a new folder had a fresh budget."""
    message = spent(tmp_path / "old", "first")
    with ClientStore(vault_path(tmp_path / "new", "site"), "site") as store:
        store.heritage.take_file(message)
        store.open_stream(task_of("later"), SOURCE)
        with pytest.raises(BudgetExceeded, match="1 other study"):
            release(store, task_of("later"))
        # a study of the same name under another ledger is another spend
        store.open_stream(task_of("first"), SOURCE)
        with pytest.raises(BudgetExceeded):
            release(store, task_of("first"))


def test_an_import_into_the_folder_that_wrote_it_changes_nothing(tmp_path: Path) -> None:
    message = spent(tmp_path, "first")
    with ClientStore(vault_path(tmp_path, "site"), "site") as store:
        assert store.heritage.take_file(message) == 0
        release(store, task_of("first"), 1)
    assert account_of(vault_path(tmp_path, "site")).sources[0].spends[0].releases == 2


def test_an_old_copy_learns_what_it_has_lost(tmp_path: Path) -> None:
    """The file of this very ledger may know a study that the database does not."""
    copy = tmp_path / "copy"
    spent(tmp_path, "first", limit=2.0)
    path = vault_path(tmp_path, "site")
    copy.write_bytes(path.read_bytes())
    whole = spent(tmp_path, "second", limit=2.0)
    for end in ("-wal", "-shm"):
        path.with_name(path.name + end).unlink(missing_ok=True)
    path.write_bytes(copy.read_bytes())
    with ClientStore(path, "site") as store:
        assert store.heritage.take_file(whole) == 1
        assert store.heritage.take_file(whole) == 0
        # its releases go on, and are not charged beside themselves
        store.open_stream(task_of("second"), SOURCE)
        store.charge_lost(task_of("second"), SOURCE, range(1), owed=20, now=1e9)
    reached = ledger(path)[SOURCE]["spent"]["mu"]
    assert reached == pytest.approx(math.sqrt(2) * total_mu([task_of("first").budget.event]))


def test_nothing_that_comes_later_lowers_what_was_taken(tmp_path: Path) -> None:
    message = spent(tmp_path / "old", "first")

    def changed(**fields: Any) -> SpendsMessage:
        [entry] = message.sources
        spends = [msgspec.structs.replace(entry.spends[0], **fields)]
        entry = msgspec.structs.replace(entry, epsilon=100.0, spends=spends)
        return msgspec.structs.replace(message, sources=[entry])

    lower: list[dict[str, Any]] = [
        {"event": Gaussian(1e-9)}, {"event": NonPrivate()}, {"noise_per_record": True},
        {"neighbours": "replace-one"}, {"releases": 0},
    ]  # fmt: skip
    path = vault_path(tmp_path / "new", "site")
    with ClientStore(path, "site") as store:
        store.heritage.take_file(message)
        before = store.heritage.account().sources
        for fields in lower:
            store.heritage.take_file(changed(**fields))
            store.heritage.take_topic(SOURCE, [hide(changed(**fields))], begun=False,
                                      other_data=False)  # fmt: skip
        assert store.heritage.account().sources == before
        assert store.heritage.take_file(changed(event=Gaussian(50.0))) == 1
        assert store.heritage.take_file(message) == 0
    assert ledger(path)[SOURCE]["spent"]["mu"] == 50.0


def test_the_worse_of_two_statements_is_no_lower_than_either(tmp_path: Path) -> None:
    [spend] = spent(tmp_path, "first").sources[0].spends
    bare = msgspec.structs.replace(spend, event=NonPrivate())
    pure = msgspec.structs.replace(
        spend, event=Pure(0.3), noise_per_record=True, neighbours="replace-one"
    )
    assert worse(bare, spend) == worse(spend, bare) == spend
    assert worse(pure, spend) == worse(spend, pure)
    found = worse(pure, spend)
    # of different kinds: whoever is right, both are covered
    assert found.event == compose([spend.event, Pure(0.3)])
    assert (found.noise_per_record, found.neighbours) == (False, spend.neighbours)


@pytest.mark.parametrize(
    ("where", "value", "said"),
    [
        (("sources", 0, "spends", 0, "event", "mu"), -1.0, r"> 0\.0 - at .*\.event\.mu"),
        (("sources", 0, "spends", 0, "event", "mu"), "much", r"\.event\.mu"),
        (
            ("sources", 0, "spends", 0, "event", "kind"),
            "subsampled/1",
            "use the version that wrote",
        ),
        (("sources", 0, "spends", 0, "neighbours"), None, "zero-out or replace-one"),
        (("sources", 0, "spends", 0, "unit_records"), 0, ">= 1"),
        (("sources", 0, "spends", 0, "ledger"), "../..", "ledger"),
        (("sources", 0, "spends", 0, "extra"), 1, "extra"),
        (("sources", 0, "delta"), 1.5, "< 1"),
        (("client",), "other", "'other'"),
        (("type",), "spends/3", "'spends/3'.* does not know"),
    ],
)
def test_a_file_that_is_no_account_of_this_client_is_refused(
    tmp_path: Path, where: tuple[Any, ...], value: object, said: str
) -> None:
    data = json.loads(write_spends(spent(tmp_path / "old", "first")))
    place = data
    for key in where[:-1]:
        place = place[key]
    place[where[-1]] = value
    file = tmp_path / "site.json"
    file.write_text(json.dumps(data))
    code, message = command(tmp_path / "new", "site", "--import", file)
    assert code == 10
    assert "--import" in message
    assert re.search(said, message), message
    assert not vault_path(tmp_path / "new", "site").exists()


def test_names_are_hashed_with_the_client(tmp_path: Path) -> None:
    message = spent(tmp_path, "first")
    payload = write_spends(hide(message))
    assert b"data.csv" not in payload
    assert hashed("site", SOURCE).encode() in payload
    assert hashed("site", SOURCE) != hashed("sit", "e" + SOURCE)


def test_a_source_that_cannot_be_matched_asks_for_a_name_or_an_answer(tmp_path: Path) -> None:
    message = hide(spent(tmp_path / "old", "first"))
    with ClientStore(vault_path(tmp_path / "new", "site"), "site") as store:
        take = store.heritage.take_topic
        with pytest.raises(ConfigError, match=r"--source-name.*--import.*--other-data"):
            take("csv:renamed.csv", [message], begun=False, other_data=False)
        assert take("csv:renamed.csv", [message], begun=True, other_data=False) == 0
        assert take(SOURCE, [message], begun=False, other_data=False) == 1
        # it has a name now, and nothing of it was ever opened here
        with pytest.raises(ConfigError, match=r"'csv:data\.csv'"):
            take("csv:new.csv", [message], begun=False, other_data=False)
        take("csv:new.csv", [message], begun=False, other_data=True)
        take("csv:new.csv", [message], begun=False, other_data=False)
        with pytest.raises(ConfigError, match="never opened"):
            take("csv:third.csv", [], begun=False, other_data=False)


def test_a_false_word_on_the_topic_shuts_nobody_out_for_ever(tmp_path: Path) -> None:
    """Whoever may write to it can claim any spend; the data owner's word is stronger."""
    message = hide(spent(tmp_path / "old", "first"))
    with ClientStore(vault_path(tmp_path / "new", "site"), "site") as store:
        store.heritage.take_topic(SOURCE, [message], begun=False, other_data=False)
        store.open_stream(task_of("later"), SOURCE)
        with pytest.raises(BudgetExceeded):
            release(store, task_of("later"))
        store.heritage.take_topic(SOURCE, [message], begun=False, other_data=True)
        release(store, task_of("later"))
        # it is remembered, and still told to others
        assert store.heritage.take_topic(SOURCE, [message], begun=True, other_data=False) == 0
        assert len(store.heritage.account().sources[0].spends) == 2
        release(store, task_of("later"), 1)


def test_a_claim_of_no_privacy_lifts_no_limit(tmp_path: Path) -> None:
    message = spent(tmp_path / "old", "first")
    [entry] = message.sources
    bare = msgspec.structs.replace(entry.spends[0], event=NonPrivate(), study="bare")
    message = msgspec.structs.replace(
        message, sources=[msgspec.structs.replace(entry, spends=[bare])]
    )
    with ClientStore(vault_path(tmp_path / "new", "site"), "site") as store:
        store.heritage.take_topic(SOURCE, [hide(message)], begun=False, other_data=False)
        store.open_stream(task_of("one"), SOURCE, Limit(1.0, 1e-5))
        release(store, task_of("one"))
        store.open_stream(task_of("two"), SOURCE)
        with pytest.raises(BudgetExceeded):
            release(store, task_of("two"))
        assert store.released_without_privacy(SOURCE)


def test_a_database_of_another_version_hides_no_other_account(tmp_path: Path) -> None:
    spent(tmp_path, "first")
    path = vault_path(tmp_path, "older")
    ClientStore(path, "older").close()
    with sqlite_file(path) as db:
        db.execute("UPDATE identity SET schema = schema - 1")
    code, said = command(tmp_path)
    assert (code, "client site, source" in said) == (0, True)
    assert "client older: the client database has schema" in said
    assert command(tmp_path, "older")[0] == 10


def test_accounts_of_the_version_before_say_the_same() -> None:
    old = Path(__file__).parent / "spends1"
    found = read_spends((old / "export.json").read_bytes())
    costs = 0
    for source, was in zip(
        found.sources, json.loads((old / "export.json").read_bytes())["sources"], strict=True
    ):
        for spend, cost in zip(source.spends, was["spends"], strict=True):
            if cost["mu"] is None:
                assert spend.event == NonPrivate()
                continue
            costs += 1
            assert total_mu([spend.event]) == pytest.approx(cost["mu"], rel=1e-12)
            assert (cost["pure"] is None) == (spend.event == Gaussian(cost["mu"]))
    assert costs >= 7
    assert read_spends((old / "topic.json").read_bytes()) == hide(found)


def test_a_cost_of_the_version_before_becomes_the_event_that_costs_as_much() -> None:
    assert event_of(0.3, None) == Gaussian(0.3)
    assert event_of(mu_of_pure(0.7), 0.7) == Pure(0.7)
    assert event_of(None, None) == NonPrivate()
    # no version wrote that: it is charged for both
    odd = event_of(0.1, 5.0)
    assert total_mu([odd]) > mu_of_pure(5.0)
    assert total_epsilon([odd], 1e-6) > 5.0


@pytest.mark.parametrize("table", ["spends", "inherited"])
def test_an_unknown_event_is_refused_and_never_counted_as_nothing(
    tmp_path: Path, table: str
) -> None:
    message = spent(tmp_path / "old", "first")
    path = vault_path(tmp_path / ("old" if table == "spends" else "new"), "site")
    if table == "inherited":
        with ClientStore(path, "site") as store:
            store.heritage.take_file(message)
    with sqlite_file(path) as db:
        event = json.dumps({"kind": "subsampled/1", "rate": 0.1})
        assert db.execute(f"UPDATE {table} SET event = ?", (event,)).rowcount == 1  # noqa: S608
        # as a version that knows it would have
        Whole(db).settle()
    with pytest.raises(LocalStoreError, match=r"'subsampled/1'.*use the version"):
        ledger(path)
    with (
        ClientStore(path, "site") as store,
        pytest.raises(LocalStoreError, match=r"'subsampled/1'.*use the version"),
    ):
        store.heritage.account()
