"""A new user's walk, in a real browser alone: from a table of one's own to a served model."""

import re
import time

import clinics_table
import httpx
import pytest

from coterie.core.errors import BadInput
from coterie.ui.uploads import FOLDER, MAX_UPLOAD, keep_upload, preview_table
from helpers.ui import TOKEN, served, writer

SLOW = 600_000  # milliseconds for what trains


@pytest.fixture
def table(tmp_path):
    clinics_table.write_table(tmp_path / "my.csv")
    return tmp_path / "my.csv"


def test_a_table_is_kept_under_its_name_and_nothing_is_overwritten(table, tmp_path):
    root = tmp_path / "runs"
    first = keep_upload(root, "../../my table.csv", table.read_bytes())
    again = keep_upload(root, "my table.csv", b"clinic,outcome\n")
    assert [p.name for p in (first, again)] == ["my_table.csv", "my_table-2.csv"]
    assert first.parent == root / FOLDER
    assert first.read_bytes() == table.read_bytes()
    for name, content, why in (
        ("my.exe", b"x", "is no table"),
        ("my.csv", b"", "is empty"),
        ("", b"x", "is no table"),
    ):
        with pytest.raises(BadInput, match=why):
            keep_upload(root, name, content)


def test_a_preview_says_what_the_command_line_says(table, tmp_path):
    root = tmp_path / "runs"
    keep_upload(root, "my.csv", table.read_bytes())
    said = preview_table(root, {"name": "my.csv"})
    assert (said["client"], said["label"], said["problem"]) == ("clinic", "outcome", "")
    assert said["all_clients"] == 12
    assert [c["name"] for c in said["described"]] == [
        c for c in said["columns"] if c not in ("clinic", "outcome")
    ]
    assert "nowhere" in preview_table(root, {"name": "my.csv", "label": "nowhere"})["problem"]
    with pytest.raises(BadInput, match="there is no table"):
        preview_table(root, {"name": "../other.csv"})


def test_an_upload_takes_the_token_and_is_bounded(table, tmp_path):
    root = tmp_path / "runs"
    root.mkdir()
    asker = writer(root)
    kind = {"Content-Type": "application/octet-stream"}
    sent = asker.post("/api/upload?name=my.csv", content=table.read_bytes(), headers=kind)
    assert sent.json() == {"name": "my.csv"}
    assert asker.post("/api/upload?name=my.csv", json={}).status_code == 415
    long = {**kind, "Content-Length": str(MAX_UPLOAD + 1)}
    assert asker.post("/api/upload?name=a.csv", content=b"", headers=long).status_code == 413
    del asker.headers["Authorization"]
    assert asker.post("/api/upload?name=a.csv", content=b"x", headers=kind).status_code == 401


@pytest.mark.thorough
def test_from_a_table_of_ones_own_to_a_served_model(table, tmp_path, browser):
    root = tmp_path / "runs"
    root.mkdir()
    with served(root, TOKEN) as port:
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.set_default_timeout(120_000)
        page.goto(f"http://127.0.0.1:{port}/?token={TOKEN}")
        page.get_by_role("link", name="Start").click()
        page.locator("#groups input").first.wait_for()
        page.locator("#upload").set_input_files(str(table))
        page.get_by_text("rows of 12 clients").wait_for()
        assert page.locator("#client").input_value() == "clinic"
        for box in page.locator("#methods input").all():
            box.set_checked(box.get_attribute("value") in ("local", "fedavg"))
        page.locator("input[name='schedule.rounds']").fill("4")
        page.get_by_role("button", name="Start").click()
        page.wait_for_url("**/report?run=*", timeout=SLOW)  # it ends at the answer
        page.locator(".answer .lead").wait_for()
        page.get_by_role("link", name="All runs").click()
        page.get_by_role("link", name="my.csv: 2 methods").wait_for()
        page.get_by_role("link", name="Run to use").click()
        page.get_by_role("button", name="Serve its models").click()
        page.locator("#log").get_by_text("ask: POST").wait_for(timeout=SLOW)
        address = re.search(r"POST (http://\S+)/clients", page.locator("#log").inner_text())[1]
        assert httpx.get(f"{address}/health").json()
        page.get_by_role("button", name="Stop").click()
        until_silent(address)
        page.goto("about:blank")


def until_silent(address: str) -> None:
    for _ in range(600):
        try:
            httpx.get(f"{address}/health", timeout=5)
        except httpx.HTTPError:
            return
        time.sleep(0.2)
    raise AssertionError("the service goes on")
