"""The routed experts of many layers as one grid-less Pallas call, to hold and time them by themselves."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from megakernels.hooks import layer, phase, tag
from megakernels.k3.experts import (
    ExpertCore,
    ExpertPlan,
    ExpertWeights,
    Staging,
    choose,
    first_of_group,
    run,
    spread_rows,
    staging,
)
from megakernels.k3.plan import ROWS


class Operands(NamedTuple):
    """Refs in the order the call takes them; each core's share, without the core axis."""

    # The first two are the same on all cores.
    routing: Any  # f32 [layers, 8, lanes]: weights of all experts, 0 where a row is not sent
    rows: Any  # bf16 [layers, 8, latent]
    up: Any  # int32 [layers, experts, ...]: see ExpertPlan.shapes
    up_scale: Any
    down: Any
    down_scale: Any


REPLICATED = ("routing", "rows")


class StackStaging(NamedTuple):
    """What a core keeps on chip besides the experts' own; two of each, used by layers in turn."""

    experts: Staging
    routing: Any  # f32 [2, 8, lanes]
    rows: Any  # bf16 [2, 8, latent]
    total: Any  # f32 [2, 8, latent]
    arrived: Any  # DMA semaphores [2]
    left: Any  # DMA semaphores [2]


def stack_staging(plan: ExpertPlan) -> StackStaging:
    """The scratch the call asks for."""
    latent = plan.config.latent
    return StackStaging(
        experts=staging(plan),
        routing=pltpu.VMEM((2, ROWS, plan.lanes), jnp.float32),
        rows=pltpu.VMEM((2, ROWS, latent), jnp.bfloat16),
        total=pltpu.VMEM((2, ROWS, latent), jnp.float32),
        arrived=pltpu.SemaphoreType.DMA((2,)),
        left=pltpu.SemaphoreType.DMA((2,)),
    )


@dataclass(frozen=True, slots=True)
class StackCore:
    """One core's view of the stack."""

    plan: ExpertPlan
    hbm: Operands
    out: Any  # f32 [layers, 8, latent]
    vmem: StackStaging
    experts: ExpertCore


def experts_kernel(plan: ExpertPlan) -> Callable[..., None]:
    """The kernel for `plan`: refs of Operands, the output, then a StackStaging."""

    def kernel(*refs: Any) -> None:
        routing, rows, *arrays, out, vmem = refs
        weights = ExpertWeights(*(ref.at[0] for ref in arrays))
        core = StackCore(
            plan, Operands(routing, rows, *weights), out.at[0], vmem, ExpertCore(plan, weights, vmem.experts)
        )
        for _, copy in row_copies(core, 0, 0):
            copy.start()
        lax.fori_loop(0, plan.layers, lambda index, _: one_layer(core, index), None)
        for index in range(max(0, plan.layers - 2), plan.layers):
            out_copy(core, 0, index % 2).wait()

    return kernel


def row_copies(core: StackCore, index: Any, turn: Any) -> list[tuple[str, Any]]:
    """The copies that bring a layer's routing weights and rows."""
    return [
        (
            name,
            pltpu.make_async_copy(
                getattr(core.hbm, name).at[index],
                getattr(core.vmem, name).at[turn],
                core.vmem.arrived.at[turn],
            ),
        )
        for name in REPLICATED
    ]


def out_copy(core: StackCore, index: Any, turn: Any) -> Any:
    """The copy that takes a layer's sums away."""
    return pltpu.make_async_copy(core.vmem.total.at[turn], core.out.at[index], core.vmem.left.at[turn])


def one_layer(core: StackCore, index: jax.Array) -> None:
    """`out[index]` = this rank's share of the weighted sum over the experts that the rows visit."""
    p, v, experts = core.plan, core.vmem, core.experts
    turn = lax.rem(index, 2)
    with layer(index):
        with phase("rows_in"):
            for _, copy in row_copies(core, 0, turn):
                copy.wait()

            @pl.when(index + 1 < p.layers)
            def _() -> None:
                for name, copy in row_copies(core, index + 1, 1 - turn):
                    tag(copy, name).start()

            v.experts.routing[...] = v.routing[turn]
        with phase("choose"):
            choose(experts, index, first_of_group(p))
            spread_rows(experts, v.rows.at[turn])
        with phase("experts"):
            run(experts, index)
        with phase("out"):
            out = out_copy(core, index, turn)
            pl.when(index > 1)(out.wait)  # the layer before the last has left the buffer
            v.total[turn] = v.experts.total[...]
            tag(out, "out").start()
