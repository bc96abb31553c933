"""Compiles the decode loop of the real model for a slice that is not there; prints what XLA says of memory.

A program of its own: the compiler wants a fresh process.
"""

import json

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import NamedSharding, PartitionSpec

from megakernels.k3.build import build_plan, with_ring_that_fits
from megakernels.k3.calls import At, Calls, Draw
from megakernels.k3.config import KIMI_K3
from megakernels.k3.dspark import Sampling
from megakernels.k3.step_plan import StepPlan
from megakernels.k3.step_refs import KernelState

STATES = 3  # of a decode step; they are the last arguments of the kernel


def main() -> None:
    """Eight greedy steps a call, on 32 cores."""
    plan = with_ring_that_fits(StepPlan(KIMI_K3, hosts=4, members=8, width_ranks=4))
    calls = Calls(plan, Sampling(temperature=0.0), build_plan)
    topology = topologies.get_topology_desc(platform="tpu", topology_name="tpu7x:2x2x4")
    mesh = calls.decode_build.mesh(list(topology.devices))
    calls.__dict__["mesh"] = mesh  # instead of that of the devices which are there
    everywhere = NamedSharding(mesh, PartitionSpec())

    def whole(*shape: int, dtype: jnp.dtype = jnp.int32) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=everywhere)

    _, _, _, *arrays = calls.decode_build.shaped_arguments(mesh)  # after tokens, positions and what is kept
    weights, state = arrays[:-STATES], KernelState(*arrays[-STATES:])
    at, draw = At(whole(1), whole(1), whole()), Draw(whole(dtype=jnp.uint32), whole(dtype=jnp.uint32))
    memory = calls.steps.lower(whole(), at, draw, state, weights, room=8).compile().memory_analysis()
    print(
        json.dumps(
            {
                "arguments": memory.argument_size_in_bytes,
                "aliased": memory.alias_size_in_bytes,
                "temporary": memory.temp_size_in_bytes,
            }
        )
    )


if __name__ == "__main__":
    main()
