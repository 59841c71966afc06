"""Every network of the compared papers as a plain torch module, by name in NETS.

A builder is `(input_shape, classes, **options) -> nn.Module`; its signature holds its options and defaults.
Images are [channels, height, width], features [d], sequences [steps, features]. Outputs are logits, and the
last dense layer is called `head` in every net. Initial values are PyTorch's defaults unless a builder says
otherwise, and come from torch's global generator alone, which the caller forks and seeds.
"""

import inspect
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coterie.core.errors import BadInput, nearest

Shape = tuple[int, ...]


def build(name: str, input_shape: Shape, classes: int, **chosen: object) -> nn.Module:
    """The named net for this input and number of classes; refuses a name, option or shape it cannot take."""
    if name not in NETS:
        raise BadInput(f"unknown net '{name}'{nearest(name, NETS)}")
    if not input_shape or min(input_shape) < 1 or classes < 1:
        what = f"input {by(input_shape)} and classes = {classes}"
        raise BadInput(f"{what} for net '{name}': every side and the number of classes must be at least 1")
    defaults = options(name)
    for option, value in chosen.items():
        if option not in defaults:
            way_out = nearest(option, defaults) if defaults else ", which takes none"
            raise BadInput(f"unknown option '{option}' of net '{name}'{way_out}")
        default = defaults[option]
        if isinstance(default, bool):
            if not isinstance(value, bool):
                raise BadInput(f"{option} = {value!r} for net '{name}': give yes or no")
        elif default is not None and not positive(value, like=default):
            kind = "number" if isinstance(default, float) else "whole number"
            raise BadInput(f"{option} = {value!r} for net '{name}': give a positive {kind}, such as {default}")
    return NETS[name](tuple(input_shape), classes, **chosen)


def options(name: str) -> dict[str, object]:
    """The options of a net and their defaults."""
    parameters = inspect.signature(NETS[name]).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty}


def mlr(input_shape: Shape, classes: int) -> nn.Module:
    """Multinomial logistic regression: one dense layer."""
    return chain(flat=nn.Flatten(), head=nn.Linear(math.prod(input_shape), classes))


def dnn(input_shape: Shape, classes: int, hidden: int = 100, norm: bool = False) -> nn.Module:
    """One hidden dense layer, with BatchNorm before its ReLU where `norm` says so."""
    dense = nn.Linear(math.prod(input_shape), hidden)
    return chain(
        flat=nn.Flatten(),
        dense1=active(nn.Sequential(dense, nn.BatchNorm1d(hidden))) if norm else active(dense),
        head=nn.Linear(hidden, classes),
    )


def cifarnet(input_shape: Shape, classes: int) -> nn.Module:
    """The CNN of PyTorch's tutorial (PersFL, Self-FL)."""
    return lenet("cifarnet", input_shape, classes, nn.MaxPool2d)


def cnncifar(input_shape: Shape, classes: int) -> nn.Module:
    """CifarNet with 100 units in its second dense layer (pFedMe, PFML)."""
    return lenet("cnncifar", input_shape, classes, nn.MaxPool2d, second=100)


def kt_lenet(input_shape: Shape, classes: int) -> nn.Module:
    """KT-pFL's LeNet: the layers of CifarNet, at 28x28."""
    return lenet("kt-lenet", input_shape, classes, nn.MaxPool2d)


def lenet5(input_shape: Shape, classes: int) -> nn.Module:
    """UCFL's LeNet-5: average pools, He-uniform convolution weights (their biases keep PyTorch's default)."""
    net = lenet("lenet5", input_shape, classes, nn.AvgPool2d)
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")  # within +-sqrt(6 / fan_in)
    return net


def mcmahan(input_shape: Shape, classes: int) -> nn.Module:
    """The CNN of McMahan et al. (KT-pFL's homogeneous runs), with padded convolutions."""
    channels, *sides = image("mcmahan", input_shape, least=4)
    return chain(
        conv1=active(nn.Conv2d(channels, 32, 5, padding=2), nn.MaxPool2d(2)),
        conv2=active(nn.Conv2d(32, 64, 5, padding=2), nn.MaxPool2d(2)),
        flat=nn.Flatten(),
        dense1=active(nn.Linear(64 * math.prod(side // 4 for side in sides), 512)),
        head=nn.Linear(512, classes),
    )


def smallcnn(input_shape: Shape, classes: int) -> nn.Module:
    """A small CNN that also takes 8x8 digits."""
    channels, *sides = image("smallcnn", input_shape, least=4)
    return chain(
        conv1=active(nn.Conv2d(channels, 16, 3, padding=1), nn.MaxPool2d(2)),
        conv2=active(nn.Conv2d(16, 32, 3, padding=1), nn.MaxPool2d(2)),
        flat=nn.Flatten(),
        head=nn.Linear(32 * math.prod(side // 4 for side in sides), classes),
    )


def kt_alexnet(input_shape: Shape, classes: int, width: float = 1.0) -> nn.Module:
    """KT-pFL's AlexNet, with dropout before both wide dense layers; `width` scales every layer."""
    channels, *sides = image("kt-alexnet", input_shape, least=15)
    a, b, c, d, dense = (scaled(size, width) for size in (64, 192, 384, 256, 4096))
    return chain(
        conv1=active(nn.Conv2d(channels, a, 3, stride=2, padding=1), nn.MaxPool2d(2)),
        conv2=active(nn.Conv2d(a, b, 3, padding=1), nn.MaxPool2d(2)),
        conv3=active(nn.Conv2d(b, c, 3, padding=1)),
        conv4=active(nn.Conv2d(c, d, 3, padding=1)),
        conv5=active(nn.Conv2d(d, d, 3, padding=1), nn.MaxPool2d(2)),
        flat=nn.Flatten(),
        drop1=nn.Dropout(0.5),
        dense1=active(nn.Linear(d * math.prod((side + 1) // 2 // 8 for side in sides), dense)),
        drop2=nn.Dropout(0.5),
        dense2=active(nn.Linear(dense, dense)),
        head=nn.Linear(dense, classes),
    )


def kt_resnet18(input_shape: Shape, classes: int, width: float = 1.0) -> nn.Module:
    """KT-pFL's ResNet-18, CIFAR form: 3x3 stem, no max pool, no convolution biases; `width` scales it."""
    channels, *_ = image("kt-resnet18", input_shape, least=1)
    size = scaled(64, width)
    layers: dict[str, nn.Module] = {"stem": chain(conv=conv3(channels, size), bn=nn.BatchNorm2d(size), relu=nn.ReLU())}
    for stage, full in enumerate((64, 128, 256, 512), start=1):
        before, size = size, scaled(full, width)
        stride = 1 if stage == 1 else 2
        layers[f"stage{stage}"] = nn.Sequential(Residual(before, size, stride), Residual(size, size, 1))
    return chain(**layers, pool=nn.AdaptiveAvgPool2d(1), flat=nn.Flatten(), head=nn.Linear(size, classes))


def kt_shufflenet(input_shape: Shape, classes: int, width: float = 1.0) -> nn.Module:
    """KT-pFL's ShuffleNetV2 x1: 3x3 stem without ReLU, convolutions with biases; `width` scales channels."""
    channels, *_ = image("kt-shufflenet", input_shape, least=1)
    size, last = scaled(24, width), scaled(1024, width)
    layers: dict[str, nn.Module] = {"stem": chain(conv=nn.Conv2d(channels, size, 3, padding=1), bn=nn.BatchNorm2d(size))}
    for stage, (full, units) in enumerate(((116, 4), (232, 8), (464, 4)), start=1):
        before, size = size, 2 * scaled(full // 2, width)  # even: a unit halves its channels
        layers[f"stage{stage}"] = nn.Sequential(Widen(before, size), *(Shuffle(size) for _ in range(units - 1)))
    layers["last"] = pointwise(size, last)
    return chain(**layers, pool=nn.AdaptiveAvgPool2d(1), flat=nn.Flatten(), head=nn.Linear(last, classes))


def lstm(input_shape: Shape, classes: int, hidden: int = 256, layers: int = 2, table: Tensor | None = None) -> nn.Module:
    """Stacked LSTM (Self-FL's Sent140), read at its last step: one logit for two classes, else one a class.

    Takes floats [B, steps, features], or token indices [B, steps] given a frozen `table` [words, features].
    """
    if table is not None and not (isinstance(table, Tensor) and table.ndim == 2):
        what = by(table.shape) if isinstance(table, Tensor) else repr(table)
        raise BadInput(f"table = {what} for net 'lstm': give a tensor [words, features], one row a word")
    wanted = "[steps, features]" if table is None else "token indices [steps] for its table"
    if len(input_shape) != (2 if table is None else 1):
        hint = "give its table of word vectors, or " if table is None and len(input_shape) == 1 else ""
        way_out = hint + simpler(input_shape)
        raise BadInput(f"net 'lstm' takes {wanted}, but the input is {by(input_shape)}: {way_out}")
    features = input_shape[1] if table is None else table.shape[1]
    return Lstm(features, hidden, layers, 1 if classes <= 2 else classes, table)


def mean(input_shape: Shape, classes: int) -> nn.Module:
    """One vector theta, the model of the two-level Gaussian; its output is theta for every row."""
    return Mean(math.prod(input_shape))


NETS: dict[str, Callable[..., nn.Module]] = {
    "mlr": mlr,
    "dnn": dnn,
    "cifarnet": cifarnet,
    "cnncifar": cnncifar,
    "lenet5": lenet5,
    "mcmahan": mcmahan,
    "smallcnn": smallcnn,
    "kt-lenet": kt_lenet,
    "kt-alexnet": kt_alexnet,
    "kt-resnet18": kt_resnet18,
    "kt-shufflenet": kt_shufflenet,
    "lstm": lstm,
    "mean": mean,
}


class Residual(nn.Module):
    """ResNet's basic block: two 3x3 convolutions beside a shortcut."""

    def __init__(self, before: int, size: int, stride: int) -> None:
        super().__init__()
        self.body = chain(
            conv1=conv3(before, size, stride),
            bn1=nn.BatchNorm2d(size),
            relu=nn.ReLU(),
            conv2=conv3(size, size),
            bn2=nn.BatchNorm2d(size),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != size:
            conv = nn.Conv2d(before, size, 1, stride=stride, bias=False)
            self.shortcut = chain(conv=conv, bn=nn.BatchNorm2d(size))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


class Widen(nn.Module):
    """The first ShuffleNetV2 unit of a stage: both branches see every channel and halve the image."""

    def __init__(self, before: int, size: int) -> None:
        super().__init__()
        self.left = nn.Sequential(*depthwise(before, 2), *pointwise(before, size // 2))
        self.right = nn.Sequential(*pointwise(before, before), *depthwise(before, 2), *pointwise(before, size // 2))

    def forward(self, x: Tensor) -> Tensor:
        return interleave(self.left(x), self.right(x))


class Shuffle(nn.Module):
    """A later ShuffleNetV2 unit: half of the channels pass unchanged."""

    def __init__(self, size: int) -> None:
        super().__init__()
        half = size // 2
        self.right = nn.Sequential(*pointwise(half, half), *depthwise(half, 1), *pointwise(half, half))

    def forward(self, x: Tensor) -> Tensor:
        left, right = x.chunk(2, 1)
        return interleave(left, self.right(right))


class Cell(nn.Module):
    """An LSTM layer with ONE bias a gate; nn.LSTM has two, and does not run under vmap."""

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        bound = hidden**-0.5  # nn.LSTM's default
        self.of_input = nn.Parameter(torch.empty(4 * hidden, features).uniform_(-bound, bound))
        self.of_state = nn.Parameter(torch.empty(4 * hidden, hidden).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(4 * hidden).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        """[B, steps, features] -> [B, steps, hidden]."""
        drive = F.linear(x, self.of_input, self.bias)  # every step's input at once: one large product
        h = c = drive.new_zeros(drive.shape[0], drive.shape[2] // 4)
        states = []
        for now in drive.unbind(1):
            enter, keep, new, show = (now + F.linear(h, self.of_state)).chunk(4, -1)  # gates i, f, g, o
            c = keep.sigmoid() * c + enter.sigmoid() * new.tanh()
            h = show.sigmoid() * c.tanh()
            states.append(h)
        return torch.stack(states, 1)


class Lstm(nn.Module):
    """Cells on top of each other, read at the last step."""

    def __init__(self, features: int, hidden: int, layers: int, outputs: int, table: Tensor | None) -> None:
        super().__init__()
        self.cells = nn.Sequential(*(Cell(hidden if layer else features, hidden) for layer in range(layers)))
        self.head = nn.Linear(hidden, outputs)
        # A plain attribute: as a parameter or a buffer, the frozen table would be stacked for every client.
        self.table = None if table is None else table.detach()

    def forward(self, x: Tensor) -> Tensor:
        if self.table is not None:
            x = F.embedding(x.long(), self.table).to(self.head.weight.dtype)
        logits: Tensor = self.head(self.cells(x)[:, -1])
        return logits


class Mean(nn.Module):
    """theta, starting at 0."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.zeros(size))

    def forward(self, x: Tensor) -> Tensor:
        return self.theta.expand(x.shape[0], -1)


def lenet(name: str, input_shape: Shape, classes: int, pool: Callable[[int], nn.Module], second: int = 84) -> nn.Sequential:
    """Two 5x5 convolutions, each pooled, and three dense layers: what four nets here share."""
    channels, *sides = image(name, input_shape, least=16)
    return chain(
        conv1=active(nn.Conv2d(channels, 6, 5), pool(2)),
        conv2=active(nn.Conv2d(6, 16, 5), pool(2)),
        flat=nn.Flatten(),
        dense1=active(nn.Linear(16 * math.prod(((side - 4) // 2 - 4) // 2 for side in sides), 120)),
        dense2=active(nn.Linear(120, second)),
        head=nn.Linear(second, classes),
    )


def chain(**layers: nn.Module) -> nn.Sequential:
    """Layers in order, under their names."""
    net = nn.Sequential()
    for name, layer in layers.items():
        net.add_module(name, layer)
    return net


def active(layer: nn.Module, *then: nn.Module) -> nn.Sequential:
    """A layer, its ReLU and what follows, such as a pool."""
    return nn.Sequential(layer, nn.ReLU(), *then)


def conv3(before: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(before, size, 3, stride=stride, padding=1, bias=False)


def pointwise(before: int, size: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(before, size, 1), nn.BatchNorm2d(size), nn.ReLU())


def depthwise(size: int, stride: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(size, size, 3, stride, padding=1, groups=size), nn.BatchNorm2d(size))


def interleave(left: Tensor, right: Tensor) -> Tensor:
    """Concatenate and shuffle in two groups: channels l0 r0 l1 r1 ..."""
    return torch.stack((left, right), 2).flatten(1, 2)


def scaled(size: int, width: float) -> int:
    return max(1, round(size * width))


def positive(value: object, like: object) -> bool:
    """Whether `value` is a finite positive number of the kind of `like`; an int also serves as a float."""
    kinds = (int, float) if isinstance(like, float) else (int,)
    return isinstance(value, kinds) and not isinstance(value, bool) and 0 < value < math.inf


def image(name: str, shape: Shape, least: int) -> Shape:
    """The shape, if it is that of images whose sides are at least `least`."""
    if len(shape) != 3 or min(shape[1:]) < least:
        wanted = "[channels, height, width]" if len(shape) != 3 else f"of at least {least}x{least}"
        raise BadInput(f"net '{name}' takes images {wanted}, but the input is {by(shape)}: {simpler(shape)}")
    return shape


def simpler(shape: Shape) -> str:
    """The way out of a shape that a net cannot take: nets that can."""
    return "use smallcnn, dnn or mlr" if len(shape) == 3 and min(shape[1:]) >= 4 else "use dnn or mlr"


def by(shape: Shape) -> str:
    return "x".join(map(str, shape)) or "empty"
