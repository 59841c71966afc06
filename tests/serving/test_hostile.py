"""A service and its doors under hostile input: one line, and nothing that hangs."""

import gzip
import os
import signal
import socket
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from starlette.requests import Request

import coterie
from coterie.core.errors import BadInput, CannotWrite
from coterie.data.read.table_files import open_table
from coterie.results.personal_models import Models
from coterie.results.run import load_run
from coterie.serving import service as services
from coterie.serving.app import _authorize_client
from coterie.serving.chunks import read_chunks
from coterie.serving.service import Service, ServiceLimits, Snapshot
from helpers.serving import numbers_run

LONG = 120  # seconds that a busy machine may need


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return numbers_run(tmp_path_factory.mktemp("run"), method="local", rounds=1)


@pytest.fixture
def serving(run):
    """`coterie serve` in a process whose connections have a second for their headers."""
    code = (
        "from coterie.serving.http_protocol import PatientProtocol as p; p.headers_timeout = 1\n"
        "from coterie.cli.main import main; main()"
    )
    settings = ["serve", str(run.folder), "--no-tokens", "--port", "0"]
    process = subprocess.Popen(
        [sys.executable, "-c", code, *settings], stdout=subprocess.PIPE, text=True, bufsize=1
    )
    port = int(process.stdout.readline().rsplit(":", 1)[-1])
    yield port, process
    process.kill()
    process.wait(LONG)
    process.stdout.close()


def test_half_sent_headers_are_cut_off_and_sigterm_says_a_word(serving):
    port, process = serving
    whole = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port), LONG) as silent:
        assert silent.recv(100) == b""
    with socket.create_connection(("127.0.0.1", port), LONG) as half:
        half.sendall(whole[:30])
        assert half.recv(100) == b""
    with socket.create_connection(("127.0.0.1", port), LONG) as second:
        second.sendall(whole)
        assert second.recv(10_000).startswith(b"HTTP/1.1 200")
        second.sendall(whole[:30])  # of the next request on the same connection
        while found := second.recv(10_000):
            assert b"HTTP/1.1 4" not in found
    process.send_signal(signal.SIGTERM)
    assert process.stdout.read().rstrip().endswith("stopped")
    assert process.wait(LONG) == 0


def test_a_request_sees_one_run_whatever_is_reloaded_meanwhile(run, tmp_path):
    service = Service(run.folder, tmp_path / "tokens.json", ServiceLimits())
    try:
        before = service.current
        service.reload()
        assert service.current is not before
        assert isinstance(before, Snapshot)
        other = SimpleNamespace(models=SimpleNamespace(numbers={"site-1": 7}))
        asked = Request({"type": "http", "headers": [], "path_params": {"client": "site-1"}})
        assert _authorize_client(Snapshot(other, None), asked) == 7  # nothing else is asked
    finally:
        service.worker.close()


@pytest.mark.parametrize("name", ["x" * 5000, "absent", "\ud800"])
def test_a_reload_of_a_run_that_cannot_be_is_refused_in_one_line(name, run, tmp_path):
    service = Service(run.folder, tmp_path / "tokens.json", ServiceLimits())
    try:
        with pytest.raises(BadInput, match="there is no such folder beside this run"):
            service.reload(name)
    finally:
        service.worker.close()


def test_serving_a_run_that_cannot_be_written_names_tokens(run, monkeypatch):
    def refuse(path, names):
        raise CannotWrite(f"{path.parent} cannot be written (Read-only file system): mend it")

    monkeypatch.setattr(services, "open_tokens", refuse)
    with pytest.raises(BadInput, match=r"cannot be written .* say with --tokens FILE where"):
        Service(run.folder, run.folder / "tokens.json", ServiceLimits())


def test_damaged_tables_are_told_in_one_line(tmp_path):
    packed = bytearray(gzip.compress(("a,b\n" + "1,2\n" * 5000).encode()))
    packed[12] ^= 255
    (tmp_path / "t.csv.gz").write_bytes(bytes(packed))
    (tmp_path / "cut.csv.gz").write_bytes(bytes(packed[: len(packed) // 2]))
    (tmp_path / "t.xlsx").write_text("no workbook")
    for path in tmp_path.iterdir():
        with pytest.raises(BadInput, match="this is no readable"):
            open_table(path, [], "")
        with pytest.raises(BadInput, match="this is no readable"):
            list(read_chunks(path))


@pytest.mark.parametrize("cell", [object(), {"x": 1}, b"1", "\ud800"])
def test_odd_cells_are_refused_in_one_line(cell, run):
    model = Models(run.folder).model(0)
    array = np.empty((1, 2), object)
    array[0] = [cell, 0.5]
    for rows in ({"a": [cell], "b": [0.5]}, [{"a": cell, "b": 0.5}], array):
        with pytest.raises(BadInput):
            model.predict(rows)


def test_half_a_character_is_no_folder():
    with pytest.raises(BadInput, match="no file has such a name"):
        coterie.load("\ud800")


FILES = ["run.json", "config.toml", "metrics.parquet", "preparation.json", "models/models.json"]


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("file", [*FILES, "models/client-00000.safetensors"])
def test_a_pipe_or_device_in_place_of_a_file_is_told_in_one_line(file, kind, tmp_path):
    run = numbers_run(tmp_path, method="local", rounds=1)
    path = run.folder / file
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")

    def use():
        load_run(run.folder).model(0).predict({"a": [0.5], "b": [0.5]})

    with pytest.raises(BadInput):
        use()
