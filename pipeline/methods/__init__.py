"""The methods of estimation, each a package of its own behind one seam.

- `base`: what a method is to the rest, live or over a file.
- `renewable`, `ldp_sgd`, `noisy_mle`, `noisy_copies`, `age_aware`: methods that run live. `sites`:
  what two of them share. `published`: methods for files.

A method is loaded when a study asks for it, and nothing outside its package knows it by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property, lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pipeline.errors import ConfigError
from pipeline.study import versions
from pipeline.study.model import DEFAULT_KIND

if TYPE_CHECKING:
    # a study that is being read asks here which kinds there are: only names may be needed for that
    from pipeline.methods.base import Method, OfflineMethod, Server
    from pipeline.privacy.guarantee import Guarantee
    from pipeline.release.task import Task
    from pipeline.study.model import Study

#: Where other distributions name methods of theirs: the kind, and where its object is.
GROUP = "veilstream.methods"
#: Methods of this project by `estimator.kind`, with where to find them.
OURS = {
    "renewable": "pipeline.methods.renewable.method:METHOD",
    "ldp-sgd": "pipeline.methods.ldp_sgd.method:METHOD",
    "noisy-mle": "pipeline.methods.noisy_mle.method:METHOD",
    "noisy-copies": "pipeline.methods.noisy_copies.method:METHOD",
    "age-aware": "pipeline.methods.age_aware.method:METHOD",
}


class Registry(Mapping[str, str]):
    """Where methods are, by their kind: ours, and those that other distributions bring.

    None of theirs takes the place of ours, and nobody looks for them who asks for ours.
    """

    @cached_property
    def _others(self) -> dict[str, str]:
        from importlib.metadata import entry_points  # noqa: PLC0415  an import takes 0.02 s

        found = {entry.name: entry.value for entry in entry_points(group=GROUP)}
        return {kind: found[kind] for kind in sorted(found.keys() - OURS.keys())}

    def __getitem__(self, kind: str) -> str:
        """Return where a method is; KeyError if there is none of this kind."""
        return OURS[kind] if kind in OURS else self._others[kind]

    def __contains__(self, kind: object) -> bool:
        """Whether there is a method of this kind."""
        return kind in OURS or kind in self._others

    def __iter__(self) -> Iterator[str]:
        """Give all kinds, ours first."""
        yield from OURS
        yield from self._others

    def __len__(self) -> int:
        """Return how many kinds there are."""
        return len(OURS) + len(self._others)


#: All methods that run live.
METHODS = Registry()
#: Methods that need pooled records, several rounds or a trusted aggregator, and so run over a file
#: alone: where to find them.
OFFLINE = {
    "pooled": "pipeline.methods.published:POOLED",
    "pooled-mm": "pipeline.methods.published:POOLED_MM",
    "federated-newton": "pipeline.methods.published:FEDERATED",
    "federated-newton-undamped": "pipeline.methods.published:UNDAMPED",
    "online-newton": "pipeline.methods.published:ONLINE",
    "online-newton-laplace": "pipeline.methods.published:LAPLACE",
    "online-newton-gaussian": "pipeline.methods.published:GAUSSIAN",
    "online-newton-distributed": "pipeline.methods.published:DISTRIBUTED",
}


def method_of(study: Study) -> Method[Any]:
    """Return the method of a study."""
    return load_live(study.estimator.kind)


def load_live(kind: str) -> Method[Any]:
    """Return the method of a kind of `METHODS`."""
    try:
        found: Method[Any] = _found(METHODS[kind])
    except (ImportError, AttributeError) as error:
        if kind in OURS:
            raise
        raise ConfigError(
            f"estimator.kind: the installed method {kind!r} ({METHODS[kind]}) cannot be loaded: "
            f"{error}; the operator must install a version of it that fits this one, or remove it"
        ) from error
    return found


def revision_of(study: Study) -> str:
    """Return a study's revision, as `study.versions.revision_of` with what its method adds."""
    live = study.estimator.kind in METHODS
    return versions.revision_of(study, method_of(study).enter if live else None)


def task_of(study: Study, level: str | None = None) -> Task:
    """Return what clients and workers of a study share; for `level` see `Task`.

    PrivacyError, ConfigError as `Task`.
    """
    kind = study.estimator.kind
    method = load(kind) if kind in OFFLINE else method_of(study)
    found: Task = method.task(study, revision_of(study), level)
    return found


def require_live(study: Study, doing: str) -> None:
    """Refuse to stream a study whose kind needs what a stream of releases cannot give.

    doing: Who asks, such as "a worker".

    Raises ConfigError, saying why, and what to use instead.
    """
    kind = study.estimator.kind
    if kind in OFFLINE:
        raise ConfigError(
            f'estimator.kind = "{kind}" needs {load(kind).needs}, so {doing} cannot use it: set '
            f'kind = "{DEFAULT_KIND}" for a live stream, or run `veilstream fit` for this kind'
        )


def require_noise(study: Study) -> None:
    """Refuse to stream a study without noise whose method cannot do without.

    Study files are checked when they are read; this is for a study whose privacy was turned off.

    Raises ConfigError, saying why, and what to do instead.
    """
    why = method_of(study).spec.needs_noise
    if why and not study.noised:
        raise ConfigError(f"the study cannot run without privacy: {why}")


@lru_cache(maxsize=64)
def server_of(task: Task) -> Server[Any]:
    """Return the worker's part of a study's method; ConfigError as `require_noise`."""
    require_noise(task.study)
    return method_of(task.study).server(task)


def load(kind: str) -> OfflineMethod:
    """Return the method of a kind of `OFFLINE`."""
    found: OfflineMethod = _found(OFFLINE[kind])
    return found


def offline_method(study: Study) -> OfflineMethod | None:
    """Return the method of a study that runs over a file alone; None of one that runs live."""
    kind = study.estimator.kind
    return load(kind) if kind in OFFLINE else None


def offline_methods(kinds: Iterable[str], option: str) -> list[OfflineMethod]:
    """Return methods by their kinds.

    Raises ConfigError if one is unknown, naming the option that it came with, and all that are
    known.
    """
    for kind in kinds:
        if kind not in OFFLINE:
            raise ConfigError(f"{option}: no method {kind!r}; allowed: {', '.join(OFFLINE)}")
    return [load(kind) for kind in kinds]


def guarantee_of(task: Task) -> Guarantee:
    """Return what a study keeps private, whatever its kind.

    Raises ConfigError, PrivacyError if the noise of its method cannot be scaled with these
    parameters.
    """
    method = offline_method(task.study)
    return task.budget.guarantee if method is None else method.guarantee(task)


def _found(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)
