from types import SimpleNamespace

from agents.health import Health
from pipeline.estimators.estimate import Progress
from pipeline.reducer.partition import Head


def health(published_at, way=None):
    heads = {
        0: Head(revision="r", next_offset=12, duplicates=1, dead_letters=2),
        3: Head(revision="r", next_offset=5),
    }
    folding = SimpleNamespace(
        partitions={n: SimpleNamespace(head=head) for n, head in heads.items()}, releases=14
    )
    publishing = SimpleNamespace(owner=True, published_at=published_at, faults=list, way=way)
    return Health(folding, publishing, SimpleNamespace(left={0: 3, 3: 0}, faults=list))


def test_metrics_name_partitions_and_totals():
    lines = health(published_at=100.0).exposition(now=102.5).splitlines()
    assert 'veilstream_state_watermark_offset{partition="0"} 12' in lines
    assert 'veilstream_state_watermark_offset{partition="3"} 5' in lines
    assert 'veilstream_lag_records{partition="0"} 3' in lines
    assert "veilstream_duplicates_dropped_total 1" in lines
    assert "veilstream_dead_letters_total 2" in lines
    assert "veilstream_estimate_age_seconds 2.500" in lines


def test_a_worker_that_has_published_nothing_reports_no_age():
    assert "age" not in health(published_at=None).exposition(now=1.0)


def test_the_way_to_intervals_is_a_metric_where_it_is_known():
    told = health(100.0, Progress(0.25, 3000)).exposition(now=101.0).splitlines()
    assert "veilstream_interval_progress 0.2500" in told
    assert "veilstream_interval_missing_records 3000" in told
    endless = health(100.0, Progress(0.0, None)).exposition(now=101.0)
    assert "veilstream_interval_progress 0.0000" in endless
    assert "missing_records" not in endless
