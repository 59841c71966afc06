"""A virtual environment per peer, with the versions that peers/NAME.txt pins and our own torch."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
TORCH = ("flower", "pfl")  # peers that run on torch
USUAL = HERE.parent / ".bench" / "envs"


class NotInstalled(Exception):
    """A peer that cannot be installed here; the text says why."""


def place() -> Path:
    """The folder of the environments: COTERIE_BENCH_ENVS, or .bench/envs in the repository."""
    return Path(os.environ.get("COTERIE_BENCH_ENVS") or USUAL)


def python_of(peer: str) -> Path:
    """The interpreter of a peer's environment, which is made where there is none as pinned."""
    home, wanted = place() / peer, HERE / "peers" / f"{peer}.txt"
    python, mark = home / "bin" / "python", home / "ready"
    build = torch.__version__ if peer in TORCH else ""
    state = hashlib.sha256(f"{wanted.read_text()} {build} {sys.version}".encode()).hexdigest()
    if mark.exists() and mark.read_text() == state:
        return python
    print(f"{peer}: making its environment in {home}", flush=True)
    _run([sys.executable, "-m", "venv", "--clear", str(home)])
    pip = [str(python), "-m", "pip", "install", "--quiet"]
    held = [f"torch=={build}"] if build else []
    if held:  # the very build that runs here, before anything else can ask for another
        _run([*pip, *held])
    _run([*pip, *held, "-r", str(wanted)])
    mark.write_text(state)
    return python


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "ERROR" in line] or [done.stderr]
        raise NotInstalled(lines[-1].strip()[:300] or "pip failed")


def versions(peer: str) -> dict[str, str]:
    """{package: version} of what a peer's environment pins, torch included."""
    listed = subprocess.run(
        [str(place() / peer / "bin" / "python"), "-m", "pip", "list", "--format=freeze"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    held = dict(line.split("==", 1) for line in listed if "==" in line)
    pinned = (HERE / "peers" / f"{peer}.txt").read_text().splitlines()
    names = [line.split("==")[0].split("[")[0] for line in pinned if "==" in line]
    return {name: held[name] for name in [*names, "torch"] if name in held}
