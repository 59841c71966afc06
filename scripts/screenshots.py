"""Pictures of a report: python scripts/screenshots.py FILE.html FOLDER writes light, dark, narrow and a client's page as PNG."""

import os
import shutil
import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SHOTS = {  # name: width, colour scheme, place in the report
    "light": (1366, "light", ""),
    "dark": (1366, "dark", ""),
    "narrow": (400, "light", ""),
    "client": (1366, "light", "#client-0"),
    "client-narrow": (400, "dark", "#client-0"),
}


def shoot(browser: Any, report: Path, folder: Path, name: str) -> Path:
    """One picture of the whole page, every figure drawn."""
    width, scheme, place = SHOTS[name]
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.goto(report.resolve().as_uri() + place)
    page.wait_for_selector("body[data-ready=yes]")
    page.evaluate("window.coterie.drawAll()")  # a promise: waits until all is drawn
    file = folder / f"{name}.png"
    page.screenshot(path=file, full_page=True)
    page.close()
    return file


def main(arguments: list[str]) -> None:
    if len(arguments) != 2 or not Path(arguments[0]).is_file():
        sys.exit("usage: python scripts/screenshots.py FILE.html FOLDER")
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        sys.exit("no Chromium here: run scripts/browser.sh")
    report, folder = map(Path, arguments)
    folder.mkdir(parents=True, exist_ok=True)
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=found, args=["--no-sandbox"] if root else [])
        for name in SHOTS:
            print(shoot(browser, report, folder, name))
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1:])
