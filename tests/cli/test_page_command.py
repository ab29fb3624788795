"""`veilstream page` beside a real worker, client and Kafka."""

import csv
import re
import urllib.request

from tests.page.serving import asked
from tests.stage import PATIENCE, Stage, send, study_text, write_csv

#: Every address of the machine.
ALL = ".".join("0000")


def opened(stage: Stage, *options: object, name: str = "page") -> str:
    """Start a page and return the address that it prints."""
    stage.start(name, "page", stage.study, "--port", 0, *options)
    found = stage.until(
        lambda: re.search(r"http://\S+", stage.said(name)), "the address of the page"
    )
    return found[0]


def events(url: str, count: int) -> str:
    """Return the first events that a page sends."""
    with urllib.request.urlopen(f"{url}events", timeout=PATIENCE) as stream:  # noqa: S310
        text = b""
        while text.count(b"\n\n") < count:
            text += stream.readline()
    return text.decode()


def test_a_page_shows_what_is_published_and_goes_with_a_signal(kafka, redis_url, tmp_path):
    with Stage(tmp_path, kafka, redis_url, study_text(partitions=1)) as stage:
        stage.worker()
        stage.produced("north", write_csv(tmp_path / "a.csv", 400))
        final = [row.value for row in stage.final_estimate().coefficients]
        # bytes that no client sends: a dead letter of a stranger
        send(kafka, stage.topics.releases.name, [{"key": b"<b>", "value": b"VEIL nonsense"}])
        stage.caught_up()
        url = opened(stage)
        assert url.startswith("http://127.0.0.1:")

        def shown():
            rows = list(csv.DictReader(asked(f"{url}estimates.csv")[2].splitlines()))
            return rows if [float(row["value"]) for row in rows[-3:]] == final else None

        rows = stage.until(shown, "the page has come to the newest estimate")
        assert {row["coefficient"] for row in rows} == {"intercept", "heat", "load"}

        def told():
            text = events(url, 2)
            return all(word in text for word in ('"north"', "<b>", '"releases":20'))

        stage.until(told, "what clients have sent")
        assert stage.stop("page") == 0


def test_a_page_elsewhere_than_on_loopback_has_a_token(kafka, redis_url, tmp_path):
    with Stage(tmp_path, kafka, redis_url, study_text(partitions=1)) as stage:
        stage.ensure_topics()
        # no client has made the topic of its account, which a page waits for
        stage.before = "import infra.kafka\ninfra.kafka.APPEARS_MS = 200"
        url = opened(stage, "--host", ALL)
        assert "WARNING" in stage.until(
            lambda: said if "WARNING" in (said := stage.said("page")) else "", "a warning"
        )
        base, token = url.split("?token=")
        assert len(token) >= 32
        here = base.replace(ALL, "127.0.0.1")
        assert asked(here)[0] == 401
        assert asked(f"{here}?token={token}")[0] == 303
        port = re.search(r":(\d+)/", base)[1]
        done = stage.run("page", stage.study, "--port", port)
        assert (done.returncode, f":{port}" in done.stderr) == (10, True)


def test_a_token_that_could_be_guessed_is_refused(kafka, redis_url, tmp_path):
    with Stage(tmp_path, kafka, redis_url, study_text(partitions=1)) as stage:
        weak = tmp_path / "token"
        for text in ("short", "a b c d e f g h i j k l"):
            weak.write_text(text)
            done = stage.run("page", stage.study, "--token-file", weak)
            assert (done.returncode, "--token-file" in done.stderr) == (10, True)
        done = stage.run("page", stage.study, "--token-file", tmp_path / "none")
        assert (done.returncode, "--token-file" in done.stderr) == (10, True)
