"""The routed experts of K3's layers: routing weights and rows in, a rank's partial sums out.

A rank holds a slice of the width of the experts of its group (expert and tensor parallel). The router's
weights tell which of them are visited, and by which rows; those, and only those, are read, in their published
4 bits. While one expert is multiplied the next ones arrive in the other slots.

The work is a list of pairs (expert, row), ordered by expert: few experts are visited by more than one row,
and the product of one row's 8 groups (see fp4.py) is as small as the MXU can make it. An expert is read once
for all its pairs.

The latent goes in and partial sums of the latent come out. A layer calls, in this order,

    choose       as soon as the routing weights are in `vmem.routing`: the first experts are on their way
    spread_rows  when the latent is there
    run          leaves the sums in `vmem.total`

What surrounds this in a layer, the projections to and from the latent and the sum over ranks, is not part
of it.
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
from megakernels.hooks import decided, tag
from megakernels.k3 import fp4
from megakernels.k3.config import F32_BYTES, K3Config
from megakernels.k3.mixer import AXIS
from megakernels.k3.plan import ROWS, round_up
from megakernels.k3.situ import situ

NOBODY = 1e9  # above any key
PARTS = 2  # an expert is waited for in two parts, see ExpertPlan.early_turns
ROW_BITS = 3  # of a key: 8 * expert + row


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
        """Width of a row of routing weights: all experts of the model."""
        return round_up(self.config.experts, LANES)

    @property
    def pairs(self) -> int:
        """The most (expert, row) pairs that a rank can have."""
        return self.rows * min(self.config.active_experts, self.experts)

    @property
    def turns(self) -> int:
        """Turns of 128 columns of gate and of up."""
        return self.width // LANES

    @property
    def early_turns(self) -> int:
        """Turns that are multiplied when they are there; meanwhile the others arrive, and down."""
        return max(1, 2 * self.turns // 3)

    @cached_property
    def shapes(self) -> dict[str, tuple[int, int]]:
        """One expert's arrays on a rank, int32.

        Gate and up stand beside one another in turns of 128 columns, one turn below the other; then down.
        """
        latent, width = self.config.latent, self.width
        return {
            "up": (self.turns * latent // 8, MXU_COLUMNS),
            "up_scale": (self.turns * fp4.scale_words(latent), MXU_COLUMNS),
            "down": (width // 8, latent),
            "down_scale": (fp4.scale_words(width), latent),
        }

    @property
    def expert_bytes(self) -> int:
        """HBM bytes of one expert on a rank."""
        return sum(rows * columns * F32_BYTES for rows, columns in self.shapes.values())


class ExpertWeights(NamedTuple):
    """Refs of a rank's experts in HBM, int32 `[layers, experts of the rank, ...]`; see ExpertPlan.shapes."""

    up: Any
    up_scale: Any
    down: Any
    down_scale: Any


class Staging(NamedTuple):
    """What a core keeps on chip, and its semaphores."""

    routing: Any  # f32 [8, lanes]: weights of all experts of the model, 0 where a row is not sent
    keys: Any  # f32 [8, lanes]: key of each pair of this rank, NOBODY elsewhere
    spread: Any  # bf16 [rows, latent / 256, 8, 256]: see fp4.spread_groups
    total: Any  # f32 [8, latent]
    up: Any  # int32 [slots, ...]
    up_scale: Any
    down: Any
    down_scale: Any
    pairs: Any  # SMEM i32 [pairs + 1]: 8 * expert of the rank + row, ascending
    experts: Any  # SMEM i32 [pairs + 1]: the different experts of the pairs
    counts: Any  # SMEM i32 [2]: of pairs, of different experts
    sums: Any  # f32 [rows, 8, latent]: `total`, not yet added up over groups
    full: Any  # DMA semaphores [slots, 2]: the early turns of gate and up are there, the rest is


def staging(plan: ExpertPlan) -> Staging:
    """The scratch the experts ask for."""
    p, latent = plan, plan.config.latent
    slots = {n: pltpu.VMEM((p.slots, *shape), jnp.int32) for n, shape in p.shapes.items()}
    return Staging(
        routing=pltpu.VMEM((ROWS, p.lanes), jnp.float32),
        keys=pltpu.VMEM((ROWS, p.lanes), jnp.float32),
        spread=pltpu.VMEM((p.rows, latent // fp4.BLOCK, fp4.GROUPS, fp4.BLOCK), jnp.bfloat16),
        total=pltpu.VMEM((ROWS, latent), jnp.float32),
        **slots,
        pairs=pltpu.SMEM((p.pairs + 1,), jnp.int32),
        experts=pltpu.SMEM((p.pairs + 1,), jnp.int32),
        counts=pltpu.SMEM((2,), jnp.int32),
        sums=pltpu.VMEM((p.rows, fp4.GROUPS, latent), jnp.float32),
        full=pltpu.SemaphoreType.DMA((p.slots, PARTS)),
    )


@dataclass(frozen=True, slots=True)
class ExpertCore:
    """One core's view."""

    plan: ExpertPlan
    hbm: ExpertWeights
    vmem: Staging


def first_of_group(plan: ExpertPlan) -> jax.Array:
    """Number in the model of this rank's first expert, int32."""
    return lax.axis_index(AXIS) // plan.width_ranks * plan.experts


def choose(core: ExpertCore, index: Any, first: Any) -> None:
    """List the pairs of the experts `first` to `first + experts - 1`; request the first experts of them.

    Args:
        core: The core; reads `vmem.routing`, of which only where it is above 0.
        index: int32, number of the layer.
        first: int32, number in the model of the rank's first expert.
    """
    p, v = core.plan, core.vmem
    shape = (ROWS, p.lanes)
    lane = lax.broadcasted_iota(jnp.int32, shape, 1) - first
    row = lax.broadcasted_iota(jnp.int32, shape, 0)
    own = (lane >= 0) & (lane < p.experts) & (row < p.rows) & (v.routing[...] > 0)
    v.keys[...] = jnp.where(own, (lane * ROWS + row).astype(jnp.float32), NOBODY)
    count = pair_count(v.keys[...])

    def put(at: Any, before: tuple[Any, Any]) -> tuple[Any, Any]:
        key, last = before
        following = next_pair(v.keys[...], key.astype(jnp.float32)).astype(jnp.int32)
        v.pairs[at] = following
        # An expert met before takes its own place in the list again.
        new = following >> ROW_BITS != key >> ROW_BITS
        last = last + new.astype(jnp.int32)
        v.experts[last] = following >> ROW_BITS
        pl.when(new & (last < p.slots))(lambda: load(core, index, last, last))
        return following, last

    _, last = lax.fori_loop(0, count, put, (jnp.int32(-1), jnp.int32(-1)))
    v.pairs[count] = -1  # of another expert than the last
    v.counts[0], v.counts[1] = count, last + 1


def pair_count(keys: jax.Array) -> jax.Array:
    """How many pairs there are: a vector-to-scalar value that data decides."""
    return decided(jnp.sum(jnp.where(keys < NOBODY, 1.0, 0.0))).astype(jnp.int32)


def next_pair(keys: jax.Array, before: jax.Array) -> jax.Array:
    """The smallest key above `before`, float32: a vector-to-scalar value that data decides."""
    return decided(jnp.min(jnp.where(keys > before, keys, NOBODY)))


def load(core: ExpertCore, index: Any, number: Any, slot: Any) -> None:
    """Request the expert that stands at `number` in the list of experts."""
    for part in range(PARTS):
        for name, copy in part_copies(core, index, core.vmem.experts[number], slot, part):
            tag(copy, name).start()


def await_part(core: ExpertCore, begins: Any, slot: Any, part: int) -> None:
    """Wait for a part of an expert, unless the expert has been there for another row."""

    @pl.when(begins)
    def _() -> None:
        for _, copy in part_copies(core, 0, 0, slot, part):
            copy.wait()


def part_copies(core: ExpertCore, index: Any, expert: Any, slot: Any, part: int) -> list[tuple[str, Any]]:
    """The copies that bring a part of an expert into a slot."""
    p, hbm, v = core.plan, core.hbm, core.vmem
    copies = []
    for name, (rows, _) in p.shapes.items():
        early = rows // p.turns * p.early_turns if name in ("up", "up_scale") else 0
        first, size = ((0, early), (early, rows - early))[part]
        if size:
            here = pl.ds(first, size)
            source, into = getattr(hbm, name).at[index, expert, here], getattr(v, name).at[slot, here]
            copies.append((f"expert_{name}", pltpu.make_async_copy(source, into, v.full.at[slot, part])))
    return copies


def spread_rows(core: ExpertCore, rows: Any) -> None:
    """Lay out the rows, bf16 `[8, latent]` (value or ref), as the products take them."""
    p, v = core.plan, core.vmem
    for block in range(p.config.latent // fp4.BLOCK):
        columns = slice(block * fp4.BLOCK, (block + 1) * fp4.BLOCK)
        spread = fp4.spread_groups(rows[: p.rows, columns])
        for row in range(p.rows):
            v.spread[row, block] = spread[row * fp4.GROUPS : (row + 1) * fp4.GROUPS]


class Place(NamedTuple):
    """Where `run` stands, int32."""

    at: Any  # in the list of pairs
    number: Any  # of the expert in the list of experts
    slot: Any  # where it is
    loaded: Any  # experts requested so far
    fill: Any  # slot of the next request
    begins: Any  # 1 where the pair is its expert's first


def run(core: ExpertCore, index: Any) -> None:
    """`total` = this rank's share of layer `index`: the weighted sum over the experts that the rows visit."""
    p, v = core.plan, core.vmem
    v.sums[...] = jnp.zeros_like(v.sums)
    count = v.counts[0]
    zero = jnp.int32(0)
    start = Place(zero, zero, zero, jnp.minimum(v.counts[1], p.slots), zero, jnp.int32(1))
    lax.while_loop(lambda place: place.at < count, lambda place: step(core, index, place), start)
    v.total[...] = jnp.zeros_like(v.total)
    for row in range(p.rows):
        v.total[row : row + 1] = jnp.sum(v.sums[row], axis=0, keepdims=True)


def step(core: ExpertCore, index: Any, place: Place) -> Place:
    """Add the shares of one or two pairs of an expert."""
    v = core.vmem
    key, other = v.pairs[place.at], v.pairs[place.at + 1]
    if core.plan.rows == 1:
        return one_step(core, index, place, [key])
    return lax.cond(
        other >> ROW_BITS == key >> ROW_BITS,
        lambda: one_step(core, index, place, [key, other]),
        lambda: one_step(core, index, place, [key]),
    )


def one_step(core: ExpertCore, index: Any, place: Place, keys: list[Any]) -> Place:
    """Add the shares of some pairs of an expert; after its last its slot is free for another."""
    p, v = core.plan, core.vmem
    multiply(core, place.begins > 0, place.slot, keys)
    after = place.at + len(keys)
    ends = (v.pairs[after] >> ROW_BITS != keys[0] >> ROW_BITS).astype(jnp.int32)
    more = (place.loaded < v.counts[1]) & (place.loaded < place.number + ends + p.slots)
    pl.when(more)(lambda: load(core, index, place.loaded, place.fill))
    return Place(
        after,
        place.number + ends,
        following(place.slot, ends, p.slots),
        place.loaded + more.astype(jnp.int32),
        following(place.fill, more.astype(jnp.int32), p.slots),
        ends,
    )


def multiply(core: ExpertCore, begins: Any, slot: Any, keys: list[Any]) -> None:
    """Add the shares of pairs of the expert in `slot`: one, or two, which then cost hardly more."""
    p, v = core.plan, core.vmem
    rows = [key & (ROWS - 1) for key in keys]

    def spread(block: int) -> jax.Array:
        return jnp.concatenate([v.spread[row, block] for row in rows], axis=0)

    await_part(core, begins, slot, 0)
    products = [gate_up(core, slot, spread, turn) for turn in range(p.early_turns)]
    # Nothing passes a wait. Here no more hangs on it than what the matrix units have not yet given back.
    await_part(core, begins, slot, 1)
    products += [gate_up(core, slot, spread, turn) for turn in range(p.early_turns, p.turns)]
    inner = [[activated(core, own) for own in by_row(product)] for product in products]
    weights = []
    for key in keys:
        own = jnp.where(v.keys[...] == key.astype(jnp.float32), v.routing[...], 0.0)
        weights.append(jnp.sum(own, axis=(0, 1), keepdims=True))
    for block in range(p.width // fp4.BLOCK):
        halves = zip(*inner[2 * block : 2 * block + 2], strict=True)
        lines = jnp.concatenate([jnp.concatenate(both, axis=1) for both in halves], axis=0)
        parts = down(core, slot, fp4.spread_groups(lines), block)
        for columns, part in zip(column_tiles(p.config.latent), parts, strict=True):
            for row, weight, share in zip(rows, weights, by_row(part), strict=True):
                v.sums[row, :, columns] += weight * share


def by_row(sums: jax.Array) -> list[jax.Array]:
    """Group sums `[8 m, n]` row by row."""
    return [sums[first : first + fp4.GROUPS] for first in range(0, sums.shape[0], fp4.GROUPS)]


def following(slot: Any, steps: Any, slots: int) -> Any:
    """The slot 0 or 1 steps further on."""
    return jnp.where(slot + steps == slots, 0, slot + steps)


def gate_up(core: ExpertCore, slot: Any, spread: Callable[[int], jax.Array], turn: int) -> jax.Array:
    """Group sums of rows with 128 columns of gate and of up, f32 `[8 m, 256]`."""
    c, v = core.plan.config, core.vmem
    words, scales = (pl.ds(turn * rows, rows) for rows in (c.latent // 8, fp4.scale_words(c.latent)))
    return fp4.group_sums(spread, v.up.at[slot, words], v.up_scale.at[slot, scales])


def activated(core: ExpertCore, sums: jax.Array) -> jax.Array:
    """SiTU of what `gate_up` gives, rounded as the model does: bf16 `[1, 128]`."""
    c = core.plan.config
    gate, up = sums[:, :LANES], sums[:, LANES:]
    # Both are added up in one register, gate in the upper half of it: sublanes 3 and 7 hold the sums.
    upper = lax.broadcasted_iota(jnp.int32, gate.shape, 0) < fp4.GROUPS // 2
    both = jnp.where(upper, gate + pltpu.roll(gate, 4, 0), up + pltpu.roll(up, 4, 0))
    both = both + pltpu.roll(both, 2, 0)
    both = both + pltpu.roll(both, 1, 0)
    both = both.astype(jnp.bfloat16).astype(jnp.float32)
    return situ(both[3:4], both[7:8], c.gate_cap, c.up_cap).astype(jnp.bfloat16)


def down(core: ExpertCore, slot: Any, inner: jax.Array, block: int) -> list[jax.Array]:
    """Group sums of 256 rows of down with their activations, spread: f32 `[8 m, 256]` per 256 columns."""
    v = core.vmem
    words = slice(block * fp4.WORDS, (block + 1) * fp4.WORDS)
    scales = slice(block // 4 * fp4.GROUPS, (block // 4 + 1) * fp4.GROUPS)
    return [
        fp4.block_product(inner, v.down[slot, words, here], v.down_scale[slot, scales, here], block % 4)
        for here in column_tiles(core.plan.config.latent)
    ]


def column_tiles(width: int) -> list[slice]:
    """Columns in tiles of 256."""
    return [slice(first, first + MXU_COLUMNS) for first in range(0, width, MXU_COLUMNS)]
