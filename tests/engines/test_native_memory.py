"""Kernels on images stay within their memory, and give the same, whatever vectors there are."""

import platform
import subprocess
import threading

import pytest
import torch
from torch import nn
from torch.nn import functional

from coterie.engines.local.native import compiler, image_ops
from coterie.engines.local.native.codegen import write_step
from coterie.engines.local.native.graph import TracedStep
from helpers.steps import Rows, make, stepped, taken

pytestmark = pytest.mark.skipif(not compiler.find_compiler(), reason="no C compiler here")
VECTORS = [[]]
if platform.machine() == "x86_64":
    VECTORS += [["-mavx2", "-mfma"], ["-march=native"]]
g = torch.Generator().manual_seed(0)
SHAPES = [
    ((2, 3, 12, 12), (6, 3, 5, 5), {}),
    ((2, 1, 28, 28), (6, 1, 5, 5), {}),
    ((2, 3, 34, 34), (18, 3, 1, 1), {"stride": 2}),
    ((2, 3, 12, 12), (4, 3, 2, 2), {"stride": 3, "padding": 1}),
    ((2, 2, 9, 13), (70, 2, 3, 7), {"padding": (1, 2)}),
    ((2, 6, 7, 7), (9, 2, 3, 3), {"groups": 3, "padding": 1}),
    ((2, 2, 11, 11), (3, 2, 3, 3), {"dilation": 2, "padding": 2}),
]
BEHIND_POOLS = [
    ((2, 13, 19, 19), (30, 13, 3, 3), {"stride": 2}),
    ((2, 16, 8, 22), (16, 16, 5, 5), {"padding": 2}),
]
POOLS = [(nn.MaxPool2d(2), side) for side in (7, 10, 28, 36)]
POOLS += [(nn.MaxPool2d(3), 10), (nn.AvgPool2d(2), 7)]


def cases():
    """(step, leaves) of every layer."""
    for x, w, words in SHAPES:

        def convolved(x, w, b, words=words):
            return functional.conv2d(x, w, b, **words).relu().square().sum()

        yield stepped(convolved), [torch.randn(s, generator=g) for s in (x, w, w[:1])]
    for x, w, words in BEHIND_POOLS:

        def pooled(x, w, b, words=words):
            found = functional.conv2d(x, w, b, **words).relu()
            return functional.max_pool2d(found, 2).square().sum()

        yield stepped(pooled), [torch.randn(s, generator=g) for s in (x, w, w[:1])]
    for pool, side in POOLS:
        x = torch.randn(3, 5, side, side, generator=g)
        scale = torch.randn(pool(x).shape, generator=g)
        yield stepped(lambda x, s, pool=pool: (pool(x.relu()) * s).sum()), [x, scale]


@pytest.fixture
def called(monkeypatch):
    """The calls of kernels with the numbers of all that they are given, and of their room."""
    found = {}
    plain = image_ops.write_call

    def call(c, v, given, room, text):
        found[text] = [v.numel, *(0 if one is None else one.numel for one in given), room]
        plain(c, v, given, room, text)

    monkeypatch.setattr(image_ops, "write_call", call)
    return found


@pytest.mark.parametrize("vectors", VECTORS, ids=" ".join)
def test_kernels_stay_within_what_they_are_given(called, vectors, tmp_path):
    for step, leaves in cases():
        write_step(TracedStep(lambda *all_, step=step: list(step(*all_)), leaves), len(leaves))
    made, run = [], []
    for k, (text, sizes) in enumerate(called.items()):
        arguments = "float *out, const float *a, const float *b, const float *c, float *room"
        made.append(f"__attribute__((noinline)) void f{k}({arguments}) {{ {text} }}")
        given = ", ".join(f"some({n})" for n in sizes)
        run.append(f"f{k}({given});")
    some = "float *some(long n) { return calloc(n + !n, sizeof(float)); }"
    source = [
        "#define DOUBLE 0",
        compiler.read_kernels(),
        "#include <stdlib.h>",
        *made,
        some,
        "int main(void) {",
        *run,
    ]
    (tmp_path / "all.c").write_text("\n".join([*source, "return 0; }"]))
    flags = ["-O1", "-g", "-fsanitize=address", "-w", *vectors]
    words = [*compiler.find_compiler(), *flags, "all.c", "-o", "all", "-lm"]
    if subprocess.run(words, cwd=tmp_path, capture_output=True, check=False).returncode:
        pytest.skip("this compiler has no address sanitizer")
    done = subprocess.run(
        ["./all"],
        cwd=tmp_path,
        env={"ASAN_OPTIONS": "detect_leaks=0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.returncode, done.stderr[:2000]


@pytest.mark.parametrize("vectors", VECTORS, ids=" ".join)
def test_the_width_of_vectors_changes_rounding_alone(vectors, tmp_path, monkeypatch):
    monkeypatch.setenv("COTERIE_CACHE", str(tmp_path))
    others = [flag for flag in compiler.FLAGS if flag != "-march=native"]
    monkeypatch.setattr(compiler, "FLAGS", [*others, *vectors])
    for step, leaves in cases():
        for found, right in zip(taken(step, *leaves), step(*leaves), strict=True):
            torch.testing.assert_close(found, right, rtol=2e-4, atol=2e-4)


def test_the_room_of_all_threads_is_the_callers_memory(monkeypatch):
    def double(*leaves):
        return [2 * leaf for leaf in leaves]

    leaf, rows = torch.ones(4), Rows(3, 1)
    made, owners = make(double, rows, leaf), []

    def empty(*shape, usual=torch.empty, **words):
        owners.append(threading.get_ident())
        return usual(*shape, **words)

    monkeypatch.setattr(torch, "empty", empty)
    held = torch.ones(3, 4)
    made.run([held], rows, 1, 2)
    assert owners == [threading.get_ident()] * 2
    assert torch.equal(held, 2 * torch.ones(3, 4))
