"""The page of an authenticated study to whose topics strangers write."""

from __future__ import annotations

import msgspec

from pipeline.messages.estimate import write_estimate
from pipeline.page.content import STRANGERS, Watched
from pipeline.page.server import Reading
from tests.integration.test_admission import opened
from tests.page.shown import Stream
from tests.stage import Stage, send, study_text, until
from tests.trusted import TRUST


def test_what_strangers_write_is_neither_shown_nor_named(kafka, redis_url, tmp_path, monkeypatch):
    # no client has made the topic of its account, which a page waits for
    monkeypatch.setattr("infra.kafka.APPEARS_MS", 200)
    with Stage(tmp_path, kafka, redis_url, study_text(partitions=1) + TRUST) as stage:
        opened(stage, "north")
        name, topics = stage.task.study.name, stage.topics
        forged = write_estimate(msgspec.structs.replace(Stream().next(), study=name))
        send(kafka, topics.estimates.name, [{"key": name.encode(), "value": forged}])
        records = [{"key": key, "value": b"VEIL" + bytes(200)} for key in (b"north", b"<b>", b"x")]
        send(kafka, topics.releases.name, records)
        watched = Watched(stage.task.study)
        reading = Reading(stage.task.study, stage.settings, watched)
        reading.start()
        try:
            around = until(
                lambda: (
                    now
                    if (now := watched.around())["warnings"] and now["clients"]["waiting"] == 3
                    else None
                ),
                "a warning, and all releases",
            )
        finally:
            reading.stop()
        assert "1 estimate" in around["warnings"][0]
        assert "not signed" in around["warnings"][0]
        assert watched.version == 0
        rows = {row["name"]: row["releases"] for row in around["clients"]["rows"]}
        assert rows == {"north": 1, STRANGERS: 2}
