"""What the blocks of a page find in their folder: `<!-- given: NAME ... -->`."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from tests.broker import broker
from tests.docs.snippets import ROOT, snippets_of

#: Makes files, or runs a server while the page is tried. It gets the page's folder, and the words
#: of the page's text that others take the place of.
Given = Callable[[Path, dict[str, str]], AbstractContextManager[object]]


def tutorial(folder: Path, words: dict[str, str]) -> AbstractContextManager[object]:
    """Give the files that the reader of the tutorial has saved, and the records that they make."""
    for block in snippets_of(ROOT / "docs" / "tutorial.md"):
        if block.file:
            (folder / block.file).write_text(block.text.replace("boilers", words["boilers"]))
    subprocess.run([sys.executable, "make_records.py"], cwd=folder, check=True)
    return nullcontext()


def readings(folder: Path, _: dict[str, str]) -> AbstractContextManager[object]:
    """Give records that fit the study file of `veilstream study init`."""
    chance = random.Random(7)
    lines = (
        f"{chance.uniform(-40, 120):.2f},{chance.uniform(0, 10):.2f},{chance.randrange(2)}\n"
        for _ in range(1000)
    )
    (folder / "readings.csv").write_text("temperature,pressure,anomaly\n" + "".join(lines))
    return nullcontext()


@contextmanager
def mqtt(folder: Path, words: dict[str, str]) -> Iterator[None]:
    """Run an MQTT broker; its port takes the place of 1883."""
    with broker(folder) as port:
        words["1883"] = str(port)
        yield


GIVEN: dict[str, Given] = {"tutorial": tutorial, "readings": readings, "mqtt": mqtt}
#: What has been done in a page's shell before its first block.
BEFORE = {
    "live": """\
veilstream worker study.toml 2> worker.log & echo $! > worker.pid
veilstream produce study.toml --client plant-1 --source plant-1.csv --quiet
veilstream watch study.toml --count 1 > watched.log
"""
}
