"""A small product that stays in registers: a few rows of inputs by a few panels of a packed matrix.

A panel is 16 outputs of a matrix, input by input: `[dim, 16]`, so that one input multiplies a whole
vector of weights wherever it comes. A tile's sums are vectors that stay in registers while the
inputs go by. Each takes its terms in the order of the inputs, so that it has the same bits whatever
tile it is in.
"""

from contextlib import contextmanager

from llvmlite import binding, ir

from blockstride.kernels.common.cpu.lanes import first_lanes, vector_function
from blockstride.kernels.common.cpu.native import primitive, types
from blockstride.kernels.common.cpu.widen import BF16, F32
from blockstride.kernels.mlp.packed_weight import PANEL

FLOAT, INT16, INT32, INT64 = ir.FloatType(), ir.IntType(16), ir.IntType(32), ir.IntType(64)
SUMS, HALVES = ir.VectorType(FLOAT, PANEL), ir.VectorType(INT16, PANEL)
BITS, MASK = ir.VectorType(INT32, PANEL), ir.VectorType(ir.IntType(1), PANEL)

# 32 registers of 16 floats, or half of that or less
HAS_WIDE_REGISTERS = bool(binding.get_host_cpu_features().get("avx512f"))
# rows of a tile -> panels beside each other there: as many sums as registers hold
PANELS_OF = {1: 4, 2: 4, 4: 4, 8: 3} if HAS_WIDE_REGISTERS else {1: 4, 2: 3, 4: 1}
# rows of the largest tile
MAX_ROWS = max(PANELS_OF)


def _splat(builder, value, vector):
    single = builder.insert_element(ir.Constant(vector, ir.Undefined), value, INT32(0))
    return builder.shuffle_vector(
        single, single, ir.Constant(ir.VectorType(INT32, PANEL), [0] * PANEL)
    )


def _on_stack(builder, kind):
    """Room for a value, which the compiler makes a register of."""
    with builder.goto_entry_block():
        return builder.alloca(kind)


@contextmanager
def _loop(builder, count):
    """A loop whose index goes from 0 to before `count`."""
    before = builder.block
    head, body, after = (builder.append_basic_block(name) for name in ("head", "body", "after"))
    builder.branch(head)
    builder.position_at_end(head)
    index = builder.phi(INT64)
    index.add_incoming(INT64(0), before)
    builder.cbranch(builder.icmp_signed("<", index, count), body, after)
    builder.position_at_end(body)
    yield index
    index.add_incoming(builder.add(index, INT64(1)), builder.block)
    builder.branch(head)
    builder.position_at_end(after)


def _at(builder, address, element):
    return builder.inttoptr(address, element.as_pointer())


def _smaller(builder, a, b):
    return builder.select(builder.icmp_signed("<", a, b), a, b)


class _Tile:
    """What builds the machine code of one tile."""

    def __init__(self, builder, rows, panels, kind, values) -> None:
        self.builder, self.kind = builder, kind
        (
            out, out_stride, x, x_stride, x_step, weight, panel_stride, count, bias, resumes,
            num_rows, num_panels, width,
        ) = values  # fmt: skip
        self.x_step, self.count, self.bias, self.resumes = x_step, count, bias, resumes
        last_row = builder.sub(num_rows, INT64(1))
        last_panel = builder.sub(num_panels, INT64(1))
        # rows and panels that a tile has too many of are the last ones again, and not written
        at_row = [_smaller(builder, INT64(r), last_row) for r in range(rows)]
        at_panel = [_smaller(builder, INT64(p), last_panel) for p in range(panels)]
        width = _smaller(builder, width, builder.mul(num_panels, INT64(PANEL)))
        lefts = [builder.sub(width, INT64(PANEL * p)) for p in range(panels)]
        is_row = [builder.icmp_signed("<", INT64(r), num_rows) for r in range(rows)]
        self.masks = [
            [
                first_lanes(builder, builder.select(is_there, left, INT64(0)), PANEL)
                for left in lefts
            ]
            for is_there in is_row
        ]
        self.x = [builder.add(x, builder.mul(r, x_stride)) for r in at_row]
        self.out = [builder.add(out, builder.mul(r, out_stride)) for r in at_row]
        self.weight = [builder.add(weight, builder.mul(p, panel_stride)) for p in at_panel]
        self.sums = [[_on_stack(builder, SUMS) for _ in range(panels)] for _ in range(rows)]

    def generate(self) -> None:
        """Add all terms, then what the sums are added to, and store them."""
        builder = self.builder
        for cell in (cell for sums in self.sums for cell in sums):
            builder.store(ir.Constant(SUMS, [0.0] * PANEL), cell)
        with _loop(builder, self.count) as k:
            self._add_terms(k)
        resumes = builder.icmp_signed("!=", self.resumes, INT64(0))
        for target, sums, masks in zip(self.out, self.sums, self.masks, strict=True):
            before = builder.select(resumes, target, self.bias)
            with builder.if_then(builder.icmp_signed("!=", before, INT64(0))):
                self._each(before, sums, masks, self._add)
            self._each(target, sums, masks, self._store)

    def _each(self, base, sums, masks, action) -> None:
        """Do something with every sum of a row and its place in a vector of outputs."""
        builder = self.builder
        for panel, (cell, mask) in enumerate(zip(sums, masks, strict=True)):
            place = builder.add(base, INT64(4 * PANEL * panel))
            action(cell, _at(builder, place, SUMS), mask)

    def _add(self, cell, place, mask) -> None:
        builder = self.builder
        load = vector_function(
            builder, f"masked.load.v{PANEL}f32.p0", SUMS, (place.type, INT32, MASK, SUMS)
        )
        zeros = ir.Constant(SUMS, [0.0] * PANEL)
        before = builder.call(load, (place, INT32(4), mask, zeros))
        builder.store(builder.fadd(before, builder.load(cell)), cell)

    def _store(self, cell, place, mask) -> None:
        kinds = (SUMS, place.type, INT32, MASK)
        store = vector_function(self.builder, f"masked.store.v{PANEL}f32.p0", ir.VoidType(), kinds)
        self.builder.call(store, (self.builder.load(cell), place, INT32(4), mask))

    def _add_terms(self, k) -> None:
        builder = self.builder
        fma = vector_function(builder, f"fma.v{PANEL}f32", SUMS, (SUMS, SUMS, SUMS))
        weights = [self._weights(base, k) for base in self.weight]
        step = builder.mul(k, self.x_step)
        for base, sums in zip(self.x, self.sums, strict=True):
            x = _splat(builder, builder.load(_at(builder, builder.add(base, step), FLOAT)), SUMS)
            for cell, weight in zip(sums, weights, strict=True):
                builder.store(builder.call(fma, (x, weight, builder.load(cell))), cell)

    def _weights(self, base, k):
        """The weights of one input and one panel."""
        builder = self.builder
        if self.kind == BF16:
            place = builder.add(base, builder.mul(k, INT64(2 * PANEL)))
            halves = builder.load(_at(builder, place, HALVES), align=2)
            wide = builder.shl(builder.zext(halves, BITS), ir.Constant(BITS, [16] * PANEL))
            return builder.bitcast(wide, SUMS)
        place = builder.add(base, builder.mul(k, INT64(4 * PANEL)))
        return builder.load(_at(builder, place, SUMS), align=4)


@primitive
def product(
    typing_context, out, out_stride, x, x_stride, x_step, weight, panel_stride, count, bias,
    resumes, num_rows, num_panels, width, kind,
):  # fmt: skip
    """Multiply up to `MAX_ROWS` rows by some panels; strides and steps are in bytes.

    Args:
        typing_context: Of numba.
        out: Address of the first output; those of a row lie side by side.
        out_stride: From row to row.
        x: Address of the first input.
        x_stride: From row to row.
        x_step: From one input of a row to the next.
        weight: Address of the first weight of the first panel.
        panel_stride: From panel to panel.
        count: Inputs.
        bias: Address of what is added to the sums of a row; 0 for nothing.
        resumes: Not 0 if sums are added to what `out` has, instead.
        num_rows: Rows, at least one.
        num_panels: Panels.
        width: Outputs from the first panel to the last row of the matrix.
        kind: What the matrix holds, `F32` or `BF16`.
    """

    def generate(context, builder, signature, values):
        *values, num_rows, num_panels, width, kind = values
        is_wide = builder.icmp_signed("==", kind, INT64(F32))
        for rows, panels in PANELS_OF.items():
            least, most = (INT64(rows // 2 + 1 if rows > 2 else rows), INT64(rows))
            fits = builder.and_(
                builder.icmp_signed("<=", least, num_rows),
                builder.icmp_signed("<=", num_rows, most),
            )
            with builder.if_then(fits), _steps(builder, num_panels, panels) as done:
                at = _moved(builder, values, done)
                rest = builder.sub(num_panels, done)
                left = builder.sub(width, builder.mul(done, INT64(PANEL)))
                with builder.if_else(is_wide) as (wide, narrow):
                    for kind_of, branch in ((F32, wide), (BF16, narrow)):
                        with branch:
                            ends = (num_rows, rest, left)
                            _Tile(builder, rows, panels, kind_of, (*at, *ends)).generate()
        return context.get_dummy_value()

    return types.void(*[types.int64] * 14), generate


@contextmanager
def _steps(builder, count, step):
    """A loop over 0, `step`, ... up to `count`."""
    num_steps = builder.sdiv(builder.add(count, INT64(step - 1)), INT64(step))
    with _loop(builder, num_steps) as i:
        yield builder.mul(i, INT64(step))


def _moved(builder, values, done):
    """The arguments of a product after so many panels."""
    out, out_stride, x, x_stride, x_step, weight, panel_stride, count, bias, resumes = values
    first = builder.mul(done, INT64(4 * PANEL))
    has_bias = builder.icmp_signed("!=", bias, INT64(0))
    return (
        builder.add(out, first), out_stride, x, x_stride, x_step,
        builder.add(weight, builder.mul(done, panel_stride)), panel_stride, count,
        builder.select(has_bias, builder.add(bias, first), bias), resumes,
    )  # fmt: skip
