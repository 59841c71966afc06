"""Machine code is loaded only if this user wrote it, whole and unchanged."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from coterie.core.errors import BadInput
from coterie.engines.local.native import compiler, library_cache
from coterie.engines.local.tracing import Untraceable
from coterie.engines.settings import ExecutionSettings
from helpers.federations import assert_same, personal, play

pytestmark = pytest.mark.skipif(not compiler.find_compiler(), reason="no C compiler here")
COMPILED = ExecutionSettings("vectorized", 16, "yes")
NOBODY = 65534
STEP = "int run(void) { return 7; }\n"
HOSTILE = """
#include <fcntl.h>
__attribute__((constructor)) static void attack(void) { creat("FLAG", 0600); }
int run(void) { return 666; }
"""


@pytest.fixture
def steps(tmp_path, monkeypatch):
    """The folder of libraries, in a cache that was empty before."""
    monkeypatch.setenv("COTERIE_CACHE", str(tmp_path))
    library_cache._replace_folder.cache_clear()
    return tmp_path / "steps"


@pytest.fixture
def shared(monkeypatch):
    """A cache that every user may write."""
    place = Path(tempfile.mkdtemp(prefix="coterie-shared-"))
    place.chmod(0o777)
    monkeypatch.setenv("COTERIE_CACHE", str(place))
    library_cache._replace_folder.cache_clear()
    yield place
    shutil.rmtree(place)


def library_of(steps: Path, text: str = STEP) -> Path:
    return steps / f"{compiler.name_library(text)}.so"


def answer(text: str = STEP) -> int:
    return compiler.load_library(text).run()


@pytest.mark.skipif(os.name == "nt" or os.geteuid() != 0, reason="needs to act as a second user")
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_library_of_another_user_in_a_shared_cache_never_runs(when, shared, capfd):
    """As in a cache under /tmp: whoever comes first makes the folder, or puts another in its
    place.
    """
    flag = shared / "attacked"
    hostile = shared / "hostile.so"
    hostile.write_bytes(compiler.compile_source(HOSTILE.replace("FLAG", str(flag)), compiler.FLAGS))
    hostile.chmod(0o644)
    if when == "after":
        assert answer() == 7
        assert not capfd.readouterr().err
    place = library_of(shared / "steps")
    attack = (
        "import hashlib, os, shutil, sys; hostile, place = sys.argv[1:]\n"
        "folder = os.path.dirname(place)\n"
        "if os.path.exists(folder): os.rename(folder, folder + '.old')\n"
        "os.mkdir(folder, 0o755); shutil.copy(hostile, place)\n"
        "digest = hashlib.sha256(open(hostile, 'rb').read()).hexdigest()\n"
        "for kind in ('.sum', '.checked'): open(place[:-3] + kind, 'w').write(digest)\n"
    )
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin:/bin") or sys.executable
    command = [python, "-c", attack, str(hostile), str(place)]
    done = subprocess.run(command, user=NOBODY, group=NOBODY, extra_groups=[], check=False)
    assert done.returncode == 0
    assert place.stat().st_uid == NOBODY
    assert answer() == 7
    assert answer() == 7
    assert not flag.exists()
    (line,) = capfd.readouterr().err.splitlines()
    assert f"not kept in {shared / 'steps'} (it belongs to user {NOBODY}, not to 0)" in line
    # the library does attack whoever loads it
    load = [sys.executable, "-c", f"import ctypes; ctypes.CDLL({str(place)!r})"]
    assert subprocess.run(load, check=False).returncode == 0
    assert flag.exists()


def test_a_new_folder_is_ours_alone_and_one_that_others_may_write_is_refused(steps, capfd):
    assert answer() == 7
    assert steps.stat().st_mode & 0o777 == 0o700
    made = library_of(steps).stat().st_mtime_ns
    steps.chmod(0o777)
    assert answer() == 7
    assert library_of(steps).stat().st_mtime_ns == made
    (line,) = capfd.readouterr().err.splitlines()
    assert "others may write it: chmod 700 mends that" in line


def test_a_link_in_place_of_the_folder_is_refused(steps, tmp_path, capfd):
    (tmp_path / "elsewhere").mkdir()
    steps.symlink_to(tmp_path / "elsewhere")
    assert answer() == 7
    assert "it is a link" in capfd.readouterr().err
    assert not list((tmp_path / "elsewhere").iterdir())


def cut(path):
    os.truncate(path, path.stat().st_size // 2)


def exchange(path):
    path.write_bytes(compiler.compile_source("int other(void) { return 8; }", compiler.FLAGS))


def exchange_with_digest(path):
    exchange(path)
    path.with_suffix(".sum").write_text(library_cache._digest(path.read_bytes()))


def make_pipe(path):
    path.unlink()
    os.mkfifo(path)


DAMAGES = {
    "cut": cut,
    "without run": exchange,
    "without run, with its digest": exchange_with_digest,
    "a pipe": make_pipe,
    "the digest is a pipe": lambda path: make_pipe(path.with_suffix(".sum")),
    "no digest": lambda path: path.with_suffix(".sum").unlink(),
    "a link": lambda path: (
        path.rename(path.with_suffix(".old")) and path.symlink_to(path.with_suffix(".old"))
    ),
    "others may write it": lambda path: path.chmod(0o666),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_library_is_compiled_anew(damage, steps):
    path = library_of(steps)
    assert answer() == 7
    DAMAGES[damage](path)
    for _ in range(2):
        compiler._open.cache_clear()
        assert answer() == 7
        assert library_cache.read_whole(steps, path.stem) == path.read_bytes()


def test_a_loaded_library_outlives_its_file(steps):
    loaded = compiler.load_library("int run(void) { return 11; }\n")
    (path,) = steps.glob("*.so")
    cut(path)
    assert loaded.run() == 11
    assert answer("int run(void) { return 11; }\n") == 11


def test_a_verdict_holds_for_the_library_that_it_was_made_of(steps):
    compiler.load_library(STEP)
    compiler.mark_checked(STEP, False)
    assert compiler.is_checked(STEP, False)
    exchange_with_digest(library_of(steps))
    assert not compiler.is_checked(STEP, False)


def test_the_library_that_was_not_used_for_the_longest_time_makes_room(steps, monkeypatch):
    texts = [f"int run(void) {{ return {k}; }}\n" for k in range(4)]
    for k, text in enumerate(texts[:3]):
        assert answer(text) == k
        os.utime(library_of(steps, text), (k, k))
    assert answer(texts[0]) == 0  # used again, so that the second is the oldest
    size = library_of(steps, texts[0]).stat().st_size
    monkeypatch.setattr(library_cache, "MAX_MB", 3.5 * size / 2**20)
    assert answer(texts[3]) == 3
    kept = [library_of(steps, text).exists() for text in texts]
    assert kept == [True, False, True, True]
    assert len(list(steps.glob("*.sum"))) == 3
    monkeypatch.setattr(library_cache, "MAX_MB", 0)
    assert answer(texts[1]) == 1
    assert [p.name for p in steps.glob("*.so")] == [library_of(steps, texts[1]).name]


def test_what_stopped_processes_left_is_removed_and_what_is_being_written_stays(steps):
    assert answer() == 7
    old, new = steps / "old.part", steps / "new.part"
    for path in (old, new):
        path.write_text("half")
    os.utime(old, (0, 0))
    answer("int run(void) { return 9; }\n")
    assert (old.exists(), new.exists()) == (False, True)


def test_a_compiler_that_never_answers_is_given_up(tmp_path, steps, monkeypatch):
    """And so are the processes that it started, which hold its output open."""
    script = tmp_path / "cc"
    script.write_text("#!/bin/sh\nsleep 1000\n")
    script.chmod(0o755)
    monkeypatch.setattr(compiler, "find_compiler", lambda: (str(script),))
    monkeypatch.setattr(compiler, "VERSION_TIMEOUT", 0.5)
    monkeypatch.setattr(compiler, "TIMEOUT", 0.5)
    compiler.ask_version.cache_clear()
    begin = time.monotonic()
    try:
        with pytest.raises(Untraceable, match=r"cc --version` says nothing; CC names another"):
            compiler.load_library(STEP)
        with pytest.raises(Untraceable, match="the C compiler failed"):
            compiler.compile_source(STEP, compiler.FLAGS)
        with pytest.raises(BadInput, match="--version` says nothing"):
            play("fedavg", settings=COMPILED)
    finally:
        compiler.ask_version.cache_clear()
    assert time.monotonic() - begin < 300


def test_a_run_in_a_refused_cache_gives_the_same(steps, capfd):
    once = personal(play("fedavg", settings=COMPILED))
    steps.chmod(0o777)
    assert_same(once, personal(play("fedavg", settings=COMPILED)), 0.0)
    assert len(capfd.readouterr().err.splitlines()) == 1
