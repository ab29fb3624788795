"""The page in a real Chromium: points that come, clicks, downloads, the dark, a phone."""

import csv
import hashlib
import re
import struct
import time

import pytest

from pipeline.page.content import Watched
from tests.page.serving import served
from tests.page.shown import TASK, Stream
from tests.sites import study_text, task_of
from tests.stage import until

SITES = task_of(study_text(loss="logistic"))


@pytest.fixture
def page(browser):
    """Yield a page that fails its test on any error, and on anything asked of another address."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, locale="en-GB")
    shown, faults = context.new_page(), []
    shown.on("pageerror", lambda error: faults.append(str(error)))
    shown.on("console", lambda said: faults.append(said.text) if said.type == "error" else None)
    shown.on(
        "request",
        lambda request: (
            faults.append(request.url)
            if not re.match(r"(http://127\.0\.0\.1:|blob:http://127\.0\.0\.1:|data:)", request.url)
            else None
        ),
    )
    yield shown
    assert faults == []
    context.close()


@pytest.fixture
def stream():
    return Stream(at=time.time() - 50)


@pytest.fixture
def watched(stream):
    made = Watched(TASK.study)
    for _ in range(60):
        made.estimate(stream.next(), live=False)
    return made


def waits(page, condition):
    """Wait for a condition; Playwright's own waiting would need `eval`, which the page forbids."""
    until(lambda: page.evaluate(condition), condition)


def points(page, count):
    waits(page, f"Number(document.body.dataset.points) >= {count}")
    return int(page.evaluate("document.body.dataset.points"))


def test_points_come_and_clicks_choose(page, watched, stream, tmp_path):
    with served(watched) as port:
        page.goto(f"http://127.0.0.1:{port}/")
        assert points(page, 60) == 60
        assert page.inner_text("#status") == "ready"
        for come in range(1, 6):
            watched.estimate(stream.next(), live=True)
            began = time.monotonic()
            assert points(page, 60 + come) == 60 + come
            # half a second is the promise to people; a busy machine may take ten times as long
            assert time.monotonic() - began < 5
        assert page.inner_text("#chosen") == "sensor_1 over time"
        page.click(".row:nth-child(3)")
        waits(page, "document.getElementById('chosen').textContent.startsWith('sensor_2')")
        shown = page.inner_text(".row:nth-child(3) .value")
        value = float(shown.split()[0].replace("\N{MINUS SIGN}", "-"))
        assert abs(value - stream.newest.coefficients[2].value) < 0.005 * abs(value)
        page.click("text=1 min")
        assert page.get_attribute("#spans button[aria-pressed=true]", "data-seconds") == "60"
        page.fill("#filter", "sensor_0")
        assert page.locator(".row:visible").count() == 1
        with page.expect_download() as table:
            page.click("#csv")
        rows = list(csv.DictReader(table.value.path().read_text().splitlines()))
        assert len(rows) == 3 * 65
        with page.expect_download() as picture:
            page.click("#png")
        picture.value.save_as(tmp_path / "picture.png")
        data = (tmp_path / "picture.png").read_bytes()
        assert data[:8] == b"\x89PNG\r\n\x1a\n"
        assert struct.unpack(">II", data[16:24])[0] > 600


def test_text_of_a_stranger_stays_text(page, watched):
    evil = "<img src=x onerror=alert(1)>"
    watched.seen(lambda clients: clients.release(0, 10_000, evil.encode(), 1000))
    watched.warnings["t"] = evil
    with served(watched) as port:
        page.goto(f"http://127.0.0.1:{port}/")
        page.wait_for_selector("#clients td")
        assert page.inner_text("#clients td:first-child") == evil
        assert page.inner_text("#warnings") == evil
        assert page.locator("img").count() == 0


@pytest.mark.slow
def test_five_hundred_coefficients_are_drawn_where_they_are_seen(page):
    stream, watched = Stream(size=500, at=time.time() - 50), Watched(TASK.study)
    for _ in range(30):
        watched.estimate(stream.next(), live=False)
    with served(watched) as port:
        page.goto(f"http://127.0.0.1:{port}/")
        points(page, 30)
        assert page.locator(".row").count() == 500
        # those far below the fold wait until somebody scrolls to them
        waits(page, "document.querySelector('.row:nth-child(1) .value').textContent != ''")
        assert (
            page.evaluate("document.querySelector('.row:nth-child(500) .value').textContent") == ""
        )
        page.locator(".row:nth-child(500)").scroll_into_view_if_needed()
        waits(page, "document.querySelector('.row:nth-child(500) .value').textContent != ''")


def luminance(page):
    red, green, blue = map(
        int,
        re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).backgroundColor"))[:3],
    )
    return (red + green + blue) / 3


@pytest.mark.slow
def test_a_phone_in_the_dark_needs_no_scrolling_aside(page, watched):
    with served(watched) as port:
        page.emulate_media(color_scheme="light")
        page.goto(f"http://127.0.0.1:{port}/")
        points(page, 60)
        assert luminance(page) > 200
        page.emulate_media(color_scheme="dark")
        page.set_viewport_size({"width": 360, "height": 740})
        waits(page, "document.querySelector('#chart canvas').clientWidth < 360")
        assert luminance(page) < 60
        assert page.evaluate("document.documentElement.scrollWidth") <= 360


@pytest.mark.slow
def test_a_browser_in_a_posix_locale_draws_the_chart(browser, watched):
    context, faults = browser.new_context(locale="en-US@posix"), []
    page = context.new_page()
    page.on("pageerror", lambda error: faults.append(str(error)))
    with served(watched) as port:
        page.goto(f"http://127.0.0.1:{port}/")
        assert points(page, 60) == 60
        assert page.locator("#chart canvas").count() == 1
    assert faults == []
    context.close()


@pytest.mark.slow
def test_a_phone_shows_all_that_is_said_of_a_client(page, watched):
    name = b"hospital-of-the-far-north"
    watched.seen(lambda clients: clients.release(0, 10_000, name, 1000))
    for place in range(3):
        watched.seen(lambda c, at=place: c.letter((0, at), name, "unpublished-model", at))
    page.set_viewport_size({"width": 390, "height": 844})
    with served(watched) as port:
        page.goto(f"http://127.0.0.1:{port}/")
        page.wait_for_selector("#clients td")
        within = "[...document.querySelectorAll('#clients td')].map(c => c.getBoundingClientRect())"
        assert page.evaluate(f"{within}.every(b => b.width > 0 && b.left >= 0 && b.right <= 390)")
        assert page.evaluate("document.querySelector('.wide').scrollWidth") <= 390
        assert "3 unpublished-model" in page.inner_text("#clients")


@pytest.mark.slow
def test_a_site_that_is_left_out_is_marked(page, stream):
    watched = Watched(SITES.study)
    for name in (b"south", b"north"):
        watched.seen(lambda clients, name=name: clients.release(0, 0, name, 1000))
    digests = [hashlib.blake2b(name, digest_size=16).hexdigest() for name in (b"north", b"south")]
    rows = [
        {"site": digests[0], "share": 0.0, "distance": 6.25, "flag": True},
        {"site": digests[1], "share": 0.5, "distance": 0.75, "flag": False},
    ]
    details = {"release": "score", "count": 5, "flagged": digests[:1], "sites": rows}
    watched.estimate(stream.next(details=details), live=True)
    with served(watched) as port:
        page.goto(f"http://127.0.0.1:{port}/")
        page.wait_for_selector("#clients td.bad")
        assert page.inner_text("#clients td.bad") == "0 % left out"
        first, second = page.locator("#clients tr:has(td)").all_inner_texts()
        assert first.startswith("north")
        assert first.endswith("6.25")
        assert second.split()[-3:] == ["50", "%", "0.750"]
        assert f"1 of 5 sites: north ({digests[0]}) (distance 6.2" in page.inner_text("#told")
        assert "client revoke" in page.inner_text("#told")


@pytest.mark.slow
def test_a_page_before_the_first_estimate_says_what_it_waits_for(page, stream):
    watched = Watched(TASK.study)
    with served(watched) as port:
        page.goto(f"http://127.0.0.1:{port}/")
        waits(page, "document.getElementById('status').textContent == 'no estimate yet'")
        waits(page, "document.getElementById('clients-said').textContent.startsWith('no release')")
        assert not page.is_visible("#over-time")
        watched.estimate(stream.next(), live=True)
        points(page, 1)
        assert page.is_visible("#over-time")
        assert page.evaluate("document.querySelector('#chart canvas').clientWidth") > 600


@pytest.mark.slow
def test_two_pages_at_once_and_one_that_comes_back(browser, page, watched, stream):
    with served(watched) as port:
        url = f"http://127.0.0.1:{port}/"
        page.goto(url)
        other = browser.new_page(locale="en-GB")
        other.goto(url)
        points(page, 60), points(other, 60)
        watched.estimate(stream.next(), live=True)
        assert points(page, 61) == points(other, 61) == 61
        other.reload()
        assert points(other, 61) == 61
        other.close()
