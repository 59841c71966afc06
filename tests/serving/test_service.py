"""Laws of the service: what the models say, to whom it may be said, and nothing dropped."""

import asyncio
import io
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import numpy as np
import polars as pl
import pytest

import coterie
from coterie.core.errors import BadInput
from coterie.serving.app import build_app
from coterie.serving.batching import ServedRun
from coterie.serving.model_cache import ModelCache
from coterie.serving.request_rows import ARROW, CSV, JSON
from coterie.serving.service import Service, ServiceLimits
from coterie.serving.tokens import open_tokens
from helpers.runs import IMAGES
from helpers.serving import asking, numbers_run, people_run

LONG = 60  # seconds that a busy machine may need


@pytest.fixture(scope="module")
def people(tmp_path_factory):
    folder = tmp_path_factory.mktemp("people")
    run = people_run(folder, method="local", scale="client")
    return run, pl.read_csv(folder / "people.csv")


@pytest.fixture
def asked(people, tmp_path):
    """(test client, tokens) of a service of the mixed table."""
    service = Service(
        people[0].folder, tmp_path / "tokens.json", ServiceLimits(rows=50, bytes=20_000)
    )
    with asking(build_app(service)) as client:
        yield client, json.loads((tmp_path / "tokens.json").read_text())


def bearer(token):
    return {"Authorization": f"Bearer {token}"}


def rows_of(frame):
    return frame.drop("site", "verdict").to_dicts()


def test_json_csv_and_arrow_rows_get_what_the_model_says(people, asked):
    (run, frame), (client, tokens) = people, asked
    some = frame.filter(site="site-1")[:20]
    model, headers = run.model("site-1"), bearer(tokens["clients"]["site-1"])
    want, shares = model.predict(some).tolist(), model.predict_proba(some)
    path = "/clients/site-1/predict"
    answer = client.post(path, json={"rows": rows_of(some)}, headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.json()["predictions"] == want
    assert np.allclose(answer.json()["probabilities"], shares, atol=1e-6)
    assert answer.json()["classes"] == ["sick", "well"]
    sent = {CSV: some.write_csv().encode(), ARROW: io.BytesIO()}
    some.write_ipc_stream(sent[ARROW])
    sent[ARROW] = sent[ARROW].getvalue()
    for kind, body in sent.items():
        both = headers | {"Content-Type": kind, "Accept": kind}
        answer = client.post(path, content=body, headers=both)
        assert answer.status_code == 200, answer.text
        read = pl.read_csv if kind == CSV else pl.read_ipc_stream
        assert read(answer.content)["prediction"].to_list() == want


def test_images_are_served_raw_nested_or_flat(tmp_path):
    run = coterie.run("local", out=tmp_path / "run", scale="pixel", **IMAGES)
    x = np.random.default_rng(0).integers(0, 17, (5, 1, 8, 8))
    want = run.model(2).predict(x.astype(np.uint8)).tolist()
    with asking(build_app(Service(run.folder, None, ServiceLimits()))) as client:
        for rows in (x.tolist(), x.reshape(5, 64).tolist()):
            answer = client.post("/clients/2/predict", json={"rows": rows})
            assert answer.json()["predictions"] == want
        assert client.post("/clients/9/predict", json={"rows": rows}).status_code == 404
        odd = client.get("/health", headers={"Host": "evil.example"})
        assert odd.status_code == 400


def test_a_token_opens_its_own_client_only(people, asked):
    (_, frame), (client, tokens) = people, asked
    body, path = {"rows": rows_of(frame[:1])}, "/clients/site-1/predict"
    own, other = tokens["clients"]["site-1"], tokens["clients"]["site-2"]
    statuses = [
        client.post(path, json=body, headers=headers).status_code
        for headers in ({}, bearer("x" * 32), bearer(other), bearer(tokens["admin"]), bearer(own))
    ]
    assert statuses == [401, 401, 403, 401, 200]
    assert client.post("/clients/nobody/predict", json=body, headers=bearer(own)).status_code == 403
    assert client.get("/clients/site-1/card", headers=bearer(other)).status_code == 403
    card = client.get("/clients/site-1/card", headers=bearer(own)).json()
    assert set(card["preparation"]["clients"]) == {"site-1"}
    assert client.post("/reload", headers=bearer(own)).status_code == 403
    assert client.post("/reload", headers=bearer(tokens["admin"])).json()["status"] == "ok"


@pytest.mark.parametrize(
    ("change", "status", "says"),
    [
        ({"age": "old"}, 422, "column 'age' is 'old' in row 1, not a number"),
        ({"age": True}, 422, "not a number"),
        ({"age": 1e300}, 422, "not a number"),
        ({"when": "31.12.2024"}, 422, "'when' is '31.12.2024' in row 1, not a date"),
        ({"smokes": 1}, 422, "not a boolean"),
        ({"age": None, "job": "astronaut", "smokes": None, "when": None}, 200, ""),
    ],
)
def test_cells_are_taken_strictly(people, asked, change, status, says):
    (_, frame), (client, tokens) = people, asked
    row = rows_of(frame[:1])[0] | change
    headers = bearer(tokens["clients"]["site-1"])
    answer = client.post("/clients/site-1/predict", json={"rows": [row]}, headers=headers)
    assert answer.status_code == status, answer.text
    assert says in answer.json().get("problem", "")


def test_bodies_have_limits(people, asked):
    (_, frame), (client, tokens) = people, asked
    headers, path = bearer(tokens["clients"]["site-1"]), "/clients/site-1/predict"
    row = rows_of(frame[:1])[0]

    def post(**body):
        return client.post(path, headers=headers | body.pop("headers", {}), **body)

    assert post(json={"rows": [row] * 51}).status_code == 422
    assert post(json={"rows": [row | {"x": "y" * 20_000}]}).status_code == 413
    assert (
        post(content=iter([b"x" * 15_000] * 2), headers={"Content-Type": JSON}).status_code == 413
    )
    assert post(content=b"a", headers={"Content-Type": "text/plain"}).status_code == 415
    for bad in (b"", b"{", b"[]", b'{"rows": []}', b'{"rows": [1]}', b'{"rows": [{}]}'):
        assert post(content=bad, headers={"Content-Type": JSON}).status_code == 422
    for kind in (CSV, ARROW):
        assert post(content=b"\xff\x00,\n1", headers={"Content-Type": kind}).status_code == 422


def test_requests_that_wait_together_are_answered_in_one_call_and_as_alone(people, monkeypatch):
    run, frame = people
    served, calls = ServedRun(run.folder, 2), []  # fewer models in memory than clients
    usual = ModelCache.run

    def counting(self, slots, x):
        calls.append(len(slots))
        return usual(self, slots, x)

    monkeypatch.setattr(ModelCache, "run", counting)
    clients = [0, 1, 2, 1, 0, 2]
    parts = [frame[k : k + 1 + k % 3] for k in range(6)]
    rows = [
        served.reader.read(JSON, json.dumps({"rows": rows_of(p)}).encode(), "", 99) for p in parts
    ]
    found = served.answer(clients, rows)
    for client, part, answer in zip(clients, parts, found, strict=True):
        want = run.model(client).predict_proba(part)
        assert np.allclose(answer.probabilities, want, atol=1e-6)
    assert len(calls) < len(clients)
    (slots,) = served.slots.values()
    assert len(slots) == 2
    assert slots.evictions > 0


def test_a_damaged_model_fails_its_own_client_alone(people, tmp_path):
    run, frame = people
    folder = shutil.copytree(run.folder, tmp_path / "run")
    (folder / "models" / "client-00001.safetensors").write_bytes(b"x" * 50)
    row = {"rows": rows_of(frame[:1])}
    with asking(build_app(Service(folder, None, ServiceLimits()))) as client:
        statuses = [
            client.post(f"/clients/site-{k}/predict", json=row).status_code for k in range(3)
        ]
    assert statuses == [200, 503, 200]


def test_too_many_that_wait_are_told_to_come_again(people):
    run, frame = people
    service = Service(run.folder, None, ServiceLimits(waiting=1))
    held, entered = threading.Event(), threading.Event()
    usual = service.served.answer

    def slow(*given):
        entered.set()
        held.wait(LONG)
        return usual(*given)

    service.served.answer = slow
    app, body = build_app(service), {"rows": rows_of(frame[:1])}

    async def ask():
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            path = "/clients/site-0/predict"
            first = asyncio.create_task(client.post(path, json=body))
            await asyncio.to_thread(entered.wait, LONG)
            rest = [asyncio.create_task(client.post(path, json=body)) for _ in range(2)]
            done, _ = await asyncio.wait(rest, return_when=asyncio.FIRST_COMPLETED, timeout=LONG)
            held.set()
            refused = next(iter(done)).result()
            return refused, [(await task).status_code for task in (first, *rest)]

    refused, statuses = asyncio.run(ask())
    assert refused.status_code == 503
    assert refused.headers["retry-after"] == "1"
    assert sorted(statuses) == [200, 200, 503]
    service.worker.close()


def test_numbers_are_told_and_name_nobody(people, asked):
    (_, frame), (client, tokens) = people, asked
    headers = bearer(tokens["clients"]["site-1"])
    client.post("/clients/site-1/predict", json={"rows": rows_of(frame[:3])}, headers=headers)
    client.post("/clients/site-1/predict", json={}, headers=headers)
    text = client.get("/metrics").text
    assert 'coterie_requests_total{status="200"} 1' in text
    assert 'coterie_requests_total{status="422"} 1' in text
    assert "coterie_rows_total 3" in text
    assert 'coterie_request_seconds_bucket{le="+Inf"} 2' in text
    assert "site-1" not in text
    assert client.get("/health").json()["clients"] == 3
    assert "openapi.json" in client.get("/").text
    assert client.post("/health").status_code == 405


def test_tokens_are_for_their_owner_alone_and_stay(tmp_path):
    path = tmp_path / "tokens.json"
    first = open_tokens(path, ["a", "b"])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again = open_tokens(path, ["a", "b", "c"])
    assert set(first.clients) < set(again.clients)
    known = json.loads(path.read_text())
    assert again.client(known["clients"]["c"]) == "c"
    path.chmod(0o644)
    with pytest.raises(BadInput, match="can be read by others"):
        open_tokens(path, ["a"])
    path.chmod(0o600)
    path.write_text('{"admin": "short", "clients": {}}')
    with pytest.raises(BadInput, match="no file of tokens"):
        open_tokens(path, ["a"])


# A real server


@pytest.fixture
def server(tmp_path):
    """Starts `coterie serve` with words, in a process of its own; gives its address."""
    started = []

    def start(*settings: str) -> tuple[str, subprocess.Popen]:
        program = [sys.executable, "-c", "from coterie.cli.main import main; main()", "serve"]
        process = subprocess.Popen(
            [*program, *settings, "--port", "0"], stdout=subprocess.PIPE, text=True, bufsize=1
        )
        started.append(process)
        first = process.stdout.readline()
        address = first.rsplit(" ", 1)[-1].strip()
        assert address.startswith("http://127.0.0.1:"), first
        return address, process

    yield start
    for process in started:
        process.terminate()
        process.wait(LONG)
        process.stdout.close()


def test_a_newer_run_takes_over_without_a_dropped_request(server, tmp_path):
    for name, method in (("old", "local"), ("new", "fedavg")):
        (tmp_path / name).mkdir()
        numbers_run(tmp_path / name, method=method, rounds=2)
    link = tmp_path / "current"
    link.symlink_to(tmp_path / "old" / "run")
    tokens = tmp_path / "tokens.json"
    address, process = server(str(link), "--tokens", str(tokens))
    known = json.loads(tokens.read_text())
    rows = [{"a": 0.3, "b": -0.2}, {"a": -1.0, "b": 0.4}]
    want = {
        name: coterie.load(tmp_path / name / "run", "site-1").predict_proba(rows)
        for name in ("old", "new")
    }
    headers, seen, stop = bearer(known["clients"]["site-1"]), [], threading.Event()

    def keep_asking():
        with httpx.Client(base_url=address, timeout=LONG) as client:
            while not stop.is_set():
                answer = client.post(
                    "/clients/site-1/predict", json={"rows": rows}, headers=headers
                )
                seen.append((answer.status_code, answer.json().get("probabilities")))

    threads = [threading.Thread(target=keep_asking) for _ in range(3)]
    for thread in threads:
        thread.start()
    _until(lambda: len(seen) > 20)
    link.unlink()
    link.symlink_to(tmp_path / "new" / "run")
    answer = httpx.post(f"{address}/reload", headers=bearer(known["admin"]), timeout=LONG)
    assert answer.status_code == 200
    after = len(seen)
    _until(lambda: len(seen) > after + 20)
    link.unlink()
    link.symlink_to(tmp_path / "old" / "run")
    os.kill(process.pid, signal.SIGHUP)
    _until(lambda: np.allclose(seen[-1][1], want["old"], atol=1e-5))
    stop.set()
    for thread in threads:
        thread.join(LONG)
    assert {status for status, _ in seen} == {200}
    assert np.allclose(seen[0][1], want["old"], atol=1e-5)
    assert np.allclose(seen[after + 15][1], want["new"], atol=1e-5)
    assert not np.allclose(want["old"], want["new"], atol=1e-3)


def test_a_watched_run_takes_over_by_itself_and_a_broken_one_does_not(server, tmp_path):
    run = numbers_run(tmp_path, rounds=1)
    link = tmp_path / "current"
    link.symlink_to(run.folder)
    address, _ = server(str(link), "--no-tokens", "--watch", "0.2")
    copied = shutil.copytree(run.folder, tmp_path / "copied")
    (copied / "preparation.json").write_text("{")
    link.unlink()
    link.symlink_to(copied)
    time.sleep(1)
    reloads = "coterie_reloads_total"
    assert f"{reloads} 0" in httpx.get(f"{address}/metrics", timeout=LONG).text
    body = {"rows": [{"a": 0.3, "b": -0.2}]}
    answer = httpx.post(f"{address}/clients/site-1/predict", json=body, timeout=LONG)
    assert answer.status_code == 200
    shutil.copy(run.folder / "preparation.json", copied)
    _until(lambda: f"{reloads} 1" in httpx.get(f"{address}/metrics", timeout=LONG).text)


def _until(true):
    end = time.monotonic() + LONG
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_service_without_tokens_is_refused_on_the_network(tmp_path):
    with pytest.raises(BadInput, match="would open every model to the network"):
        coterie.serve(Path("anything"), host="0.0.0.0", open_to_all=True)
