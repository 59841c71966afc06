"""`coterie doctor` says what is slow here, and why; each with the way out."""

import copy
import json
import os
import subprocess
import sys

import pytest

from coterie.cli import doctor, machine
from coterie.data.read.catalog import DATASETS

MAIN = "from coterie.cli.main import main; main()"


@pytest.fixture(scope="module")
def facts():
    return machine.gather_facts()


def ask(folder, **variables):
    """The answer of another process with these variables, as JSON."""
    env = os.environ | {"COTERIE_DATA": str(folder), **variables}
    done = subprocess.run(
        [sys.executable, "-c", MAIN, "doctor", "--json"],
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def test_a_compiler_that_fails_a_single_thread_and_no_data_are_told(tmp_path):
    found = ask(
        tmp_path / "none", CC="/bin/false", OMP_NUM_THREADS="1", COTERIE_CACHE=str(tmp_path)
    )
    slow = {one["what"]: one for one in found["slow"]}
    assert "traced and replayed instead of compiled" in slow["compiler"]["why"]
    assert "CC" in slow["compiler"]["way"]
    assert "COTERIE_DATA" in slow["data"]["way"]
    assert found["cache"] == {
        "folder": str(tmp_path),
        "files": 0,
        "megabytes": 0.0,
        "writable": True,
        "fault": "",
    }
    assert list(tmp_path.iterdir()) == []  # nothing is made by looking
    if found["machine"]["cores"] > 1:
        assert slow["threads"]["why"].startswith("OMP_NUM_THREADS=1: 1 of ")
    assert all(one["way"] for one in found["slow"])


def test_data_sets_that_are_there_are_named_and_all_are_either(coterie, tmp_path, monkeypatch):
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))
    (tmp_path / "emnist").mkdir()
    (tmp_path / "emnist" / "images.gz").touch()
    (tmp_path / "mnist").mkdir()
    code, out, _ = coterie("doctor", "--json")
    data = json.loads(out)["data"]
    assert code == 0
    assert {"emnist", "femnist-letters", "digits"} <= set(data["there"])
    assert {"mnist", "mnist-writers"} <= set(data["absent"])
    assert sorted(data["there"] + data["absent"]) == sorted(DATASETS)


def test_built_in_data_need_no_folder(tmp_path):
    from coterie.data.read.catalog import load_dataset

    for name in machine.BUILT_IN:
        assert len(load_dataset(name, tmp_path / "none").y)


def test_a_cache_that_others_may_write_is_told(tmp_path):
    (tmp_path / "steps").mkdir()
    (tmp_path / "steps").chmod(0o777)
    (tmp_path / "steps" / "one.so").write_bytes(bytes(2**20))
    found = ask(tmp_path, COTERIE_CACHE=str(tmp_path))
    assert (found["cache"]["files"], found["cache"]["megabytes"]) == (1, 1.0)
    (told,) = [one for one in found["slow"] if one["what"] == "cache"]
    assert "others may write it" in told["why"]
    assert "COTERIE_CACHE" in told["way"]


@pytest.mark.parametrize(
    ("text", "cores"), [("150000 100000\n", 1.5), ("max 100000\n", None), ("", None)]
)
def test_a_containers_share_of_the_cores_is_read(tmp_path, text, cores):
    (tmp_path / "cpu.max").write_text(text)
    assert machine.read_quota(tmp_path / "cpu.max") == cores
    assert machine.read_quota(tmp_path / "none") is None


def test_people_read_a_line_for_each_thing(coterie):
    code, out, errors = coterie("doctor")
    assert (code, errors) == (0, "")
    begun = [line.split()[0] for line in out.splitlines()]
    wanted = ["versions", "machine", "threads", "compiler", "device", "cache", "data", "there"]
    assert begun[: len(wanted)] == wanted
    assert "torch" in out.splitlines()[0]
    assert begun.count("way") == len(machine_findings(out))


def machine_findings(out):
    """The lines that name something slow or broken."""
    some = out[out.index("slow:") :].splitlines()
    return [line for line in some if line.startswith("  ") and not line.startswith("   ")]


@pytest.mark.parametrize(
    ("section", "changes", "what", "said"),
    [
        ("compiler", {"command": ""}, "compiler", "there is none"),
        ("compiler", {"problem": "it failed"}, "compiler", "it failed: steps are traced"),
        (
            "threads",
            {"torch": 1, "bounds": {"MKL_NUM_THREADS": "1"}},
            "threads",
            "MKL_NUM_THREADS=1: 1 of 8 cores is used",
        ),
        ("machine", {"cores": 1}, "cores", "one after another"),
        ("machine", {"quota": 1.5}, "quota", "8 threads share 1.5 cores' worth"),
        ("machine", {"load": 20.0}, "load", "20 processes want 8 cores"),
        ("device", {"bfloat16_bound": "AVX512_CORE_BF16"}, "bfloat16", "AMX"),
        ("device", {"auto": "cuda"}, "device", "runs use the processor by default"),
        ("device", {"nvidia": True}, "device", "built for processors"),
        ("device", {"nvidia": True, "cuda_build": "13.0"}, "device", "torch sees no device"),
        ("cache", {"writable": False}, "cache", "times and compiles anew"),
        ("cache", {"fault": "it is a link"}, "cache", "not kept there (it is a link)"),
        ("data", {"exists": False}, "data", "downloaded when first used"),
    ],
)
def test_what_is_slow_is_found(facts, section, changes, what, said):
    healthy = copy.deepcopy(facts)
    healthy["machine"] |= {"cores": 8, "quota": None, "load": 0.0}
    healthy["threads"] = {"torch": 8, "bounds": {}}
    healthy["compiler"] = {"command": "cc", "version": "1", "problem": ""}
    healthy["device"] = {"auto": "cpu", "cuda_build": "", "nvidia": False, "bfloat16_bound": ""}
    healthy["cache"] |= {"writable": True, "fault": ""}
    healthy["data"]["exists"] = True
    assert doctor.find_slow(healthy) == []
    healthy[section] |= changes
    (one,) = doctor.find_slow(healthy)
    assert (one.what, said in one.why, bool(one.way)) == (what, True, True)


def test_half_as_many_threads_as_cores_are_torchs_own_choice():
    """Two cores may be one with two names; torch then takes one thread for both."""
    assert not doctor._find_slow_cores(
        {"cores": 8, "quota": None, "load": 0.0}, {"torch": 4, "bounds": {}}
    )


def test_a_package_that_is_missing_is_broken(coterie, monkeypatch):
    monkeypatch.setattr(
        doctor.metadata, "requires", lambda name: ["absent-one>=2", "x; extra == 'y'"]
    )
    code, out, _ = coterie("doctor")
    assert code == 1
    assert "absent-one: is not installed" in out
