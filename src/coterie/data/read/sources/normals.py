"""Normal numbers of numpy's RandomState, the very same ones in less than half the time."""

from concurrent.futures import Executor, Future

import numpy as np

PAIRS = 2**16  # points that are drawn at once, of which three in four give two numbers
FEW = 2**20  # numbers up to which they are drawn by numpy itself


class NormalStream:
    """What `rng.normal()` would give, number after number, about `count` of them in all.

    That is Marsaglia's polar method: points of the square outside of the circle are passed over.
    Here numpy draws the points, in a thread that is always one block ahead, and finds the numbers
    of a whole block at once.
    """

    def __init__(self, rng: np.random.RandomState, pool: Executor, count: int):
        self._rng, self._pool = rng, pool
        self._ready = np.zeros(0)
        self._next: Future[np.ndarray] | None = None
        if count > FEW and _is_same(rng):
            left = rng.get_state(legacy=False)
            if left["has_gauss"]:  # the second of a pair
                self._ready = np.array([left["gauss"]])
            self._next = pool.submit(rng.random_sample, 2 * PAIRS)

    def take(self, n: int) -> np.ndarray:
        """The next n numbers."""
        if self._next is None:
            return self._rng.normal(size=n)
        found, filled = np.empty(n), 0
        while filled < n:
            if not len(self._ready):
                points = self._next.result()
                self._next = self._pool.submit(self._rng.random_sample, 2 * PAIRS)
                self._ready = _make_normal(points)
            some = self._ready[: n - filled]
            found[filled : filled + len(some)] = some
            filled, self._ready = filled + len(some), self._ready[len(some) :]
        return found


def _is_same(rng: np.random.RandomState) -> bool:
    """Whether this machine computes both ways the same, to the last bit."""
    state = rng.get_state(legacy=False)
    begin = state | {"has_gauss": 0, "gauss": 0.0}
    rng.set_state(begin)
    mine = _make_normal(rng.random_sample(2 * PAIRS))
    rng.set_state(begin)
    theirs = rng.normal(size=len(mine))
    rng.set_state(state)
    return np.array_equal(mine, theirs)


def _make_normal(points: np.ndarray) -> np.ndarray:
    """The normal numbers of points in the unit square, given as their coordinates in turns."""
    from scipy.special import xlogy

    points = 2.0 * points - 1.0
    x, y = points[0::2], points[1::2]
    squares = x * x + y * y
    inside = np.flatnonzero((squares < 1.0) & (squares != 0.0))
    squares = squares[inside]
    # the logarithm of the C library, as in RandomState; numpy's own may round otherwise
    factors = np.sqrt(xlogy(-2.0, squares) / squares)
    found = np.empty(2 * len(inside))
    np.multiply(factors, y[inside], out=found[0::2])
    np.multiply(factors, x[inside], out=found[1::2])
    return found
