"""Named random streams: a draw depends on what it is for, never on the order in which draws are
made.
"""

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
import torch

from coterie.core.device import CPU

Rng = np.random.Generator
STREAMS_AT_ONCE = 2**15  # streams that are seeded at once
FEW = 16  # streams that are seeded faster one by one
# numpy's SeedSequence and PCG64, which its policy keeps as they are
POOL, SHIFT = 4, np.uint32(16)
FIRST, FIRST_TIMES = 0x43B0D7E5, 0x931E8875
LAST, LAST_TIMES = 0x8B51F9DD, 0x58F38DED
LEFT, RIGHT = np.uint32(0xCA01F9DD), np.uint32(0x4973F715)
TIMES, BITS = 0x2360ED051FC65DA44385DF649FCCF645, 2**128 - 1


def derive_seed(seed: int, *what: object) -> int:
    """A 63-bit number that depends on nothing but its arguments."""
    text = _join_names(seed, *what)
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def _derive_seeds(seed: int, what: Sequence[object], items: Sequence[object]) -> np.ndarray:
    """`number(seed, *what, item)` of many items [n]; what they share is read once."""
    shared = blake2b(f"{_join_names(seed, *what)}\x1f".encode(), digest_size=8)
    found = bytearray()
    for item in items:
        one = shared.copy()
        one.update(str(item).encode())
        found += one.digest()
    return np.frombuffer(found, "<u8").astype(np.uint64) >> np.uint64(1)


def _join_names(seed: int, *what: object) -> str:
    return "\x1f".join([str(int(seed)), *(str(part) for part in what)])


def stream(seed: int, *what: object) -> Rng:
    """The generator for one purpose, as in `stream(seed, "batches", round, client)`."""
    return Rng(np.random.PCG64(derive_seed(seed, *what)))


def torch_stream(rng: Rng) -> torch.Generator:
    """A torch generator that goes on where a numpy one stands; the processor draws from it."""
    return torch.Generator(CPU).manual_seed(int(rng.integers(2**63)))


class LazyStream:
    """A stream that is seeded when something is first drawn from it: most clients' never are."""

    def __init__(self, seed: int, *what: object):
        self._seed, self._what = seed, what
        self._rng: Rng | None = None

    @property
    def drawn(self) -> bool:
        """Whether anything was drawn from it."""
        return self._rng is not None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # of no generator
            raise AttributeError(name)
        if self._rng is None:
            self._rng = stream(self._seed, *self._what)
        return getattr(self._rng, name)


def streams(seed: int, what: str | tuple[object, ...], items: Sequence[object]) -> Iterator[Rng]:
    """`stream(seed, what, item)` of many items, much faster: one generator, which is set to the
    start of the next stream whenever the next one is asked for.
    """
    names = what if isinstance(what, tuple) else (what,)
    if len(items) < FEW:
        yield from (stream(seed, *names, item) for item in items)
        return
    source = np.random.PCG64(0)
    rng, at = Rng(source), source.state
    for k in range(0, len(items), STREAMS_AT_ONCE):
        some = items[k : k + STREAMS_AT_ONCE]
        for high, low, top, rest in _expand_seeds(_derive_seeds(seed, names, some)).tolist():
            inc = ((top << 64 | rest) << 1 | 1) & BITS
            at["state"] = {"state": ((inc + (high << 64 | low)) * TIMES + inc) & BITS, "inc": inc}
            source.state = at
            yield rng


def _expand_seeds(numbers: np.ndarray) -> np.ndarray:
    """[n, 4] uint64: what SeedSequence makes of each number for a PCG64."""
    pool: list[np.ndarray] = []
    constant = FIRST
    words = [numbers.astype(np.uint32), (numbers >> np.uint64(32)).astype(np.uint32)]
    for word in [*words, *[np.zeros_like(words[0])] * (POOL - len(words))]:
        mixed, constant = _hash_word(word, constant, FIRST_TIMES)
        pool.append(mixed)
    for source in range(POOL):
        for into in range(POOL):
            if source != into:
                mixed, constant = _hash_word(pool[source], constant, FIRST_TIMES)
                both: np.ndarray = pool[into] * LEFT - mixed * RIGHT
                pool[into] = both ^ both >> SHIFT
    out, constant = [], LAST
    for k in range(2 * POOL):
        mixed, constant = _hash_word(pool[k % POOL], constant, LAST_TIMES)
        out.append(mixed.astype(np.uint64))
    pairs = [out[k] | out[k + 1] << np.uint64(32) for k in range(0, 2 * POOL, 2)]
    return np.stack(pairs, axis=1)


def _hash_word(word: np.ndarray, constant: int, times: int) -> tuple[np.ndarray, int]:
    """A word mixed with a constant, and the next constant."""
    after = constant * times & 0xFFFFFFFF
    mixed = (word ^ np.uint32(constant)) * np.uint32(after)
    return mixed ^ mixed >> SHIFT, after
