"""A deployment on one machine: its server and sites as processes, to try a set-up before it leaves
the house.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import numpy as np
from sklearn.datasets import load_digits

from coterie.core.errors import BadInput
from coterie.data.federation import Federation
from coterie.deploy.config_files import read_server, read_site, resolve_path
from coterie.deploy.current_model import MODEL
from coterie.deploy.processes import Child, find_program
from coterie.deploy.replay import gather_sites, largest_difference, replay
from coterie.deploy.site_rows import attach_public, read_public
from coterie.results.folder import read_about

Hear = Callable[[str, str], None]  # who, what


class Rehearsal:
    """The processes of a folder that `coterie federation init` made; `files` holds NAME.csv of
    every site.
    """

    def __init__(
        self,
        folder: Path,
        files: Path,
        hear: Hear = lambda who, line: None,
        patience: float = 1.0,  # how many times longer than usual to wait, on a busy machine
    ) -> None:
        self.folder, self.files, self.hear, self.patience = folder, files, hear, patience
        self.running: dict[str, Child] = {}
        self.lines: dict[str, list[str]] = {}  # what each has said since it was started

    def __enter__(self) -> Rehearsal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop(*self.running)

    def server(self, *options: str) -> Child:
        """Start the server."""
        return self._start("server", "server", str(self.folder / "server"), *options)

    def site(self, name: str, *options: str, command: Sequence[str] = ()) -> Child:
        """Start a site; by another command than `coterie`, where one is given."""
        place, rows = self.folder / "sites" / name, self.files / f"{name}.csv"
        return self._start(
            name, "site", str(place), "--data", str(rows), "--accept", *options, command=command
        )

    def _start(self, who: str, *arguments: str, command: Sequence[str] = ()) -> Child:
        said = self.lines[who] = list[str]()

        def hear(line: str) -> None:
            said.append(line)
            self.hear(who, line)

        whole = [*(command or [find_program("coterie")]), *arguments]
        self.running[who] = Child(whole, self.folder / f"{who}.log", hear)
        return self.running[who]

    def stop(self, *who: str) -> None:
        """Ask processes to end, all at once, and wait for it."""
        children = [self.running.pop(name) for name in who]
        for child in children:
            child.ask_to_stop()
        for child in children:
            child.stop(30)

    def kill(self, who: str) -> None:
        """SIGKILL a process and all under it, as when its machine goes dark."""
        child = self.running.pop(who)
        for pid in [child.pid, *list_descendants(child.pid)]:
            with suppress(ProcessLookupError):
                os.kill(pid, getattr(signal, "SIGKILL", signal.SIGTERM))
        child.wait()

    def until(self, who: str, text: str, seconds: float = 180.0, after: int = 0) -> str:
        """The first line of a process, from its line number `after` on, that has these words; waits
        for it.
        """
        end = time.monotonic() + seconds * self.patience
        while True:
            for line in self.lines.get(who, [])[after:]:
                if text in line:
                    return line
            if time.monotonic() > end:
                raise BadInput(
                    f"{who} did not say '{text}' in {seconds:g} s: see {self.folder / f'{who}.log'}"
                )
            time.sleep(0.05)

    def models(self, sites: int | None = None) -> dict[int, Path]:
        """The model file of every site, or of so many, by its number."""
        names = read_server(self.folder / "server").names[:sites]
        return {i: self.folder / "sites" / name / MODEL for i, name in enumerate(names)}

    def simulate(self, sites: int | None = None) -> Federation:
        """The same rows, of all sites or the first so many, as a federation on this machine."""
        server = read_server(self.folder / "server")
        server = server._replace(sites=server.sites._replace(names=server.names[:sites]))
        data = server.data
        home = read_site(self.folder / "sites" / server.names[0]).site
        federation = gather_sites(self.files, server, home.label, home.features)
        place = resolve_path(self.folder / "server", data.public)
        public = read_public(place, server.sites.label, data) if data.public else None
        return attach_public(federation, public)

    def difference(self, run: Path) -> float:
        """The run played again by the local engine: the largest difference of any parameter of any
        site's model.
        """
        sites = len(read_about(run)["clients"])  # who was added since has no part in it
        return largest_difference(replay(run, self.simulate(sites)), self.models(sites))


def list_descendants(pid: int) -> list[int]:
    """All processes below one, as Linux lists them."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text()
        except OSError:  # it has just ended
            continue
        parents.setdefault(int(text.rpartition(")")[2].split()[1]), []).append(
            int(path.parent.name)
        )
    found, left = list[int](), [pid]
    while left:
        below = parents.get(left.pop(), [])
        found += below
        left += below
    return found


def write_digits(
    folder: Path,
    names: Sequence[str],
    rows: int = 240,
    public: Path | None = None,
    public_rows: int = 150,
) -> None:
    """scikit-learn's handwritten digits as a file a site, each with mostly a few classes of its
    own, and public rows.
    """
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    shown, left = order[:public_rows], order[public_rows:]
    folder.mkdir(parents=True, exist_ok=True)
    for i, name in enumerate(names):
        near = (y[left] * len(names) // 10 - i) % len(names) == 0
        ours = np.concatenate(
            [left[near][: 3 * rows // 4], left[~near][i :: len(names)][: rows - 3 * rows // 4]]
        )
        _write_csv(folder / f"{name}.csv", x[ours] / 16, y[ours])
    if public:
        _write_csv(public, x[shown] / 16, y[shown])


def _write_csv(path: Path, x: np.ndarray, y: np.ndarray) -> None:
    head = ",".join(["label", *(f"pixel{k}" for k in range(x.shape[1]))])
    np.savetxt(path, np.column_stack([y, x]), fmt="%.6g", delimiter=",", header=head, comments="")
