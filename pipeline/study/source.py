"""What says which study it is: the study itself, its file, or the text of one."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

from pipeline.study.load import load_study, parse_study
from pipeline.study.model import Study

#: What says which study it is: the study, a path, or the text of a study file.
StudySource: TypeAlias = Study | Path | str


def read_study(source: StudySource) -> Study:
    """Return the study; a string with a line break is the text of its file, else its path.

    Raises ConfigError if it cannot be read, or says something that is not allowed.
    """
    if isinstance(source, Study):
        return source
    if isinstance(source, str) and "\n" in source:
        return parse_study(source)
    return load_study(Path(source))
