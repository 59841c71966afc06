"""A traced step computes what the step computes, and writes over nobody's tensors."""

import pytest
import torch

from coterie.core.method import Batch
from coterie.engines.local.tracing import Untraceable, trace
from coterie.engines.settings import ExecutionSettings
from coterie.methods.registry import METHODS
from helpers.federations import assert_same, float64, personal, play, tiny

TRACED = ExecutionSettings("vectorized", 16, "trace")


@pytest.mark.parametrize("path", ["vectorized", "sequential"])
@pytest.mark.parametrize("name", METHODS)
def test_every_method_gives_the_same_traced_and_as_written(name, path):
    """Nine clients of unequal steps: the first chunk goes through every width of a program."""
    with float64():
        federation = tiny(clients=9)
        found = play(name, federation, settings=TRACED._replace(path=path))
        assert_same(personal(play(name, federation)), personal(found))


@pytest.mark.parametrize("name", ["fedavg", "ditto", "scaffold"])
def test_a_traced_run_is_the_same_to_the_last_bit_when_it_is_played_again(name):
    once, again = (personal(play(name, tiny(clients=9), settings=TRACED)) for _ in range(2))
    assert_same(once, again, 0.0)


def test_what_a_server_sends_is_not_written_over():
    loop = play("ditto", until=0, settings=TRACED)
    sent = loop.payload()(0)
    before = {k: t.clone() for k, t in sent.params.items()}
    loop.go()
    assert all(torch.equal(t, before[k]) for k, t in sent.params.items())


def program_of(f, *carry):
    """The program of a function of these leaves, and what it leaves in copies of them."""
    leaves = [t.clone() for t in carry]
    program = trace(f, leaves, [])
    results = program.run(*leaves)
    for k, result in zip(program.returned, results, strict=True):
        leaves[k] = result
    return program, leaves


A, B = torch.arange(6.0).reshape(1, 2, 3), torch.arange(6.0).reshape(1, 2, 3) * 2 + 1


@pytest.mark.parametrize(
    "f",
    [
        lambda a, b: [a - 0.5 * b, b - 0.5 * a],  # each reads what the other takes
        lambda a, b: [b, a],  # they change places
        lambda a, b: [a + b, a],  # the old one stays in another place
        lambda a, b: [a + 1, a + 1],
        lambda a, b: [a.expand(1, 2, 3), b[:1]],
        lambda a, b: [a - a, b + torch.bmm(a.transpose(1, 2), a)[:, :2]],
        lambda a, b: [a, b - 0.1 * torch.bmm(torch.bmm(a, b.transpose(1, 2)), b)],
        lambda a, b: [a.clone().relu_() - b, (b * 2).add_(a)],  # it writes over what it made
        lambda a, b: [torch.zeros_like(a), torch.ones_like(b) + a],
    ],
)
def test_leaves_that_depend_on_each_other_take_their_old_values(f):
    program, found = program_of(f, A, B)
    assert_leaves(found, f(A, B))
    again = f(*f(A, B))
    for k, result in zip(program.returned, program.run(*found), strict=True):
        found[k] = result
    assert_leaves(found, again)


def assert_leaves(found, wanted):
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b)


def test_results_share_no_memory():
    _, (a, b) = program_of(lambda a, b: [b, b], A, B)
    assert a.data_ptr() != b.data_ptr()


def test_a_descent_is_one_product_added_in_place():
    """What makes a traced step fast: no tensor of the size of the model is made."""
    program = trace(
        lambda w, x: [w - 0.1 * torch.bmm(x.transpose(1, 2), x), x], [torch.ones(1, 3, 3), A], []
    )
    assert (program.written, program.returned) == ([0], [])


@pytest.mark.parametrize(
    "leaf",
    [torch.arange(24.0).reshape(3, 8)[:, :4].unflatten(1, (2, 2)), A.expand(3, 2, 3)],
    ids=["part of a wider tensor", "the same for every client"],
)
def test_word_vectors_are_traced_wherever_they_lie_in_memory(leaf):
    """Stacked word vectors are looked up in one table, which is a view where memory allows it."""
    words = torch.tensor([[0, 1], [1, 1], [0, 0]])

    def look(vectors, x):
        return [x + torch.vmap(torch.nn.functional.embedding)(words, vectors).sum(), vectors]

    program = trace(lambda x, vectors: look(vectors, x), [torch.zeros(1), leaf], [])
    x = torch.zeros(1)
    for k, result in zip(program.returned, program.run(x, leaf), strict=True):
        assert k == 0
        x = result
    assert x == look(leaf, torch.zeros(1))[0]


def test_a_step_that_branches_on_its_values_is_not_traced():
    with pytest.raises(Untraceable):
        trace(lambda a: [a + 1 if a.sum() > 0 else a], [A], [])


def branching(model, train):
    """FedAvg with a step that takes its direction from what it computes."""
    method = METHODS["fedavg"](model, train)
    (exchange,) = method.round
    (work,) = exchange.passes

    def step(carry, batch: Batch):
        new = work.step(carry, batch)
        return new if float(new.w.params["0.bias"].sum()) > 0 else work.step(new, batch)

    return method._replace(round=(exchange._replace(passes=(work._replace(step=step),)),))


def test_a_step_that_cannot_be_traced_runs_as_it_is_written():
    alone = ExecutionSettings("sequential", 1, "no")
    with float64():
        found = [play(branching, settings=alone._replace(compile=w)) for w in ("no", "trace")]
        assert_same(*map(personal, found), 0.0)
