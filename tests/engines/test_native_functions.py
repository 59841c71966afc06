"""Laws of the functions that machine code computes itself."""

import ctypes
import math

import numpy as np
import pytest

from coterie.engines.local.native import compiler

FUNCTIONS = """
void exps(const real *x, real *y, long n) { for (long i = 0; i < n; i++) y[i] = vexp(x[i]); }
void logs(const real *x, real *y, long n) { for (long i = 0; i < n; i++) y[i] = vlog(x[i]); }
void sums(const real *x, real *y, long n) {
  for (long i = 0; i < n; i += LANES) y[i / LANES] = add_lanes(*(const vec *)(x + i));
}
long lanes(void) { return LANES; }
"""
ODD = [math.nan, math.inf, -math.inf, 0.0, -0.0, -1.0, 1.0]


@pytest.fixture(scope="module")
def functions(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COTERIE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield [compiler.load_library(FUNCTIONS, double, "exps") for double in (False, True)]


def called(functions, name, x):
    found = np.empty_like(x)
    address = [ctypes.c_void_p(a.ctypes.data) for a in (x, found)]
    getattr(functions[x.dtype == np.float64], name)(*address, ctypes.c_long(len(x)))
    return found


def places_off(found, wanted):
    """How many units in the last place two arrays differ by at most."""
    wanted = np.asarray(wanted, dtype=found.dtype)
    same = (found == wanted) | (np.isnan(found) & np.isnan(wanted))
    with np.errstate(invalid="ignore"):
        off = np.abs(found - wanted) / np.spacing(np.abs(wanted))
    return np.where(same, 0, off).max()


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_exp_is_right_to_the_last_places_over_its_whole_range(functions, kind):
    low, high = (-110, 92) if kind == np.float32 else (-750, 712)
    x = np.concatenate([np.linspace(low, high, 300_001), np.linspace(-1, 1, 100_001), ODD])
    x = x.astype(kind)
    with np.errstate(over="ignore", under="ignore"):
        wanted = np.exp(x.astype(np.longdouble)).astype(kind)
    assert places_off(called(functions, "exps", x), wanted) <= 2


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_log_is_right_to_the_last_places_over_its_whole_range(functions, kind):
    about = np.finfo(kind)
    powers = np.linspace(math.log2(float(about.smallest_subnormal)), about.maxexp - 0.01, 300_001)
    x = np.concatenate([np.exp2(powers.astype(np.longdouble)), np.linspace(0.5, 2, 100_001), ODD])
    x = x.astype(kind)
    with np.errstate(divide="ignore", invalid="ignore"):
        wanted = np.log(x.astype(np.longdouble)).astype(kind)
    assert places_off(called(functions, "logs", x), wanted) <= 2


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_a_vector_is_summed_by_halves_to_the_last_bit(functions, kind):
    lanes = functions[kind == np.float64].lanes()
    x = np.random.default_rng(0).standard_normal(1_000 * lanes).astype(kind)
    wanted = x.reshape(-1, lanes)
    while wanted.shape[1] > 1:
        wanted = wanted[:, : wanted.shape[1] // 2] + wanted[:, wanted.shape[1] // 2 :]
    assert np.array_equal(called(functions, "sums", x)[: len(wanted)], wanted[:, 0])
