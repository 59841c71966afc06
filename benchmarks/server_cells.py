"""One measurement of a method's server: its `init`, `send` and `receive` on made-up uploads.

A cell runs in a forked process of its own with a limit of memory and of time, so that what fails is
told as such. Seconds are those of the processor, which other work beside it does not lengthen.
Client code runs once, for the shape of an upload; the other uploads are that one with noise, in 16
groups.
"""

import json
import os
import resource
import signal
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from coterie.core.errors import BadInput
from coterie.core.method import Batch, Exchange, Facts, Pass, Replies, Stage, Train, stages_of
from coterie.core.model import Model
from coterie.core.rng import stream
from coterie.engines.local.states import to_tensors
from coterie.methods.registry import METHODS
from coterie.networks import registry

ROWS, PUBLIC, CLASSES, GROUPS = 10, 300, 10, 16
LONG = 5.0  # seconds of a first round after which there is no second
SENDS = 50  # clients whose payload is timed; the time of all follows
INPUTS = 60
HIDDEN = {578: 8, 9_950: 140}  # parameters of the network: its hidden units


class Cell(NamedTuple):
    """What is measured."""

    method: str
    clients: int
    active: int
    size: int = 578  # of the network
    options: tuple[tuple[str, Any], ...] = ()


class Found(NamedTuple):
    """What was measured of a round; bytes but where seconds are named."""

    state: str  # "measured", or why not
    once: float = 0.0  # seconds of the rounds that everyone takes part in once
    seconds: float = 0.0  # of a round: what `send` and `receive` take
    peak: int = 0  # memory beyond that of the process as it starts, uploads included
    kept: int = 0  # of the server's state
    down: int = 0  # in a round, to all active clients
    up: int = 0


def measure(cell: Cell, memory: int, limit: int) -> Found:
    """A cell in a process of its own."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        with os.fdopen(writer, "w") as out:
            out.write(json.dumps(_guarded(cell, memory, limit)))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as source:
        text = source.read()
    _, status = os.waitpid(child, 0)
    if status & 127 == signal.SIGXCPU:
        return Found(f"more than {limit} s")
    return Found(*json.loads(text)) if text else Found(f"ended by signal {status & 127}")


def _guarded(cell: Cell, memory: int, limit: int) -> Found:
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
    here = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (here + memory, here + memory))
    try:
        return run(cell)
    except BadInput as refusal:
        return Found(f"refused: {refusal}")
    except (MemoryError, RuntimeError) as problem:
        if isinstance(problem, RuntimeError) and "alloc" not in str(problem):
            return Found(f"failed: {problem}")
        return Found(f"more than {memory / 2**30:.0f} GB")


def run(cell: Cell) -> Found:
    """The server's side of the stages of a method: two rounds of training, one of what is before,
    of which the slower one is told."""
    torch.manual_seed(0)
    model = network(cell)
    builder = METHODS[cell.method]
    program = stages_of(builder(model, Train(batch_size=ROWS, lr=0.01), **dict(cell.options)))
    start = _status("VmRSS")
    facts = _facts(cell, model)
    server = program[0].method.init(stream(0, "init"), facts)
    once, peak, last = 0.0, 0, Found("measured")
    for number, stage in enumerate(program):
        if number and stage.enter:
            server = stage.enter(server, facts)
        for round in range(1 if stage.everyone else 2):
            if last.seconds > LONG:
                continue
            active = cell.clients if stage.everyone else cell.active
            server, found = _round(server, stage, facts, active, round)
            peak = max(peak, found.peak - start)
            if stage.everyone:
                once += found.seconds
            elif stage.name == "train" and found.seconds >= last.seconds:
                last = found
    return last._replace(once=once, peak=peak, kept=_bytes(server))


def network(cell: Cell) -> Model:
    """Two dense layers, with BatchNorm where the method is about it."""
    settings = {"hidden": HIDDEN[cell.size]} | ({"norm": True} if cell.method == "fedbn" else {})
    return Model(
        lambda: registry.build_network("dnn", (INPUTS,), CLASSES, **settings), input_shape=(INPUTS,)
    )


def _facts(cell: Cell, model: Model) -> Facts:
    n = cell.clients
    return Facts(
        clients=n,
        sizes=torch.full((n,), 50.0),
        rate=cell.active / n,
        groups=torch.arange(n) % GROUPS,
        models=(model,),
        architecture=torch.zeros(n, dtype=torch.int64),
        classes=CLASSES,
        public=PUBLIC,
    )


def _round(server: Any, stage: Stage, facts: Facts, active: int, round: int) -> tuple[Any, Found]:
    """The server after all exchanges of a round, and what they took."""
    rng = torch.Generator().manual_seed(round)
    ids = torch.randperm(facts.clients, generator=rng)[:active].sort().values
    seconds, peak, down, up, state = 0.0, 0, 0, 0, None
    for exchange in stage.method.round:
        begin = time.process_time()
        some = ids[:SENDS].tolist()
        sent = [exchange.send(server, i, stream(round, "send", i)) for i in some]
        seconds += (time.process_time() - begin) * active / len(some)
        if state is None:
            state = to_tensors(stage.method.join(to_tensors(sent[0]), stream(0, "join")))
        state, upload = _client(exchange, state, to_tensors(sent[0]), facts.models[0])
        down, up = down + active * _bytes(to_tensors(sent[0])), up + active * _bytes(upload)
        whole = _many(upload, ids, sent)
        batch = _batch(PUBLIC, facts.models[0])
        one = Replies(ids, whole, facts.sizes[ids], model=facts.models[0])
        replies = one._replace(groups=(one,), public=batch)
        del whole, one, sent
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        begin = time.process_time()
        server = exchange.receive(server, replies, stream(round, "receive"))
        seconds += time.process_time() - begin
        peak = max(peak, _status("VmHWM"))
    return server, Found("measured", seconds=seconds, peak=peak, down=down, up=up)


def _client(exchange: Exchange, state: Any, payload: Any, model: Model) -> tuple[Any, Any]:
    """One client's state after an exchange, and what it sends up."""
    if exchange.prepare:
        state = exchange.prepare(state, payload, torch.tensor(50.0))
    carry = exchange.start(state, payload)
    for work in exchange.passes:
        carry = work.step(carry, _rows(work, model))
    return exchange.finish(carry, state, payload)


def _rows(work: Pass, model: Model) -> Batch | None:
    if not work.plan:
        return None
    batch = _batch(ROWS, model)
    if work.plan.batches > 1:
        copies = pytree.tree_map(lambda a: torch.stack([a] * work.plan.batches), batch)
        return Batch(*copies)
    return batch


def _batch(rows: int, model: Model) -> Batch:
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(rows, *(model.input_shape or ()), generator=rng)
    y = torch.arange(rows) % CLASSES
    return Batch(x, y, torch.ones(rows), torch.arange(rows), torch.tensor(0))


def _many(upload: Any, ids: torch.Tensor, sent: list[Any]) -> Any:
    """An upload for each client: noise common to a group, and some of its own."""
    if hasattr(upload, "ids"):  # of models that were offered: a client names its own offer
        offers = torch.stack([offer.ids for offer in sent])
        rows = offers[torch.arange(len(ids)) % len(offers)].clone()
        rows[:, 0] = ids
        return upload._replace(
            **{k: _noisy(v, ids) for k, v in upload._asdict().items() if k != "ids"}, ids=rows
        )
    return _noisy(upload, ids)


def _noisy(tree: Any, ids: torch.Tensor) -> Any:
    rng = torch.Generator().manual_seed(0)

    def leaf(a: torch.Tensor) -> torch.Tensor:
        if not a.is_floating_point():
            return a.expand(len(ids), *a.shape).clone()
        size = 0.05 * a.abs().mean()
        drawn = [size * torch.randn(k, *a.shape, generator=rng) for k in (GROUPS, 256, 251)]
        made = a + 2 * drawn[0][ids % GROUPS]
        made += drawn[1][ids % 256]
        made += drawn[2][ids // 256 % 251]
        return made

    return pytree.tree_map(leaf, tree)


def _bytes(tree: Any) -> int:
    leaves = pytree.tree_leaves(tree)
    return sum(a.nbytes for a in leaves if isinstance(a, torch.Tensor))


def _status(option: str) -> int:
    """A line of the system's account of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(option))
