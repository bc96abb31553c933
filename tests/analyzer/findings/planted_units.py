"""Small kernels of one core, each in a version with a fault and one without: `planted_units.py:build`.

What is compared is the work of the core: the copies in and out are the same in both versions of a pair. Lines
that a finding must name carry a `PLANT <name>` comment.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import PartitionSpec as P

from megakernels.build import KernelBuild
from megakernels.common import gemv
from megakernels.hooks import phase

TILES, SIDE, ROWS = 8, 512, 8
HBM = pl.BlockSpec(memory_space=pltpu.HBM)
FP8 = jnp.float8_e4m3fn


def convert(x, w, acc, turns, once, wide=None):
    """What lies in 8 bits is widened in each turn; or all of it is, once, before the loop."""

    def widen(t, _):
        wide[t] = w[t].astype(jnp.float32)

    def turn(t, total):
        slot = t & (TILES - 1)
        tile = wide[slot] if once else w[slot].astype(jnp.float32)  # PLANT convert
        for row in range(0, SIDE, 64):
            total = jnp.maximum(total, tile[row : row + 64])
        return total

    if once:
        lax.fori_loop(0, TILES, widen, None)
    acc[...] = lax.fori_loop(0, turns, turn, x[...])


def transpose(x, w, acc, turns, hoisted):
    """A block is transposed in each turn; or once, before the loop."""

    def turn(t, _):
        block = x[...] + t.astype(jnp.float32)
        if not hoisted:
            block = block.T  # PLANT transpose
        acc[...] += block

    lax.fori_loop(0, turns, turn, None)


def reduce_lanes(x, w, acc, turns, hoisted):
    """Each turn sums over lanes and needs the sum at once; or sums lie in vectors until the end."""

    def turn(t, total):
        if hoisted:
            return total + x[...] * 1.0001
        return total + jnp.sum(total * x[...], axis=1, keepdims=True)  # PLANT reduce

    total = lax.fori_loop(0, turns, turn, x[...])
    acc[...] += total


def idle_matrix_units(x, w, acc, turns, unrolled):
    """Results of a product are waited for before the next one; or four products overlap."""

    def turn(t, _):
        tile = w[t & (TILES - 1)]
        acc[...] += jnp.dot(x[...], tile, preferred_element_type=jnp.float32)  # PLANT idle_mxu

    lax.fori_loop(0, turns, turn, None, unroll=4 if unrolled else 1)


def overhead(x, w, acc, turns, unrolled):
    """A loop with next to nothing in its body; or many turns in one."""

    def turn(t, _):
        row = pl.multiple_of((t & 31) * 8, 8)
        acc[pl.ds(row, 8), :] = x[pl.ds(row, 8), :] * 1.5

    lax.fori_loop(0, turns, turn, None, unroll=16 if unrolled else 1)  # PLANT overhead


def marked(x, w, acc, turns, hidden, fetch=None):
    """Region markers in a short loop that its bundles bound; or in one that HBM bounds."""

    def turn(t, _):
        row = pl.multiple_of((t & 3) * 64, 64)
        if hidden:
            fetch(t).wait()
        with phase("turn"):
            acc[pl.ds(row, 64), :] = x[pl.ds(row, 64), :] * 1.5
        if hidden:
            fetch(t).start()

    for t in range(TILES if hidden else 0):
        fetch(t).start()
    with phase("turns"):
        lax.fori_loop(0, turns, turn, None)
    for t in range(TILES if hidden else 0):
        fetch(t).wait()


def spill(x, w, acc, turns, few):
    """More values live through a loop than there are registers; or a quarter of them in four loops."""
    blocks, passes = x.shape[0] // 8, 4 if few else 1

    def turn(_, live):
        return tuple(block * 1.0001 + 0.5 for block in live)

    for first in range(passes):
        own = tuple(x[i * 8 : i * 8 + 8] * (i + 1.5) for i in range(first, blocks, passes))
        acc[first * 8 : first * 8 + 8] = sum(lax.fori_loop(0, turns, turn, own))  # PLANT spills


def straight(x, w, acc, turns, rolled):
    """A long body written out; or the same work in an inner loop."""

    def step(t, _):
        row = pl.multiple_of((t & 31) * 8, 8)
        acc[pl.ds(row, 8), :] = acc[pl.ds(row, 8), :] * 1.0001 + x[pl.ds(row, 8), :]  # PLANT straight

    def turn(t, _):
        lax.fori_loop(0, 64, lambda i, _: step(i + t, None), None, unroll=1 if rolled else 64)

    lax.fori_loop(0, turns, turn, None)


def pushes(x, w, acc, turns, fp8):
    """Eight rows through each weight tile: pushing the weights is the limit. 8-bit weights push faster."""
    rows = x[...].astype(FP8) if fp8 else x[...]

    def turn(t, _):
        tile = w[t & (TILES - 1)]
        acc[...] += jnp.dot(rows, tile, preferred_element_type=jnp.float32)  # PLANT pushes

    with phase("products"):
        lax.fori_loop(0, turns, turn, None)


def never(x, w, acc, turns, absent, flag=None):
    """Code for a case that does not come; or not compiled in."""
    lax.fori_loop(0, turns, lambda t, _: acc.__setitem__(..., acc[...] + x[...]), None)
    if not absent:

        @pl.when(flag[0] > 3)
        def _():
            for i in range(4):
                acc[...] = jnp.exp(acc[...]) * jnp.tanh(acc[...] + float(i))  # PLANT never


def copy_in(source, target, sem, in_pieces=False):
    """Start copying an operand, whole or piece by piece."""
    if not in_pieces:
        pltpu.make_async_copy(source, target, sem).start()  # PLANT padded
        return

    def piece(row, _):
        pltpu.make_async_copy(source.at[row], target.at[row], sem).start()  # PLANT small

    lax.fori_loop(0, source.shape[0], piece, None)


def nothing(x, w, acc, turns, good):
    """Where the copies in are the matter."""


def half_tiles(x, w, acc, turns, whole):
    """One matrix unit's worth of columns per turn; or both units' in one turn, and half the turns."""
    width = SIDE if whole else SIDE // 2

    def turn(t, _):
        slot, half = (t & (TILES - 1), 0) if whole else ((t >> 1) & (TILES - 1), (t & 1) * 256)
        columns = pl.ds(pl.multiple_of(half, 256), width)
        part = w[slot, :256, columns]
        acc[:, columns] += jnp.dot(x[:, :256], part, preferred_element_type=jnp.float32)  # PLANT one_mxu

    lax.fori_loop(0, turns if not whole else turns // 2, turn, None)


def narrow(x, w, acc, turns, wide):
    """128 columns per turn; or 256 in half as many turns."""
    width = 256 if wide else 128

    def turn(t, _):
        slot, columns = t & (TILES - 1), pl.ds(pl.multiple_of((t & 1) * width, width), width)
        part = w[slot, :256, columns]
        acc[:, columns] += jnp.dot(x[:, :256], part, preferred_element_type=jnp.float32)  # PLANT narrow

    lax.fori_loop(0, turns // 2 if wide else turns, turn, None)


def stacked(x, w, acc, turns, turned):
    """Column blocks under one another, whose loads share a bank of VMEM; or turned, so that they do not."""
    depth = x.shape[1]

    def plain(tile, pair):
        blocks = [tile[j * depth : (j + 1) * depth] for j in (2 * pair, 2 * pair + 1)]
        return jnp.concatenate(blocks, axis=1)

    def turn(t, _):
        tile, products = w.at[t & 1], []
        for pair in range(2):
            part = gemv.column_pair(tile, depth, pair) if turned else plain(tile, pair)
            products.append(jnp.dot(x[...], part, preferred_element_type=jnp.float32))  # PLANT stacked
        acc[...] = jnp.concatenate(products, axis=1)

    lax.fori_loop(0, turns, turn, None)


def early(x, w, acc, turns, late, fetch=None, flag=None):
    """A tile is waited for before work that does not need it; or after that work.

    The condition, which always holds, keeps the compiler from reading the tile during that work. The copy out
    is started in the delay slots of this loop's branch, and waited for right behind them.
    """

    def turn(t, _):
        fetch(t).start()
        if not late:
            fetch(t).wait()  # PLANT early
        acc[...] = lax.fori_loop(0, 40, lambda _, block: block * 1.0001 + 0.5, acc[...])
        if late:
            fetch(t).wait()

        @pl.when(flag[0] < 3)
        def _():
            acc[...] += jnp.dot(x[...], w[t & (TILES - 1)], preferred_element_type=jnp.float32)

    lax.fori_loop(0, turns, turn, None)


def three(x, w, acc, turns, without):
    """Three faults one after the other; `without` names the one that is left out."""

    def scale(t, _):
        row = pl.multiple_of((t & 31) * 8, 8)
        acc[pl.ds(row, 8), :128] = x[pl.ds(row, 8), :128] * 1.5

    def add(t, total):
        if without == "reduce":
            return total + x[:8] * 1.0001
        return total + jnp.sum(total * x[:8], axis=1, keepdims=True)

    transpose(x, w, acc, turns, without == "transpose")
    lax.fori_loop(0, 800, scale, None, unroll=16 if without == "overhead" else 1)
    acc[:8] += lax.fori_loop(0, 120, add, x[:8])


# name -> (body, dtype and shape of x, of one tile of w, of the result, turns)
F32, BF16 = jnp.float32, jnp.bfloat16
SQUARE = (SIDE, SIDE)
BODIES = {
    "convert": (convert, (F32, (64, SIDE)), FP8, (64, SIDE), 300),
    "transpose": (transpose, (F32, (256, 256)), BF16, (256, 256), 64),
    "reduce": (reduce_lanes, (F32, (ROWS, SIDE)), BF16, (ROWS, SIDE), 200),
    "idle_mxu": (idle_matrix_units, (BF16, (ROWS, SIDE)), BF16, (ROWS, SIDE), 96),
    "overhead": (overhead, (F32, (256, 128)), BF16, (256, 128), 4000),
    "marked": (marked, (F32, (256, 256)), BF16, (256, 256), 400),
    "spills": (spill, (F32, (768, 128)), BF16, (768, 128), 300),
    "straight": (straight, (F32, (256, 128)), BF16, (256, 128), 40),
    "pushes": (pushes, (BF16, (ROWS, SIDE)), {False: BF16, True: FP8}, (ROWS, SIDE), 200),
    "narrow": (narrow, (BF16, (ROWS, SIDE)), BF16, (ROWS, SIDE), 200),
    "stacked": (stacked, (BF16, (ROWS, 4 * SIDE)), BF16, (ROWS, SIDE), 50),
    "early": (early, (BF16, (ROWS, SIDE)), BF16, (ROWS, SIDE), 60),
    "three": (three, (F32, (256, 256)), BF16, (256, 256), 64),
    "small": (nothing, (F32, (256, 8, 128)), BF16, (ROWS, SIDE), 0),
    "padded": (nothing, {False: (F32, (8192, 64)), True: (F32, (4096, 128))}, BF16, (ROWS, SIDE), 0),
    "one_mxu": (half_tiles, (BF16, (ROWS, SIDE)), BF16, (ROWS, SIDE), 200),
    "never": (never, (F32, (256, 128)), BF16, (256, 128), 100),
}


def build(fault: str = "convert", good: bool | str = False):
    """The kernel with a fault, or without it; of several faults, `good` names the one left out."""
    body, x_given, w_given, out_shape, turns = BODIES[fault]
    (x_type, x_shape), w_type = (
        given[good] if isinstance(given, dict) else given for given in (x_given, w_given)
    )
    shape = jax.ShapeDtypeStruct
    w_shape = (2, TILES * SIDE * SIDE // 256, 128) if fault == "stacked" else (TILES, *SQUARE)

    def kernel(flag, x_hbm, w_hbm, out_hbm, x, w, acc, wide, sem):
        copy_in(x_hbm, x, sem.at[0], in_pieces=fault == "small" and not good)
        copy_in(w_hbm, w, sem.at[1])
        for at, (source, target) in enumerate(((x_hbm, x), (w_hbm, w))):
            pltpu.make_async_copy(source, target, sem.at[at]).wait()
        acc[...] = jnp.zeros_like(acc)

        def fetch(t):
            return pltpu.make_async_copy(w_hbm.at[t & (TILES - 1)], w.at[t & (TILES - 1)], sem.at[1])

        more = {
            "never": {"flag": flag},
            "convert": {"wide": wide},
            "marked": {"fetch": fetch},
            "early": {"fetch": fetch, "flag": flag},
        }.get(fault, {})
        body(x, w, acc, turns, good, **more)
        last = pltpu.make_async_copy(acc, out_hbm, sem.at[0])
        last.start()
        last.wait()

    def on_one_core(flag, x, w):
        return pl.pallas_call(
            kernel,
            in_specs=[pl.BlockSpec(memory_space=pltpu.SMEM), HBM, HBM],
            out_specs=HBM,
            out_shape=shape(out_shape, F32),
            scratch_shapes=[
                pltpu.VMEM(x_shape, x_type),
                pltpu.VMEM(w_shape, w_type),
                pltpu.VMEM(out_shape, F32),
                pltpu.VMEM((TILES, *SQUARE), F32),
                pltpu.SemaphoreType.DMA((2,)),
            ],
            compiler_params=pltpu.CompilerParams(disable_bounds_checks=True, vmem_limit_bytes=64 << 20),
            name="planted",
        )(flag, *(pltpu.with_memory_space_constraint(a, pltpu.HBM) for a in (x, w)))

    return KernelBuild(
        name="planted",
        function=on_one_core,
        arguments=(shape((1,), jnp.int32), shape(x_shape, x_type), shape(w_shape, w_type)),
        in_specs=(P(),) * 3,
        out_specs=P(),
        mesh_axes={"core": 1},
        facts={},
    )
