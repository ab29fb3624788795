"""Record the golden logs again, and print what changed: `make golden`."""

from __future__ import annotations

from pipeline.methods import task_of
from pipeline.study_file.load import parse_study
from tests.golden.cases import CASES
from tests.golden.logs import FILE, Golden, alike, differences, load, record, save


def changes(old: Golden | None, new: Golden) -> list[str]:
    """Return in words what is different in a log that was recorded again."""
    if old is None:
        return ["is new"]
    found = []
    if old.study != new.study:
        found.append("the study file is another")
    if old.revision != new.revision:
        found.append(f"revision {old.revision} is now {new.revision}")
    pairs = list(zip(old.log, new.log, strict=False))
    task = task_of(parse_study(new.study))
    other = sum(not alike(task, one.payload, two.payload) for one, two in pairs)
    if other or len(old.log) != len(new.log):
        found.append(f"{other} of {len(pairs)} releases are others, {len(new.log)} in all")
    moved = sum(one != two for one, two in zip(old.models, new.models, strict=False))
    if moved or len(old.models) != len(new.models):
        found.append(f"{moved} of {len(old.models)} models are others, {len(new.models)} in all")
    return found + differences(old.outcome, new.outcome)


def main() -> None:
    """Record every case; one that did not change keeps its bytes."""
    before = load()
    after = {}
    for name, case in CASES.items():
        golden = record(case)
        found = changes(before.get(name), golden)
        after[name] = golden if found else before[name]
        status = golden.outcome.exact["status"]
        print(f"{name} ({status}): {'; '.join(found) or 'as before'}")
    for name in before.keys() - CASES.keys():
        print(f"{name}: is gone")
    save(after)
    print(f"{len(after)} logs, {FILE.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
