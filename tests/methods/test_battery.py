"""Laws that every registered method obeys: registering a method is being tested."""

import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree

from coterie.core.checkpoint import list_checkpoints
from coterie.core.errors import BadInput
from coterie.core.method import stages_of
from coterie.core.quantities import find_declaration
from coterie.core.tree import load_tree, save_tree
from coterie.engines.local import batches
from coterie.engines.settings import ExecutionSettings
from coterie.methods.registry import METHODS
from coterie.running.execute import restore_checkpoint, write_checkpoint
from helpers.federations import (
    MODELS,
    OPTIONS,
    SEQUENTIAL,
    TRAIN,
    assert_same,
    float64,
    personal,
    play,
    tiny,
    tiny_model,
)

every_method = pytest.mark.parametrize("name", sorted(METHODS))


@every_method
def test_vectorized_equals_sequential(name):
    with float64():
        assert_same(personal(play(name)), personal(play(name, settings=SEQUENTIAL)))


@every_method
def test_one_round_in_float32_agrees_too(name):
    assert_same(
        personal(play(name, rounds=1)), personal(play(name, rounds=1, settings=SEQUENTIAL)), 2e-4
    )


@every_method
def test_chunk_width_changes_nothing(name):
    with float64():
        assert_same(
            personal(play(name)),
            personal(play(name, settings=ExecutionSettings("vectorized", 2, "no"))),
        )


@every_method
def test_sampling_and_dropouts_agree_on_both_paths(name):
    with float64():
        wanted = personal(play(name, rounds=3, participation=0.6, dropout_clients=0.3))
        assert_same(
            wanted,
            personal(
                play(name, rounds=3, participation=0.6, dropout_clients=0.3, settings=SEQUENTIAL)
            ),
        )
        assert all(torch.isfinite(w).all() for w in wanted.values())


@every_method
def test_padding_changes_nothing(name, monkeypatch):
    """Three more padded rows in every batch, in every pass, leave every model as it was."""
    with float64():
        plain = personal(play(name))
        original = batches.padded_batch_size
        monkeypatch.setattr(
            batches, "padded_batch_size", lambda plan, largest: original(plan, largest) + 3
        )
        assert_same(plain, personal(play(name)))


def bits(tensor):
    """A copy that tells every change, one between two NaNs too; of what vmap stacked, the whole
    stack.
    """
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor.detach().clone().contiguous().reshape(-1).view(torch.uint8)


def watched(hook, called):
    """The hook, which must leave the tensors it is given as they were."""
    if hook is None:
        return None

    def call(*arguments):
        leaves = [t for t in pytree.tree_leaves(arguments) if isinstance(t, torch.Tensor)]
        copies = [bits(t) for t in leaves]
        out = hook(*arguments)
        assert all(torch.equal(bits(t), c) for t, c in zip(leaves, copies, strict=True)), hook
        called.add(hook)
        return out

    return call


def guarded(exchange, called):
    if exchange is None:
        return None
    names = ("send", "prepare", "steps", "start", "finish", "receive")
    hooks = {name: watched(getattr(exchange, name), called) for name in names}
    return exchange._replace(
        **hooks, passes=tuple(p._replace(step=watched(p.step, called)) for p in exchange.passes)
    )


def guarded_stage(stage, called):
    method = stage.method
    hooks = {
        name: watched(getattr(method, name), called)
        for name in ("join", "personal", "admit", "notes", "client_notes")
    }
    return stage._replace(
        enter=watched(stage.enter, called),
        enter_state=watched(stage.enter_state, called),
        method=method._replace(
            **hooks,
            round=tuple(guarded(exchange, called) for exchange in method.round),
            personalize=guarded(method.personalize, called),
        ),
    )


@every_method
def test_nothing_mutates_its_arguments(name):
    """Every hook is called, with tensors whose bits are watched."""
    federation, called = tiny(6), set()
    short = federation._replace(
        **{
            part: getattr(federation, part)[:5] for part in ("train", "validation", "test", "names")
        },
        groups=federation.groups[:5],
    )
    model = MODELS.get(name, tiny_model)()
    program = stages_of(METHODS[name](model, TRAIN, **OPTIONS.get(name, {})))
    pure = tuple(guarded_stage(stage, called) for stage in program)
    loop = play(lambda model, train: pure, short, [model], settings=SEQUENTIAL)
    assert_same(personal(loop), personal(play(name, short, settings=SEQUENTIAL)), 0)
    loop.admit(federation)
    personal(loop)
    last = program[-1].method
    for hook in (last.join, last.personal, last.admit, last.round[0].send, last.round[0].prepare):
        assert hook is None or hook in called
    assert last.personalize is None or last.personalize.finish in called


def test_the_watch_sees_a_change_between_two_nans():
    def flip(tensor):
        tensor.view(torch.int32)[0] += 1

    with pytest.raises(AssertionError):
        watched(flip, set())(torch.tensor([float("nan"), 1.0]))


@every_method
def test_order_of_clients_changes_nothing(name):
    """Asking clients in another order gives the same models: streams are keyed by client, not by
    position.
    """
    with float64():
        loop = play(name, until=0)
        original = loop.engine.exchange

        def reversed_order(trip):
            return original(trip._replace(clients=list(reversed(trip.clients))))

        loop.engine.exchange = reversed_order
        loop.go()
        assert_same(personal(loop), personal(play(name)))


@every_method
def test_test_data_never_touch_training(name):
    """Garbage in every test part leaves every model as it was."""
    federation = tiny()
    x, y = federation.x.clone(), federation.y.clone()
    for rows in federation.test:
        x[rows] = 1e6
        y[rows] = 0
    assert_same(
        personal(play(name, federation)), personal(play(name, federation._replace(x=x, y=y))), 0
    )


@every_method
def test_server_state_and_payload_survive_the_wire_format(name, tmp_path):
    loop = play(name)
    _, states = loop.engine.states[0].everything()
    for label, tree in (
        ("server", loop.position.server),
        ("payload", loop.payload()(0)),
        ("states", states),
    ):
        save_tree(tree, tmp_path, label)
        back = load_tree(tmp_path, label)
        a, spec = pytree.tree_flatten(tree)
        b, back_spec = pytree.tree_flatten(back)
        assert spec == back_spec
        assert all(
            torch.equal(torch.as_tensor(p), torch.as_tensor(q))
            for p, q in zip(a, b, strict=True)
            if p is not None
        )


@every_method
def test_a_client_that_does_not_answer_keeps_its_state(name):
    loop = play(name, until=1)
    before = {i: _state(loop, i) for i in loop.everyone}
    loop.schedule = loop.schedule._replace(dropout_clients=0.999999)
    loop.go(until=2)
    for i in loop.everyone:
        for p, q in zip(before[i], _state(loop, i), strict=True):
            assert torch.equal(p, q)


def _state(loop, client):
    store = loop.engine.states[0]
    return (
        [leaf.clone() for leaf in pytree.tree_leaves(store.gather([client]))]
        if client in store
        else []
    )


@every_method
def test_never_active_clients_have_a_model_too(name):
    loop = play(name, rounds=1, participation=1.0 / 5)
    models = personal(loop)
    assert len(models) == 5
    assert all(torch.isfinite(w).all() for w in models.values())


@every_method
def test_training_lowers_the_training_loss(name):
    loop = play(name, rounds=1)
    early = np.nanmean(loop.evaluate()["personal", "train", "loss"])
    late = np.nanmean(play(name, rounds=15).evaluate()["personal", "train", "loss"])
    assert late < early


@every_method
def test_resume_is_exact(name, tmp_path):
    """Stopped after any round, written to disk, read back in a new process's place and played on:
    the same bits.
    """
    whole = play(name, rounds=3, eval_every=2)
    for stop in range(1, whole.done):
        write_checkpoint(play(name, rounds=3, eval_every=2, until=stop), tmp_path)
        again = play(name, rounds=3, eval_every=2, until=0)
        restore_checkpoint(again, list_checkpoints(tmp_path)[-1])
        assert again.done == stop
        again.go()
        assert_same(personal(whole), personal(again), 0)
        assert _numbers(whole) == _numbers(again)


def _numbers(loop):
    rows = loop.table.whole().to_pylist()
    return [tuple(str(v) for v in row.values()) for row in rows if row["metric"] != "seconds"]


@every_method
def test_a_newcomer_after_training_gets_a_model_and_changes_nobody_elses(name):
    federation = tiny(6)
    short = federation._replace(
        **{
            part: getattr(federation, part)[:5] for part in ("train", "validation", "test", "names")
        },
        groups=federation.groups[:5],
    )
    loop = play(name, short)
    before = personal(loop)
    loop.admit(federation)
    after = personal(loop)
    assert torch.isfinite(after[5]).all()
    assert_same(before, {i: after[i] for i in before}, 1e-6)


@every_method
def test_every_note_that_is_written_is_declared_and_every_declared_one_is_written(name):
    """Undeclared notes are refused while a method is played; what is declared is there to be
    drawn.
    """
    loop = play(name, until=0)
    written = set(loop.server_notes())
    views = {
        view for program in loop.engine.programs for stage in program for view in stage.method.views
    }

    def after(loop, report):
        written.update(loop.server_notes(), loop.engine.client_notes(loop.everyone))

    loop.go(after)
    assert all(find_declaration(note, loop.describes) for note in written)
    found = {id(find_declaration(note, loop.describes)) for note in written}
    assert all(id(note) in found or key in views for key, note in loop.describes.items())


@every_method
def test_a_note_that_is_not_declared_is_refused(name):
    build = METHODS[name]

    def silent(model, train, **options):
        program = stages_of(build(model, train, **options))
        return tuple(
            stage._replace(method=stage.method._replace(describes={})) for stage in program
        )

    noting = any(s.method.notes or s.method.client_notes for s in play(name, until=0).program)
    if noting:
        with pytest.raises(BadInput, match="is not declared: add it to the method's `describes`"):
            play(silent, models=[MODELS.get(name, tiny_model)()], options=OPTIONS.get(name, {}))
    else:
        play(silent, models=[MODELS.get(name, tiny_model)()], options=OPTIONS.get(name, {}))
