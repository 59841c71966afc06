"""What a server tells of itself: numbers, health and logs that do not grow for ever."""

import json
import socket
import urllib.error
import urllib.request

import pytest

from coterie.core.errors import BadInput
from coterie.deploy.logs import LogLimiter, RotatingLog, sanitize
from coterie.deploy.metrics import MAX_CONNECTIONS, Metric, MetricsServer, collect_run_metrics
from coterie.deploy.replay import append_line


@pytest.fixture
def service(tmp_path):
    up = {"gate": True, "run": True}
    metrics = MetricsServer(
        "127.0.0.1",
        0,
        lambda: (up, [Metric("up", "gauge", "Up.", 1), *collect_run_metrics(tmp_path)]),
    )
    yield f"http://127.0.0.1:{metrics.port}", up, tmp_path, metrics
    metrics.close()


def get(url):
    with urllib.request.urlopen(url, timeout=300) as answer:
        return answer.status, answer.read().decode()


def test_numbers_are_those_of_the_run(service):
    address, _, folder, _ = service
    assert "coterie_exchanges_total 0.0" in get(f"{address}/metrics")[1]
    line = {"stage": "train", "exchange": 0, "asked": [0, 1, 2], "answered": [0, 2]}
    for number in range(4):
        append_line(folder / "answers.jsonl", line | {"round": number, "seconds": 2.5, "time": 1e9})
    (folder / "progress.jsonl").write_text(json.dumps({"round": 4, "accuracy": 0.5, "loss": 1}))
    found = dict(
        line.split() for line in get(f"{address}/metrics")[1].splitlines() if line[0] != "#"
    )
    assert found["coterie_exchanges_total"] == "4.0"
    assert found["coterie_sites_asked"] == "3.0"
    assert found["coterie_sites_answered"] == "2.0"
    assert found["coterie_exchange_seconds"] == "2.5"
    assert found["coterie_accuracy"] == "0.5"


def test_health_is_bad_when_a_part_has_ended(service):
    address, up, _, _ = service
    assert get(f"{address}/health") == (200, '{"healthy": true, "gate": true, "run": true}')
    up["gate"] = False
    with pytest.raises(urllib.error.HTTPError) as problem:
        get(f"{address}/health")
    assert problem.value.code == 503
    problem.value.close()
    with pytest.raises(urllib.error.HTTPError, match="404") as problem:
        get(f"{address}/etc/passwd")
    problem.value.close()


def test_a_taken_metrics_port_is_one_clear_line(service):
    with pytest.raises(BadInput, match="--metrics-port"):
        MetricsServer("127.0.0.1", service[3].port, lambda: ({}, []))


def test_a_log_keeps_its_newest_lines_and_a_bounded_size(tmp_path):
    log = RotatingLog(tmp_path / "a.log", largest=1000, kept=2)
    for number in range(200):
        log(f"line {number}")
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["a.log", "a.log.1", "a.log.2"]
    assert all(path.stat().st_size <= 1000 for path in tmp_path.iterdir())
    text = "".join((tmp_path / name).read_text() for name in reversed(files))
    assert text.endswith("line 199\n")
    kept = [int(line.split()[-1]) for line in text.splitlines()]
    assert kept == list(range(kept[0], 200))


def test_words_of_strangers_are_one_short_printable_line():
    assert sanitize("a\nb\x1b[2J\u202e") == "a b\\x1b[2J\\x202e"
    assert len(sanitize("x" * 10**7)) < 600


def test_refusals_are_rationed_and_the_rest_is_counted():
    said = []
    ration = LogLimiter(said.append, most=3, quiet=3600)
    for number in range(10):
        ration(f"line {number % 5}")
    assert said == ["line 0", "line 1", "line 2"]
    assert ration.count == 10


def test_connections_that_say_nothing_take_no_more_files_and_keep_nobody_out(service):
    address, _, _, metrics = service
    many = [socket.create_connection(("127.0.0.1", metrics.port)) for _ in range(90)]
    try:
        assert get(f"{address}/health")[0] == 200
        ended = 0
        for one in many:
            one.settimeout(0.05)
            try:
                ended += one.recv(1) == b""
            except TimeoutError:
                continue
        assert ended > len(many) - MAX_CONNECTIONS
    finally:
        for one in many:
            one.close()
