"""What the broker says of a study: its revision, for clients whose file is another one."""

from __future__ import annotations

import msgspec

from pipeline.errors import PayloadError
from pipeline.messages.envelope import Headers, json_headers, rfc3339
from pipeline.release.task import Task
from pipeline.trust.signed import check_plain


class StudyMessage(msgspec.Struct, frozen=True, tag="study/1", tag_field="type"):
    """The revision that workers of a study fold; releases of any other become dead letters."""

    study: str
    study_revision: str
    published_at: str


_DECODER = msgspec.json.Decoder(StudyMessage)


def write_study(task: Task, published_at: float) -> tuple[bytes, Headers]:
    """Return a study's record as JSON, and its headers; the time in seconds since 1970."""
    study, at = task.study.name, rfc3339(published_at)
    marks = json_headers("study/1", study, task.revision, at)
    return msgspec.json.encode(StudyMessage(study, task.revision, at)), marks


class Known:
    """What the records of a study's topic say so far: the newest that can be read counts.

    revision: The revision of the study; None if there is none.
    ignored: How many records were no record of this study.
    """

    def __init__(self, study: str) -> None:
        self._study = study
        self.revision: str | None = None
        self.ignored = 0

    def take(self, payload: bytes | None) -> None:
        """Take the next record; an empty one takes back what was said."""
        if payload is None:
            self.revision = None
            return
        try:
            check_plain(payload)
            message = _DECODER.decode(payload)
        except (PayloadError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self.ignored += 1
            return
        if message.study == self._study:
            self.revision = message.study_revision
        else:
            self.ignored += 1
