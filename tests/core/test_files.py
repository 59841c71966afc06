"""Whatever hinders a write is one line with the folder, whichever library wrote."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from coterie.core.errors import CannotWrite
from coterie.core.files import append_line, catch_write_errors, save_tensors, write_text
from coterie.core.tree import save_tree


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (errno.ENOSPC, "No space left on device\\): make room"),
        (errno.EROFS, "Read-only file system\\): make it writable"),
        (errno.EACCES, "Permission denied\\): make it writable"),
        (errno.ENOENT, "No such file or directory\\): bring back"),
        (errno.EIO, "Input/output error\\): bring back"),
    ],
)
def test_every_hindrance_names_the_folder_and_the_way_on(number, says, tmp_path):
    match = f"^{tmp_path} cannot be written \\({says}"
    with pytest.raises(CannotWrite, match=match) as refused, catch_write_errors(tmp_path):
        raise OSError(number, os.strerror(number))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "job",
    [
        lambda folder: write_text(folder / "a.json", "{}"),
        lambda folder: append_line(folder / "a.jsonl", "{}"),
        lambda folder: save_tensors({"w": torch.ones(2)}, folder / "w.safetensors"),
        lambda folder: save_tree([torch.ones(2)], folder, "state"),
    ],
)
def test_a_folder_that_is_gone_is_said_by_every_writer(job, tmp_path):
    with pytest.raises(CannotWrite, match="gone cannot be written"):
        job(tmp_path / "gone")


@pytest.fixture
def small_disk(tmp_path):
    """A file system of one megabyte, where this machine lets us have one."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("only root may mount")
    done = subprocess.run(mount, capture_output=True, check=False)
    if done.returncode:
        pytest.skip("mounting is not allowed here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_full_disk_is_one_line_from_every_writer(small_disk: Path):
    large = torch.rand(2**19)
    for job in (
        lambda: save_tensors({"w": large}, small_disk / "w.safetensors"),
        lambda: save_tree([large], small_disk, "state"),
        lambda: write_text(small_disk / "a.json", "x" * 2**21),
    ):
        with pytest.raises(CannotWrite, match=r"No space left on device.*make room"):
            job()
        for left in small_disk.iterdir():
            left.unlink()
