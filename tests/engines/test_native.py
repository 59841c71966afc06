"""A step in machine code computes what the step computes, whatever the number of threads."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from coterie.core.errors import BadInput
from coterie.core.model import Model
from coterie.engines.local.native import codegen, compiler, scalar_ops
from coterie.engines.local.native.codegen import write_step
from coterie.engines.local.native.graph import TracedStep
from coterie.engines.local.tracing import Untraceable
from coterie.engines.settings import ExecutionSettings
from coterie.methods.registry import METHODS
from helpers.federations import TRAIN, assert_same, float64, personal, play, tiny
from helpers.steps import Rows, make, taken

aten = torch.ops.aten
COMPILED = ExecutionSettings("vectorized", 16, "yes")
needs_compiler = pytest.mark.skipif(not compiler.find_compiler(), reason="no C compiler here")
pytestmark = needs_compiler


def steppers(loop):
    return loop.engine._steppers.values()


@pytest.mark.parametrize("path", ["vectorized", "sequential"])
@pytest.mark.parametrize("name", METHODS)
def test_every_method_gives_the_same_compiled_and_as_written(name, path):
    with float64():
        federation = tiny(clients=9)
        found = play(name, federation, settings=COMPILED._replace(path=path))
        assert not any(one.why for one in steppers(found))  # all its steps are machine code
        assert_same(personal(play(name, federation)), personal(found))


@pytest.mark.parametrize("name", ["fedavg", "ditto", "pfedme", "pfml", "selffl"])
def test_the_number_of_threads_changes_no_bit(name):
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append(personal(play(name, tiny(clients=9), settings=COMPILED)))
    finally:
        torch.set_num_threads(before)
    assert_same(*found, 0.0)


@pytest.mark.parametrize("width", [1, 4, 16])
def test_the_width_of_a_chunk_changes_no_bit(width):
    once = personal(play("ditto", tiny(clients=9), settings=COMPILED))
    again = personal(play("ditto", tiny(clients=9), settings=COMPILED._replace(width=width)))
    assert_same(once, again, 0.0)


def test_what_a_server_sends_is_not_written_over():
    loop = play("ditto", until=0, settings=COMPILED)
    sent = loop.payload()(0)
    before = {k: t.clone() for k, t in sent.params.items()}
    loop.go()
    assert all(torch.equal(t, before[k]) for k, t in sent.params.items())


def wanted(f, *leaves, steps=1):
    for _ in range(steps):
        leaves = f(*leaves)
    return leaves


g = torch.Generator().manual_seed(0)
A, B = (torch.randn(7, 37, generator=g) for _ in range(2))
S = torch.randn(37, 37, generator=g)
PLACES = torch.tensor([2, 0, 2])


@pytest.mark.parametrize(
    "f",
    [
        lambda a, b: (a - 0.5 * b, b - 0.5 * a),  # each reads what the other takes
        lambda a, b: (b, a),  # they change places
        lambda a, b: (a + b, a),  # the old one stays in another place
        lambda a, b: (a + 1, a + 1),
        lambda a, b: (a @ S, b),  # columns side by side, not a multiple of a vector
        lambda a, b: (a @ S.T, b),
        lambda a, b: (a, b - 0.1 * (b @ b.T @ b + a)),  # a product within a sum, over what it reads
        lambda a, b: (a + (a.T @ b).mean(), b),
        lambda a, b: (a.T.reshape(7, 37), b),
        lambda a, b: (a.relu().softmax(-1), b.clamp(-0.5, 0.5).log_softmax(-1)),
        lambda a, b: (a - a.sum(0), b * b.sum(1, keepdim=True)),
        lambda a, b: (a / a.pow(2).mean().sqrt(), torch.where(a > b, a, b)),
        lambda a, b: (a + torch.logsumexp(b, -1, keepdim=True), b + b.argmax(-1)[:, None]),
        lambda a, b: (torch.cat([a[:3], b[3:]]), torch.stack([a, b]).amax(0)),
        lambda a, b: (
            a.index_copy(0, PLACES[:2], b[:2]),
            b.scatter_add(0, PLACES[:, None], a[:3, :1]),
        ),
        lambda a, b: (a + b[PLACES][0], a[:, 1:2].expand(7, 37) * torch.sigmoid(b)),
        lambda a, b: (a * 0 - a.abs().sqrt(), b.exp().tanh().neg()),
        lambda a, b: (a[:, :1] * b.abs().amax() + a, b.gather(-1, b.argmax(-1, True)) + b),
    ],
)
def test_an_operation_is_what_torch_makes_of_it(f):
    for found, right in zip(taken(f, A, B, steps=2), wanted(f, A, B, steps=2), strict=True):
        torch.testing.assert_close(found, right, rtol=2e-5, atol=1e-5)


def test_not_a_number_stays_one():
    a = torch.tensor([float("nan"), 1.0, -1.0])
    (found,) = taken(lambda a: (a.relu().clamp(0, 3).maximum(a),), a)
    assert torch.equal(found.isnan(), a.isnan())


def test_a_step_without_c_is_told_by_its_operation():
    with pytest.raises(Untraceable, match=r"no C for aten\.sort"):
        TracedStep(lambda a: [a.sort().values], [torch.rand(3)])
    with pytest.raises(Untraceable, match="changes the form of its carry"):
        write_step(TracedStep(lambda a: [a[:2]], [torch.rand(3)]), 1)
    with pytest.raises(Untraceable, match="draws numbers of its own"):
        TracedStep(lambda a: [torch.rand_like(a)], [torch.rand(3)])


class Convolved(nn.Module):
    def __init__(self):
        super().__init__()
        self.turn, self.head = nn.Conv1d(1, 2, 3), nn.LazyLinear(3)

    def forward(self, x):
        return self.head(self.turn(x.unsqueeze(1)).flatten(1))


def test_a_network_without_c_is_refused_where_machine_code_is_asked_for():
    federation = tiny()
    columns = federation.x.shape[1]

    def build():
        net = Convolved()
        net(torch.zeros(1, columns))
        return net

    model = Model(build, input_shape=(columns,))
    with pytest.raises(BadInput, match=r"cannot be compiled \(there is no C for a convolution"):
        play("fedavg", federation, [model], settings=COMPILED)


def test_compiled_code_is_found_again_and_made_anew_where_it_is_damaged(tmp_path, monkeypatch):
    monkeypatch.setenv("COTERIE_CACHE", str(tmp_path))
    once = personal(play("fedavg", settings=COMPILED))
    (made,) = (tmp_path / "steps").glob("*.so")
    before = made.stat().st_mtime_ns
    assert_same(once, personal(play("fedavg", settings=COMPILED)), 0.0)
    assert made.stat().st_mtime_ns == before
    damaged = tmp_path / "other" / "steps" / made.name
    damaged.parent.mkdir(parents=True)
    damaged.write_bytes(b"no machine code")
    monkeypatch.setenv("COTERIE_CACHE", str(tmp_path / "other"))
    assert_same(once, personal(play("fedavg", settings=COMPILED)), 0.0)
    assert damaged.stat().st_size > 1000


@pytest.fixture
def compiled(tmp_path, monkeypatch):
    """The flags of every compilation, in a cache that was empty before."""
    monkeypatch.setenv("COTERIE_CACHE", str(tmp_path))
    found, plain = [], compiler.compile_source

    def compile_source(source, flags):
        found.append(flags[0])
        return plain(source, flags)

    monkeypatch.setattr(compiler, "compile_source", compile_source)
    return found


def test_rows_are_asked_for_in_their_length(compiled, monkeypatch):
    written, plain, data = [], compiler.compile_source, tiny()

    def compile_source(text, flags):
        written.append(text)
        return plain(text, flags)

    monkeypatch.setattr(compiler, "compile_source", compile_source)
    play("fedavg", data, settings=COMPILED)
    assert f"#define X_BYTES ({data.x[0].numel()} * sizeof(real))" in written[0]


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_runs_that_differ_in_their_numbers_share_one_program(kind, compiled):
    flags, most = ({"-O3"}, 1e-9) if kind == torch.float64 else ({"-O3", "-O1"}, 1e-4)
    torch.set_default_dtype(kind)
    try:
        for rate, momentum, decay, lam in ((0.1, 0.9, 0.01, 0.5), (0.03, 0.4, 0.002, 1.7)):
            train = TRAIN._replace(lr=rate, momentum=momentum, weight_decay=decay)
            given = {"federation": tiny(), "train": train, "options": {"lam": lam}}
            found = personal(play("ditto", settings=COMPILED, **given))
            assert_same(personal(play("ditto", **given)), found, most)
            assert set(compiled) == (flags if rate == 0.1 else set())  # the second finds it all
            compiled.clear()
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("rate", [0.3, 1.0])
def test_a_run_with_a_schedule_is_compiled_once(rate, compiled):
    """Six rounds whose rates differ, and of which the first may be 1."""
    train = TRAIN._replace(lr=rate, lr_schedule="cosine:rounds=6:per=step")
    found = personal(play("fedavg", rounds=6, train=train, settings=COMPILED))
    assert compiled == ["-O3", "-O1"]
    assert_same(personal(play("fedavg", rounds=6, train=train)), found, 1e-4)


def test_factors_of_one_and_whole_numbers_belong_to_a_program():
    def numbers(f):
        return write_step(TracedStep(lambda a: [f(a)], [torch.rand(3)]), 1).numbers

    assert numbers(lambda a: a - 0.5 * a) == [0.5]
    assert numbers(lambda a: 0.25 * a + 0.25 * a.square()) == [0.25, 0.25]  # by place
    assert numbers(lambda a: torch.add(a, a, alpha=0.3).clamp(0.1, 0.8)) == [0.3, 0.1, 0.8]
    assert not numbers(lambda a: (1.0 * a * 2 - 0.0).pow(3) / 7)
    assert not numbers(lambda a: a.pow(0.3))  # the exponent chooses the C


def test_every_step_may_have_numbers_of_its_own():
    a, rows, rates = torch.rand(5, dtype=torch.float64), Rows(1, 3), [0.5, 0.25, 0.125]
    with float64():
        made = make(lambda a: (a - 0.7 * a,), rows, a)
        held = a.clone().unsqueeze(0)
        made.run([held], rows, 3, 1, torch.tensor(rates)[:, None])
    for rate in rates:
        a = a - rate * a
    torch.testing.assert_close(held[0], a, rtol=1e-15, atol=0)


def test_two_types_of_real_numbers_are_refused():
    with pytest.raises(Untraceable, match="more than one type of real numbers"):
        write_step(TracedStep(lambda a: [a + a.double().sum(0).float()], [torch.rand(3, 2)]), 1)


def refuse():
    with pytest.raises(BadInput, match="the machine code of this compiler computes something else"):
        play("ditto", settings=COMPILED, train=TRAIN._replace(momentum=0.5))


@pytest.mark.parametrize("op", [aten.mul.Tensor, aten.div.Tensor, aten.neg.default])
def test_an_operation_that_is_off_by_a_ten_thousandth_is_refused(op, compiled, monkeypatch):
    plain = scalar_ops.ARITHMETIC[op]
    monkeypatch.setitem(scalar_ops.ARITHMETIC, op, lambda *a: f"({plain(*a)} * (real)1.0001)")
    refuse()


@pytest.mark.parametrize("factor", ["(real)1.0001", "(DOUBLE ? 1 : (real)1.0001)"])
@pytest.mark.parametrize("text", ["T factor = FACTOR * a[r", "T vexp(real x) {x *= FACTOR;"])
def test_a_kernel_that_is_off_by_a_ten_thousandth_is_refused(text, factor, compiled, monkeypatch):
    right = text.replace("T ", "real ").replace("FACTOR * ", "").replace("x *= FACTOR;", "")
    wrong = text.replace("T ", "real ").replace("FACTOR", factor)
    kernels = compiler.read_kernels()
    assert right in kernels
    monkeypatch.setattr(compiler, "read_kernels", lambda: kernels.replace(right, wrong))
    refuse()


def test_code_that_is_wrong_in_short_batches_alone_is_refused(compiled, monkeypatch):
    plain = codegen._copy_fields

    def copy_fields(*given):
        return [line.replace("= place >= 0;", "= 1;") for line in plain(*given)]

    monkeypatch.setattr(codegen, "_copy_fields", copy_fields)
    refuse()


def test_a_verdict_is_kept_beside_its_library(compiled, tmp_path):
    play("fedavg", settings=COMPILED)
    assert compiled == ["-O3", "-O1"]
    (verdict,) = (tmp_path / "steps").glob("*.checked")
    assert verdict.with_suffix(".so").exists()
    play("fedavg", settings=COMPILED)
    assert compiled == ["-O3", "-O1"]
    verdict.unlink()
    play("fedavg", settings=COMPILED)
    assert compiled == ["-O3", "-O1", "-O1"]


def test_machine_code_that_computes_something_else_is_not_taken(tmp_path, monkeypatch):
    monkeypatch.setenv("COTERIE_CACHE", str(tmp_path))
    wrong = compiler.read_kernels().replace("sum[r][w] += factor", "sum[r][w] -= factor")
    monkeypatch.setattr(compiler, "read_kernels", lambda: wrong)
    with pytest.raises(BadInput, match="the machine code of this compiler computes something else"):
        play("fedavg", settings=COMPILED)
    monkeypatch.setattr("coterie.engines.local.autotune.MIN_STEPS_TO_COMPILE", 1)
    assert play("fedavg", settings=ExecutionSettings()).engine.settings[0].compile != "yes"


def test_without_a_compiler_machine_code_is_refused_and_auto_does_without(monkeypatch):
    monkeypatch.setattr(compiler, "find_compiler", lambda: ())
    with pytest.raises(BadInput, match="no C compiler here; gcc, clang or the package ziglang"):
        play("fedavg", settings=COMPILED)
    monkeypatch.setattr("coterie.engines.local.autotune.MIN_STEPS_TO_COMPILE", 1)
    loop, said = play("fedavg", settings=ExecutionSettings(), until=0), []
    loop.go(lambda loop, report: said.extend(report.said))
    assert loop.engine.settings[0].compile != "yes"
    (line,) = said  # once, however many rounds
    assert "runs without machine code, which is slower (" in line
    assert "no C compiler here" in line


def test_a_long_run_is_compiled_and_a_short_one_is_not(monkeypatch):
    assert play("fedavg", settings=ExecutionSettings()).engine.settings[0].compile != "yes"
    monkeypatch.setattr("coterie.engines.local.autotune.MIN_STEPS_TO_COMPILE", 1)
    assert play("fedavg", settings=ExecutionSettings()).engine.settings[0].compile == "yes"


def test_every_exchange_is_compiled_or_traced_by_its_own_steps_in_the_whole_run(monkeypatch):
    options = {"batches": 2.5}  # so that comparing gradients takes fewer steps than training
    loop = play("ucfl", until=0, settings=ExecutionSettings(), options=options)
    engine = loop.engine
    assert [*engine._list_worthy(0).values()] == [False, False]
    compared, trained = (
        engine.feed.count_all_steps(stage.method.round[0].passes[0].plan, np.arange(5)) * rounds
        for stage, rounds in zip(engine.programs[0], engine.lengths, strict=True)
    )
    assert compared < trained
    monkeypatch.setattr("coterie.engines.local.autotune.MIN_STEPS_TO_COMPILE", trained)
    loop = play("ucfl", settings=ExecutionSettings(), options=options)
    assert [*loop.engine._list_worthy(0).values()] == [False, True]
    assert loop.engine.settings[0].compile == "yes"
    made = {key[1]: one._native for key, one in loop.engine._steppers.items()}
    assert made["yes"]
    assert not made["trace"]
    again = play("ucfl", settings=loop.engine.settings[0], options=options, strict=False)
    assert_same(personal(again), personal(loop), 0.0)


@pytest.mark.parametrize("columns", [1, 2, 7, 16, 17, 60, 64, 65, 120, 128])
@pytest.mark.parametrize(("rows", "depth"), [(1, 9), (5, 100), (6, 20), (9, 33)])
def test_products_of_all_widths_are_those_of_torch(rows, depth, columns):
    def step(x, w, b, out):
        return x, w, b, torch.relu(F.linear(x, w, b)) + out

    with float64():
        x, w, b = torch.randn(rows, depth), torch.randn(columns, depth), torch.randn(columns)
        given = [x, w, b, torch.zeros(rows, columns)]
        for kind, most in ((torch.float64, 1e-10), (torch.float32, 1e-4)):
            leaves = [t.to(kind) for t in given]
            found, wanted = taken(step, *leaves)[3], step(*leaves)[3]
            torch.testing.assert_close(found, wanted, atol=most, rtol=0)
