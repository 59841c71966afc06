"""Pictures of a report: python scripts/screenshots.py FILE.html FOLDER writes its top, a client's
page and whole pages as PNG.
"""

import os
import shutil
import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
TALL = 1000
SHOTS = {  # name: width, height (0: the whole page), colour scheme, place in the report
    "report": (1366, TALL, "light", ""),
    "client": (1366, TALL, "dark", "#client-0"),
    "whole-light": (1366, 0, "light", ""),
    "whole-dark": (1366, 0, "dark", ""),
    "whole-narrow": (400, 0, "light", ""),
    "client-narrow": (400, 0, "dark", "#client-0"),
}


def shoot(browser: Any, report: Path, folder: Path, name: str) -> Path:
    """One picture, every figure drawn."""
    width, height, scheme, place = SHOTS[name]
    page = browser.new_page(
        viewport={"width": width, "height": height or TALL}, color_scheme=scheme
    )
    page.goto(report.resolve().as_uri() + place)
    page.wait_for_selector("body[data-ready=yes]")
    page.evaluate("window.coterie.drawAll()")  # a promise: waits until all is drawn
    file = folder / f"{name}.png"
    page.screenshot(path=file, full_page=not height)
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
