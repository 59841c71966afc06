"""All that runs on a device, played on the processor and on the second device.

`python -m helpers.elsewhere LIBRARY FILE` writes {case: problem} as JSON: what was raised on the
second device, or how its results differ from those of the processor; "" where they are the same
bits.
"""

import json
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from coterie.core.checkpoint import list_checkpoints
from coterie.core.device import CPU, device_of, use_device
from coterie.core.method import Method, Train
from coterie.core.model import Model
from coterie.data.federation import Federation
from coterie.engines.local import autotune
from coterie.engines.settings import ExecutionSettings
from coterie.experiment.config import change_options
from coterie.methods.fedavg import fedavg
from coterie.methods.registry import METHODS
from coterie.results.run import load_run as load_run
from coterie.running.execute import execute, restore_checkpoint, resume, write_checkpoint
from coterie.running.loop import Loop
from helpers.federations import SEQUENTIAL, STACKED, personal, play, tiny
from helpers.runs import Stopped, experiment, results, stop_at
from helpers.second_device import NAME, load

TRACED, COMPILED = (
    ExecutionSettings("vectorized", 16, "trace"),
    ExecutionSettings("vectorized", 16, "yes"),
)
# Words of whole runs, from the data to the files: what they make must not depend on the device.
RUNS: dict[str, dict[str, Any]] = {
    "newcomers, whose mixtures the server keeps": {"method": "ucfl", "newcomers": 1},
    "newcomers of one's own": {"method": "fedavg", "newcomers": 1},
    "class weights": {"method": "ditto", "class_weights": "balanced"},
    "a convolution": {"method": "fedavg", "model": "smallcnn", "rounds": 2},
    "norms": {"method": "fedbn", "model": "dnn", "norm": "yes"},
    "a frozen layer": {"method": "ditto", "freeze": "dense1"},
    "several networks": {
        "method": "ktpfl",
        "draw": 20,
        "model": "dnn,mlr",
        "public": "held-out",
        "public_rows": 60,
    },
    "noise that attacks a median": {"attack": "noise", "attackers": 0.3, "robust": "median"},
    "attackers that are screened": {"attack": "scale", "attackers": 0.3, "robust": "krum"},
    "bounded changes": {"attack": "sign-flip", "attackers": 0.3, "robust": "norm"},
    "private clients": {"dp": "client", "weighting": "equal", "dp_noise": 1.0, "dp_clip": 1.0},
    "private rows": {"dp": "example", "dp_noise": 1.0, "dp_clip": 1.0},
}
TASKS: dict[str, dict[str, Any]] = {  # of a table
    "a regression": {"task": "regression", "label": "b"},
    "counts": {"task": "counts"},
    "ordered classes": {"task": "ordinal", "class_weights": "balanced"},
    "several labels": {"task": "multilabel", "label": "other,more", "class_weights": "balanced"},
}


def short(federation: Federation) -> Federation:
    """The same without its last client."""
    parts = {p: getattr(federation, p)[:-1] for p in ("train", "validation", "test", "names")}
    return federation._replace(**parts, groups=federation.groups[:-1])


def whole(name: str, device: torch.device, settings: ExecutionSettings = STACKED) -> dict[int, Any]:
    """Every client's model after a run with evaluations, and a newcomer's."""
    federation = tiny(6)
    with use_device(device):
        loop = play(name, short(federation), settings=settings, eval_every=1)
        loop.evaluate(final=True)
        loop.admit(federation)
        return models(loop)


def models(loop: Loop) -> dict[int, Any]:
    return {i: w.cpu() for i, w in personal(loop).items()}


def moved(name: str, first: torch.device, then: torch.device) -> dict[int, Any]:
    """Every client's model after a run that went on elsewhere from a checkpoint."""
    federation = tiny()
    with tempfile.TemporaryDirectory() as folder:
        with use_device(first):
            write_checkpoint(play(name, federation, until=1), Path(folder))
        with use_device(then):
            loop = play(name, federation, until=0)
            restore_checkpoint(loop, list_checkpoints(Path(folder))[-1])
            loop.go()
            return models(loop)


def compared(one: dict[int, Any], other: dict[int, Any], allowed: float = 0.0) -> str:
    """How far two sets of models are apart; "" where they are the same."""
    apart = max(float((one[i] - other[i]).abs().max()) for i in one)
    return "" if one.keys() == other.keys() and apart <= allowed else f"{apart} apart"


def run(settings: dict[str, Any]) -> str:
    """How a whole run on the second device differs from one on the processor: in the bytes of its
    models, or in its metrics by more than the last digits.
    """
    with tempfile.TemporaryDirectory() as folder:
        found = []
        for option in (CPU.type, NAME):
            path = Path(folder) / option
            execute(
                change_options(experiment(), settings | {"device": option}),
                path,
                lambda report: None,
            )
            found.append((results(path)[0], measured(path)))
        (files, metrics), (other_files, other_metrics) = found
        same = files == other_files and metrics.keys() == other_metrics.keys()
        pairs = [[values[key] for key in metrics] for values in (metrics, other_metrics)]
        return "" if same and np.allclose(*pairs, 1e-6, 1e-9, equal_nan=True) else "they differ"


def measured(folder: Path) -> dict[tuple[Any, ...], float]:
    """All metrics of a run but the seconds."""
    rows = [tuple(row.values()) for row in load_run(folder).table.to_pylist()]
    return {row[:-1]: row[-1] for row in rows if "seconds" not in row}


def compiled(option: str) -> str:
    """How the steps of a long run are chosen to run on the second device."""
    before, autotune.MIN_STEPS_TO_COMPILE = autotune.MIN_STEPS_TO_COMPILE, 0
    try:
        with tempfile.TemporaryDirectory() as folder:
            settings = experiment(compile=option, width=0, device=NAME)
            run = execute(settings, Path(folder) / "run", lambda report: None)
            return str(run.experiment.engine["chosen"])
    finally:
        autotune.MIN_STEPS_TO_COMPILE = before


def side_by_side(second: torch.device) -> str:
    """The same with several clients at once, each in a thread."""
    torch.set_num_threads(2)
    try:
        settings = ExecutionSettings("sequential", 16, "trace")
        return compared(whole("fedavg", CPU, settings), whole("fedavg", second, settings))
    finally:
        torch.set_num_threads(1)


def table(path: Path) -> str:
    """A small table of clients with numbers and labels."""
    rng = np.random.default_rng(0)
    lines = ["client,a,b,label,other,more"]
    for r in range(60):
        a, b = rng.normal(size=2)
        lines.append(f"site{r % 3},{a:.3f},{b:.3f},{r % 3},{int(b > a)},{int(a > 0)}")
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def stopped() -> str:
    """A run that stopped on the second device and is resumed on the processor."""
    with tempfile.TemporaryDirectory() as folder:
        there, here = Path(folder) / "there", Path(folder) / "here"
        execute(experiment(method="ditto"), here, lambda report: None)
        with suppress(Stopped):
            execute(experiment(method="ditto", device=NAME), there, stop_at(2))
        config = there / "config.toml"
        config.write_text(config.read_text().replace(f'device = "{NAME}', 'device = "cpu'))
        resume(there, lambda report: None)
        return "" if results(here) == results(there) else "the results differ"


def spoilt(spoil: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Model, Train], Method]:
    """FedAvg whose server does something to the sizes that it is told."""

    def build(model: Model, train: Train) -> Method:
        base = fedavg(model, train)
        trip = base.round[0]

        def receive(server: Any, replies: Any, rng: Any) -> Any:
            return trip.receive(server, replies._replace(sizes=spoil(replies.sizes)), rng)

        return base._replace(round=(trip._replace(receive=receive),))

    return build


# What must not pass unseen.
STRAYS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a tensor of the processor": lambda n: n + torch.zeros(len(n), device=CPU),
    "an array": lambda n: n * torch.from_numpy(np.ones(len(n), dtype=np.float32)),
    "a sight of its values": lambda n: torch.as_tensor(n.numpy()),
    "a draw": lambda n: n * torch.rand(len(n)),
    "double precision": lambda n: n.double().float(),
    "an index of the processor": lambda n: n[torch.arange(len(n), device=CPU)],
}


def cases(second: torch.device, folder: Path) -> dict[str, Callable[[], str]]:
    """Everything that is played, by its name."""
    data = table(folder / "table.csv")
    own = {"dataset": data, "rows": None, "num_clients": None, "partition": "user"}

    def carried(name: str) -> str:
        wanted = moved(name, CPU, CPU)
        back, forth = moved(name, second, CPU), moved(name, CPU, second)
        return compared(wanted, back) or compared(wanted, forth)

    def played(name: str, settings: ExecutionSettings = STACKED) -> str:
        return compared(whole(name, CPU, settings), whole(name, second, settings))

    def strayed(stray: str) -> str:
        federation = tiny()
        with use_device(second):
            play(spoilt(STRAYS[stray]), federation)
        return ""

    some = ("fedavg", "fedbn", "fml", "selffl", "persfl")
    return {
        **{f"play {n}": lambda n=n: played(n) for n in METHODS},
        **{f"carry {n}": lambda n=n: carried(n) for n in METHODS},
        **{f"sequential {n}": lambda n=n: played(n, SEQUENTIAL) for n in some},
        **{f"traced {n}": lambda n=n: played(n, TRACED) for n in some},
        **{f"run {n}": lambda w=w: run(w) for n, w in RUNS.items()},
        **{f"run {n}": lambda w=w: run(own | w) for n, w in TASKS.items()},
        **{f"stray {s}": lambda s=s: strayed(s) for s in STRAYS},
        **{
            f"compile {option}": lambda option=option: compiled(option)
            for option in ("auto", "yes")
        },
        "machine code": lambda: compared(
            whole("fedavg", CPU, COMPILED), whole("fedavg", second, COMPILED), 1e-5
        ),
        "threads": lambda: side_by_side(second),
        "resume": stopped,
        "auto": lambda: "" if device_of("auto").type == NAME else str(device_of("auto")),
    }


def problem(case: Callable[[], str]) -> str:
    try:
        return case()
    except Exception as raised:
        return f"{type(raised).__name__}: {str(raised).splitlines()[0]}"


if __name__ == "__main__":
    torch.set_num_threads(1)
    device = load(Path(sys.argv[1]))
    with tempfile.TemporaryDirectory() as place:
        found = {name: problem(case) for name, case in cases(device, Path(place)).items()}
    Path(sys.argv[2]).write_text(json.dumps(found, indent=1))
