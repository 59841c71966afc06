"""A network as pure functions of a point: logits, loss, gradient."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from traceback import walk_tb
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._C._functorch import maybe_current_level as current_functorch_level
from torch.func import functional_call, grad, grad_and_value
from torch.utils._python_dispatch import _get_current_dispatch_mode as current_dispatch_mode

from coterie.core.dense_gradient import OUTPUT_GRADIENTS, find_dense_layers, forward_backward
from coterie.core.device import CPU, avoid_broken_amx, to_default_device, use_device
from coterie.core.draws import PassContext
from coterie.core.errors import BadInput
from coterie.core.method import Batch, Train
from coterie.core.optimizers import OptimizerState, clip, optimizer_of
from coterie.core.point import Point, Vector
from coterie.core.pure_layers import PURE, MaskedBatchNorm, replace_layers
from coterie.core.task import TASKS, Goal, class_losses, divergence

Loss = Callable[[Tensor, Batch], Tensor]  # (logits, batch) -> scalar
SMALLEST = 1e-30  # added to a squared length, so that nothing is divided by 0


class GradientCounter:
    """How often a network was differentiated since the program began; engines take differences."""

    def __init__(self) -> None:
        self.value = 0


GRADIENT_COUNT = GradientCounter()


def masked_mean(rows: Tensor, batch: Batch) -> Tensor:
    """Mean of one value per row over the real rows of a batch."""
    return (rows * batch.mask).sum() / batch.mask.sum().clamp(min=1)


def cross_entropy(logits: Tensor, batch: Batch) -> Tensor:
    """Mean cross-entropy with the labels."""
    return masked_mean(class_losses(logits, batch.y), batch)


def kl(
    target: Tensor,
    logits: Tensor,
    batch: Batch,
    temperature: float = 1.0,
    elementwise: bool = False,
) -> Tensor:
    """Mean over rows of KL(target || softmax(logits / T)); over classes too if `elementwise`."""
    return masked_mean(divergence(target, logits, temperature), batch) / (
        logits.shape[-1] if elementwise else 1
    )


def first_output(out: Any) -> Tensor:
    """What a network says: its output, or the first of several."""
    while isinstance(out, tuple | list) and out:
        out = out[0]
    out = getattr(out, "logits", out)  # as transformers' networks call it
    if not isinstance(out, Tensor):
        raise BadInput(f"a network gives a {type(out).__name__}: give a tensor, or a tuple of them")
    return out


class Exit:
    """Stands for a part of a network: it gives what it is given, and remembers it."""

    def __init__(self, part: str) -> None:
        self.part = part
        self._given: Any = None

    def __call__(self, z: Tensor, *_: Any, **__: Any) -> Tensor:
        self._given = z
        return z

    def take(self) -> Any:
        """What was given last; it is forgotten."""
        given, self._given = self._given, None
        return given


def layer_of(name: str) -> str:
    """The layer that a parameter or buffer belongs to, also where it is parametrized."""
    owner, inside, _ = f".{name}".partition(".parametrizations.")
    return owner[1:] if inside else name.rpartition(".")[0]


def _first_names(module: nn.Module) -> dict[str, str]:
    """The first name of the tensor behind every name."""
    first: dict[int, str] = {}
    named = [
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ]
    return {name: first.setdefault(id(tensor), name) for name, tensor in named}


def _copy_module(module: nn.Module, name: str) -> nn.Module:
    """A copy with trainable parameters of its own; the frozen ones are there once."""
    frozen = {id(p): p for p in module.parameters() if not p.requires_grad}
    try:
        return copy.deepcopy(module, dict(frozen))
    except RuntimeError as problem:
        raise BadInput(
            f"{name} holds tensors that were computed, as nn.utils.weight_norm does: use "
            "nn.utils.parametrizations.weight_norm, or compute them in forward"
        ) from problem


class Model:
    """What a method needs to know of a network; built from any `nn.Module` maker."""

    def __init__(
        self,
        build: Callable[[], nn.Module],
        # the name of a task ("binary" has one logit), or a goal of one's own
        task: str | Goal = "classes",
        name: str = "model",
        input_shape: tuple[int, ...] | None = None,
        # what `build` was made of, to build it again from a file
        options: dict[str, Any] | None = None,
    ):
        self.goal = task if isinstance(task, Goal) else TASKS[task].learn_by_name()
        self.build, self.task, self.name = build, self.goal.name, name
        self.input_shape, self.options = input_shape, options or {}
        with use_device(CPU), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            plain = build()
        self.context = PassContext()
        # what the folder of a pretrained network holds, so that no file of a run need do so
        self.base_names: frozenset[str] = getattr(plain, "base_names", frozenset())
        written = list(plain.state_dict())
        self._saved = [name for name in written if name not in self.base_names]
        self._first = _first_names(plain)  # weights that several layers share have several names
        self._train = replace_layers(_copy_module(plain, name), self.context).train()
        self._eval = replace_layers(plain, self.context).eval()
        # buffers that no file holds are the network's own, as positions are: the same for everybody
        self._constant = {k for k, _ in self._train.named_buffers()} - set(written)
        named = dict(self._train.named_parameters())
        self.shapes = {k: tuple(p.shape) for k, p in named.items() if p.requires_grad}
        if not self.shapes:
            raise BadInput(f"{name} has no parameter to train: all have requires_grad=False")
        self.frozen = self._freeze()
        self.size = sum(p.numel() for p in named.values() if p.requires_grad)
        self.outputs = list(named.values())[-1].shape[0]  # classes: rows of the last layer
        self._dense = self._find_closed_form()
        self._elsewhere: dict[torch.device, dict[str, Tensor]] = {}  # what is in no point, moved
        self._lower: torch.dtype | None = None  # the precision of training passes, if it is another
        self._exit: Exit | None = None  # where a network ends that is cut before its end
        self.bounded = 0.0  # the learning rate that `limit` bounds; 0: gradients are as they are
        self._written = [  # buffers that layers of others may write over
            k
            for k, _ in self._train.named_buffers()
            if k not in self._constant and not self._is_pure(k)
        ]

    def _freeze(self) -> dict[str, Tensor]:
        """Parameters that do not train: part of the network, the same for every client, and of no
        point.
        """
        dtype = torch.get_default_dtype()
        for net in (self._train, self._eval):
            for p in net.parameters():
                if not p.requires_grad:
                    p.data = p.data.to(dtype)
        return {k: p.detach() for k, p in self._eval.named_parameters() if not p.requires_grad}

    def _find_closed_form(self) -> list[str] | None:
        """The layers of a network whose gradient is known in closed form."""
        names = find_dense_layers(self._train) if self.goal.losses in OUTPUT_GRADIENTS else None
        weights = {f"{name}.weight" for name in names or [] if name}
        return names if weights <= set(self.shapes) and not self.frozen else None

    def in_precision(self, dtype: torch.dtype) -> Model:
        """The same network with training passes in another precision; its parameters, what it
        says and what is averaged stay as they are.
        """
        if dtype == torch.bfloat16:
            avoid_broken_amx()
        twin = copy.copy(self)
        twin._lower, twin._dense = dtype, None  # autograd follows the casts, a closed form does not
        return twin

    def with_bound(self, lr: float) -> Model:
        """The same network with gradients that a learning rate of `lr` cannot explode on."""
        twin = copy.copy(self)
        twin.bounded = lr
        return twin

    def limit(self, g: Vector, loss: Tensor) -> Vector:
        """A gradient by which a step is no longer than Polyak's: lr <= 2 f / |g|^2 (SPS_max with
        c = 1/2: Loizou, Vaswani, Laradji, Lacoste-Julien, AISTATS 2021; losses are at least 0).
        """
        if not self.bounded:
            return g
        longest = 2 * loss.abs() / (self.bounded * g.squared() + SMALLEST)
        return longest.clamp(max=1) * g

    def cut_before(self, part: str) -> Model:
        """The same network up to a part of it: what it says is what that part is given."""
        twin = copy.copy(self)
        twin._exit, twin._dense = Exit(part), None
        twin._train, twin._eval = (
            self._with_exit(net, twin._exit) for net in (self._train, self._eval)
        )
        return twin

    def _with_exit(self, net: nn.Module, leave: Exit) -> nn.Module:
        held = (self.context, *net.parameters(), *net.buffers())  # the same ones, not copies
        copied = copy.deepcopy(net, {id(one): one for one in held})
        copied.get_submodule(leave.part).forward = leave  # its parameters stay where they are
        return copied

    def _run(self, net: nn.Module, tensors: dict[str, Tensor], x: Tensor) -> Tensor:
        out = first_output(functional_call(net, tensors, (x,)))
        if self._exit is not None and out is not self._exit.take():
            raise BadInput(
                f"{self.name} does not end with '{self._exit.part}', whose output it changes: name "
                "with --head the part that gives the network's output"
            )
        return out

    def layer(self, part: str) -> nn.Module:
        """A part of the network, as it is trained."""
        return self._train.get_submodule(part)

    def run_part(self, part: str, point: Point, z: Tensor, batch: Batch) -> Tensor:
        """What a part gives for `z`, in training mode; of the point, its own tensors count."""
        known = self._constants_on(z.device) | point.params | point.buffers
        start = f"{part}."
        tensors = {k.removeprefix(start): a for k, a in known.items() if k.startswith(start)}
        with self.context.over(batch.mask, batch.key), self._cast(z):
            out = first_output(functional_call(self.layer(part), tensors, (z,)))
        return out if self._lower is None else out.to(batch.mask.dtype)

    def _cast(self, x: Tensor) -> AbstractContextManager[Any]:
        if self._lower is None:
            return nullcontext()
        return torch.autocast(x.device.type, self._lower, cache_enabled=False)

    def _constants_on(self, device: torch.device) -> dict[str, Tensor]:
        """What of the network is in no point, on a device; nothing where it lies there already."""
        if device == CPU:
            return {}
        if device not in self._elsewhere:
            buffers = {k: b for k, b in self._eval.named_buffers() if k in self._constant}
            self._elsewhere[device] = {k: t.to(device) for k, t in (self.frozen | buffers).items()}
        return self._elsewhere[device]

    def _is_pure(self, buffer: str) -> bool:
        return isinstance(self._train.get_submodule(buffer.rpartition(".")[0]), PURE)

    def init(self, rng: np.random.Generator) -> Point:
        """A fresh random model."""
        return self.start(int(rng.integers(2**63)))

    def start(self, seed: int) -> Point:
        """The random model of a seed, the same wherever it is made."""
        with use_device(CPU), torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            point = self.point(self.build())
        return to_default_device(point)

    def point(self, module: nn.Module) -> Point:
        """The point a module stands at."""
        dtype = torch.get_default_dtype()
        own = {
            k: p.detach().clone().to(dtype) for k, p in module.named_parameters() if p.requires_grad
        }
        buffers = {
            k: b.detach().clone() for k, b in module.named_buffers() if k not in self._constant
        }
        if set(own) != set(self.shapes):
            raise BadInput(
                f"the module's parameters {sorted(own)} are not those of {self.name}, "
                f"{sorted(self.shapes)}"
            )
        return Point({k: own[k] for k in self.shapes}, buffers)

    def tensors(self, point: Point) -> dict[str, Tensor]:
        """Everything a plain module of this network loads: frozen parameters too, and weights that
        layers share under each of their names.
        """
        known = self.frozen | point.params | point.buffers
        return {k: known[self._first[k]] for k in self._saved if self._first.get(k) in known}

    def frozen_tensors(self) -> dict[str, Tensor]:
        """What of it is the same for every client, under each of its names."""
        return {
            k: self.frozen[first]
            for k in self._saved
            if (first := self._first.get(k, "")) in self.frozen
        }

    def module(self, point: Point) -> nn.Module:
        """A plain `nn.Module` with the point's parameters and buffers."""
        with use_device(CPU), torch.random.fork_rng(devices=[]):
            module = self.build()
        lost = (set(point.params) | set(point.buffers)) - set(self._first)
        missing = set(self.shapes) - set(point.params)
        if lost or missing:
            raise BadInput(
                f"these tensors do not belong to {self.name}: {', '.join(sorted(lost | missing))}"
            )
        module.load_state_dict(self.tensors(point), strict=False)
        return module.eval()

    def logits(self, point: Point, batch: Batch) -> Tensor:
        """Outputs as the model is used: dropout off, BatchNorm with its running statistics."""
        tensors = self._constants_on(batch.x.device) | point.params | point.buffers
        return self._run(self._eval, tensors, batch.x)

    def forward(self, point: Point, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Outputs as the model is trained, and the buffers this pass made."""
        written = {k: point.buffers[k].clone() for k in self._written}
        tensors = self._constants_on(batch.x.device) | point.params | point.buffers | written
        GRADIENT_COUNT.value += 1  # a network runs in training mode to be differentiated
        with self.context.over(batch.mask, batch.key), self._cast(batch.x):
            out = self._run(self._train, tensors, batch.x)
        out = out if self._lower is None else out.to(batch.mask.dtype)
        return out, {k: tensors[k] for k in point.buffers}

    def probabilities(self, point: Point, batch: Batch, temperature: float = 1.0) -> Tensor:
        """Soft predictions [B, classes]."""
        return F.softmax(self.logits(point, batch) / temperature, dim=-1)

    def chances(self, point: Point, batch: Batch) -> Tensor:
        """Probabilities [B, classes] of any classification; [B, 2] if there is one output; the
        predicted numbers [B] of a regression.
        """
        return self.goal.predict(self.logits(point, batch))

    def loss(self, point: Point, batch: Batch) -> Tensor:
        """Mean loss on a batch, as the model is used."""
        return self.data_loss(self.logits(point, batch), batch)

    def _targets(self, batch: Batch) -> Tensor:
        """The labels; of a task whose rows are compared, padding has 0, which no row is."""
        return batch.y * batch.mask if self.goal.is_coupled else batch.y

    def data_loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """Mean loss of given outputs against the batch's labels."""
        losses = self.goal.losses(logits, self._targets(batch))
        if self.goal.weigh is None:
            return masked_mean(losses, batch)
        weights = self.goal.weigh(batch.y) * batch.mask
        return (losses * weights).sum() / weights.sum().clamp(min=1)

    def grad(self, point: Point, batch: Batch, loss: Loss | None = None) -> Vector:
        """Gradient of the mean loss, or of `loss(logits, batch)`, in training mode."""
        return self.grad_and_loss(point, batch, loss)[0]

    def grad_and_loss(
        self, point: Point, batch: Batch, loss: Loss | None = None
    ) -> tuple[Vector, Tensor]:
        """Gradient and value of the loss, in training mode."""
        if loss is None and self._dense is not None and batch.x.is_floating_point():
            found = self._dense_gradient(self._dense, point, batch)
            return self.limit(*found), found[1]
        objective = loss or self.data_loss

        def value(params: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
            logits, fresh = self.forward(Point(params, point.buffers), batch)
            return objective(logits, batch), fresh

        if _is_plain():
            gradient, loss_value, fresh = _differentiate(value, point.params)
        else:
            gradient, (loss_value, fresh) = grad_and_value(value, has_aux=True)(point.params)
        g = Vector(gradient, {k: b.detach() for k, b in fresh.items()})
        return self.limit(g, loss_value), loss_value

    def _dense_gradient(
        self, names: list[str], point: Point, batch: Batch
    ) -> tuple[Vector, Tensor]:
        GRADIENT_COUNT.value += 1
        share = (batch.mask / batch.mask.sum().clamp(min=1)).unsqueeze(-1)
        of_outputs = OUTPUT_GRADIENTS[self.goal.losses]
        logits, gradient = forward_backward(
            names, point.params, batch.x, lambda out: share * of_outputs(out, batch.y)
        )
        ordered = {k: gradient[k] for k in point.params}
        return Vector(ordered), self.data_loss(logits, batch)

    def sum_gradient(self, point: Point, batch: Batch) -> Vector:
        """Gradient of the sum of the real rows' losses, as the model is used."""
        GRADIENT_COUNT.value += 1
        return Vector(
            grad(lambda params: self.measure(Point(params, point.buffers), batch)[0])(point.params)
        )

    def judge(self, point: Point, batch: Batch) -> tuple[Tensor, Tensor]:
        """Of each row [B]: its loss, and what the task counts, as 1 where it is predicted right;
        padding has neither.
        """
        losses, counted, _ = self.judge_outputs(point, batch)
        return losses, counted

    def judge_outputs(self, point: Point, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """The same, and the row's outputs."""
        logits = self.logits(point, batch)
        y = self._targets(batch)
        losses = self.goal.losses(logits, y) * batch.mask
        return losses, self.goal.counted(logits, y) * batch.mask, logits

    def measure(self, point: Point, batch: Batch) -> tuple[Tensor, Tensor]:
        """Sums over the real rows: loss, and what the task counts, as rows predicted right."""
        losses, counted = self.judge(point, batch)
        return losses.sum(), counted.sum()

    def head(self, layers: int = 1) -> Callable[[str], bool]:
        """Tells whether a parameter belongs to the last `layers` layers that have parameters."""
        owners = list(dict.fromkeys(map(layer_of, self.shapes)))
        last = set(owners[max(0, len(owners) - layers) :]) if layers else set()
        return lambda name: layer_of(name) in last

    def norms(self) -> Callable[[str], bool]:
        """Tells whether a parameter or buffer belongs to a BatchNorm layer."""
        owners = {
            name
            for name, layer in self._train.named_modules()
            if isinstance(layer, MaskedBatchNorm)
        }
        return lambda name: name.rpartition(".")[0] in owners

    def check(self, input_shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> None:
        """Refuse a network that depends on padding, or on randomness of its own."""
        rng = np.random.default_rng(0)
        usual = torch.get_default_dtype() if dtype.is_floating_point else dtype
        rows = torch.as_tensor(rng.random((4, *input_shape)))
        rows = (rows if dtype.is_floating_point else rows * 2).to(usual)
        point = self.init(rng)
        key = torch.tensor(1)

        def outputs(x: Tensor, real: int, seed: int) -> list[Tensor]:
            mask = (torch.arange(len(x)) < real).to(
                rows.dtype if rows.is_floating_point() else usual
            )
            batch = Batch(x, torch.zeros(len(x), dtype=torch.long), mask, torch.arange(len(x)), key)
            with torch.random.fork_rng(devices=[]), torch.no_grad():
                torch.manual_seed(seed)
                out, fresh = self.forward(point, batch)
            return [out[:real], *fresh.values()]

        def same(a: list[Tensor], b: list[Tensor]) -> bool:
            return all(
                torch.allclose(p, q, atol=1e-4, equal_nan=True) for p, q in zip(a, b, strict=True)
            )

        held = {k: b.clone() for k, b in self._train.named_buffers() if k in self._constant}
        twice = outputs(rows, 4, 0)
        for k, b in self._train.named_buffers():
            if k in held and not torch.equal(b, held[k]):
                raise BadInput(
                    f"{self.name} writes over its buffer '{k}', which no file holds: register it "
                    "with persistent=True"
                )
        self.outputs = twice[0].shape[-1]
        if not same(twice, outputs(rows, 4, 1)):
            raise BadInput(
                f"{self.name} draws random numbers of its own in training: use nn.Dropout modules, "
                "whose draws are reproducible"
            )
        padded = rows.clone()
        padded[3] = 7 if dtype.is_floating_point else 0
        if not same(outputs(rows[:3], 3, 0), outputs(padded, 3, 0)):
            raise BadInput(
                f"{self.name} mixes the rows of a batch in a way padding would change: use "
                "nn.BatchNorm or nn.GroupNorm layers, "
                "or a batch size that divides every client's rows with --path sequential"
            )
        self._check_gradient(point, rows)

    def _check_gradient(self, point: Point, rows: Tensor) -> None:
        """Refuse a network with a layer that torch.func cannot differentiate; where the gradient is
        known in closed form there is none, and torch.func takes a second to load.
        """
        if self._dense is not None:
            return
        n = len(rows)
        mask = torch.ones(n, dtype=torch.get_default_dtype())
        batch = Batch(rows, torch.zeros(n).long(), mask, torch.arange(n), torch.tensor(1))
        try:
            grad(lambda params: self.forward(Point(params, point.buffers), batch)[0].sum())(
                point.params
            )
        except RuntimeError as problem:
            if "autograd.Function" not in str(problem):
                raise
            frames = (frame.f_locals.get("self") for frame, _ in walk_tb(problem.__traceback__))
            *_, layer = (type(one) for one in frames if isinstance(one, nn.Module))
            raise BadInput(
                f"{self.name} cannot be trained: its layer {layer.__module__}.{layer.__qualname__} "
                "has an autograd.Function that torch.func cannot differentiate: give it "
                "setup_context or plain operations, or choose another network"
            ) from None


def _is_plain() -> bool:
    """Whether tensors are what they seem: nobody stacks, differentiates or writes down what is
    computed, so that torch's own autograd may do it, in less time than torch.func.
    """
    alone = current_functorch_level() is None and current_dispatch_mode() is None
    return alone and not torch.is_grad_enabled()


def _differentiate(
    value: Callable[[dict[str, Tensor]], tuple[Tensor, dict[str, Tensor]]],
    params: dict[str, Tensor],
) -> tuple[dict[str, Tensor], Tensor, dict[str, Tensor]]:
    """The gradient of a function, its value and what else it gives."""
    with torch.enable_grad():
        held = {k: p.detach().requires_grad_() for k, p in params.items()}
        found, more = value(held)
        parts = torch.autograd.grad(found, [*held.values()], materialize_grads=True)
    return dict(zip(held, parts, strict=True)), found.detach(), more


class Descent(NamedTuple):
    """A model on its way down."""

    w: Point
    u: OptimizerState  # of every parameter; () where the optimizer has none


def begin(w: Point, train: Train) -> Descent:
    """A model about to descend, with a fresh optimizer."""
    return Descent(w, optimizer_of(train).begin(w))


def descend(c: Descent, g: Vector, train: Train, batch: Batch | None = None) -> Descent:
    """One step of the run's optimizer along the gradient of a batch, clipped and with weight decay
    as `train` says; only a scheduled learning rate needs the batch.
    """
    optimizer, decay = optimizer_of(train), train.weight_decay
    if train.clip_norm:
        g = clip(g, train.clip_norm)
    if decay and not optimizer.decoupled:
        g = g + decay * c.w.as_vector()
    move, u = optimizer.step(g, c.u)
    if decay and optimizer.decoupled:
        move = move + decay * c.w.as_vector()
    return Descent(c.w - train.rate_at(batch) * move, u)


def optimize(
    model: Model, train: Train, loss: Loss | None = None
) -> tuple[Callable[[Point], Descent], Callable[..., Descent]]:
    """The run's optimizer on a loss, as `(begin, step)`; it is fresh every time."""

    def step(c: Descent, batch: Batch) -> Descent:
        return descend(c, model.grad(c.w, batch, loss), train, batch)

    return lambda w: begin(w, train), step
