from types import SimpleNamespace

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from agents.folding import Meters
from agents.metrics import Health
from pipeline.errors import PayloadError
from pipeline.messages.envelope import DeadLetter, rfc3339
from pipeline.messages.estimate import ProgressMessage
from pipeline.stream.partition import Head
from tests.page.shown import Stream


def samples(message=None, verifying=None, meters=None):
    """Return the values of all series, by name and the value of their label."""
    heads = {
        0: Head(revision="r", next_offset=12, duplicates=1, dead_letters=2, missing=4, clients=3),
        3: Head(revision="r", next_offset=5),
    }
    folding = SimpleNamespace(
        partitions={n: SimpleNamespace(head=head) for n, head in heads.items()},
        releases=14,
        meters=meters or Meters(),
    )
    publishing = SimpleNamespace(owner=True, faults=list, message=message)
    progress = SimpleNamespace(left={0: 3, 3: 0}, faults=list)
    text = Health(folding, publishing, progress, verifying).text().decode()
    assert text.count("# HELP") == text.count("# TYPE")
    return {
        (sample.name.removeprefix("veilstream_"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_name_partitions_and_totals():
    found = samples(Stream().next(published_at=rfc3339(0)))
    assert found["state_watermark_offset", "0"] == 12
    assert found["state_watermark_offset", "3"] == 5
    assert found["lag_records", "0"] == 3
    assert found["releases_folded_total", "0"] == 9
    assert found["releases_applied_total",] == 14
    assert found["duplicates_dropped_total",] == 1
    assert found["dead_letters_total",] == 2
    assert (found["releases_missing",], found["clients",]) == (4, 3)
    # seconds since 1970
    assert found["estimate_age_seconds",] > 1e9


def test_a_worker_that_has_published_nothing_says_nothing_of_estimates():
    assert not [name for name, *_ in samples() if "estimate_" in name and "seconds_" not in name]


def test_the_newest_estimate_has_status_coefficients_and_widths():
    stream = Stream(size=2)
    warming = samples(stream.next())
    assert warming["estimate_status", "warming"] == 1
    assert warming["estimate_status", "ready"] == 0
    assert not [name for name, *_ in warming if name == "interval_width"]
    ready = stream.next(reason="")
    while ready.status != "ready":
        ready = stream.next()
    row, found = ready.coefficients[1], samples(ready)
    assert found["estimate_value", row.name] == row.value
    assert found["interval_width", row.name] == row.interval[1] - row.interval[0]


def test_the_way_to_intervals_is_a_metric_where_it_is_known():
    message = Stream().next(progress=ProgressMessage(0.25, 3000))
    told = samples(message)
    assert told["interval_progress",] == 0.25
    assert told["interval_missing_records",] == 3000
    endless = samples(msgspec.structs.replace(message, progress=ProgressMessage(0.0, None)))
    assert endless["interval_progress",] == 0
    assert ("interval_missing_records",) not in endless


def test_letters_commits_delays_and_verifications_are_counted():
    meters = Meters()
    meters.letters([DeadLetter(1, b"k", b"v", (), PayloadError("forged", "why"))] * 2)
    meters.verified(True)
    meters.published(rfc3339(0))
    with meters.commits.time():
        pass
    found = samples(meters=meters)
    assert found["dead_letters_by_reason_total", "forged"] == 2
    assert found["verifications_total", "same"] == 1
    assert found["commit_seconds_count",] == 1
    assert found["release_to_estimate_seconds_bucket", "3600.0"] == 0
    assert found["release_to_estimate_seconds_count",] == 1


def test_two_workers_of_one_process_share_nothing():
    first = Meters()
    first.verified(False)
    assert samples(meters=first)["verifications_total", "different"] == 1
    # there from the start: a counter that begins with 1 has not increased, and raises no alert
    assert samples()["verifications_total", "different"] == 0
