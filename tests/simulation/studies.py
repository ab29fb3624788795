"""The study of a simulation, its clients' records, and databases that are there already."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from pipeline.messages.topics import Topics
from pipeline.methods import task_of
from pipeline.release.task import Task
from pipeline.study_file.load import parse_study
from producers.store import ClientStore
from tests.log_checks import PLANTED
from tests.simulation.believed import faults_among_liars
from tests.simulation.byzantine import Byzantine
from tests.simulation.checks import faults_of, outcome
from tests.simulation.standins import StandIns
from tests.simulation.world import Scenario, World
from tests.stage import HEADER, lines, study_text
from tests.trusted import TRUST

SLOTS = 4
#: Records of each client; windows that are not full, too.
COUNTS = {"north": 22, "east": 17, "south": 9}
SEEDED = 'mechanism = "insecure-simulation"\nepsilon = 2.0\ndelta = 1e-5\nseed = 1'
FORMS = ("alike", "private", "marked")


def text_of(form: str, name: str) -> str:
    """Return a study: the same noise in every run; fresh noise; none, with records that tell.

    The form "trusted" is the second of these with authenticated releases.
    """
    if form == "marked":
        text = PLANTED.format(name=name, records=SLOTS)
    else:
        private = {"privacy": SEEDED} if form == "alike" else {}
        text = study_text(name, records=SLOTS, **private)
    lead = 0 if form == "alike" else 2
    text = text.replace("[stream]\n", f"[stream]\nmax_in_flight_windows = {lead}\n")
    return text + TRUST * (form == "trusted")


class Theatre:
    """A study, its clients' files, and their empty databases, for any number of runs."""

    def __init__(self, folder: Path, form: str, name: str = "simulated") -> None:
        self.form, self.folder = form, folder
        self.task: Task = task_of(parse_study(text_of(form, name)))
        self.sources = {client: folder / f"{client}.csv" for client in COUNTS}
        for seed, (client, source) in enumerate(self.sources.items()):
            if form == "marked":
                body = "mark,load,failed\n" + "".join(
                    f"{n},{n % 7 / 7 - 0.5:.4f},0.5\n" for n in range(COUNTS[client])
                )
            else:
                body = HEADER + "".join(lines(COUNTS[client], seed))
            source.write_text(body)
            ClientStore(folder / "empty" / f"{client}.db", client).close()
        self.runs = 0

    def play(self, scenario: Scenario, servers: Any = None) -> World:
        """Run a scenario to its rest, and note in `faults` what is wrong then."""
        self.runs += 1
        here = self.folder / f"run{self.runs}"
        shutil.copytree(self.folder / "empty", here)
        servers = servers or StandIns(Topics.of(self.task.study))
        world = World(self.task, self.sources, servers, here, scenario)
        try:
            world.run()
            world.faults = faults_of(world, COUNTS)
            world.outcome = outcome(world)
        finally:
            shutil.rmtree(here)
        return world

    def play_among_liars(self, scenario: Scenario) -> Byzantine:
        """Run a scenario to its rest with liars about, and note in `faults` what is wrong then."""
        self.runs += 1
        here = self.folder / f"run{self.runs}"
        shutil.copytree(self.folder / "empty", here)
        world = Byzantine(self.task, self.sources, here, scenario)
        try:
            world.run()
            world.faults = faults_among_liars(world, COUNTS)
        finally:
            shutil.rmtree(here)
        return world
