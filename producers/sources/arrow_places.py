"""Where Arrow and Parquet files lie: on this machine, or in a store that fsspec reaches."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol, cast

from pipeline.errors import ConfigError, DataError
from pipeline.settings import extra

#: What a file of records is called.
SUFFIXES = (".parquet", ".arrow", ".feather")
_PASSWORD = re.compile(r"://[^/:@]*:[^/]*@")
#: What may be a secret: who reads, and a signature. Of Azure, what stands before @ is a container.
_SECRET = re.compile(r"(?<=://)(?<!abfs://)(?<!abfss://)[^/]*@|[?#].*?(?=::|$)")


class File(NamedTuple):
    """A file, by its path below the folder that was named, and its bytes."""

    name: str
    size: int


class Place(Protocol):
    """A file or a folder of them.

    Every method raises DataError if it cannot be read, and names the file.
    """

    def files(self) -> list[File]:
        """Return the files in the order of their names; those that begin with . or _ are hidden."""

    def open(self, name: str) -> BinaryIO:
        """Open one of them."""


def is_arrow(spec: str) -> bool:
    """Whether a specification names a folder, an Arrow or Parquet file, or another store."""
    return "://" in spec or spec.endswith("/") or Path(spec).suffix.lower() in SUFFIXES


def public_url(url: str) -> str:
    """Return a URL without user and query; ConfigError if it has a password."""
    if _PASSWORD.search(url):
        # what is typed here is seen in the list of processes
        raise ConfigError(
            "--source: a password has no place in it; the data owner must give it as the settings "
            "of the store's own package say"
        )
    return _SECRET.sub("", url)


def place_of(spec: str) -> Place:
    """Return where a specification leads.

    Raises DataError if nothing is there; ConfigError if the package that reaches it is missing.
    """
    return Store(spec) if "://" in spec else Disk(Path(spec))


class Disk:
    """Files of this machine."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._base = path if path.is_dir() else path.parent

    def files(self) -> list[File]:
        """As `Place.files`."""
        with _reading(self._path.name):
            if self._path.is_file():
                return [File(self._path.name, self._path.stat().st_size)]
            if not self._path.is_dir():
                raise FileNotFoundError(2, "No such file or folder")
            found = (
                (path.relative_to(self._path).as_posix(), path)
                for path in self._path.rglob("*")
                if path.is_file()
            )
            return sorted(File(name, path.stat().st_size) for name, path in found if _shown(name))

    def open(self, name: str) -> BinaryIO:
        """As `Place.open`."""
        with _reading(name):
            return (self._base / name).open("rb")


class Store:
    """Files of another store, such as `s3://bucket/folder/`."""

    def __init__(self, url: str) -> None:
        self._url, self._single = public_url(url), ""
        fsspec: Any = extra("fsspec.core", f"{url.partition('://')[0]}://", "arrow")
        with _reading(self._url):
            try:
                self._fs, self._path = fsspec.url_to_fs(url)
            except ImportError as error:
                raise ConfigError(
                    f"--source: a package that reaches this store is not installed ({error}); the "
                    "operator must install it beside veilstream"
                ) from None
        self._base = self._path.rstrip("/")

    def files(self) -> list[File]:
        """As `Place.files`."""
        with _reading(self._url):
            # what a store listed before may be old
            self._fs.invalidate_cache()
            found = self._fs.find(self._path, detail=True)
            if not found:
                raise FileNotFoundError(2, "No such file or folder")
            if self._base in found:
                self._single = public_url(self._base).rpartition("/")[2]
                return [File(self._single, int(found[self._base]["size"]))]
            cut = len(self._base) + 1
            named = ((path[cut:], int(each["size"])) for path, each in found.items())
            return sorted(File(name, size) for name, size in named if _shown(name))

    def open(self, name: str) -> BinaryIO:
        """As `Place.open`."""
        with _reading(name):
            path = self._base if name == self._single else f"{self._base}/{name}"
            return cast("BinaryIO", self._fs.open(path, "rb"))


def _shown(name: str) -> bool:
    """Whether a file counts: writers hide what is not whole yet."""
    hidden = any(part.startswith((".", "_")) for part in name.split("/"))
    return not hidden and Path(name).suffix.lower() in SUFFIXES


@contextmanager
def _reading(name: str) -> Iterator[None]:
    try:
        yield
    except (ConfigError, DataError):
        raise
    except Exception as error:  # every store has errors of its own
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise DataError(
            f"{name}: cannot be read ({reason}); the data owner must name a file or folder that "
            "this process may read"
        ) from error
