"""Small runs for `coterie ui`, and ways to ask it."""

import os
import shutil
import socket
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import uvicorn

from coterie.ui.app import build_app
from coterie.ui.jobs import Jobs

with warnings.catch_warnings():  # it would rather have a newer package than httpx
    warnings.simplefilter("ignore")
    from starlette.testclient import TestClient

WORDS = {
    "num_clients": 4,
    "rows": 160,
    "classes-each": 4,
    "hidden": 6,
    "batch_size": 8,
    "rounds": 4,
    "eval_every": 1,
    "checkpoint": 2,
}
FAST = {"path": "vectorized", "width": 20, "compile": "no", "threads": 1}
HERE = "http://127.0.0.1:8765"
TOKEN = "a-token-for-the-tests"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def client(root: Path, host: str = "127.0.0.1", token: str = "", base: str = HERE) -> TestClient:
    return TestClient(build_app(root, host, token), base_url=base, follow_redirects=False)


def writer(root: Path) -> TestClient:
    """A script that shows the token itself."""
    asker = client(root, token=TOKEN)
    asker.headers["Authorization"] = f"Bearer {TOKEN}"
    return asker


@contextmanager
def served(root: Path, token: str = "") -> Iterator[int]:
    """The app behind a real socket; its port. With a token, reading needs none."""
    jobs = Jobs(root)
    app = build_app(root, token=token, open_to_read=True, jobs=jobs)
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", ws="none", lifespan="off"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()
            jobs.close()


@contextmanager
def chromium() -> Iterator:
    """A browser; without one the test is skipped, or fails where it must be there."""
    playwright = pytest.importorskip("playwright.sync_api")
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if not found and os.environ.get("CI"):
        pytest.fail("no Chromium: run scripts/browser.sh")
    elif not found:
        pytest.skip("no Chromium: run scripts/browser.sh")
    with playwright.sync_playwright() as tools:
        window = tools.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield window
        window.close()


def until(page, condition: str) -> None:
    """Wait for a condition; Playwright's own way needs eval, which the pages forbid. While a page
    comes up, what is asked about may not be there yet.
    """
    playwright = pytest.importorskip("playwright.sync_api")
    said = ""
    for _ in range(600):
        try:
            if page.evaluate(condition):
                return
        except playwright.Error as problem:
            said = f": {problem}"
        page.wait_for_timeout(100)
    raise AssertionError(f"never: {condition}{said}")
