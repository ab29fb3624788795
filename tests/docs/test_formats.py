"""The page on formats has the numbers of the code, and one version is named everywhere."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from pipeline.release.layout import CHAIN_FORM, FORM
from pipeline.stream.partition import SCHEMA as STATE
from pipeline.study.versions import RELEASE_SEMANTICS
from producers.database import SCHEMA as DATABASE

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "formats.md").read_text("utf-8")
PACKAGES = ("pipeline", "producers", "agents", "state", "infra")


def test_every_format_of_the_code_has_its_number_on_the_page_and_no_other() -> None:
    sources = [path for name in PACKAGES for path in (ROOT / name).rglob("*.py")]
    ours = {
        name for path in sources for name in re.findall(r'"([a-z-]+/\d+)"', path.read_text("utf-8"))
    }
    ours |= {f"release/{form}" for form in (FORM, CHAIN_FORM)}
    assert "estimate/1" in ours
    assert set(re.findall(r"`([a-z-]+/\d+)`", PAGE)) == ours


@pytest.mark.parametrize(
    ("row", "number"),
    [
        ("what a release means", f"{RELEASE_SEMANTICS} (`RELEASE_SEMANTICS`)"),
        ("a client's database (SQLite)", f"schema {DATABASE}"),
        ("state of a study (Redis)", f"schema {STATE}"),
    ],
)
def test_schemas_have_the_numbers_of_the_code(row: str, number: str) -> None:
    assert re.search(rf"^\| {re.escape(row)} \| {re.escape(number)} \|", PAGE, re.MULTILINE)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("CITATION.cff", "version: {}\n"),
        ("docker-compose.yml", "image: veilstream:{}\n"),
        ("docs/deploying.md", "veilstream:{} "),
        ("CHANGELOG.md", "\n## {} "),
    ],
)
def test_one_version_is_named_everywhere(name: str, says: str) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert says.format(version) in (ROOT / name).read_text("utf-8")


def test_an_entry_of_the_changelog_is_for_users_to_read() -> None:
    entries = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text("utf-8"), flags=re.MULTILINE)
    assert len(entries) > 1
    assert max(len(entry.splitlines()) for entry in entries) <= 120
