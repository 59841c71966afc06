"""Products of matrices in C, and what is computed from them while they are at hand."""

from __future__ import annotations

import torch

from coterie.engines.local.native.expressions import IVDEP, Expressions
from coterie.engines.local.native.plan import Plan, turned
from coterie.engines.local.native.values import Value
from coterie.engines.local.programs import Untraceable

MOST_LANES = 16  # numbers of the widest vector


class Products(Expressions):
    """Writes products as calls of the kernels, with all sizes as constants."""

    def __init__(self, plan: Plan):
        super().__init__(plan)
        self._named: dict[tuple[str, str, str], str] = {}  # (type, call, more arguments) -> name

    def _factors(self, v: Value) -> tuple[str, str]:
        """Where the two factors begin."""
        if any(one.constant is not None and one.constant.numel() == 1 for one in v.args):
            raise Untraceable("there is no C for a product with a constant of one number")
        at = ["b", "0", "0"][-len(v.shape) :]
        return f"&{self.load(v.args[0], at)}", f"&{self.load(v.args[1], at)}"

    def dotted(self, v: Value) -> None:
        """A product of factors whose depth lies side by side in both."""
        a, b = v.args
        first, second = self._factors(v)
        s = "d" if v.dtype == torch.float64 else "f"
        out = self.load(v, ["b", "0", "0"][-len(v.shape) :])
        sizes = f"{v.shape[-2]}, {a.shape[-1]}, {v.shape[-1]}"
        name = self.function(
            s, f"dot_{s}(out, {v.stride[-2]}, a, {a.stride[-2]}, b, {b.stride[-1]}, {sizes});"
        )
        self.over_batch(v, f"{name}(&{out}, {first}, {second});")

    def function(self, s: str, call: str, more: str = "") -> str:
        """The name of a function that makes a call with all sizes, compiled once however often it
        is taken; `more` are its arguments beside out, a and b.
        """
        return self._named.setdefault((s, call, more), f"product{len(self._named)}")

    @property
    def functions(self) -> str:
        """The functions that are called."""
        texts = []
        for (s, call, more), name in self._named.items():
            kind = "double" if s == "d" else "float"
            given = f"{kind} *out, const {kind} *a, const {kind} *b{more}"
            texts.append(f"static __attribute__((noinline)) void {name}({given}) {{ {call} }}")
        return "\n".join(texts)

    def over_batch(self, v: Value, text: str) -> None:
        """C for every product of a batch of them."""
        if len(v.shape) == 3:
            text = f"for (long b = 0; b < {v.shape[0]}; b++) {{\n{text}\n}}"
        self.lines.append(f"{{\n{text}\n}}")

    def tiled(self, root: Value, v: Value) -> None:
        """A product tile by tile; what is computed from it follows while the tile is at hand."""
        a, b = v.args
        first, second = self._factors(v)
        s, kind = ("d", "double") if v.dtype == torch.float64 else ("f", "float")
        rows, columns, depth = v.shape[-2], v.shape[-1], a.shape[-1]
        ar, ak, bk = a.stride[-2], a.stride[-1], b.stride[-2]
        at = ["b", "(r0 + r)", "(c0 + c)"][-len(v.shape) :]
        value = "product" if root is v else self.expression(root, at, root)
        after = (
            f"for (int r = 0; r < ROWS_; r++) {{\n{IVDEP}for (int c = 0; c < COLUMNS_; c++) {{ "
            f"const {kind} product = t[r * TILE_{s} + c]; {self.load(root, at)} = {value}; }} }}"
        )

        def block(wide: str, number: str, count: str, start: str, step: str) -> str:
            name = self.function(
                s, f"tile_{s}(out, a, {ar}, {ak}, b, {step}, {depth}, {count}, {wide});"
            )
            call = f"{name}(t, {first} + r0 * {ar}, {start});\n"
            one = call + after.replace("ROWS_", count)
            return "{\n" + one.replace("COLUMNS_", number) + "\n}"

        def column(wide: str, number: str, start: str, step: str) -> str:
            text = "long r0 = 0;\n"
            if rows >= 4:
                four = block(wide, number, "4", start, step)
                text += f"for (; r0 + 4 <= {rows}; r0 += 4) {four}\n"
            rest = rows % 4
            return text + (block(wide, number, str(rest), start, step) if rest else "")

        def turn(panel: str, start: str, number: str, wide: str) -> str:
            strides = f"{bk}, {b.stride[-1] if columns > 1 else 1}"
            call = f"turn_{s}(out, a, {strides}, {depth}, {number}, {wide});"
            return f"{self.function(s, call)}({panel}, {start}, {start});\n"

        lanes, tile = f"LANES_{s}", f"TILE_{s}"
        text = [f"{kind} t[ROWS * {tile}] __attribute__((aligned(64)));\nlong c0 = 0;"]
        whole = f"for (; c0 + {tile} <= {columns}; c0 += {tile}) {{"
        with self.numbers(depth * (columns if turned(v) else 0) + depth * MOST_LANES, v) as panel:
            if turned(v):
                wide = f"(({columns} + {lanes} - 1) / {lanes} * {lanes})"
                rest = f"{columns} % {tile}"
                text += [
                    turn(panel, second, str(columns), wide),
                    f"{whole}{column('WIDE', tile, f'{panel} + c0', wide)}}}",
                    f"if ({rest}) {{",
                    column(f"{wide} % {tile} / {lanes}", rest, f"{panel} + c0", wide) + "}",
                ]
            else:
                some, rest = f"({columns} % {tile} / {lanes})", f"{columns} % {lanes}"
                beside = f"{second} + c0"
                text += [
                    f"{whole}{column('WIDE', tile, beside, str(bk))}}}",
                    f"if ({some}) {{",
                    column(some, f"{some} * {lanes}", beside, str(bk)),
                    f"c0 += {some} * {lanes};\n}}\nif ({rest}) {{",
                    turn(panel, beside, rest, lanes) + column("1", rest, panel, lanes) + "}",
                ]
            self.over_batch(v, "\n".join(text))
