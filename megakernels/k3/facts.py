"""What a report may expect of a compiled step: sizes, bytes, trips, names. JSON values."""

from typing import Any

from megakernels.build import distinct_tokens
from megakernels.common.vmem import scratch_bytes
from megakernels.k3 import routing
from megakernels.k3.config import BF16_BYTES, F32_BYTES
from megakernels.k3.experts import ExpertWeights
from megakernels.k3.mla_plan import WINDOW
from megakernels.k3.plan import HISTORY_ROWS, ROWS
from megakernels.k3.routing import Routing
from megakernels.k3.scenario import busiest_pops
from megakernels.k3.step_plan import VMEM_BYTES, StepPlan
from megakernels.k3.step_refs import AXIS, Operands, staging
from megakernels.k3.vmem_plan import layer_plan

PHASES = (
    "attention_residual",
    "in_proj",
    "state_in",
    "conv",
    "recurrence",
    "state_out",
    "out_norm",
    "latent_proj",
    "side_proj",
    "latent_gather",
    "query_proj",
    "attention",
    "cache_prefetch",
    "out_proj",
    "mixer_sum",
    "ffn_residual",
    "dense_up",
    "dense_down",
    "dense_sum",
    "latent_down",
    "router",
    "top_k",
    "shared_up",
    "moe_latent_gather",
    "experts",
    "shared_down",
    "experts_sum",
    "latent_up",
    "output_gather",
    "final_norm",
    "lm_head",
    "sampling",
)
PLANNED_LAYER = 6  # of which the plan of the ring is given: KDA, before an MLA layer
# Where the scenario of a report puts the sequences, and the seed of its routing.
SCENARIO_POSITION, SCENARIO_SPACING, SCENARIO_SEED = 500, 5, 0
SCENARIO_ACCEPTED = 4  # rows of the block before that a verify step goes on from


def vmem_bytes(plan: StepPlan) -> dict[str, int]:
    """Bytes of every VMEM array a core keeps: name -> bytes."""
    return scratch_bytes(staging(plan))


def positions_of(plan: StepPlan) -> list[int]:
    """Where the scenario's sequences stand."""
    last = plan.capacity - 2 * WINDOW
    return [min(SCENARIO_POSITION + SCENARIO_SPACING * i, last) for i in range(plan.batch)]


def facts(plan: StepPlan, level: str) -> dict[str, Any]:
    """Facts of a build; bytes and counts are per core and step, of experts as the scenario routes."""
    p, c = plan, plan.config
    seeded = routing.uniform(c, p.rows, SCENARIO_SEED)
    read, written = operand_bytes(p, seeded)
    states = ["recurrent", "conv", "cache", *(["correction"] if p.verify else [])]
    inputs, outputs = [*Operands._fields, *states], ["next_tokens", "logits", "aux", *states]
    vmem = vmem_bytes(p)
    return {
        "model": c.name,
        "batch": p.batch,
        "verify": p.verify,
        "context": max(positions_of(p)),
        "layers": c.layers,
        "cores": p.cores,
        "hosts": p.hosts,
        "mesh_axes": {AXIS: p.cores},
        "level": level,
        "capacity": p.capacity,
        "ring_depth": p.ring_depth,
        "expert_slots": p.slots,
        "phases": list(PHASES),
        "scenario": scenario(p, seeded),
        # The first three are one operand of the kernel together; weights follow.
        "arguments": ["tokens", "positions", "accepted"],
        "sample_inputs": {
            "tokens": distinct_tokens(p.rows, c.vocab),
            "positions": positions_of(p),
            "accepted": [SCENARIO_ACCEPTED if p.verify else 0],
        },
        "operands": [
            {"index": i, "name": tag_of(n), "kind": "input", "read_bytes": read[n], "written_bytes": 0}
            for i, n in enumerate(inputs)
        ]
        + [
            {
                "index": len(inputs) + i,
                "name": n,
                "kind": "output",
                "read_bytes": 0,
                "written_bytes": written[n],
            }
            for i, n in enumerate(outputs)
        ],
        "weight_bytes": {name: read[name] for name in p.bytes_per_rank()},
        "expert_bytes": p.experts.expert_bytes,
        "expert_layers": c.moe_layers,
        "loops": [
            {"name": "layers", "iterations": c.layers},
            {"name": "lm_head tiles", "iterations": p.lm_head.tiles},
        ],
        "ring_plan": {"layer": PLANNED_LAYER, "tiles": layer_plan(p, min(PLANNED_LAYER, c.layers - 1))},
        "vmem": vmem,
        "vmem_bytes": sum(vmem.values()),
        "vmem_capacity_bytes": VMEM_BYTES,
    }


def tag_of(operand: str) -> str:
    """What copies of an operand are called."""
    return f"expert_{operand}" if operand in ExpertWeights._fields else operand


def operand_bytes(plan: StepPlan, seeded: Routing) -> tuple[dict[str, int], dict[str, int]]:
    """HBM bytes a core reads and writes in the scenario, by operand; experts as the busiest groups do."""
    p, c = plan, plan.config
    recurrent = c.kda_layers * p.batch * p.kda.heads * c.head_dim**2 * F32_BYTES
    inputs = HISTORY_ROWS if p.verify else (c.conv_taps - 1) * p.batch
    conv = c.kda_layers * p.kda.conv_blocks * 128 * inputs * F32_BYTES
    token = p.mla.cache_width * BF16_BYTES
    window = c.mla_layers * p.batch * WINDOW * token
    tiles = sum(-(-(at // 16 * 16) // p.cache_tile) for at in positions_of(p))
    correction = c.kda_layers * p.kda.correction_blocks * ROWS * 128 * F32_BYTES
    state = {"recurrent": recurrent, "conv": conv, "correction": correction}
    expert = {name: rows * columns * F32_BYTES for name, (rows, columns) in p.experts.shapes.items()}
    distinct = sum(seeded.busiest(p.experts.groups))
    read = p.bytes_per_rank() | state
    read |= {name: distinct * size for name, size in expert.items()}
    read |= {
        "scalars": 4 * (p.rows + p.batch + 1),
        "embedding": p.rows * c.hidden * BF16_BYTES,
        "cache": c.mla_layers * tiles * p.cache_tile * token + window,
    }
    written = state | {
        "cache": window,
        "next_tokens": ROWS * 128 * F32_BYTES,
        "logits": p.lm_head.tiles * ROWS * p.lm_head.columns * F32_BYTES,
        "aux": len(c.aux_layers) * ROWS * c.hidden * F32_BYTES,
    }
    return read, written


def scenario(plan: StepPlan, seeded: Routing) -> dict[str, Any]:
    """Values the bundles do not hold: positions, and experts as on the busiest group of every layer."""
    p = plan
    positions = positions_of(p)
    return {
        "name": f"position {positions[0]}, routing {seeded.source}, every layer's busiest group on all ranks",
        "positions": positions,
        "smem": {"0": [0] * p.rows + positions + [SCENARIO_ACCEPTED if p.verify else 0]},
        "pops": busiest_pops(p.experts, seeded),
    }
