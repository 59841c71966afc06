"""Every page that people read is without violations of axe-core: light and dark, wide and on a
phone.
"""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from coterie.comparison.execute import compare
from coterie.comparison.plan import plan_experiments
from coterie.experiment.config import Experiment, change_options
from coterie.running.execute import execute
from helpers.ui import FAST, TOKEN, WORDS, chromium, served, until

ROOT = Path(__file__).parents[1]
WIDTHS = {"wide": 1400, "phone": 390}
READY = {  # page of the ui: what shows that it is all there
    "/": "document.querySelector('tr.verdict span:not(.loading)')",
    "/run?id=single": "document.querySelector('#clients .bars')",
    "/compare?run=both": "document.querySelector('#diff tbody tr') && "
    "document.querySelector('#loss .trace') && !document.getElementById('verdict').hidden",
    "/start": "document.querySelector('#groups select')",
    "/report?run=both": "document.body.dataset.ready === 'yes'",
}
pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("accessible")
    settings = change_options(Experiment(method=""), WORDS | FAST)
    compare(plan_experiments(["fedavg", "local", "ditto"], settings), [0, 1], root / "both")
    execute(replace(settings, method="ditto"), root / "single")
    return root


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """The home of the documentation, built as `make site` does."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr
    return folder / "index.html"


@pytest.fixture(scope="module")
def window():
    pytest.importorskip("axe_playwright_python", reason="no axe-core: install the extra dev")
    with chromium() as browser:
        yield browser


def violations(page) -> list[str]:
    """What axe-core finds, in every look; a line each."""
    from axe_playwright_python.sync_playwright import Axe

    found = []
    page.emulate_media(reduced_motion="reduce")
    for scheme in ("light", "dark"):
        for name, width in WIDTHS.items():
            page.emulate_media(color_scheme=scheme)
            page.set_viewport_size({"width": width, "height": 900})
            page.wait_for_timeout(700)
            # what Plotly draws stands under a text of its own, and has thousands of parts
            said = Axe().run(page, {"exclude": [".main-svg"]}).response
            for fault in said["violations"]:
                places = [node["html"][:160] for node in fault["nodes"][:4]]
                why = fault["nodes"][0].get("failureSummary", "")[:300]
                found.append(f"{scheme} {name}: {fault['id']}: {places} {why}")
            wide = page.evaluate("document.documentElement.scrollWidth")
            found += [f"{scheme} {name}: {wide} px wide"] if wide > width else []
    return found


@pytest.mark.parametrize("path", READY)
def test_a_page_of_the_ui_has_no_violations(runs, window, path):
    with served(runs, TOKEN) as port:
        page = window.new_page()
        page.goto(f"http://127.0.0.1:{port}/?token={TOKEN}")
        page.goto(f"http://127.0.0.1:{port}{path}")
        until(page, f"!!({READY[path]})")
        if path.startswith("/report"):
            page.evaluate("window.coterie.drawAll()")
        if path == "/start":
            page.get_by_text("More options").click()
        if path == "/":
            page.get_by_label("Edit single").click()
            page.get_by_role("button", name="Cancel").wait_for()
            inside = violations(page)
            page.get_by_role("button", name="Cancel").click()
            assert not inside, "\n".join(inside)
        found = violations(page)
        page.goto("about:blank")
        page.close()
    assert not found, "\n".join(found)


def test_the_home_of_the_documentation_has_no_violations(home, window):
    page = window.new_page()
    page.goto(home.as_uri())
    page.get_by_role("heading", level=1).wait_for()
    found = violations(page)
    page.close()
    assert not found, "\n".join(found)
