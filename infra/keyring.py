"""Files of keys: a study's, a client's, and the public keys of studies that this folder knows.

Private files are for their owner alone, and a file that others can read is refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, TypeVar
from urllib.parse import quote

import msgspec
from msgspec import Meta

from pipeline.errors import ConfigError
from pipeline.settings import Settings
from pipeline.trust import Pair

Seed = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
Held = TypeVar("Held")
#: A study's public key, as it is kept.
_PUBLIC = re.compile(rb"[0-9a-f]{128}\n")


class _StudyFile(msgspec.Struct, tag="study-key/1", tag_field="type", forbid_unknown_fields=True):
    study: str
    seeds: dict[int, Seed]
    least: int = 1
    retired: dict[int, dict[int, int]] = {}


class _ClientFile(msgspec.Struct, tag="client-key/1", tag_field="type", forbid_unknown_fields=True):
    client: str
    seed: Seed


@dataclass(frozen=True, slots=True)
class StudyPairs:
    """A study's private keys.

    pairs: Of all generations, oldest first.
    least: Generations below it sign nothing that is believed any more.
    retired: Generations that have retired all older ones, each with the offset in each partition
        of the releases topic from which on it has.
    """

    pairs: Sequence[Pair]
    least: int = 1
    retired: Mapping[int, Mapping[int, int]] = field(default_factory=dict)

    @property
    def newest(self) -> Pair:
        """The pair that signs."""
        return self.pairs[-1]

    @property
    def root(self) -> Pair:
        """The oldest pair that is believed: what the study says of newer keys follows from it."""
        return next(pair for pair in self.pairs if pair.generation >= self.least)

    def least_at(self, partition: int, offset: int) -> int:
        """Return the oldest generation that counts behind an offset, if the log before is gone.

        A retirement whose offset nobody knows has always been: a stolen key is not believed.
        """
        found: dict[int, Mapping[int, int]] = {self.least: {}, **self.retired}
        return max((n for n, at in found.items() if at.get(partition, 0) < offset), default=1)


def study_path(settings: Settings, study: str) -> Path:
    """Return where a study's private keys are."""
    if settings.study_key:
        return Path(settings.study_key).absolute()
    return settings.home / "keys" / f"{quote(study, safe='')}.key"


def client_path(settings: Settings, client: str) -> Path:
    """Return where a client's private key is: beside its database."""
    return settings.home / "clients" / f"{quote(client, safe='')}.key"


def read_study(settings: Settings, study: str) -> StudyPairs:
    """Read a study's private keys.

    ConfigError if there are none, others can read them, or the file is cut or another study's.
    """
    path = study_path(settings, study)
    held = _read(path, _StudyFile, f"copy the key file of study {study!r} here from where it "
                 "was made, or name it in VEILSTREAM_STUDY_KEY; for a new study, run `veilstream "
                 "study keys`")  # fmt: skip
    if held.study != study or not held.seeds:
        raise ConfigError(
            f"{path} has the keys of study {held.study!r}, and this is study {study!r}: the "
            "operator must name the right file in VEILSTREAM_STUDY_KEY"
        )
    pairs = [Pair(bytes.fromhex(seed), n) for n, seed in sorted(held.seeds.items())]
    return StudyPairs(pairs, held.least, held.retired)


def write_study(settings: Settings, study: str, held: StudyPairs) -> Path:
    """Write a study's private keys, in one step, and return where."""
    seeds = {pair.generation: pair.seed.hex() for pair in held.pairs}
    file = _StudyFile(study, seeds, held.least, {n: dict(at) for n, at in held.retired.items()})
    return _write(study_path(settings, study), file)


def read_client(settings: Settings, client: str) -> Pair:
    """Read a client's private key; ConfigError as `read_study`."""
    way_out = f"run `veilstream client enrol --client {client}` here, for the operator to admit"
    return _client_pair(client_path(settings, client), client, way_out)


def _client_pair(path: Path, client: str, way_out: str) -> Pair:
    held = _read(path, _ClientFile, way_out)
    if held.client != client:
        raise ConfigError(
            f"{path} is the key of client {held.client!r}, and this is client {client!r}: put this "
            f"client's own key file there, or move this one away and {way_out}"
        )
    return Pair(bytes.fromhex(held.seed))


def pinned(settings: Settings, study: str) -> bytes | None:
    """Return the public key of a study that this folder knows; None if it knows none."""
    path = _pin(settings, study)
    with suppress(FileNotFoundError):
        try:
            held = path.read_bytes()
        except PermissionError as error:
            raise ConfigError(f"{path}: the user that runs this must be able to read it") from error
        if not _PUBLIC.fullmatch(held):
            raise ConfigError(f"{path} is not a complete key: remove it to pin the study anew")
        return bytes.fromhex(held.decode())
    return None


def pin(settings: Settings, study: str, public: bytes) -> Path:
    """Remember the public key of a study, and return where."""
    path = _pin(settings, study)
    path.parent.mkdir(parents=True, exist_ok=True)
    # clients of one folder may learn of a new key at once
    made = path.with_name(f"{path.name}.{os.getpid()}")
    made.write_text(public.hex() + "\n")
    made.replace(path)
    return path


def _pin(settings: Settings, study: str) -> Path:
    return settings.home / "keys" / f"{quote(study, safe='')}.pinned"


def _read(path: Path, kind: type[Held], way_out: str) -> Held:
    try:
        if path.stat().st_mode & 0o077:
            raise ConfigError(f"{path}: others can read this private key; run chmod 600 {path}")
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        raise ConfigError(f"there is no key file {path}: {way_out}") from None
    except OSError as error:
        raise ConfigError(f"cannot read the key file {path}: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path} is not a complete key file: put a copy of it back, "
            f"or move it away and {way_out}"
        ) from error


def _write(path: Path, held: msgspec.Struct, *, new: bool = False) -> Path:
    """Write a private file in one step; one that is new never replaces another."""
    path.parent.mkdir(parents=True, exist_ok=True)
    made = path.with_name(f"{path.name}.{os.getpid()}")
    made.unlink(missing_ok=True)
    descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(held) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    if new:
        # of two processes that make it at once, one does
        with suppress(FileExistsError):
            path.hardlink_to(made)
        made.unlink()
    else:
        made.replace(path)
    return path


def made_study(settings: Settings, study: str) -> StudyPairs:
    """Return a study's private keys, made if it has none; ConfigError as `read_study`."""
    if not study_path(settings, study).exists():
        file = _StudyFile(study, {1: Pair.drawn().seed.hex()})
        _write(study_path(settings, study), file, new=True)
    return read_study(settings, study)


def enrolled(settings: Settings, client: str) -> Pair:
    """Return a client's pair, made if it has none; ConfigError as `read_study`."""
    if not client_path(settings, client).exists():
        file = _ClientFile(client, Pair.drawn().seed.hex())
        _write(client_path(settings, client), file, new=True)
    return read_client(settings, client)


def set_aside(settings: Settings, client: str) -> None:
    """Keep a client's key for what was made under it, and have the next one made."""
    path, number = client_path(settings, client), 1 + len(former(settings, client))
    if path.exists():
        path.replace(path.with_name(f"{path.name}.{number}"))


def former(settings: Settings, client: str) -> list[Pair]:
    """Return the pairs that a client had before, oldest first; ConfigError as `read_study`."""
    path, found = client_path(settings, client), list[Pair]()
    while (older := path.with_name(f"{path.name}.{len(found) + 1}")).exists():
        found.append(_client_pair(older, client, "move it away"))
    return found
