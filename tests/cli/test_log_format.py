"""`--log-format json`: every line on standard error is one JSON object."""

import json
import logging
import subprocess
import sys

from infra import process as saying
from tests.stage import Stage, study_text, write_csv


def said(text: str) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in text.splitlines()]
    assert all({"time", "level", "message"} <= line.keys() for line in lines)
    return lines


def test_every_line_of_a_worker_and_a_client_is_json(kafka, redis_url, tmp_path):
    text = study_text(partitions=1, privacy='mechanism = "none"')
    with Stage(tmp_path, kafka, redis_url, text) as stage:
        words = ("--log-format", "json")
        stage.start("w0", *words, "worker", stage.study, "--instance", "w0")
        source = write_csv(tmp_path / "a.csv", 40)
        client = ("--client", "north", "--source", source)
        stage.start("north", *words, "produce", stage.study, *client)
        stage.ended("north")
        stage.caught_up()
        assert stage.stop("w0") == 0
        levels = {
            name: {line["level"] for line in said(stage.said(name))} for name in ("w0", "north")
        }
        # a study without privacy is warned of by both
        assert levels == {"w0": {"info", "warning"}, "north": {"info", "warning"}}
        assert "WARNING" not in stage.said("north")

        gone = stage.run(*words, "worker", tmp_path / "none.toml")
        assert (said(gone.stderr)[-1]["exit_code"], gone.returncode) == (10, 10)
        usage = stage.run(*words, "watch")
        assert (said(usage.stderr)[-1]["exit_code"], usage.returncode) == (2, 2)
        # the next command of the same process speaks to people again
        assert stage.run("watch").stderr.startswith("Usage")


def test_libraries_log_as_json_too(capsys, monkeypatch):
    saying.use("json")
    try:
        try:
            raise ValueError("inner")  # noqa: TRY301
        except ValueError:
            logging.getLogger("some.library").exception("it %s", "failed")
        line = said(capsys.readouterr().err)[-1]
        assert (line["level"], line["message"], line["logger"]) == (
            "error",
            "it failed",
            "some.library",
        )
        assert "ValueError: inner" in line["traceback"]
    finally:
        saying.use("text")
    assert saying.logging_config() is None
    assert sys.stderr not in [getattr(h, "stream", None) for h in logging.getLogger().handlers]


#: What Faust does with the configuration, which closes every handler that there was.
CONFIGURED = """
import logging.config
from infra import process as saying
saying.use("json")
logging.config.dictConfig(saying.logging_config())
logging.getLogger("faust").warning("one")
"""


def test_a_configuration_of_all_logging_says_json():
    done = subprocess.run(
        [sys.executable, "-c", CONFIGURED], capture_output=True, text=True, check=True
    )
    assert said(done.stderr)[-1]["message"] == "one"
