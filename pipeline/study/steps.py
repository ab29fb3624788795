"""What a step of 1 of each column stands for, in words: what its coefficient is a change for."""

from __future__ import annotations

import numpy as np

from pipeline.study.data_tables import Feature
from pipeline.study.encoding import Encoding
from pipeline.study.features import main_columns, restored, words_of

#: Digits of a number that a sentence has.
DIGITS = 4
TOGETHER = "both together, beyond each alone"


def steps_of(encoding: Encoding) -> tuple[str, ...]:
    """Return the words of each coefficient, intercept first; empty where a range says all.

    That is so for the intercept, and for a number without a typical value and a transform: half its
    range from the middle, or its own unit.
    """
    plain = {name: _plain(feature) for name, feature in encoding.features.items()}
    words = []
    for name, columns in _mains(encoding).items():
        words += ["" if plain[name] else text for text in columns.values()]
    # the names of interactions say of what
    return ("", *words, *[TOGETHER] * (len(encoding.columns) - len(words)))


def described(encoding: Encoding) -> dict[str, str]:
    """Return the words of each feature and interaction by name, plain numbers as well."""
    found = {}
    for name, columns in _mains(encoding).items():
        [words, *_] = columns.values()
        found[name] = f"its coefficient is for a step of {words}"
        if encoding.features[name].kind == "category":
            found[name] = f"{len(columns)} columns, each a level {words}"
    return {**found, **{f"{one}:{other}": TOGETHER for one, other in encoding.pairs}}


def _plain(feature: Feature) -> bool:
    return feature.kind == "number" and feature.typical is None and feature.transform is None


def _mains(encoding: Encoding) -> dict[str, dict[str, str]]:
    """Return the columns of each feature by name, with their words."""
    found = {}
    for index, (name, feature) in enumerate(encoding.features.items()):
        if feature.kind == "category":
            words = f"beside the base level {feature.base_level!r}"
        if feature.kind == "number":
            words = _of_number(encoding, index, name, feature)
        found[name] = dict.fromkeys(main_columns(name, feature), words)
    return found


def _of_number(encoding: Encoding, index: int, name: str, feature: Feature) -> str:
    if not encoding.unit:
        return f"1 of {words_of(name, feature)}"
    half = float(encoding.half[index])
    zero = feature.typical
    if zero is None:
        zero = float(restored(feature, np.array([encoding.centre[index]]))[0])
    words = words_of(name, feature)
    return f"{half:.{DIGITS}g} of {words}, 0 at {name} = {zero:.{DIGITS}g}"
