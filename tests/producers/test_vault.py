"""The client's database: one owner, a budget that holds, and no window noised twice."""

from __future__ import annotations

import os
import resource
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import AlreadyRunning, BudgetExceeded, ConfigError, LocalStoreError
from pipeline.local.plan import Plan
from pipeline.messages.release import read
from pipeline.study import parse_study
from producers.vault import Outgoing, Tally, Vault
from tests.stage import OPEN, Stage, study_text, until, write_csv

SOURCE = "csv:data.csv"
TALLY = Tally(records=20, rejected={"a reason": 2}, clipped=1)


def plan_of(name: str, epsilon: float = 1.0, *, delta: float = 1e-5, open_: bool = False) -> Plan:
    budget = f'mechanism = "discrete-gaussian"\nepsilon = {epsilon}\ndelta = {delta}'
    return Plan(parse_study(study_text(name, privacy=OPEN if open_ else budget)))


def release(vault: Vault, plan: Plan, seq: int = 0) -> None:
    vault.release(
        plan, SOURCE, seq=seq, payload=b"bytes %d" % seq, headers=[("a", b"b"), ("a", b"c")],
        position=b"place %d" % seq, tally=TALLY, now=1e9,
    )  # fmt: skip


def rows(path: Path, statement: str, *values: object) -> list[tuple[Any, ...]]:
    with sqlite3.connect(path) as db:
        return db.execute(statement, values).fetchall()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "clients" / "site.db"


def test_one_release_moves_ledger_outbox_and_position_together(path: Path) -> None:
    plan = plan_of("one")
    with Vault(path, "site") as vault:
        assert vault.open_stream(plan, SOURCE, None).next_seq == 0
        release(vault, plan)
        stored = vault.open_stream(plan, SOURCE, None)
        assert (stored.position, stored.next_seq) == (b"place 0", 1)
        headers = [("a", b"b"), ("a", b"c")]
        assert vault.unsent("one", -1, 10) == [Outgoing(0, b"bytes 0", headers)]
        vault.sent("one", [0])
        assert vault.waiting("one") == 0
    assert rows(path, "SELECT study, seq, source, epsilon, slots FROM ledger") == [
        ("one", 0, SOURCE, 1.0, 20)
    ]
    assert rows(path, "SELECT reason, count FROM rejects") == [("a reason", 2)]


def test_the_ledger_keeps_its_identity_over_restarts(path: Path) -> None:
    with Vault(path, "site") as first:
        ledger = first.ledger
    with Vault(path, "site") as second:
        assert second.ledger == ledger


def test_a_second_holder_is_refused_and_the_first_goes_on(path: Path) -> None:
    plan = plan_of("one")
    with Vault(path, "site") as vault:
        vault.open_stream(plan, SOURCE, None)
        with pytest.raises(AlreadyRunning, match="another producer"):
            Vault(path, "site")
        release(vault, plan)
    with Vault(path, "site") as again:
        assert again.waiting("one") == 1


def test_the_file_is_for_its_owner_alone(path: Path) -> None:
    before = os.umask(0)
    try:
        with Vault(path, "site") as vault:
            vault.open_stream(plan_of("one"), SOURCE, None)
            release(vault, plan_of("one"))
            modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in path.parent.glob("site.db*")}
    finally:
        os.umask(before)
    assert set(modes) >= {"site.db", "site.db-wal"}
    assert set(modes.values()) == {0o600}


def test_another_clients_file_is_refused_and_stays_usable_for_its_owner(path: Path) -> None:
    Vault(path, "site").close()
    with pytest.raises(ConfigError, match="belongs to client 'site', not 'other'"):
        Vault(path, "other")
    with Vault(path, "site") as vault:
        assert vault.client == "site"


def test_a_file_of_a_newer_version_is_refused(path: Path) -> None:
    Vault(path, "site").close()
    with sqlite3.connect(path) as db:
        db.execute("UPDATE identity SET schema = 99")
    db.close()
    with pytest.raises(ConfigError, match="schema 99"):
        Vault(path, "site")


def test_another_revision_of_a_begun_study_is_refused(path: Path) -> None:
    with Vault(path, "site") as vault:
        vault.open_stream(plan_of("one", 1.0), SOURCE, None)
        with pytest.raises(ConfigError, match="under revision"):
            vault.open_stream(plan_of("one", 2.0), SOURCE, None)


def test_another_source_for_a_begun_study_is_refused(path: Path) -> None:
    with Vault(path, "site") as vault:
        vault.open_stream(plan_of("one"), SOURCE, None)
        with pytest.raises(ConfigError, match="--source-name"):
            vault.open_stream(plan_of("one"), "csv:other.csv", None)


def refused(vault: Vault, plan: Plan, path: Path, seq: int = 0) -> None:
    """Check that a release is refused, spends nothing, moves nothing, and is noted."""
    study, notes = plan.study.name, "SELECT * FROM refusals WHERE study = ?"
    before = vault.open_stream(plan, SOURCE, None)
    noted = len(rows(path, notes, study))
    with pytest.raises(BudgetExceeded):
        release(vault, plan, seq)
    assert vault.open_stream(plan, SOURCE, None) == before
    assert rows(path, "SELECT * FROM ledger WHERE study = ? AND seq >= ?", study, seq) == []
    assert vault.unsent(study, seq - 1, 10) == []
    assert len(rows(path, notes, study)) == noted + 1


def test_a_study_may_release_its_own_budget_for_ever(path: Path) -> None:
    plan = plan_of("one")
    with Vault(path, "site") as vault:
        vault.open_stream(plan, SOURCE, None)
        for seq in range(50):
            release(vault, plan, seq)


def test_a_second_study_on_the_same_source_is_refused_and_spends_nothing(path: Path) -> None:
    first, second = plan_of("one"), plan_of("two")
    with Vault(path, "site") as vault:
        vault.open_stream(first, SOURCE, None)
        release(vault, first)
        vault.open_stream(second, SOURCE, None)
        refused(vault, second, path)
        release(vault, first, 1)


def test_a_raised_limit_allows_a_second_study_up_to_what_both_cost(path: Path) -> None:
    first, second, third = plan_of("one"), plan_of("two"), plan_of("three")
    with Vault(path, "site") as vault:
        vault.open_stream(first, SOURCE, None)
        release(vault, first)
        vault.open_stream(second, SOURCE, (1.6, 1e-5))
        release(vault, second)
        vault.open_stream(third, SOURCE, None)
        refused(vault, third, path)


def test_another_source_has_a_budget_of_its_own(path: Path) -> None:
    first, second = plan_of("one"), plan_of("two")
    with Vault(path, "site") as vault:
        vault.open_stream(first, SOURCE, None)
        release(vault, first)
        vault.open_stream(second, "csv:other.csv", None)
        vault.release(
            second, "csv:other.csv", seq=0, payload=b"x", headers=[], position=b"p", tally=TALLY,
            now=1e9,
        )  # fmt: skip


def test_a_limit_below_what_is_spent_is_refused(path: Path) -> None:
    plan = plan_of("one")
    with Vault(path, "site") as vault:
        vault.open_stream(plan, SOURCE, None)
        release(vault, plan)
        with pytest.raises((ConfigError, BudgetExceeded)):
            vault.open_stream(plan, SOURCE, (0.1, 1e-5))


def test_a_study_without_privacy_cannot_read_a_limited_source(path: Path) -> None:
    private, plain = plan_of("one"), plan_of("plain", open_=True)
    with Vault(path, "site") as vault:
        vault.open_stream(private, SOURCE, None)
        vault.open_stream(plain, SOURCE, None)
        refused(vault, plain, path)


def test_a_file_that_is_no_database_gives_a_clear_error(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"this is no database at all" * 200)
    with pytest.raises(LocalStoreError, match="not a database"):
        Vault(path, "site")


def filled(path: Path) -> Plan:
    plan = plan_of("one")
    with Vault(path, "site") as vault:
        vault.open_stream(plan, SOURCE, None)
        for seq in range(40):
            vault.release(
                plan, SOURCE, seq=seq, payload=b"x" * 3000, headers=[], position=b"p",
                tally=TALLY, now=1e9,
            )  # fmt: skip
    return plan


def use(path: Path, plan: Plan) -> None:
    with Vault(path, "site") as vault:
        stream = vault.open_stream(plan, SOURCE, None)
        vault.waiting("one")
        vault.unsent("one", -1, 100)
        release(vault, plan, stream.next_seq)


def test_a_file_that_lost_its_end_gives_a_clear_error(path: Path) -> None:
    plan = filled(path)
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(LocalStoreError):
        use(path, plan)


def test_a_file_with_damaged_pages_gives_a_clear_error(path: Path) -> None:
    plan = filled(path)
    size = path.stat().st_size
    with path.open("r+b") as file:
        for at in range(4096 * 8, size, 4096):
            file.seek(at)
            file.write(b"\xa5" * 512)
    with pytest.raises(LocalStoreError):
        use(path, plan)


def test_a_file_that_was_emptied_is_not_taken_for_a_new_client(path: Path) -> None:
    """A fresh ledger would read the source from its start and noise every window again."""
    plan = filled(path)
    os.truncate(path, 0)
    with pytest.raises(LocalStoreError):
        use(path, plan)


def test_a_full_disk_spends_nothing_and_a_later_release_succeeds(path: Path) -> None:
    plan = plan_of("one")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Vault(path, "site") as vault:
        vault.open_stream(plan, SOURCE, None)
        release(vault, plan)
        wal = path.with_name("site.db-wal").stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (wal, before[1]))
        try:
            with pytest.raises(LocalStoreError, match="disk"):
                release(vault, plan, 1)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        stored = vault.open_stream(plan, SOURCE, None)
        assert (stored.position, stored.next_seq) == (b"place 0", 1)
        assert [item.seq for item in vault.unsent("one", -1, 10)] == [0]
        release(vault, plan, 1)
    assert rows(path, "SELECT seq FROM ledger") == [(0,), (1,)]


# from here on: real producers as processes of their own


@pytest.fixture
def stage(tmp_path: Path, kafka: str, redis_url: str) -> Iterator[Stage]:
    made = Stage(tmp_path / "stage", kafka, redis_url, study_text(stream="lead = 0"))
    try:
        yield made
    finally:
        made.remove()


def test_two_producers_under_one_client_id_end_with_43_for_the_second(stage: Stage) -> None:
    source = write_csv(stage.folder / "data.csv", 100)
    first = stage.produce("site", source, "--rate", 20)
    until(stage.releases, "the first is in its stream")
    second = stage.run("produce", stage.study, "--client", "site", "--source", source, "--quiet")
    assert second.returncode == 43
    assert "another producer runs as client 'site'" in second.stderr
    assert first.poll() is None


def test_a_raised_epsilon_does_not_loosen_the_delta_that_the_source_was_given(
    stage: Stage,
) -> None:
    """Both studies together cost epsilon 1.9 at the source's delta of 1e-5; the limit is 1."""
    budget = 'mechanism = "discrete-gaussian"\nepsilon = {}\ndelta = {}'
    source = write_csv(stage.folder / "data.csv", 40)
    codes = []
    for name, epsilon, delta in (("strict", 1.0, "1e-5"), ("loose", 0.5, "1e-2")):
        text = study_text(f"{stage.plan.study.name}-{name}", privacy=budget.format(epsilon, delta))
        at = stage.settings.kafka, stage.settings.redis
        other = Stage(stage.folder, *at, text)
        try:
            done = other.run(
                "produce", other.study, "--client", "site", "--source", source, "--quiet",
                "--epsilon-limit", "1.0",
            )  # fmt: skip
            codes.append(done.returncode)
        finally:
            other.remove()
    assert codes[0] == 0
    assert codes[1] in (10, 31)


def test_a_producer_on_a_full_disk_ends_with_61_and_later_goes_on(stage: Stage) -> None:
    source = write_csv(stage.folder / "data.csv", 1000)
    limit = (200_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1])
    stage.produce("site", source, preexec=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit))
    assert stage.code("site") == 61, stage.said("site")
    assert "nothing was spent and nothing is lost" in stage.said("site")
    assert "Traceback" not in stage.said("site")
    [(spent,)] = stage.query("site", "SELECT count(*) FROM ledger")
    assert 0 < spent < 50
    assert stage.query("site", "SELECT next_seq, records FROM streams") == [(spent, 20 * spent)]
    stage.produce("site", source)
    assert stage.code("site") == 0, stage.said("site")
    check_complete(stage, 50)


# A child that is killed at one step of the release with number 2. `sqlite` steps are told by
# SQLite itself, as it begins each statement.
CHILD = """
import os, signal, sys
from pathlib import Path
from pipeline.local.plan import Plan
from pipeline.settings import Settings
from pipeline.study import load_study
from producers import run, sender, vault

step, study, source, made_at = sys.argv[1:]
target = 2

def die():
    os.kill(os.getpid(), signal.SIGKILL)

class Killed(vault.Vault):
    def release(self, plan, source, *, seq, payload, **rest):
        if seq == target:
            Path(made_at).write_text(payload.hex())
            def trace(statement):
                word = statement.split()[0]
                if step == "before BEGIN" and word == "BEGIN": die()
                if step == "before outbox" and "INTO outbox" in statement: die()
                if step == "before COMMIT" and word == "COMMIT": die()
            self._db.set_trace_callback(trace)
        super().release(plan, source, seq=seq, payload=payload, **rest)
        self._db.set_trace_callback(None)
        if seq == target:
            if step == "after COMMIT": die()

    def sent(self, study, numbers):
        if target in numbers and step == "after ack": die()
        super().sent(study, numbers)
        if target in numbers and step == "after sent": die()

class KilledSender(sender.Sender):
    def pump(self):
        super().pump()
        if any(item.seq == target for item in self._pending) and step == "after send": die()

run.Vault, run.Sender = Killed, KilledSender
run.run_client(
    Plan(load_study(Path(study))), Settings.read(), run.Job("site", source),
    report=lambda *_: None,
)
"""
STEPS = (
    "before BEGIN", "before outbox", "before COMMIT", "after COMMIT", "after send", "after ack",
    "after sent",
)  # fmt: skip


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_between_two_steps_never_noises_a_window_twice(stage: Stage, step: str) -> None:
    source = write_csv(stage.folder / "data.csv", 100)
    made_at = stage.folder / "made"
    child = subprocess.run(
        [sys.executable, "-c", CHILD, step, stage.study, source, made_at],
        env=stage.environment, capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert child.returncode == -signal.SIGKILL, child.stderr.decode()
    committed = not step.startswith("before")
    [(spent,)] = stage.query("site", "SELECT count(*) FROM ledger")
    assert spent >= 3 if committed else spent == 2
    kept = dict(stage.query("site", "SELECT seq, payload FROM outbox"))
    made = bytes.fromhex(made_at.read_text())
    assert kept.get(2) == (made if committed and step != "after sent" else None)
    stage.produce("site", source)
    assert stage.code("site") == 0, stage.said("site")
    found = check_complete(stage, 5)
    # what was committed went out in its first bytes; what was not never left
    assert (made in found[2]) == committed
    assert all(payload in found[seq] for seq, payload in kept.items())


def check_complete(stage: Stage, windows: int) -> dict[int, set[bytes]]:
    """Check that each window was released once, and return the payloads by number."""
    found: dict[int, set[bytes]] = {}
    for record in stage.releases():
        found.setdefault(read(record.value).seq, set()).add(record.value)
    assert sorted(found) == list(range(windows))
    assert [seq for seq, payloads in found.items() if len(payloads) > 1] == []
    assert stage.query("site", "SELECT next_seq, records FROM streams") == [
        (windows, windows * stage.plan.slots)
    ]
    assert stage.query("site", "SELECT count(*) FROM ledger") == [(windows,)]
    assert stage.query("site", "SELECT count(*) FROM outbox") == [(0,)]
    return found


def test_a_study_without_privacy_that_never_released_lifts_no_limit(path: Path) -> None:
    plain = plan_of("plain", open_=True)
    with Vault(path, "site") as vault:
        vault.open_stream(plain, SOURCE, None)
        for name in ("one", "two"):
            vault.open_stream(plan_of(name), SOURCE, None)
        release(vault, plan_of("one"))
        refused(vault, plan_of("two"), path)
