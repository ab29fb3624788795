"""Fetch what tests take from elsewhere, once for all processes: `make fetch`.

Kafka's jars with the archive of their classes, and the browser. Tests fetch what is missing
themselves, but then most of their processes wait for the first.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from infra.local import program_paths
from infra.local.processes import free_port
from infra.local.services import MEMORY, Kafka
from pipeline.settings import Settings
from tests import browser


def main() -> None:
    """Fetch both, and print where they are."""
    paths = program_paths(Settings.read())
    with tempfile.TemporaryDirectory(prefix="veilstream-") as folder:
        Kafka(Path(folder), paths, MEMORY).command(free_port())
    print(f"Kafka's jars: {paths.cache}; Chromium: {browser.find()[0]}")


if __name__ == "__main__":
    main()
