"""`coterie ui`: what it shows is what the files say, nobody reads past the folder, and a browser
sees a run grow.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from coterie.cli.ui import ui
from coterie.core.checkpoint import list_checkpoints
from coterie.core.errors import BadInput
from coterie.running.progress import lock_folder
from coterie.ui import app
from coterie.ui import runs as listing
from coterie.ui.access import is_loopback
from coterie.ui.progress_file import read_since
from coterie.ui.runs import Library
from helpers.ui import FAST, TOKEN, WORDS, client, served, until


def entries(root: Path) -> dict[str, listing.Entry]:
    return Library(root).entries()


def interrupt(folder: Path, silent: float) -> Path:
    """A finished run as it stood while it was running, its last word `silent` seconds ago."""
    (folder / "metrics.parquet").unlink()
    about = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(about | {"status": "running"}))
    for path in folder.iterdir():
        os.utime(path, times=(time.time() - silent,) * 2)
    return folder


def raw(port: int, request: str) -> str:
    """The answer to a request sent byte by byte as it stands."""
    with socket.create_connection(("127.0.0.1", port), timeout=300) as line:
        line.sendall(request.encode())
        return b"".join(iter(lambda: line.recv(65536), b"")).decode("utf-8", "replace")


# what is listed


def test_list_is_what_the_folders_say(root):
    said = client(root).get("/api/runs").json()
    runs = {run["id"]: run for run in said["runs"]}
    assert set(runs) == {"both", "both/fedavg-seed0", "both/local-seed0", "single"}
    assert {run["status"] for run in runs.values()} == {"finished"}
    assert runs["both"]["kind"] == "comparison"
    assert (runs["both"]["done"], runs["both"]["rounds"]) == (8, 8)
    assert runs["both/local-seed0"]["parent"] == "both"
    last = json.loads((root / "single" / "progress.jsonl").read_text().splitlines()[-1])
    assert runs["single"]["accuracy"] == last["accuracy"]
    assert (runs["single"]["method"], runs["single"]["done"], runs["single"]["rounds"]) == (
        "ditto",
        4,
        4,
    )


def test_list_is_not_sent_again_unchanged(root):
    asker = client(root)
    tag = asker.get("/api/runs").headers["etag"]
    assert asker.get("/api/runs", headers={"If-None-Match": tag}).status_code == 304


def test_a_run_of_its_own_folder_and_a_folder_yet_to_come_are_shown(root, tmp_path):
    assert list(entries(root / "single")) == ["."]
    assert list(entries(root / "both")) == [".", "fedavg-seed0", "local-seed0"]
    assert entries(tmp_path / "later") == {}


def test_only_changed_folders_are_read_again(root, monkeypatch):
    library, read = Library(root), []
    original = listing._read
    monkeypatch.setattr(
        listing,
        "_read",
        lambda top, folder, files: read.append(folder.name) or original(top, folder, files),
    )
    library.entries()
    assert len(read) == 4
    library._due = 0.0
    library.entries()
    assert len(read) == 4
    library._due = 0.0
    with (root / "single" / "progress.jsonl").open("a") as file:
        file.write('{"round": 5, "rounds": 5, "accuracy": 0.5}\n')
    assert library.entries()["single"].accuracy == 0.5
    assert read[4:] == ["single"]


def test_a_large_folder_is_read_bit_by_bit(root, monkeypatch):
    monkeypatch.setattr(listing, "SCAN_SECONDS", 0.0)
    monkeypatch.setattr(listing, "MIN_FOLDERS", 2)
    library = Library(root)
    assert [e.status for e in library.entries().values()].count("unread") == 2
    library._due = 0.0
    assert {e.status for e in library.entries().values()} == {"finished"}


def test_a_silent_run_without_a_process_is_stopped_and_says_how_to_go_on(root):
    folder = interrupt(root / "single", silent=3600)
    assert entries(root)["single"].status == "stopped"
    assert entries(root)["single"].why == f"coterie resume {folder}"
    odd = folder.rename(root / "a; rm b")
    assert (
        entries(root)["a%3B%20rm%20b"].why == f"coterie resume '{odd}'"
    )  # it is made to be pasted into a shell
    folder = odd.rename(folder)
    with lock_folder(folder):  # a long round: silent, but at work
        assert entries(root)["single"].status == "running"


def test_a_run_that_diverged_says_so_and_ends_its_comparison(root):
    place = root / "both" / "local-seed0"
    about = json.loads((place / "run.json").read_text())
    about |= {"status": "diverged", "diverged": {"why": "round 2: the loss is not finite"}}
    (place / "run.json").write_text(json.dumps(about))
    found = entries(root)
    run, both = found["both/local-seed0"], found["both"]
    assert (run.status, run.why) == ("diverged", "round 2: the loss is not finite")
    assert (both.status, both.why) == ("finished", "2 runs, of which 1 diverged")


def test_a_run_that_has_just_spoken_is_running(root):
    interrupt(root / "single", silent=0)
    assert entries(root)["single"].status == "running"


def test_a_comparison_is_as_far_as_its_runs(root):
    interrupt(root / "both" / "local-seed0", silent=0)
    assert entries(root)["both"].status == "running"
    assert entries(root)["both"].why == "1 of 2 runs finished"
    shutil.rmtree(root / "both" / "local-seed0")
    assert (entries(root)["both"].done, entries(root)["both"].rounds) == (4, 8)


DAMAGE = {
    "run.json": (b'{"status": ', "run.json is damaged"),
    "config.toml": (b"method = \xff", "config.toml is damaged"),
    "metrics.parquet": (b"PAR1 cut off", "metrics.parquet is damaged"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_one_line(root, name):
    content, line = DAMAGE[name]
    (root / "single" / name).write_bytes(content)
    asker = client(root)
    entry = asker.get("/api/run", params={"id": "single"}).json()["run"]
    assert entry["status"] == "damaged"
    assert entry["why"].startswith(line)
    report = asker.get("/report", params={"run": "single"})
    assert report.status_code == 422
    assert line in report.text
    assert "Traceback" not in report.text


def test_missing_files_are_one_line(root):
    for name in ("run.json", "metrics.parquet"):
        shutil.copytree(root / "single", root / f"no-{name}")
        (root / f"no-{name}" / name).unlink()
        entry = entries(root)[f"no-{name}"]
        assert entry.status == "damaged"
        assert entry.why.startswith(f"{name} is missing")


def test_a_broken_line_of_progress_hides_no_other(root):
    path = root / "single" / "progress.jsonl"
    text = path.read_text()
    path.write_text(
        '{"round": 1, "acc\n[]\n{"round": "x"}\n'
        + text
        + '{"round": 5, "accuracy": NaN, "seconds": [], "stage": 3}\n'
    )
    rows = client(root).get("/api/run", params={"id": "single"}).json()["rows"]
    assert [row["round"] for row in rows] == [1, 2, 3, 4, 5]
    assert rows[-1] == {"stage": "3", "round": 5, "seconds": None, "accuracy": None}


def test_names_of_any_kind_are_listed(root):
    odd = os.fsdecode(b"a b%2e\xff<b>&\xc3\xa9")
    shutil.copytree(root / "single", root / odd)
    asker = client(root)
    found = [run for run in asker.get("/api/runs").json()["runs"] if run["name"].startswith("a b")]
    assert (
        asker.get("/api/run", params={"id": found[0]["id"]}).json()["run"]["id"] == found[0]["id"]
    )


# what a run's page gets


def test_news_begin_where_the_last_ended(root, tmp_path):
    path = tmp_path / "progress.jsonl"
    path.write_text('{"round": 1}\n{"round": 2}\n{"rou')
    first = read_since(path, 0)
    assert [row["round"] for row in first.rows] == [1, 2]
    with path.open("a") as file:
        file.write('nd": 3}\n')
    second = read_since(path, first.after)
    assert [row["round"] for row in second.rows] == [3]
    assert read_since(path, second.after).rows == []
    path.write_text('{"round": 1}\n')  # as a resume does
    assert read_since(path, second.after) == read_since(path, 0)._replace(reset=True)


def test_curves_are_those_of_the_last_checkpoint_then_of_the_end(root):
    folder = root / "single"
    asker = client(root)
    end = asker.get("/api/measured", params={"id": "single"}).json()
    parts = {(c["metric"], c["part"], c["view"]) for c in end["curves"]}
    assert parts == {
        (m, p, v)
        for m in ("accuracy", "loss")
        for p in ("train", "validation", "select", "test")
        for v in ("personal", "global")
    }
    assert all(c["rounds"] == [1, 2, 3, 4] for c in end["curves"])
    assert len(end["clients"]["values"]) == 4
    assert 'method = "ditto"' in end["config"]
    interrupt(folder, silent=0)
    assert (
        client(root).get("/api/measured", params={"id": "single"}).json() == end
    )  # the checkpoint of round 4
    for kept in list_checkpoints(folder):
        shutil.rmtree(kept)
    assert client(root).get("/api/measured", params={"id": "single"}).json()["curves"] == []


def test_a_run_without_progress_is_drawn_from_its_table(root):
    lines = [
        json.loads(line) for line in (root / "single" / "progress.jsonl").read_text().splitlines()
    ]
    (root / "single" / "progress.jsonl").unlink()
    said = client(root).get("/api/run", params={"id": "single"}).json()
    assert [row["accuracy"] for row in said["rows"]] == pytest.approx(
        [row["accuracy"] for row in lines]
    )
    assert said["run"]["done"] == 4


def test_a_chosen_comparison_is_its_runs(root):
    chosen = (
        client(root)
        .get("/api/chosen", params={"run": ["both", "both/local-seed0", "single"]})
        .json()
    )
    assert [run["id"] for run in chosen] == ["both/fedavg-seed0", "both/local-seed0", "single"]


def test_a_report_is_made_once_until_files_change(root, monkeypatch):
    made = []
    original = app.report_html
    monkeypatch.setattr(app, "report_html", lambda paths: made.append(paths) or original(paths))
    asker = client(root)
    for _ in range(2):
        page = asker.get("/report", params={"run": "both"})
        assert page.status_code == 200
        assert "fedavg" in page.text
    assert made == [[(root / "both").resolve()]]
    os.utime(root / "both" / "local-seed0" / "metrics.parquet")
    assert asker.get("/report", params={"run": "both"}).status_code == 200
    assert len(made) == 2
    assert asker.get("/report").status_code == 422


# who may read what


@pytest.mark.parametrize(
    "name",
    [
        "../secret",
        "%2e%2e/secret",
        "..%2fsecret",
        "both/../../secret",
        "/etc",
        "single/../single",
        "./single",
        "",
        "\0",
        "link",
    ],
)
def test_nothing_outside_the_list_can_be_asked_for(root, name):
    shutil.copytree(root / "single", root.parent / "secret")
    (root / "link").symlink_to(root.parent / "secret")
    asker = client(root)
    asked = [root.parent / "secret" if name == "/etc" else name]
    for path, option in (
        ("/api/run", "id"),
        ("/api/measured", "id"),
        ("/api/chosen", "run"),
        ("/report", "run"),
    ):
        for one in (name, *asked):
            answer = asker.get(path, params={option: str(one)})
            assert answer.status_code == 404, (path, one)
            assert "method" not in answer.text


def test_no_path_leads_to_a_file(root):
    with served(root) as port:  # as sent: a client library would tidy the path up
        for path in (
            "/assets/../app.py",
            "/assets/%2e%2e/app.py",
            "/assets/..%2fapp.py",
            "//etc/passwd",
            "/assets//etc/passwd",
        ):
            answer = raw(
                port, f"GET {path} HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\n\r\n"
            )
            assert answer.startswith("HTTP/1.1 404"), path
            assert "there is no such page" in answer
        twice = raw(
            port,
            f"GET / HTTP/1.1\r\nHost: localhost:{port}\r\nHost: evil.example\r\nConnection: "
            "close\r\n\r\n",
        )
        assert twice.startswith(("HTTP/1.1 400", "HTTP/1.1 421"))


def test_links_out_of_the_folder_are_not_followed(root):
    secret = root.parent / "secret.jsonl"
    secret.write_text('{"round": 77, "accuracy": 0.77}\n')
    folder = root / "single"
    (folder / "progress.jsonl").unlink()
    (folder / "progress.jsonl").symlink_to(secret)
    shutil.copytree(root / "both" / "local-seed0", root / "deep")
    (root / "deep" / "notes").mkdir()
    (root / "deep" / "notes" / "round-00001.safetensors").symlink_to(secret)
    shutil.copytree(root / "both", root.parent / "elsewhere")
    (root / "away").symlink_to(root.parent / "elsewhere")
    asker = client(root)
    assert all(run["accuracy"] != 0.77 for run in asker.get("/api/runs").json()["runs"])
    said = asker.get("/api/run", params={"id": "single"}).json()
    assert said["rows"] == []
    assert said["run"]["why"].startswith("progress.jsonl is a link")
    assert "is a link out of the folder" in asker.get("/report", params={"run": "deep"}).text
    assert not any(name.startswith("away") for name in entries(root))
    kept = list_checkpoints(root / "both" / "fedavg-seed0")[-1]
    interrupt(root / "both" / "fedavg-seed0", silent=0)
    shutil.move(kept, root.parent / "kept")
    kept.symlink_to(root.parent / "kept")
    assert client(root).get("/api/measured", params={"id": "both/fedavg-seed0"}).status_code == 422


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost:80@evil.example",
        "0.0.0.0:8765",
        "",
        "[::2]",
        "localhost:",
    ],
)
def test_other_names_for_this_machine_are_refused(root, host):
    answer = client(root).get("/api/runs", headers={"Host": host})
    assert answer.status_code == 421
    assert "ditto" not in answer.text


@pytest.mark.parametrize(
    "host", ["127.0.0.1:1", "localhost", "LocalHost:8765", "[::1]:8765", "[::1]"]
)
def test_own_names_are_answered(root, host):
    assert client(root).get("/api/runs", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_nothing_but_get_is_taken(root, method):
    assert client(root).request(method, "/api/runs").status_code == 405


@pytest.mark.parametrize(
    "path", ["/", "/run", "/compare", "/api/runs", "/report", "/assets/style.css", "/nothing"]
)
def test_every_answer_carries_the_headers(root, path):
    headers = client(root).get(path).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"] == "no-store"
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "access-control-allow-origin" not in headers


def test_a_token_is_asked_of_every_request(root):
    asker = client(root, "0.0.0.0", TOKEN, "http://lab.example:8765")
    for path in ("/", "/api/runs", "/assets/style.css", "/report?run=single", "/nothing"):
        assert asker.get(path).status_code == 401
        assert asker.get(path, headers={"Authorization": "Bearer wrong"}).status_code == 401
        assert asker.get(path, headers={"Cookie": "coterie=wrong"}).status_code == 401
        assert asker.get(path, headers={"Cookie": f"coterie={TOKEN}"}).status_code == 401
        assert asker.get(path, params={"token": "wrong"}).status_code == 401
    assert asker.get("/api/runs", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200


def test_a_token_in_the_address_becomes_a_cookie(root):
    asker = client(root, "0.0.0.0", TOKEN, "http://lab.example:8765")
    first = asker.get(f"/run?id=single&token={TOKEN}")
    assert (first.status_code, first.headers["location"]) == (303, "/run?id=single")
    cookie = first.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert TOKEN not in cookie
    assert asker.get("/api/runs").status_code == 200
    with served(root, TOKEN) as port:
        away = raw(
            port,
            f"GET //evil.example/?token={TOKEN} HTTP/1.1\r\nHost: localhost\r\nConnection: "
            "close\r\n\r\n",
        )
    assert "\r\nlocation: /evil.example/\r\n" in away


def test_loopback_is_known():
    assert all(map(is_loopback, ["127.0.0.1", "127.9.9.9", "localhost", "::1", "[::1]"]))
    assert not any(map(is_loopback, ["0.0.0.0", "::", "", "10.0.0.1", "localhost.evil.example"]))


# the command


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (["nowhere"], "there is no folder nowhere"),
        ([".", "--host", "no such host"], "--host no such host"),
        ([".", "--host", "203.0.113.7"], "--host 203.0.113.7"),
        ([".", "--token", "short"], "is soon guessed"),
    ],
)
def test_bad_words_are_one_line(settings, line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match=re.escape(line)):
        CliRunner().invoke(ui, settings, catch_exceptions=False)


def test_a_taken_port_is_one_line(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(BadInput, match="is taken: give another --port"):
            CliRunner().invoke(
                ui, [str(tmp_path), "--port", str(taken.getsockname()[1])], catch_exceptions=False
            )


def test_without_its_extra_the_command_says_so(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(BadInput, match=re.escape("pip install 'coterie[ui]'")):
        CliRunner().invoke(ui, [str(tmp_path)], catch_exceptions=False)


# the whole of it


@contextmanager
def started(*settings: str) -> Iterator[subprocess.Popen]:
    """`coterie WORDS` in a process of its own, stopped at the end."""
    command = [sys.executable, "-c", "from coterie.cli.main import main; main()", *settings]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)  # as Ctrl-C does
        process.communicate(timeout=600)


def test_a_browser_sees_a_run_grow_stop_and_compared(root, browser):
    settings = [
        f"--{k}={v}" for k, v in (WORDS | FAST | {"rounds": 100_000, "checkpoint": 20}).items()
    ]
    live = root / "live"
    with (
        started("run", "fedavg", *settings, "--out", str(live), "--quiet") as training,
        started("ui", str(root), "--port=0") as server,
    ):
        address = re.search(r"http://127\.0\.0\.1:\d+/", server.stdout.readline())[0]
        page = browser.new_page()
        page.set_default_timeout(60_000)
        wrong: list[str] = []
        page.on(
            "console",
            lambda message: (
                wrong.append(message.text) if message.type in ("error", "warning") else None
            ),
        )
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on(
            "request",
            lambda r: (
                None if r.url.startswith((address, "data:", "blob:")) else wrong.append(r.url)
            ),
        )
        page.goto(address)
        page.get_by_role("row", name="live").get_by_text("running").wait_for()
        page.get_by_role("link", name="live").click()
        points = "document.getElementById('accuracy')?.data?.[0]?.x.length ?? 0"
        until(page, f"({points}) > 3")
        before = page.evaluate(points)
        until(page, f"({points}) > {before}")
        page.get_by_text("of 100000 rounds").wait_for()
        page.get_by_text(re.compile("about .* left")).wait_for()
        until(
            page, "document.getElementById('accuracy')?.data?.length === 4"
        )  # the checkpoint's parts have come
        training.kill()

        page.goto(address)
        page.get_by_label("Choose single").check()
        page.get_by_label("Choose live").check()
        page.get_by_role("button", name="Curves together").click()
        for chart in ("accuracy", "loss"):
            until(page, f"document.getElementById('{chart}')?.data?.length === 2")
            assert page.locator(f"#{chart} .scatterlayer .trace").count() == 2
        page.get_by_label("Across").select_option("training seconds")
        until(page, "document.getElementById('accuracy')?.data?.[0]?.x[0] < 1")

        page.goto(address)
        page.get_by_label("Choose both").check()
        page.get_by_role("button", name="Open report").click()
        page.get_by_role("heading", level=1).wait_for()
        page.locator(".main-svg").first.wait_for(state="attached")

        page.goto(f"{address}run?id=live")
        page.get_by_text(f"coterie resume {live}").wait_for()
        assert page.locator("#status").inner_text().endswith("stopped")
        assert wrong == []
    assert server.returncode == 0


def test_the_list_is_sorted_filtered_and_opened(root, browser):
    hostile = root / "<img src=x onerror=alert(1)>"
    shutil.copytree(root / "single", hostile)
    with served(root) as port:
        page = browser.new_page()
        page.set_default_timeout(60_000)
        wrong: list[str] = []
        page.on(
            "console",
            lambda message: (
                wrong.append(message.text) if message.type in ("error", "warning") else None
            ),
        )
        page.on("dialog", lambda dialog: wrong.append(dialog.message))
        page.goto(f"http://127.0.0.1:{port}/")
        names = page.locator("tbody td.name a")
        names.first.wait_for()
        page.get_by_role("button", name="Name", exact=True).click()
        assert names.all_inner_texts() == [hostile.name, "both", "single"]
        page.get_by_role("button", name="Name", exact=True).click()
        assert names.all_inner_texts() == ["single", "both", hostile.name]
        page.get_by_role("button", name="Runs of both").click()
        assert sorted(names.all_inner_texts()) == sorted(
            [hostile.name, "both", "fedavg-seed0", "local-seed0", "single"]
        )
        page.get_by_label("Filter the runs").fill("ditto single")
        assert names.all_inner_texts() == ["single"]
        names.first.click()
        page.get_by_role("heading", name="single").wait_for()
        page.goto(f"http://127.0.0.1:{port}/run?id=nowhere")
        page.get_by_text("there is no run 'nowhere' here").wait_for()
        wrong = [
            line for line in wrong if "404" not in line
        ]  # the browser's own word for the last page
        page.goto("about:blank")  # no more questions, or the server would wait for their answers
        assert wrong == []


ODD = {
    "folder": lambda path: path.mkdir(),
    "pipe": lambda path: os.mkfifo(path),
    "bytes": lambda path: path.write_bytes(b"\xff\xfe\x00"),
    "deep": lambda path: path.write_bytes(b"a = " + b"[" * 100_000),
    "numbers": lambda path: path.write_bytes(b'{"status": "finished", "date": 1e999, "seed": NaN}'),
    "large": lambda path: (path.touch(), os.truncate(path, 2**30)),
}


@pytest.mark.parametrize("how", ODD)
@pytest.mark.parametrize("name", ["config.toml", "run.json", "metrics.parquet", "progress.jsonl"])
def test_odd_files_never_stop_the_list_or_a_page(root, name, how):
    (root / "single" / name).unlink()
    ODD[how](root / "single" / name)
    asker = client(root)
    listed = asker.get("/api/runs")
    assert listed.status_code == 200
    assert {e["id"]: e["status"] for e in listed.json()["runs"]}["both"] == "finished"
    for path in ("/api/run?id=single", "/api/measured?id=single", "/report?run=single"):
        assert asker.get(path).status_code in (200, 422)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("seed", "1979-05-27"),
        ("seed", "nan"),
        ("seed", "{ a = 1 }"),
        ("rounds", "inf"),
        ("rounds", "1" + "0" * 400),
        ("name", "[1]"),
    ],
)
def test_words_of_another_kind_are_a_damaged_row_or_text(root, option, value):
    path = root / "single" / "config.toml"
    path.write_text(re.sub(rf"(?m)^{option} = .*$", f"{option} = {value}", path.read_text()))
    (root / "single" / "progress.jsonl").unlink()
    asker = client(root)
    assert asker.get("/api/runs").status_code == 200
    assert asker.get("/api/run?id=single").status_code == 200
    assert asker.get("/api/measured?id=single").status_code in (200, 422)


@pytest.mark.parametrize("line", ['{"round": 1%s}' % ("0" * 400), '{"round": true}', "[" * 50_000])
def test_lines_of_progress_that_no_page_can_show_are_left_out(root, line):
    path = root / "single" / "progress.jsonl"
    path.write_text(path.read_text() + line + "\n")
    rows = client(root).get("/api/run?id=single").json()["rows"]
    assert [row["round"] for row in rows] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "query",
    ["after=" + "9" * 5000, "after=-5", "after=1e3", "after=%00", "after=" + "9" * 30, "x=%ff"],
)
def test_odd_queries_are_answered(root, query):
    asker = client(root)
    assert asker.get("/api/run?id=single&" + query).status_code in (200, 422)
    for path in ("/api/run?id=", "/api/measured?id=", "/api/chosen?run=", "/report?run="):
        assert asker.get(path + "%ff%00" * 1000).status_code == 404
