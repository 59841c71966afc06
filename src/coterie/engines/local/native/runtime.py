"""All steps of a pass in machine code: client after client, several clients at once."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from coterie.core.method import Batch
from coterie.engines.local.batches import Batches
from coterie.engines.local.native.codegen import StepCode
from coterie.engines.local.threads import thread_pool, use_threads


class StepInputs(NamedTuple):
    """The steps of some clients, and the rows that they read."""

    each: Tensor  # steps per client
    places: Tensor  # [client, step, ...] places of rows among the client's, -1 where there is none
    first: Tensor  # per client, where its rows begin; one number where that is the same for all
    rows: Tensor  # rows of all clients; none where places are rows
    keys: Tensor  # per client, of its first step
    outside: int  # what stands for the place of no row
    x: Tensor
    y: Tensor
    pace: Tensor | None  # [client, step] of the learning rate; None: without a schedule
    moves: Tensor | None = None  # [client, step, ..., 3] of images, int32; None: as they are
    border: Tensor | None = None  # a black image, for moves


class NativeStep:
    """A step of one client as machine code, and what it computes in."""

    def __init__(self, code: StepCode, library: ctypes.CDLL, real: torch.dtype):
        self.code, self.real = code, real
        self._library = library
        self._run = library.run
        self._run.restype = None
        self._constants = [self.convert(constant).contiguous() for constant in code.constants]
        self._numbers = torch.tensor(code.numbers or [0.0], dtype=torch.float64)

    def convert(self, tensor: Tensor) -> Tensor:
        """A tensor in the type that the code computes in, where it holds real numbers."""
        return tensor.to(self.real) if tensor.is_floating_point() else tensor

    def run(
        self,
        leaves: list[Tensor],
        batches: Batches,
        count: int,
        threads: int,
        numbers: Tensor | None = None,
    ) -> None:
        """Take all steps, in the leaves [clients, ...].

        `numbers` stand for those of `code.numbers`, of all steps or [step, number]; None: as they
        were when the step was traced.
        """
        taken = StepInputs(
            each=torch.tensor([min(e, count) for e in batches.each]),
            places=batches.places.contiguous(),
            first=batches.first.reshape(-1),
            rows=batches.part.rows,
            keys=batches.keys,
            outside=batches.plan.draw or batches.part.largest,
            x=batches.x,
            y=batches.y,
            pace=None if batches.pace is None else batches.pace.double().contiguous(),
            moves=batches.moves,
            border=batches.border,
        )
        self._run_steps(leaves, taken, threads, numbers)

    def step(self, leaves: list[Tensor], batch: Batch) -> list[Tensor]:
        """What one step of one client leaves, in memory of its own."""
        held = [self.convert(leaf).clone().unsqueeze(0) for leaf in leaves]
        self._run_steps(held, _make_one(pytree.tree_map(self.convert, batch)), 1, None)
        return [leaf[0] for leaf in held]

    def _run_steps(
        self, leaves: list[Tensor], taken: StepInputs, threads: int, numbers: Tensor | None
    ) -> None:
        n = len(taken.each)
        next_ = ctypes.c_int64(0)
        pointers = _point_to([leaf.data_ptr() for leaf in leaves])
        apart = torch.tensor([leaf.stride(0) * leaf.element_size() for leaf in leaves] or [0])
        constants = _point_to([c.data_ptr() for c in self._constants])
        given = (self._numbers if numbers is None else numbers).double().contiguous()

        def work(room: ctypes.c_void_p) -> None:
            self._run(
                ctypes.c_int64(n),
                ctypes.byref(next_),
                pointers,
                _pointer(apart),
                _pointer(taken.each),
                ctypes.c_int64(taken.places.shape[1]),
                _pointer(taken.places),
                _pointer(taken.first),
                ctypes.c_int64(int(len(taken.first) > 1)),
                _pointer(taken.rows) if len(taken.rows) else None,
                _pointer(taken.keys),
                ctypes.c_int64(taken.outside),
                _pointer(taken.x),
                _pointer(taken.y),
                None if taken.pace is None else _pointer(taken.pace),
                None if taken.moves is None else _pointer(taken.moves),
                None if taken.border is None else _pointer(taken.border),
                constants,
                _pointer(given),
                ctypes.c_int64(given.shape[-1] if given.dim() > 1 else 0),
                room,
            )

        self._share(work, max(1, min(threads, n)))

    def judge(
        self,
        leaves: list[Tensor],
        counts: Tensor,
        rows: Tensor,
        x: Tensor,
        y: Tensor,
        form: tuple[int, int],  # rows of a batch, outputs of each
        outputs: Tensor | None = None,  # [rows, outputs] where they are to be kept
    ) -> list[Tensor]:
        """What the two leaves before the last become for each of `rows`, one client after another;
        all leaves but the last three are those of clients [clients, ...] with so many rows each.
        """
        size, width = form
        blocks = -(-counts // size)
        owner = torch.repeat_interleave(blocks)
        before = (torch.arange(len(owner)) - (blocks.cumsum(0) - blocks)[owner]) * size
        begin = (counts.cumsum(0) - counts)[owner] + before
        count = (counts[owner] - before).clamp(max=size)
        found = [torch.empty(len(rows), dtype=self.real) for _ in range(2)]
        next_ = ctypes.c_int64(0)
        pointers = _point_to([leaf.data_ptr() for leaf in leaves])
        apart = torch.tensor([leaf.stride(0) * leaf.element_size() for leaf in leaves])
        constants = _point_to([c.data_ptr() for c in self._constants])

        def work(room: ctypes.c_void_p) -> None:
            self._library.judge(
                ctypes.c_int64(len(owner)),
                ctypes.byref(next_),
                pointers,
                *map(_pointer, (apart, owner, begin, count, rows, x, y)),
                constants,
                *map(_pointer, (self._numbers, *found)),
                None if outputs is None else _pointer(outputs),
                ctypes.c_int64(width),
                ctypes.c_int64(self.code.others),
                room,
            )

        more = size * (2 + width) * self.real.itemsize
        self._share(work, max(1, min(torch.get_num_threads(), len(owner))), more)
        return found

    def _share(self, work: Callable[[ctypes.c_void_p], None], threads: int, more: int = 0) -> None:
        """Let so many threads work, each with room of its own: for a step, and more bytes.

        It is this thread's memory, which goes back to the system: that of others is kept for them.
        """
        size = self.code.reals * self.real.itemsize + self.code.others + more
        scratch = [torch.empty(size + 128, dtype=torch.uint8) for _ in range(threads)]

        def begin(k: int) -> None:
            work(ctypes.c_void_p(-(-scratch[k].data_ptr() // 64) * 64))

        if threads == 1:
            begin(0)
        else:
            with use_threads(1):
                list(thread_pool(threads).map(begin, range(threads)))


def _make_one(batch: Batch) -> StepInputs:
    """A batch as one step of one client."""
    real = batch.mask.reshape(-1) > 0
    place = batch.place.reshape(-1)
    rows = int(place[real].max()) + 1 if real.any() else 1

    def put(values: Tensor) -> Tensor:
        flat = values.reshape(len(place), *values.shape[batch.mask.dim() :])
        found = flat.new_zeros(rows, *flat.shape[1:])
        if not real.all():
            found[0] = flat[~real][0]  # no row is read as the first
        found[place[real]] = flat[real]
        return found

    several = batch.key.numel() if batch.key.dim() else 1
    return StepInputs(
        each=torch.tensor([1]),
        places=torch.where(real, place, -1).reshape(1, 1, -1),
        first=torch.tensor([0]),
        rows=torch.zeros(0, dtype=torch.int64),
        keys=batch.key.reshape(-1)[:1] // several,
        outside=0 if real.all() else int(place[~real][0]),
        x=put(batch.x),
        y=put(batch.y),
        pace=None if isinstance(batch.pace, tuple) else batch.pace.double().reshape(1, 1),
    )


def _pointer(tensor: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def _point_to(addresses: list[int]) -> Any:
    return (ctypes.c_void_p * max(1, len(addresses)))(*addresses)
