"""The routed experts of many layers as one grid-less Pallas call, to hold and time them by themselves."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
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
    start_loads,
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
    """What a core keeps on chip besides the experts' own."""

    experts: Staging
    rows: Any  # bf16 [8, latent]
    moved: Any  # DMA semaphore


def stack_staging(plan: ExpertPlan) -> StackStaging:
    """The scratch the call asks for."""
    return StackStaging(
        experts=staging(plan),
        rows=pltpu.VMEM((ROWS, plan.config.latent), jnp.bfloat16),
        moved=pltpu.SemaphoreType.DMA,
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
        lax.fori_loop(0, plan.layers, lambda index, _: one_layer(core, index), None)

    return kernel


def one_layer(core: StackCore, index: jax.Array) -> None:
    """`out[index]` = this rank's share of the weighted sum over the experts that the rows visit."""
    p, hbm, v, experts = core.plan, core.hbm, core.vmem, core.experts
    with layer(index):
        with phase("rows_in"):
            copies = [
                tag(pltpu.make_async_copy(hbm.routing.at[index], v.experts.routing, v.moved), "routing"),
                tag(pltpu.make_async_copy(hbm.rows.at[index], v.rows, v.moved), "rows"),
            ]
            for copy in copies:
                copy.start()
            for copy in copies:
                copy.wait()
        with phase("choose"):
            choose(experts, first_of_group(p))
            start_loads(experts, index)
            spread_rows(experts, v.rows)
        with phase("experts"):
            run(experts, index)
        with phase("out"):
            out = tag(pltpu.make_async_copy(v.experts.total, core.out.at[index], v.moved), "out")
            out.start()
            out.wait()
