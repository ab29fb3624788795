"""Every block of the documents runs as it stands, is checked, or says why not.

The blocks of a page are one session in one folder, on the Kafka and Redis that tests share: bash
in one shell, each block of Python in a process of its own. Three things are changed before: the
name of the tutorial's study and the ports, as others use them at the same time; `veilstream down`
is left out; and what would run until it is stopped (`page`, `watch`, `--follow`, `--listen`) goes
to the background, where it must say something.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
import tomllib
import uuid
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path

import click
import pytest
from markdown_it import MarkdownIt

from infra.local import LocalRuntime
from infra.local.processes import free_port
from pipeline.api.check import check_study
from pipeline.cli.main import cli
from pipeline.study_file.edit import TEMPLATE
from pipeline.study_file.load import study_of
from tests.docs.given import BEFORE, GIVEN
from tests.docs.snippets import ALL, BUILT, COMMAND, ROOT, RUN, SHOWN, Snippet, given_of
from tests.forks import FORKS
from tests.stage import PATIENCE

#: Where `veilstream` and `python` are.
PROGRAMS = str(Path(sys.executable).parent)
#: Pages that are tried in every run; the others are tried with the slow tests.
QUICK = {"README.md"}
#: The page with a target of its own, in commands and in seconds.
FIRST, COMMANDS, SECONDS = ROOT / "docs" / "guides" / "first-estimate.md", 5, 120
#: Numbers in the documents that stand for ports.
PORTS = ("8787", "8080", "8443", "9101", "9102")
FOREVER = re.compile(
    r"^(?P<command>(?:[A-Z_]+=\S+ )*veilstream "
    r"(?:page|watch(?!.*--(?:count|save))|.*--(?:follow|listen)\b|.*mqtts?:)"
    r"(?:[^\n&#]|\\\n)*)(?:#.*)?$",
    re.MULTILINE,
)
#: Seconds that a page may take on a busy machine: only one that hangs waits so long.
LONGEST = 4 * PATIENCE
#: Waits until a command of the background has spoken, of more than whom it has enrolled, and did
#: not end with a fault.
SHELL = """\
set -e
export PATH={bin}:$PATH
patience={patience}
spoken() {{
  for _ in $(seq $((patience * 10))); do
    if ! kill -0 $1 2> /dev/null; then wait $1 && return; cat $2 >&2; return 1; fi
    if grep -qv '^on this machine alone: ' $2; then
      sleep 0.5
      if kill -0 $1 2> /dev/null || wait $1; then return; fi
      cat $2 >&2
      return 1
    fi
    sleep 0.1
  done
  echo "it said nothing for $patience s" >&2
  return 1
}}
"""
#: Commands that the page on upgrades says are gone.
GONE = {"veilstream privacy calibrate", "veilstream schedule compare"}
SNIPPETS = [snippet for found in ALL.values() for snippet in found]


def test_every_block_is_run_or_says_why_not(record_property):
    counts = Counter()
    for snippet in SNIPPETS:
        if snippet.reason:
            counts["not run, with a reason"] += 1
        elif snippet.language in RUN:
            counts[f"{snippet.language}, run or checked"] += 1
        elif snippet.language == BUILT:
            counts["cells, run when the site is built"] += 1
        else:
            assert snippet.language in (*SHOWN, "indented"), f"{snippet.place}: name its language"
            assert not COMMAND.search(snippet.text), f"{snippet.place}: commands stand in ```bash"
            counts["only shown"] += 1
    record_property("snippets", ", ".join(f"{n} {what}" for what, n in sorted(counts.items())))


@pytest.mark.parametrize(
    "snippet", [s for s in SNIPPETS if s.language == "bash"], ids=lambda s: s.place
)
def test_every_command_line_can_be_read(snippet: Snippet):
    """Also those that are not run: their options exist."""
    joined = snippet.text.replace("\\\n", " ")
    for line in re.findall(r"^(?:[A-Z_]+=\S* )*veilstream (.+)$", joined, re.MULTILINE):
        read(cli, until_the_shell(shlex.split(line, comments=True)))


@pytest.mark.parametrize("page", list(ALL), ids=lambda p: str(p.relative_to(ROOT)))
def test_every_command_in_a_sentence_can_be_read(page: Path):
    """A group may be named without a command of it, and an option without its value."""
    for token in MarkdownIt().enable("table").parse(page.read_text("utf-8")):
        for code in token.children or ():
            text = " ".join(code.content.split())
            said = re.match(r"(?:[A-Z_]+=\S+ )*veilstream (.+)", text)
            if code.type != "code_inline" or said is None or text in GONE:
                continue
            words = [word for word in until_the_shell(shlex.split(said[1])) if word != "COMMAND"]
            try:
                read(cli, words)
            except click.BadOptionUsage:
                # the sentence names the last option without its value
                read(cli, [*words, "VALUE"])


def until_the_shell(words: list[str]) -> list[str]:
    """Return the words of a command before what belongs to the shell."""
    ends = [n for n, word in enumerate(words) if re.match(r"\d?[|&;<>]", word)]
    return words[: min(ends, default=len(words))]


def read(command: click.Command, words: list[str]) -> None:
    """Read the options of a command line as the program would; files need not be there."""
    context = click.Context(command)
    _, rest, _ = command.make_parser(context).parse_args(list(words))
    if isinstance(command, click.Group) and rest:
        rest = ["show", *rest] if rest[0] == "STUDY" else rest  # `schedule STUDY` is short for that
        found = command.get_command(context, rest[0])
        assert found is not None, rest[0]
        read(found, rest[1:])


@pytest.mark.parametrize(
    "snippet", [s for s in SNIPPETS if s.language == "toml" and s.runs], ids=lambda s: s.place
)
def test_every_study_file_is_one(snippet: Snippet):
    """A block that shows only some tables takes the others from `veilstream study init`."""
    usual, tables = tomllib.loads(TEMPLATE), tomllib.loads(snippet.text)
    tables["estimator"] = {"loss": usual["estimator"]["loss"], **tables.get("estimator", {})}
    study = study_of({**usual, **tables}, name=snippet.place)
    assert check_study(study, records=2_000, clients=2)["study"]


def pages():
    for page, snippets in ALL.items():
        name = str(page.relative_to(ROOT))
        if page != FIRST and any(
            s.runs and s.language != "toml" and ">>>" not in s.text for s in snippets
        ):
            marks = [] if name in QUICK else [pytest.mark.slow]
            yield pytest.param(page, id=name, marks=marks)


@pytest.mark.takes("a session of a page is a dozen processes")
@pytest.mark.kafka
@pytest.mark.redis
@pytest.mark.parametrize("page", list(pages()))
def test_the_blocks_of_a_page_run_in_their_order(
    page: Path, tmp_path: Path, local_runtime: LocalRuntime
):
    quick = FORKS.commands(tmp_path / "bin")
    play(page, tmp_path, local_runtime, f"{quick}:{PROGRAMS}")


@pytest.mark.slow
@pytest.mark.takes("five starts of the program, as its reader has them")
@pytest.mark.kafka
@pytest.mark.redis
def test_a_topic_comes_to_a_first_estimate_in_five_commands_and_two_minutes(
    tmp_path: Path, local_runtime: LocalRuntime
):
    shown = [s.text.splitlines() for s in ALL[FIRST] if s.language == "bash"]
    assert [len(commands) for commands in shown] == [COMMANDS]
    seconds = play(FIRST, tmp_path, local_runtime)
    print(f"\nthe five commands took {seconds:.1f} s")
    assert seconds < SECONDS


def play(page: Path, tmp_path: Path, local_runtime: LocalRuntime, program: str = PROGRAMS) -> float:
    """Run the blocks of a page in a folder, and return how many seconds they took.

    program: The folders of the commands `veilstream` and `python`.
    """
    words = {"boilers": f"boilers-{uuid.uuid4().hex[:8]}", **{p: str(free_port()) for p in PORTS}}
    home = tmp_path / ".veilstream"
    home.mkdir()
    # the servers that all tests share, as if `veilstream up` had started them here
    (home / "runtime.json").write_bytes((local_runtime.folder / "runtime.json").read_bytes())
    with ExitStack() as stack:
        given = given_of(page)
        for name in given:
            if name not in BEFORE:
                stack.enter_context(GIVEN[name](tmp_path, words))
        script = tmp_path / "session.sh"
        before = [BEFORE.get(name, "") for name in given]
        script.write_text(session(ALL[page], before, words, program))
        began = time.monotonic()
        run(script)
        return time.monotonic() - began


def session(snippets: list[Snippet], before: list[str], words: dict[str, str], program: str) -> str:
    """Return the blocks of a page as one script."""
    parts = [SHELL.format(bin=program, patience=int(PATIENCE)), *before]
    for number, snippet in enumerate(s for s in snippets if s.runs and ">>>" not in s.text):
        text = FOREVER.sub(
            rf"\g<command> > {number}.log 2>&1 & spoken $! {number}.log", snippet.text
        )
        text = re.sub(r"^veilstream down.*$", ":", text, flags=re.MULTILINE)
        if snippet.language != "bash":
            if snippet.language == "toml" and not snippet.file:
                continue
            name = snippet.file or f"block-{number}.py"
            text = f"cat > {name} << 'END-OF-BLOCK'\n{text}END-OF-BLOCK\n"
            text += "" if snippet.file else f"python {name}\n"
        parts.append(f"echo '### {snippet.place}'\n{text}")
    script = "\n".join(parts)
    for word, other in words.items():
        script = re.sub(rf"\b{re.escape(word)}\b", lambda _, other=other: other, script)
    return script


def run(script: Path) -> None:
    """Run a session to its end, and end what it has left in the background."""
    environment = {n: v for n, v in os.environ.items() if not n.startswith("VEILSTREAM_")}
    # clients of other pages have the same names
    environment["VEILSTREAM_LEDGER_TOPIC"] = f"veil.ledger.{uuid.uuid4().hex}"
    with (script.parent / "session.log").open("w+") as log:
        process = subprocess.Popen(
            ["bash", script.name], cwd=script.parent, env=environment, stdin=subprocess.DEVNULL,
            stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait(LONGEST)
        finally:
            with suppress(ProcessLookupError):  # it has left nothing behind
                os.killpg(process.pid, signal.SIGKILL)
        log.seek(0)
        said = log.read()
    assert code == 0, said
    assert "Traceback" not in said, said
