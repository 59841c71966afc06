"""Several clients at once: each in a thread of its own, which computes with one core."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import TypeVar

import torch

from coterie.core.device import use_device

T = TypeVar("T")


@cache
def thread_pool(threads: int) -> ThreadPoolExecutor:
    """Threads that compute with one core each."""
    return ThreadPoolExecutor(
        threads,
        thread_name_prefix="clients",
        initializer=torch.set_num_threads,
        initargs=(1,),
    )


@contextmanager
def use_threads(number: int) -> Iterator[None]:
    """So many threads for every operation, and then as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def map_clients(f: Callable[[int], T], count: int, safe: Callable[[], bool]) -> list[T]:
    """f(0), ..., f(count - 1): one after another until it is safe to call several at once.

    The results do not depend on how many are.
    """
    found: list[T] = []
    while len(found) < count and (torch.get_num_threads() == 1 or not safe()):
        found.append(f(len(found)))
    rest = range(len(found), count)
    if not rest:
        return found
    workers, device = thread_pool(torch.get_num_threads()), torch.get_default_device()

    def quiet(k: int) -> T:
        with torch.no_grad(), use_device(device):  # a thread begins without what holds in others
            return f(k)

    with use_threads(1):
        return found + list(workers.map(quiet, rest))
