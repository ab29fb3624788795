"""The estimates of a live study, from its topic."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from infra.local import connected
from pipeline.api import feed
from pipeline.api.result import Result
from pipeline.methods import require_live
from pipeline.settings import Settings
from pipeline.study.model import Study
from pipeline.study_file.load import StudySource, read_study


def estimates(
    study: StudySource, *, follow: bool = False, latest: bool = False, kafka: str | None = None
) -> Iterator[Result]:
    """Yield the estimates of a live study, oldest first; a connection is made by the first `next`.

    Parameters
    ----------
    study
        A study, the path of a study file, or its text (a string with a line break).
    follow
        Whether to wait for more, for ever; else it ends behind the newest that there was.
    latest
        Whether to begin with the newest instead of the oldest that is kept.
    kafka
        HOST:PORT; default: `VEILSTREAM_KAFKA`, else what `veilstream up` started.

    Raises
    ------
    ConfigError
        If the study has no live stream, or nothing says where Kafka is.
    BrokerError
        If Kafka does not answer, or has no such topic.
    """
    found, settings = _live(study), _settings(kafka)
    feed.check_topics(found, settings)
    reader = feed.Feed(found, settings, beginning=not latest)
    try:
        for message, _ in reader if follow else reader.until_now():
            yield Result(found, message)
    finally:
        reader.close()


def newest_estimate(study: StudySource, *, kafka: str | None = None) -> Result:
    """Return the newest estimate of a live study; parameters and errors as in `estimates`.

    Raises
    ------
    NumericError
        If there is none yet.
    """
    found = _live(study)
    return Result(found, feed.newest_estimate(found, _settings(kafka)))


def _live(study: StudySource) -> Study:
    found = read_study(study)
    require_live(found, "reading estimates")
    return found


def _settings(kafka: str | None) -> Settings:
    settings = Settings.read()
    if kafka is not None:
        settings = dataclasses.replace(settings, kafka=kafka)
    return connected(settings)
