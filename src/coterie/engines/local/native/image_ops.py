"""Convolutions and pools of images in C."""

from __future__ import annotations

from typing import Any, NamedTuple

from coterie.engines.local.native.context import Context
from coterie.engines.local.native.expressions import count_steps, load
from coterie.engines.local.native.graph import (
    CONVOLUTION,
    GRADIENTS,
    LARGEST_GRADIENTS,
    MAX_POOL,
    MEAN_GRADIENTS,
    Value,
)
from coterie.engines.local.tracing import Untraceable

LANES, TILE = 16, 64  # the most numbers that a vector and a tile hold
TOGETHER = 32_768  # numbers of images that are written to at a time, which a near cache holds
MAX_KERNEL_WIDTH = 12  # columns of a kernel whose gradients are summed in the fewest registers


class ConvSizes(NamedTuple):
    """A convolution: the images that it reads and gives, and how its kernels move."""

    images: int
    channels: int
    height: int
    width: int
    outs: int
    kernel: tuple[int, int]
    stride: int
    step: int  # between the rows and columns that a kernel reads
    border: tuple[int, int]
    out: tuple[int, int]  # height and width
    groups: int = 1  # channels and outs are of one of them

    @property
    def depth(self) -> int:
        """The numbers that one number of the result is a sum over."""
        return self.channels * self.kernel[0] * self.kernel[1]

    @property
    def framed(self) -> int:
        """The numbers of an image within its border, and of a vector after it."""
        high, wide = (
            (n - 1) * self.stride + (k - 1) * self.step + 1
            for n, k in zip(self.out, self.kernel, strict=True)
        )
        return self.channels * high * wide + LANES

    @property
    def framed_wide(self) -> int:
        """The same, of an image whose rows are written as whole vectors."""
        return self.framed + self.channels * self.out[0] * self.stride * LANES

    @property
    def turned(self) -> int:
        """The numbers of kernels and an image whose channels lie side by side, in whole vectors."""
        channels = -(-self.channels // LANES) * LANES
        kernels = self.outs * self.kernel[0] * self.kernel[1]
        return (kernels + self.framed // self.channels) * channels

    def at(self, given: str, read: str, kernels: str) -> tuple[str, str, str]:
        """Where group k of what is given, of what is read and of the kernels begins."""
        return (
            f"{given} + k * {self.outs * self.out[0] * self.out[1]}",
            f"{read} + k * {self.channels * self.height * self.width}",
            f"{kernels} + k * {self.outs * self.depth}",
        )

    def each(self, call: str) -> str:
        """A call for every group."""
        return f"for (long k = 0; k < {self.groups}; k++) {{ {call} }}"


def write_image(c: Context, v: Value) -> None:
    """C of an operation on images."""
    if v.op == CONVOLUTION:
        _write_convolution(c, v)
    elif v.op == GRADIENTS:
        _write_input_gradients(c, v) if v.part == 0 else _write_kernel_gradients(c, v)
    else:
        _write_pool(c, v)


def _write_convolution(c: Context, v: Value) -> None:
    x, w, bias, *form = v.args
    s = _find_sizes(x, w, v, form)
    many = _count_together(s, s.out[0] * s.out[1], 1)
    sizes = [s.images, many, s.channels, s.height, s.width, s.outs, *s.kernel, s.stride, s.step]
    sizes += [*s.border, *s.out, v.positive, s.groups]
    out, a, b = s.at("out", "a", "b")
    more = "0" if bias is None else f"c + k * {s.outs}"
    write_call(
        c,
        v,
        [x, w, bias],
        (s.depth + 1) * TILE + many * s.framed,
        s.each(f"convolve({out}, {a}, {b}, {more}, room, {_list_sizes(sizes)});"),
    )


def _write_input_gradients(c: Context, v: Value) -> None:
    gradients, _, w, _, *form = v.args
    s = _find_sizes(v, w, gradients, form)
    sizes = [s.channels, s.height, s.width, s.outs, *s.kernel, s.stride, s.step]
    sizes += [*s.border, *s.out, s.groups]
    a, out, b = s.at("a", "out", "b")
    if _is_sparse(s, gradients):
        call = f"spread_sparse({out}, {a}, {b}, room, {_list_sizes([s.images, *sizes])});"
        write_call(c, v, [gradients, w, None], s.turned, s.each(call))
        return
    many = _count_together(s, *s.out)
    write_call(
        c,
        v,
        [gradients, w, None],
        s.outs * TILE + many * s.framed_wide,
        s.each(f"spread_kernels({out}, {a}, {b}, room, {_list_sizes([s.images, many, *sizes])});"),
    )


def _count_together(s: ConvSizes, rows: int, length: int) -> int:
    """How many images at a time fill the columns of tiles best: an image gives so many `rows` of
    columns, which are not divided; a short tile waits for its sums.
    """
    each = max(1, TILE // length)  # rows of a tile

    def count_vectors(number: int) -> int:
        return max(2, -(-number * length // LANES)) if number else 0

    def measure(many: int) -> float:
        whole, rest = divmod(many * rows, each)
        return (whole * count_vectors(each) + count_vectors(rest)) / many

    fitting = [
        many
        for many in range(1, s.images + 1)
        if s.images % many == 0 and (many == 1 or many * s.framed <= TOGETHER)
    ]
    most = 1.1 * min(map(measure, fitting))  # for less it is not worth to take them together
    return next(many for many in fitting if measure(many) <= most)


def _write_kernel_gradients(c: Context, v: Value) -> None:
    gradients, x, _, _, *form = v.args
    s = _find_sizes(x, v, gradients, form)
    sizes = [s.images, s.channels, s.height, s.width, s.outs, *s.kernel, s.stride, s.step]
    sizes += [*s.border, *s.out, s.groups]
    places = s.out[0] * s.out[1]
    many = (s.depth + places) * (s.outs + LANES)
    few = s.depth * s.outs * LANES + (s.outs + s.depth) * (places + LANES) + LANES
    sparse = _is_sparse(s, gradients)
    name, room = ("_sparse", s.turned) if sparse else ("", max(many, few) + s.framed)
    b, a, out = s.at("b", "a", "out")
    call = f"correlate{name}({out}, {a}, {b}, room, {_list_sizes(sizes)});"
    write_call(c, v, [x, gradients, None], room, s.each(call))


def _is_sparse(s: ConvSizes, gradients: Value) -> bool:
    """Whether a pool leaves so few gradients of a convolution that only those are multiplied, with
    vectors of channels, where otherwise all are, with vectors of what it gives.
    """
    if gradients.op != LARGEST_GRADIENTS:
        return False
    form = gradients.args[2:]
    pool, _ = _find_pool_sizes(gradients.args[0], gradients, form, largest=True)
    window = pool[5] * pool[6]  # no two windows leave gradients within one stride
    return 2 * _fill(s.channels) * s.outs <= s.channels * _fill(s.outs) * window


def _fill(count: int) -> int:
    """As many numbers as whole vectors hold."""
    return -(-count // LANES) * LANES


def _write_pool(c: Context, v: Value) -> None:
    """The largest number or the mean of every window, or the gradients of them."""
    back = v.op in (LARGEST_GRADIENTS, MEAN_GRADIENTS)
    name = "largest" if v.op in (MAX_POOL, LARGEST_GRADIENTS) else "mean"
    small, large = (v.args[0], v) if back else (v, v.args[0])
    form = v.args[2 if back else 1 :]
    sizes, border = _find_pool_sizes(small, large, form, name == "largest")
    if border:  # windows that overlap or reach beyond the image
        sizes, name = [*sizes, *border], f"{name}_wide"
    if not back:
        write_call(c, v, [large, None, None], 0, f"pool_{name}(out, a, {_list_sizes(sizes)});")
    elif name.startswith("mean"):
        write_call(c, v, [small, None, None], 0, f"spread_{name}(out, a, {_list_sizes(sizes)});")
    else:
        call = f"spread_{name}(out, a, b, {_list_sizes([*sizes, v.positive])});"
        write_call(c, v, [small, v.args[1], None], 0, call)


def write_call(c: Context, v: Value, given: list[Value | None], room: int, call: str) -> None:
    """Call a function with room for some numbers, which is free again afterwards."""
    name = c.name_function(call, ", const real *c, real *room")
    starts = [_point_to(c, v), *("0" if one is None else _point_to(c, one) for one in given)]
    buffer = c.take(room, v.dtype)
    c.lines.append(f"{name}({', '.join([*starts, buffer.point('real')])});")
    c.free.append(buffer)


def _point_to(c: Context, v: Value) -> str:
    """Where an image or a kernel begins."""
    sides = [(n, step) for n, step in zip(v.shape, v.stride, strict=True) if n > 1]
    if [step for _, step in sides] != list(count_steps([n for n, _ in sides])):
        raise Untraceable("there is no C for images in this order")
    if v.constant is not None and v.constant.numel() == 1:
        raise Untraceable("there is no C for a convolution with a constant of one number")
    return f"&{load(c, v, ['0'] * len(v.shape))}"


def _list_sizes(sizes: list[int]) -> str:
    return ", ".join(str(int(n)) for n in sizes)


def _find_sizes(x: Value, w: Value, out: Value, form: list[Any]) -> ConvSizes:
    """What a convolution of this form reads and gives; `form` begins with the stride."""
    stride, border, step, transposed, _, groups = form[:6]
    square = len(set(stride)) == len(set(step)) == 1
    if len(x.shape) != 4 or transposed or not square or w.shape[3] > MAX_KERNEL_WIDTH:
        raise Untraceable("there is no C for a convolution of this form")
    return ConvSizes(
        images=x.shape[0],
        channels=x.shape[1] // groups,
        height=x.shape[2],
        width=x.shape[3],
        outs=w.shape[0] // groups,
        kernel=(w.shape[2], w.shape[3]),
        stride=stride[0],
        step=step[0],
        border=(border[0], border[-1]),
        out=(out.shape[2], out.shape[3]),
        groups=groups,
    )


def _find_pool_sizes(
    small: Value, large: Value, form: tuple[Any, ...], largest: bool
) -> tuple[list[int], list[int]]:
    """The sizes of a pool: planes, the large image, window, stride and the small image; and, where
    windows overlap or do not lie inside, their border and of a mean whether it counts.
    """
    usual: list[Any] = [[], [0], [1]]  # stride, border and, of the largest, what lies between
    kernel, stride, border, *rest = [*form, *usual[len(form) - 1 :]]
    kernel = [kernel[0], kernel[-1]]
    stride = [stride[0], stride[-1]] if stride else kernel
    sides = zip(large.shape[2:], small.shape[2:], kernel, stride, strict=True)
    inside = all((n - 1) * s + k <= whole for whole, n, k, s in sides)
    plain = not rest or set(rest[0]) == {1} if largest else len(rest) < 3 or rest[2] is None
    parted = all(k <= s for k, s in zip(kernel, stride, strict=True))
    if len(large.shape) != 4 or not plain:
        raise Untraceable("there is no C for a pool of this form")
    planes = large.shape[0] * large.shape[1]
    sizes = [planes, *large.shape[2:], *kernel, *stride, *small.shape[2:]]
    if inside and parted and not any(border):
        return sizes, []
    counted = [] if largest else [len(rest) < 2 or rest[1]]
    return sizes, [border[0], border[-1], *counted]
