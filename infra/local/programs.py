"""Where the local runtime finds the programs it runs, when not in the usual folders."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class ProgramPaths:
    """The operator's own paths of programs; what is left out is looked for.

    cache: Where this user's programs keep what they can fetch again (``XDG_CACHE_HOME``).
    kafka_home: A Kafka installation of the operator's own (``VEILSTREAM_KAFKA_HOME``).
    archive: The release ``kafka_2.13-4.3.1.tgz`` in a local file (``VEILSTREAM_KAFKA_ARCHIVE``).
    java_home: A Java installation (``JAVA_HOME``).
    """

    cache: Path = field(default_factory=lambda: Path.home() / ".cache")
    kafka_home: Path | None = None
    archive: Path | None = None
    java_home: Path | None = None
