"""Run the commands of a page and paste what they print below them, at 80 columns.

    python scripts/paste_output.py docs/tutorial.md

A block that begins with ```console holds lines `$ command`; what stands below a command is
replaced by its real output. All commands of a page run in one new folder, with this checkout's
examples/ in it; `coterie compare` and `coterie run` run without their moving line of progress.
"""

from __future__ import annotations

import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from fcntl import ioctl
from pathlib import Path
from termios import TIOCSWINSZ

ROOT = Path(__file__).parents[1]
WIDTH, LINES = 80, 200
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.M | re.S)


def output(command: str, folder: Path) -> str:
    """What a command prints on a terminal of 80 columns, without colours; it must succeed."""
    if re.match(r"coterie (compare|run)\b", command):
        command += " --quiet"
    leader, follower = pty.openpty()
    ioctl(follower, TIOCSWINSZ, struct.pack("HHHH", LINES, WIDTH, 0, 0))
    paths = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": paths, "NO_COLOR": "1", "TERM": "dumb"}
    with subprocess.Popen(
        ["bash", "-c", command], cwd=folder, stdout=follower, stderr=follower, env=environment
    ) as process:
        os.close(follower)
        printed = b""
        while chunk := _read(leader):
            printed += chunk
    os.close(leader)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", printed.decode()).replace("\r\n", "\n")
    if process.returncode:
        raise SystemExit(f"`{command}` failed:\n{text}")
    return "\n".join(line.rstrip() for line in text.splitlines()).strip("\n")


def _read(leader: int) -> bytes:
    """The next bytes; none at the end, which Linux tells by an error."""
    try:
        return os.read(leader, 65536)
    except OSError:
        return b""


def wrapped(text: str) -> str:
    """Lines as a terminal breaks them, but between words."""
    return "\n".join(
        re.sub(rf"(.{{1,{WIDTH}}})(?: +|$)", r"\1\n", line).rstrip("\n")
        if len(line) > WIDTH and " " in line
        else line
        for line in text.splitlines()
    )


def pasted(block: str, folder: Path) -> str:
    """A block with the outputs of its commands."""
    kept = []
    for line in block.splitlines():
        if line.startswith("$ "):
            print(line, flush=True)
            printed = wrapped(output(line.removeprefix("$ "), folder))
            kept += [line, *([printed] if printed else [])]
    return "```console\n" + "\n".join(kept) + "\n```"


def page(text: str, folder: Path) -> str:
    """The page with all its blocks run, in their order."""
    return BLOCK.sub(lambda found: pasted(found[1], folder), text)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as place:
            shutil.copytree(ROOT / "examples", Path(place) / "examples")
            path = Path(name)
            path.write_text(page(path.read_text(encoding="utf-8"), Path(place)), encoding="utf-8")
