"""Products of matrices in C, and what is computed from them while they are at hand."""

from __future__ import annotations

from coterie.engines.local.native.context import IVDEP, Context
from coterie.engines.local.native.expressions import express, load
from coterie.engines.local.native.fusion import is_tiled, needs_transpose
from coterie.engines.local.native.graph import Value
from coterie.engines.local.tracing import Untraceable

MAX_LANES = 16  # numbers of the widest vector


def write_product(c: Context, root: Value, v: Value) -> None:
    """A product as calls of the kernels, with all sizes as constants; `root` is computed from it,
    or is the product itself.
    """
    if root is v and not is_tiled(v):
        _write_rows(c, v)
    else:
        _write_tiles(c, root, v)


def _find_factors(c: Context, v: Value) -> tuple[str, str]:
    """Where the two factors begin."""
    if any(one.constant is not None and one.constant.numel() == 1 for one in v.args):
        raise Untraceable("there is no C for a product with a constant of one number")
    at = ["b", "0", "0"][-len(v.shape) :]
    return f"&{load(c, v.args[0], at)}", f"&{load(c, v.args[1], at)}"


def _write_rows(c: Context, v: Value) -> None:
    """A product of factors whose depth lies side by side in both."""
    a, b = v.args
    first, second = _find_factors(c, v)
    out = load(c, v, ["b", "0", "0"][-len(v.shape) :])
    steps = f"out, {v.stride[-2]}, a, {a.stride[-2]}, b, {b.stride[-1]}"
    sizes = f"{v.shape[-2]}, {a.shape[-1]}, {v.shape[-1]}"
    name = c.name_function(f"multiply_rows({steps}, {sizes});")
    _write_each(c, v, f"{name}(&{out}, {first}, {second});")


def _write_each(c: Context, v: Value, text: str) -> None:
    """C for every product of a batch of them."""
    if len(v.shape) == 3:
        text = f"for (long b = 0; b < {v.shape[0]}; b++) {{\n{text}\n}}"
    c.lines.append(f"{{\n{text}\n}}")


def _write_tiles(c: Context, root: Value, v: Value) -> None:
    """A product tile by tile; what is computed from it follows while the tile is at hand."""
    a, b = v.args
    first, second = _find_factors(c, v)
    rows, columns, depth = v.shape[-2], v.shape[-1], a.shape[-1]
    ar, ak, bk = a.stride[-2], a.stride[-1], b.stride[-2]
    at = ["b", "(r0 + r)", "(c0 + c)"][-len(v.shape) :]
    value = "product" if root is v else express(c, root, at, root)
    after = (
        f"for (int r = 0; r < ROWS_; r++) {{\n{IVDEP}for (int c = 0; c < COLUMNS_; c++) {{ "
        f"const real product = t[r * TILE + c]; {load(c, root, at)} = {value}; }} }}"
    )

    def write_block(wide: str, number: str, count: str, start: str, step: str) -> str:
        sizes = f"{step}, {depth}, {count}, {wide}"
        name = c.name_function(f"multiply_tile(out, a, {ar}, {ak}, b, {sizes});")
        call = f"{name}(t, {first} + r0 * {ar}, {start});\n"
        one = call + after.replace("ROWS_", count)
        return "{\n" + one.replace("COLUMNS_", number) + "\n}"

    def write_column(wide: str, number: str, start: str, step: str) -> str:
        text = "long r0 = 0;\n"
        if rows >= 4:
            four = write_block(wide, number, "4", start, step)
            text += f"for (; r0 + 4 <= {rows}; r0 += 4) {four}\n"
        rest = rows % 4
        return text + (write_block(wide, number, str(rest), start, step) if rest else "")

    def turn(panel: str, start: str, number: str, wide: str) -> str:
        strides = f"{bk}, {b.stride[-1] if columns > 1 else 1}"
        call = f"turn_factor(out, a, {strides}, {depth}, {number}, {wide});"
        return f"{c.name_function(call)}({panel}, {start}, {start});\n"

    text = ["real t[ROWS * TILE] __attribute__((aligned(64)));\nlong c0 = 0;"]
    whole = f"for (; c0 + TILE <= {columns}; c0 += TILE) {{"
    with c.lend(depth * (columns if needs_transpose(v) else 0) + depth * MAX_LANES, v) as panel:
        if needs_transpose(v):
            wide = f"(({columns} + LANES - 1) / LANES * LANES)"
            rest = f"{columns} % TILE"
            text += [
                turn(panel, second, str(columns), wide),
                f"{whole}{write_column('WIDE', 'TILE', f'{panel} + c0', wide)}}}",
                f"if ({rest}) {{",
                write_column(f"(({rest} + LANES - 1) / LANES)", rest, f"{panel} + c0", wide) + "}",
            ]
        else:
            some, rest = f"({columns} % TILE / LANES)", f"{columns} % LANES"
            beside = f"{second} + c0"
            text += [
                f"{whole}{write_column('WIDE', 'TILE', beside, str(bk))}}}",
                f"if ({some}) {{",
                write_column(some, f"{some} * LANES", beside, str(bk)),
                f"c0 += {some} * LANES;\n}}\nif ({rest}) {{",
                turn(panel, beside, rest, "LANES") + write_column("1", rest, panel, "LANES") + "}",
            ]
        _write_each(c, v, "\n".join(text))
