"""Pictures of what people see: python scripts/screenshots.py RUNS HOME.html FOLDER takes the report
and the pages of `coterie ui` over the folder RUNS (which holds the comparison `demo`), and the home
of the documentation, at 1400 pixels, on a phone and in dark colours, as PNG.
"""

import os
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import uvicorn
from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import clinics_table

from coterie.ui.app import build_app

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
TALL, SHORT = 1000, 420
TOKEN = "shown-in-no-picture"
SIZES = {"": (1400, "light"), "-phone": (390, "light"), "-dark": (1400, "dark")}


class Page(NamedTuple):
    """What is taken, and what shows that it is all there."""

    address: str
    ready: str
    whole: bool = False  # all of it, not its top alone
    upload: bool = False  # with a table of one's own in the form


UI = {
    "ui-list": Page("/", "document.querySelector('tr.verdict span:not(.loading)')", whole=True),
    "ui-compare": Page("/compare?run=demo", "document.querySelector('#diff tbody tr')", whole=True),
    "ui-run": Page(
        "/run?id=demo%2Fucfl-seed0", "document.querySelector('#clients .bars')", whole=True
    ),
    "ui-start": Page("/start", "document.querySelector('#groups input')", whole=True, upload=True),
}
HIDE_PATHS = """for (const [id, key] of [["dataset", "value"], ["command", "textContent"]]) {
  const shown = document.getElementById(id);
  if (shown) shown[key] = shown[key].replace(/\\/\\S*\\/uploads\\//g, "runs/uploads/");
}"""
READY = "document.body.dataset.ready === 'yes'"


@contextmanager
def served(runs: Path) -> Iterator[str]:
    """`coterie ui` over a folder; its address."""
    app = build_app(runs, token=TOKEN, open_to_read=True)
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", ws="none", lifespan="off"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def pages(runs: Path, home: Path, base: str) -> dict[str, Page]:
    """{name of the picture: page}."""
    report = (runs / "demo" / "report.html").resolve().as_uri()
    return {
        "report": Page(report, READY),
        "client": Page(f"{report}#client-0", READY),
        "report-whole": Page(report, READY, whole=True),
        **{name: page._replace(address=base + page.address) for name, page in UI.items()},
        "docs": Page(home.resolve().as_uri(), "document.querySelector('h1')"),
    }


def shoot(browser: Any, page: Page, path: Path, width: int, scheme: str, base: str) -> Path:
    """One picture, every figure drawn."""
    height = SHORT if page.whole else TALL  # a whole page is as tall as it needs to be
    tab = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
    if page.address.startswith(base):
        tab.goto(f"{base}/?token={TOKEN}")
    tab.goto(page.address)
    for _ in range(600):  # the pages forbid eval, which Playwright's own waiting needs
        if tab.evaluate(f"!!({page.ready})"):
            break
        tab.wait_for_timeout(100)
    if page.ready == READY:
        tab.evaluate("window.coterie.drawAll()")  # a promise: waits until all is drawn
    if page.upload:
        with tempfile.TemporaryDirectory() as made:
            clinics_table.write_table(Path(made) / "my.csv")
            tab.locator("#upload").set_input_files(Path(made) / "my.csv")
            tab.get_by_text("rows of 12 clients").wait_for(timeout=120_000)
    tab.wait_for_timeout(1000)
    # where this machine keeps its runs is nobody's business
    tab.evaluate("document.getElementById('folder')?.replaceChildren('runs')")
    tab.evaluate(HIDE_PATHS)
    tab.screenshot(path=path, full_page=page.whole)
    tab.goto("about:blank")
    tab.close()
    return path


def main(arguments: list[str]) -> None:
    if len(arguments) != 3 or not Path(arguments[0], "demo", "report.html").is_file():
        sys.exit("usage: python scripts/screenshots.py RUNS HOME.html FOLDER; RUNS holds demo")
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        sys.exit("no Chromium here: run scripts/browser.sh")
    runs, home, folder = map(Path, arguments)
    folder.mkdir(parents=True, exist_ok=True)
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    with served(runs) as base, sync_playwright() as play:
        browser = play.chromium.launch(executable_path=found, args=["--no-sandbox"] if root else [])
        for name, page in pages(runs, home, base).items():
            for suffix, (width, scheme) in SIZES.items():
                print(shoot(browser, page, folder / f"{name}{suffix}.png", width, scheme, base))
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1:])
