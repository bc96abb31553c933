"""The routed experts of K3's layers as one grid-less Pallas call: routing weights in, partial sums out.

A rank holds a slice of the width of the experts of its group (expert and tensor parallel). The router's
weights tell which of them are visited, and by which rows; those, and only those, are read, in their published
4 bits. While one expert is multiplied the next ones arrive in the other slots.

Every row takes part in every visited expert, with weight 0 where it was not sent there: a product of 8 rows
costs hardly more than one of 1, gathering rows would cost moves.

The latent goes in and partial sums of the latent come out. What surrounds this in a layer, the projections to
and from the latent and the sum over ranks, is not part of it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from megakernels.common.gemv import LANES, MXU_COLUMNS
from megakernels.hooks import layer, phase, tag
from megakernels.k3 import fp4
from megakernels.k3.config import F32_BYTES, K3Config
from megakernels.k3.plan import ROWS, round_up

NOBODY = 1e9  # above any expert's number
PHASES = ("enter", "rows_in", "choose", "experts", "out", "leave")


@dataclass(frozen=True)
class ExpertPlan:
    """Sizes of one build of a stack of expert layers.

    Attributes:
        config: The model.
        layers: Layers in the stack.
        groups: Groups of ranks that the experts are split over.
        width_ranks: Ranks of a group, each with a slice of every expert's width.
        rows: Rows of the step, 1 to 8.
        slots: Experts in flight.

    Raises:
        ValueError: The model does not split so.
    """

    config: K3Config
    layers: int = 1
    groups: int = 1
    width_ranks: int = 1
    rows: int = 1
    slots: int = 3

    def __post_init__(self) -> None:
        """Refuse what the kernel cannot lay out."""
        c = self.config
        if c.experts % self.groups:
            raise ValueError(
                f"{c.name} has {c.experts} experts, which do not split over {self.groups} groups"
            )
        if c.latent % fp4.BLOCK or c.expert_width % (fp4.BLOCK * self.width_ranks):
            raise ValueError(
                f"{c.name}: latent and each rank's width of an expert must be multiples of {fp4.BLOCK}"
            )
        if not 1 <= self.rows <= ROWS or self.slots < 1:
            raise ValueError(f"rows must be from 1 to {ROWS}, slots at least 1")

    @property
    def cores(self) -> int:
        """Ranks; rank r is member r % width_ranks of group r // width_ranks."""
        return self.groups * self.width_ranks

    @property
    def experts(self) -> int:
        """Experts of a rank."""
        return self.config.experts // self.groups

    @property
    def width(self) -> int:
        """A rank's width of an expert."""
        return self.config.expert_width // self.width_ranks

    @property
    def lanes(self) -> int:
        """Width of a row of routing weights."""
        return round_up(self.experts, LANES)

    @cached_property
    def shapes(self) -> dict[str, tuple[int, int]]:
        """One expert's arrays on a rank, int32: gate and up in turns of 128 columns, then down."""
        latent, width = self.config.latent, self.width
        return {
            "up": (latent // 8, 2 * width),
            "up_scale": (fp4.scale_words(latent), 2 * width),
            "down": (width // 8, latent),
            "down_scale": (fp4.scale_words(width), latent),
        }

    @property
    def expert_bytes(self) -> int:
        """HBM bytes of one expert on a rank."""
        return sum(rows * columns * F32_BYTES for rows, columns in self.shapes.values())


class Operands(NamedTuple):
    """Refs in the order the call takes them; each core's share, without the core axis."""

    routing: Any  # f32 [layers, 8, lanes]: weight of each of this rank's experts, 0 where a row is not sent
    rows: Any  # bf16 [layers, 8, latent]; without core axis always: the same on all
    up: Any  # int32 [layers, experts, ...]: see ExpertPlan.shapes
    up_scale: Any
    down: Any
    down_scale: Any


class Staging(NamedTuple):
    """What a core keeps on chip, and its semaphores."""

    routing: Any  # f32 [8, lanes]
    rows: Any  # bf16 [8, latent]
    spread: Any  # bf16 [latent / 256, 8 * rows, 256]: see fp4.spread_groups
    inner: Any  # f32 [8, width]: an expert's activations, bfloat16 values
    total: Any  # f32 [8, latent]
    up: Any  # int32 [slots, ...]
    up_scale: Any
    down: Any
    down_scale: Any
    chosen: Any  # SMEM i32 [experts]: the visited experts, ascending
    full: Any  # DMA semaphores [slots]
    moved: Any  # DMA semaphore


def staging(plan: ExpertPlan) -> Staging:
    """The scratch the call asks for."""
    p, latent = plan, plan.config.latent
    slots = {n: pltpu.VMEM((p.slots, *shape), jnp.int32) for n, shape in p.shapes.items()}
    return Staging(
        routing=pltpu.VMEM((ROWS, p.lanes), jnp.float32),
        rows=pltpu.VMEM((ROWS, latent), jnp.bfloat16),
        spread=pltpu.VMEM((latent // fp4.BLOCK, fp4.GROUPS * p.rows, fp4.BLOCK), jnp.bfloat16),
        inner=pltpu.VMEM((ROWS, p.width), jnp.float32),
        total=pltpu.VMEM((ROWS, latent), jnp.float32),
        **slots,
        chosen=pltpu.SMEM((p.experts,), jnp.int32),
        full=pltpu.SemaphoreType.DMA((p.slots,)),
        moved=pltpu.SemaphoreType.DMA,
    )


@dataclass(frozen=True, slots=True)
class Core:
    """One core's view."""

    plan: ExpertPlan
    hbm: Operands
    out: Any  # f32 [layers, 8, latent]
    vmem: Staging


def experts_kernel(plan: ExpertPlan) -> Callable[..., None]:
    """The kernel for `plan`: refs of Operands, the output, then a Staging."""

    def kernel(*refs: Any) -> None:
        routing, rows, *arrays, out, vmem = refs
        hbm = Operands(routing.at[0], rows, *(ref.at[0] for ref in arrays))
        core = Core(plan, hbm, out.at[0], vmem)
        lax.fori_loop(0, plan.layers, lambda index, _: one_layer(core, index), None)

    return kernel


def one_layer(core: Core, index: jax.Array) -> None:
    """`out[index]` = this rank's share of the weighted sum over the experts that the rows visit."""
    p, hbm, v = core.plan, core.hbm, core.vmem
    with layer(index):
        with phase("rows_in"):
            copies = [
                tag(pltpu.make_async_copy(hbm.routing.at[index], v.routing, v.moved), "routing"),
                tag(pltpu.make_async_copy(hbm.rows.at[index], v.rows, v.moved), "rows"),
            ]
            for copy in copies:
                copy.start()
            for copy in copies:
                copy.wait()
        with phase("choose"):
            count = choose(core)
            for slot in range(p.slots):
                pl.when(slot < count)(lambda slot=slot: load(core, index, slot, slot))
            for block in range(v.spread.shape[0]):
                columns = slice(block * fp4.BLOCK, (block + 1) * fp4.BLOCK)
                v.spread[block] = fp4.spread_groups(v.rows[: p.rows, columns])
            v.total[...] = jnp.zeros_like(v.total)
        with phase("experts"):
            lax.fori_loop(0, count, lambda at, slot: one_expert(core, index, at, count, slot), jnp.int32(0))
        with phase("out"):
            out = tag(pltpu.make_async_copy(v.total, core.out.at[index], v.moved), "out")
            out.start()
            out.wait()


def choose(core: Core) -> jax.Array:
    """List the experts that any row visits, ascending; how many there are, int32."""
    p, v = core.plan, core.vmem
    visited = jnp.max(v.routing[: p.rows], axis=0, keepdims=True) > 0
    lane = lax.broadcasted_iota(jnp.int32, (1, p.lanes), 1).astype(jnp.float32)
    count = visited_count(visited)

    def put(at: Any, before: jax.Array) -> jax.Array:
        following = next_expert(visited, lane, before)
        v.chosen[at] = following.astype(jnp.int32)
        return following

    lax.fori_loop(0, count, put, jnp.float32(-1))
    return count


def visited_count(visited: jax.Array) -> jax.Array:
    """How many experts are visited: a vector-to-scalar value that data decides."""
    return jnp.sum(jnp.where(visited, 1.0, 0.0)).astype(jnp.int32)


def next_expert(visited: jax.Array, lane: jax.Array, before: jax.Array) -> jax.Array:
    """The first visited expert after `before`, float32: a vector-to-scalar value that data decides."""
    return jnp.min(jnp.where(visited & (lane > before), lane, NOBODY))


def load(core: Core, index: Any, at: Any, slot: Any) -> None:
    """Request the expert that stands `at` in the list."""
    for name, copy in expert_copies(core, index, core.vmem.chosen[at], slot):
        tag(copy, name).start()


def expert_copies(core: Core, index: Any, expert: Any, slot: Any) -> list[tuple[str, Any]]:
    """The copies that bring an expert into a slot."""
    hbm, v = core.hbm, core.vmem
    pairs = [(n, getattr(hbm, n).at[index, expert], getattr(v, n).at[slot]) for n in core.plan.shapes]
    return [(f"expert_{n}", pltpu.make_async_copy(s, d, v.full.at[slot])) for n, s, d in pairs]


def one_expert(core: Core, index: Any, at: Any, count: Any, slot: Any) -> Any:
    """Add an expert's share; then its slot is free for the expert that is `slots` further on."""
    p, v = core.plan, core.vmem
    for _, copy in expert_copies(core, index, 0, slot):
        copy.wait()
    gate_up(core, slot)
    down(core, slot, v.chosen[at])
    following = at + p.slots
    pl.when(following < count)(lambda: load(core, index, following, slot))
    return jnp.where(slot == p.slots - 1, 0, slot + 1)


def gate_up(core: Core, slot: Any) -> None:
    """`inner` = SiTU of gate and up, rounded as the model does."""
    p, c, v = core.plan, core.plan.config, core.vmem
    for turn in range(p.width // LANES):
        columns = slice(turn * MXU_COLUMNS, (turn + 1) * MXU_COLUMNS)
        both = fp4.product(v.spread.__getitem__, v.up.at[slot], v.up_scale.at[slot], columns)
        both = both.astype(jnp.bfloat16).astype(jnp.float32)
        gate, up = both[:, :LANES], both[:, LANES:]
        activated = c.gate_cap * jnp.tanh(gate * (1 / c.gate_cap)) * jax.nn.sigmoid(gate)
        activated = activated * c.up_cap * jnp.tanh(up * (1 / c.up_cap))
        here = slice(turn * LANES, (turn + 1) * LANES)
        v.inner[: p.rows, here] = activated.astype(jnp.bfloat16).astype(jnp.float32)


def down(core: Core, slot: Any, expert: Any) -> None:
    """`total += weight * down(inner)`."""
    p, v = core.plan, core.vmem
    blocks = [slice(first, first + fp4.BLOCK) for first in range(0, p.width, fp4.BLOCK)]
    spread = [fp4.spread_groups(v.inner[: p.rows, block].astype(jnp.bfloat16)) for block in blocks]
    lane = lax.broadcasted_iota(jnp.int32, (p.rows, p.lanes), 1)
    weight = jnp.sum(jnp.where(lane == expert, v.routing[: p.rows], 0.0), axis=-1, keepdims=True)
    for first in range(0, p.config.latent, MXU_COLUMNS):
        columns = slice(first, first + MXU_COLUMNS)
        share = fp4.product(spread.__getitem__, v.down.at[slot], v.down_scale.at[slot], columns)
        v.total[: p.rows, columns] += weight * share
