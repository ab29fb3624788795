"""The public numbers of a study that no client releases anything for."""

from __future__ import annotations

from typing import NoReturn

from pipeline.errors import ConfigError
from pipeline.records.encode import Arrays
from pipeline.release.budget import Budget
from pipeline.release.layout import Layout
from pipeline.release.model import Model
from pipeline.release.task import Task


class OfflineTask(Task):
    """As `Task`: bounds alone; asking it for a release is an error."""

    def make_budget(self, level: str | None) -> Budget:
        """As `Task.make_budget`: nothing is noised record by record."""
        return Budget(self.study, level, touched=0)

    def check_fit(self) -> None:
        """As `Task.check_fit`: there is no lattice."""

    @property
    def layout(self) -> Layout:
        """As `Task.layout`: nothing is released."""
        return Layout.without_noise(self.size, 0.0, ())

    def query(self, window: Arrays, model: Model) -> NoReturn:
        """Refuse, as `Task.query` cannot be answered."""
        del window, model
        raise ConfigError(
            f'estimator.kind = "{self.study.estimator.kind}" has no releases: run `veilstream fit`'
        )

    open_query = query
