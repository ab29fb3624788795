"""The documentation site is built without a warning, and its pages need nothing from elsewhere."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

#: A build is 20 s of a processor: 60 pages, the imports of autodoc, two notebooks. CI makes one
#: (`make docs`) beside its checks, in which each warning is an error.
pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
#: Addresses that a page names in its text, for a reader to follow.
FOLLOWED = ("https://filesystem-spec.readthedocs.io", "https://keda.sh")
#: What a browser fetches by itself, and where a link leads.
FETCHED = re.compile(
    r"""(?:<(?:script|img|link|iframe|source)\b[^>]*?(?:src|href)=["']|url\(["']?|@import ["'])"""
    r"""((?:https?:)?//[^"')\s>]+)"""
)
LED = re.compile(r"""<a\b[^>]*?href=["']((?:https?:)?//[^"']+)""")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "-c", "docs",
         "-d", folder / "doctrees", ".", folder / "html"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder / "html"


def test_the_site_is_built_without_warnings_and_holds_every_page(site):
    for page in [*(ROOT / "docs").rglob("*.md"), ROOT / "ARCHITECTURE.md", ROOT / "CHANGELOG.md"]:
        built = site / page.relative_to(ROOT).with_suffix(".html")
        assert built.exists(), page


@pytest.mark.parametrize("name", ["river", "scikit-learn"])
def test_notebooks_hold_every_cell_with_what_it_printed(site, name):
    page = (ROOT / "docs/notebooks" / f"{name}.md").read_text("utf-8")
    found = json.loads((site / "docs/notebooks" / f"{name}.ipynb").read_text("utf-8"))
    assert (found["nbformat"], found["metadata"]["kernelspec"]["name"]) == (4, "python3")
    code = [cell for cell in found["cells"] if cell["cell_type"] == "code"]
    assert len(code) == page.count("```{code-cell}") > 3
    assert all(cell["source"] in page for cell in found["cells"])
    assert sum(bool(cell["outputs"]) for cell in code) > len(code) / 2
    assert f'href="{name}.ipynb"' in (site / "docs/notebooks" / f"{name}.html").read_text("utf-8")


def test_no_page_fetches_anything_from_elsewhere(site):
    for path in site.rglob("*"):
        if path.suffix in (".html", ".css"):
            text = path.read_text("utf-8")
            assert not FETCHED.findall(text), path
            assert not [a for a in LED.findall(text) if not a.startswith(FOLLOWED)], path


def test_generated_parts_say_what_the_program_says(site):
    for page, words in {
        "cli": ("veilstream study design", "--listen HOST:PORT", "veilstream state rebuild"),
        "study-file": ("largest_share", "norm_bound", "[estimator.path] of ldp-sgd"),
        "messages": ("state_version", "interval_method"),
        "python": ("veilstream.fit(", "PrivateClassifier", "partial_fit"),
        "metrics": (
            "veilstream_client_epsilon_remaining",
            "veilstream_lag_records",
            "VeilstreamForged",
        ),
        "exit-codes": ("BudgetExceeded",),
    }.items():
        said = re.sub(r"<[^>]+>", "", (site / f"docs/reference/{page}.html").read_text("utf-8"))
        assert [word for word in words if word not in said] == [], page


def test_cells_of_a_notebook_show_what_they_print_and_draw(site):
    notebook = (site / "docs/notebooks/scikit-learn.html").read_text("utf-8")
    assert "exact    AUC 0.8" in notebook
    assert "data:image/svg+xml" in notebook
