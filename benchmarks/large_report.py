"""The report of 1,000 clients: how large the page is, and how long Chromium takes to open it.

Trains four methods, two of which note who learns from whom, so that matrices of 1,000 x 1,000 have
to be made small enough.
"""

import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from playwright.sync_api import sync_playwright
from sklearn.datasets import make_classification
from torch import nn

import coterie
from coterie.data.read.file_rows import UserData
from coterie.data.read.user_data import from_arrays
from coterie.reports.report import write_report

CLIENTS, ROUNDS, TIMES = 1000, 30, 5
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def opening(page_file: Path) -> list[float]:
    """Seconds from the request to the first screen drawn, in a fresh browser each time."""
    found = next(filter(None, map(shutil.which, BROWSERS)))
    seconds = []
    with sync_playwright() as play:
        for _ in range(TIMES):
            browser = play.chromium.launch(
                executable_path=found, args=["--no-sandbox"] if os.geteuid() == 0 else []
            )
            page = browser.new_page(viewport={"width": 1366, "height": 900})
            begin = time.perf_counter()
            page.goto(page_file.as_uri())
            page.wait_for_selector("body[data-ready=yes]")
            seconds.append(time.perf_counter() - begin)
            browser.close()
    return seconds


def rows() -> UserData:
    """A thousand clients with thirty rows each of an easy task, in eight groups that name the
    classes differently.
    """
    x, y = make_classification(30 * CLIENTS, 20, n_informative=10, n_classes=5, random_state=0)
    clients = np.arange(len(y)) % CLIENTS
    return from_arrays(x.astype(np.float32), (y + clients % 8) % 5, clients, "groups")


def main() -> None:
    folder = Path(tempfile.mkdtemp()) / "large"
    begin = time.perf_counter()
    coterie.compare(
        ["local", "fedavg", "ucfl", "fedamp"],
        dataset=rows(),
        model=lambda: nn.Linear(20, 5),
        rounds=ROUNDS,
        out=folder,
    )
    trained = time.perf_counter()
    page = write_report([folder])
    written = time.perf_counter()
    seconds = opening(page)
    print(f"{CLIENTS:,} clients, 4 methods, {ROUNDS} rounds: trained in {trained - begin:.0f} s")
    print(f"report made in {written - trained:.1f} s")
    print(f"report.html: {page.stat().st_size / 1e6:.1f} MB (wanted: under 15)")
    print(
        f"opens in {statistics.median(seconds):.2f} s ({min(seconds):.2f} to {max(seconds):.2f}; "
        "wanted: within 3)"
    )
    print(page)


if __name__ == "__main__":
    main()
