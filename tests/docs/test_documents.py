"""What the documents say is checked against the program."""

import re
from pathlib import Path

import pytest

from pipeline import errors
from pipeline.cli.main import COMMANDS, cli
from pipeline.settings import PREFIX, Settings

ROOT = Path(__file__).parents[2]
DOCUMENTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]


def words_after(text, command):
    return re.findall(rf"(?:^|[`|(])\s*{command} ([a-z]+)", text, flags=re.MULTILINE)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.name)
def test_every_command_that_a_document_shows_exists(document):
    for name in words_after(document.read_text(encoding="utf-8"), "veilstream"):
        assert name in COMMANDS


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.name)
def test_every_link_to_a_file_leads_somewhere(document):
    for target in re.findall(r"\]\((?!http)([^)#]+)", document.read_text(encoding="utf-8")):
        assert (document.parent / target).exists(), target


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.name)
def test_every_link_to_a_heading_leads_to_one(document):
    for name, anchor in re.findall(r"\]\((?!http)([^)#]*)#([^)]+)\)", document.read_text("utf-8")):
        page = document.parent / name if name else document
        heads = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), flags=re.MULTILINE)
        # as GitHub makes them: without marks, blanks as hyphens
        places = {re.sub(r"[^\w\- ]", "", head).lower().replace(" ", "-") for head in heads}
        assert anchor in places, f"{name}#{anchor}"


@pytest.mark.parametrize("name", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_every_file_that_a_guide_names_is_there(name):
    folders = ("pipeline", "producers", "agents", "state", "infra", "tests", "benchmarks", "docs")
    paths = [*ROOT.glob("*.py"), *(path for top in folders for path in (ROOT / top).rglob("*"))]
    files = ["/" + str(path.relative_to(ROOT)) for path in paths]
    for mentioned in re.findall(
        r"[\w/]+\.py|(?<=`)[a-z_]+/[a-z_/]+/(?=`)", (ROOT / name).read_text()
    ):
        wanted = "/" + mentioned.strip("/")
        assert any(path.endswith(wanted) for path in files), mentioned


def test_every_make_target_that_a_document_shows_exists():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    for document in DOCUMENTS:
        for name in re.findall(r"^make ([a-z-]+)", document.read_text(), flags=re.MULTILINE):
            assert name in targets


def test_the_table_of_exit_codes_holds_every_code():
    table = (ROOT / "docs" / "operations.md").read_text()
    codes = {
        kind.exit_code
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.VeilstreamError)
    }
    # 1: no class of its own; 21, 22: faults of one record or message, which end no process
    for code in codes - {1, 21, 22}:
        assert f"| {code} |" in table


def test_the_table_of_settings_holds_every_setting():
    table = (ROOT / "docs" / "operations.md").read_text()
    for name in Settings.__dataclass_fields__:
        assert re.search(rf"[| ,]{name.upper()}[ ,|]", table), f"{PREFIX}{name.upper()}"


@pytest.mark.parametrize("name", ["Makefile", "README.md", "CONTRIBUTING.md"])
def test_who_starts_all_tests_knows_how_long_they_take(name):
    assert re.search(
        r"(test: .*##|make test  ).* 8 to 12 minutes on two idle cores", (ROOT / name).read_text()
    )


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("README.md", ["Docker Compose", "Kubernetes", "one more client while a study runs"]),
        ("docs/index.md", ["Docker Compose", "Kubernetes"]),
        ("docs/guides/index.md", ["Docker Compose", "Kubernetes", "adding a client"]),
        ("docs/guides/kafka-topic.md", ["Failed to update metadata after 60.0 secs"]),
        ("docs/guides/show-the-page.md", ["JSON behind the page", "/events"]),
        ("pipeline/page/assets/index.html", ["/events", "/estimates.csv", "watch --json"]),
    ],
)
def test_what_newcomers_look_for_is_where_they_look(page, words):
    text = (ROOT / page).read_text()
    assert not [word for word in words if word not in text]


def test_every_command_has_a_help_text():
    for name in COMMANDS:
        assert cli.get_command(None, name).help
