"""Named random streams: a draw depends on what it is for, never on the order in which draws are
made.
"""

from hashlib import blake2b

import numpy as np
import torch

from coterie.core.device import CPU

Rng = np.random.Generator


def number(seed: int, *what: object) -> int:
    """A 63-bit number that depends on nothing but its arguments."""
    text = "\x1f".join([str(int(seed)), *(str(part) for part in what)])
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def stream(seed: int, *what: object) -> Rng:
    """The generator for one purpose, as in `stream(seed, "batches", round, client)`."""
    return Rng(np.random.PCG64(number(seed, *what)))


def torch_stream(rng: Rng) -> torch.Generator:
    """A torch generator that goes on where a numpy one stands; the processor draws from it."""
    return torch.Generator(CPU).manual_seed(int(rng.integers(2**63)))
