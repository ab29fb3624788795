"""The reference of the command line, from the commands themselves."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import click

from pipeline.cli.main import cli


def text() -> str:
    """Return every command with its arguments, options and help, in Markdown."""
    context = click.Context(cli, info_name="veilstream")
    return "\n".join(_of(cli, context, level=2))


def _of(command: click.Command, context: click.Context, level: int) -> Iterator[str]:
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            if found is None or found.hidden:
                continue
            below = click.Context(found, info_name=name, parent=context)
            yield from (f"{'#' * level} {below.command_path}", "")
            usage = found.get_usage(below).removeprefix("Usage: ")
            yield from ("```text", usage, "```", "")
            yield from _paragraphs(found.help or "")
            yield from _options(found, below)
            yield from _of(found, below, level + 1)


def _paragraphs(help_text: str) -> Iterator[str]:
    """Yield help as it stands: click's mark of a block that keeps its lines begins code."""
    for paragraph in inspect.cleandoc(help_text).split("\n\n"):
        kept = paragraph.startswith("\b")
        words = paragraph.removeprefix("\b").strip("\n")
        yield from (("```text", words, "```", "") if kept else (_plain(words), ""))


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    rows = []
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is None or "--help" in parameter.opts:
            continue
        rows.append(f"| {_code(record[0])} | {_plain(_said(parameter, record[1]))} |")
    if rows:
        yield from ("| option | meaning |", "|---|---|", *rows, "")


def _said(parameter: Any, words: str) -> str:
    return " ".join(words.split()) or str(getattr(parameter, "help", ""))


def _code(words: str) -> str:
    return "`" + words.replace("|", "\\|") + "`"


def _plain(words: str) -> str:
    """Return words without what Markdown would read as marks."""
    for mark in "*_<>[]|":
        words = words.replace(mark, "\\" + mark)
    return words
