"""What people are shown of sites that are left out: in a terminal, in a log and on the page."""

from __future__ import annotations

import numpy as np
import pytest
from rich.console import Console

from pipeline.api.table import short_table, table
from pipeline.messages.estimate import EstimateMessage
from pipeline.methods import method_of
from pipeline.methods import task_of as make_task
from pipeline.page.content import Watched
from pipeline.stream.in_process import OfflineRun
from pipeline.study.model import Study
from pipeline.study_file.load import parse_study
from tests import sites


def streamed(loss: str, lies: str = "", kind: str = "noisy-mle") -> tuple[Study, EstimateMessage]:
    """Return a study, and the last estimate of nine sites of which the first lies, or none."""
    text = sites.study_text(
        kind=kind, p=3, loss=loss, records=600, releases=9, ridge=1e-3, seed=4,
        mechanism="insecure-simulation", norm_bound="typical",
    )  # fmt: skip
    study = parse_study(text)
    stream = OfflineRun(make_task(study))
    rng = np.random.default_rng(4)
    for _ in range(4):
        for site in range(9):
            found = sites.window(loss, 600, rng, lie=lies == "responses" and site == 0)
            if lies == "features" and site == 0:
                found = found._replace(features=found.features / 20)
            stream.add(f"site-{site}", found)
    stream.publish()
    return study, stream.estimate(0.0)[1]


def drawn(study: Study, message: EstimateMessage, height: int = 0) -> str:
    """Return what a terminal of 300 columns is given."""
    console = Console(width=300, force_terminal=True, color_system=None)
    with console.capture() as captured:
        console.print(short_table(message, study, height) if height else table(message, study))
    return captured.get()


@pytest.mark.parametrize("loss", ["linear", "logistic"])
def test_a_terminal_names_the_site_that_is_left_out_and_says_what_to_do(loss: str) -> None:
    study, message = streamed(loss, "responses")
    name = sites.name_of(0)
    (row,) = (row for row in message.details["sites"] if row["site"] == name)
    shown = drawn(study, message)
    assert f"1 of 9 sites: {name} (distance {row['distance']:.1f}: honest" in shown
    assert "client revoke" in shown
    assert name in drawn(study, message, height=14)
    assert not any(ord(one) < 32 and one != "\n" for one in shown)


def test_a_site_of_another_spread_is_said_to_have_that() -> None:
    study, message = streamed("linear", "features")
    first, _ = method_of(study).report.lines(study, message.details)
    assert f"{sites.name_of(0)} (distance" in first
    assert "its curvature is unlike that of the others" in first


def test_where_nobody_is_left_out_nothing_is_said() -> None:
    study, message = streamed("linear")
    assert message.details["flagged"] == []
    assert method_of(study).report.lines(study, message.details) == ()


@pytest.mark.parametrize(("loss", "kind"), [("linear", "noisy-mle"), ("logistic", "noisy-copies")])
def test_sites_say_that_nothing_tells_of_records_that_go_together(loss: str, kind: str) -> None:
    study, message = streamed(loss, kind=kind)
    assert message.details["design_effect"] is None
    assert message.status == "ready", message.reason
    assert "records do not depend on each other in time" in drawn(study, message)


@pytest.mark.parametrize("evil", ["\x1b[2J", "a" * 31 + "\x9b", "a" * 32 + "\n", "A" * 32])
def test_what_is_no_digest_is_not_shown(evil: str) -> None:
    """Whoever may write to an open study's topics forges details, too."""
    study, message = streamed("linear", "responses")
    of = method_of(study)
    for key in ("flagged", "misplaced"):
        assert of.report.lines(study, {**message.details, key: [evil]}) == ()
    forged = [{"site": evil, "share": 0.0, "distance": 9.0, "flag": True}]
    assert of.report.lines(study, {**message.details, "sites": forged}) == ()
    assert of.report.clients({**message.details, "sites": forged}) == {}


def test_the_page_names_clients_and_shows_those_that_are_left_out_first() -> None:
    study, message = streamed("linear", "responses")
    watched = Watched(study)
    for site in (3, 0):
        key = f"site-{site}".encode()
        watched.seen(lambda clients, key=key: clients.release(0, 0, key, 1000))  # type: ignore[misc]
    watched.estimate(message, live=False)
    rows = watched.around()["clients"]["rows"]
    assert [row["name"] for row in rows] == ["site-0", "site-3"]
    assert [row["site"]["flag"] for row in rows] == [1, 0]
    assert rows[0]["site"]["share"] == 0
    told = watched.whole()["now"]["told"]
    assert any(f"site-0 ({sites.name_of(0)}) (distance" in line for line in told)
    # nobody but admitted clients has a name there
    watched.seen(lambda clients: clients.admit({"site-3"}))
    assert "site-0" not in str(watched.whole()["now"]["told"])
    assert [row["name"] for row in watched.around()["clients"]["rows"]] == [
        "(not admitted)", "site-3",
    ]  # fmt: skip
