"""What a report may expect of a compiled step: sizes, bytes, trips, names. JSON values."""

from typing import Any

from megakernels.build import distinct_tokens
from megakernels.common.vmem import scratch_bytes
from megakernels.qwen.plan import BF16_BYTES, F32_BYTES, ROWS, VMEM_BYTES, WINDOW, Plan
from megakernels.qwen.refs import AXIS, operand_names, staging

PHASES = (
    "norm",
    "in_proj",
    "state_in",
    "conv",
    "recurrence",
    "state_out",
    "out_norm",
    "qk_norm_rope",
    "attention",
    "kv_prefetch",
    "out_proj",
    "mixer_all_reduce",
    "gate_up",
    "down",
    "ffn_all_reduce",
    "final_norm",
    "lm_head",
    "sampling",
)
# Where the scenario of a report puts the sequences: past the first KV tile's half, none at a boundary.
SCENARIO_POSITION, SCENARIO_SPACING = 500, 5
SCENARIO_ACCEPTED = 4  # rows of the block before that a verify step replays


def vmem_bytes(plan: Plan) -> dict[str, int]:
    """Bytes of every VMEM array a core keeps: name -> bytes."""
    return scratch_bytes(staging(plan))


def facts(plan: Plan, level: str) -> dict[str, Any]:
    """Facts of a build; bytes and counts are per core and step."""
    p, c = plan, plan.config
    weights = p.weight_bytes()
    vmem = vmem_bytes(p)
    scenario = _scenario(p)
    kv_tiles = sum(-(-(at // 16 * 16) // p.kv_tile) for at in scenario["positions"])
    state = c.gdn_layers * p.batch * p.value_heads * c.key_dim * c.value_dim * F32_BYTES
    conv = c.gdn_layers * p.conv_channels * F32_BYTES * (16 if p.verify else (c.conv_taps - 1) * p.batch)
    token = p.kv_blocks * 128 * BF16_BYTES
    window = c.attention_layers * p.batch * WINDOW * token
    correction = c.gdn_layers * p.correction_blocks * ROWS * 128 * F32_BYTES
    read = weights | {
        "tokens": 4 * p.rows,
        "positions": 4 * p.batch,
        "accepted": 4,
        "embedding": p.rows * c.hidden * BF16_BYTES,
        "rope": p.rows * 128 * F32_BYTES,
        "recurrent": state,
        "conv": conv,
        "kv": c.attention_layers * kv_tiles * p.kv_tile * token + window,
    }
    written = {
        "next_tokens": ROWS * 128 * 4,
        "logits": p.lm_head.tiles * ROWS * 256 * F32_BYTES,
        "recurrent": state,
        "conv": conv,
        "kv": window,
    }
    states = ["recurrent", "conv", "kv"]
    if p.verify:
        read["correction"] = written["correction"] = correction
        states.append("correction")
    inputs, outputs = [*operand_names(p), *states], ["next_tokens", "logits", *states]
    return {
        "model": c.name,
        "batch": p.batch,
        "verify": p.verify,
        "fp8": p.fp8,
        "context": max(scenario["positions"]),
        "layers": c.layers,
        "cores": p.cores,
        "mesh_axes": {AXIS: p.cores},
        "level": level,
        "capacity": p.capacity,
        "ring_depth": p.ring_depth,
        "tiles_per_layer": p.tiles_per_layer,
        "tiles": c.layers * p.tiles_per_layer + p.lm_head.tiles,
        "matrices": [
            {"name": m.name, "k": m.k, "n": m.n, "tile_columns": m.columns, "tiles": m.tiles}
            for m in (*p.layer_matrices, p.lm_head)
        ],
        "phases": list(PHASES),
        "scenario": scenario,
        "sample_inputs": {
            "tokens": distinct_tokens(p.rows, c.vocab),
            "positions": scenario["positions"],
            "accepted": [SCENARIO_ACCEPTED if p.verify else 0],
        },
        "operands": [
            {"index": i, "name": name, "kind": "input", "read_bytes": read[name], "written_bytes": 0}
            for i, name in enumerate(inputs)
        ]
        + [
            {
                "index": len(inputs) + i,
                "name": name,
                "kind": "output",
                "read_bytes": 0,
                "written_bytes": written[name],
            }
            for i, name in enumerate(outputs)
        ],
        "weight_bytes": weights,
        "ideal_weight_bytes": p.ideal_weight_bytes(),
        "loops": [
            {"name": "first requests", "iterations": p.ring_depth},
            {"name": "layers", "iterations": c.layers},
            *(
                {"name": f"{matrix.name} tiles", "iterations": c.layers * matrix.tiles}
                for matrix in p.layer_matrices
            ),
            {"name": "lm_head tiles", "iterations": p.lm_head.tiles},
        ],
        "vmem": vmem,
        "vmem_bytes": sum(vmem.values()),
        "vmem_capacity_bytes": VMEM_BYTES,
        "sent_bytes_per_core": sent_bytes(p),
    }


def sent_bytes(plan: Plan) -> int:
    """Bytes a core sends to others in a step: two shares per layer, and the best token at the end."""
    share = plan.rows * plan.config.hidden * BF16_BYTES
    return (plan.cores - 1) * (2 * plan.config.layers * share + 2 * ROWS * 128 * F32_BYTES)


def _scenario(plan: Plan) -> dict[str, Any]:
    """Values a report may set, since the bundles do not hold them (`--set` names)."""
    last = plan.capacity - 2 * WINDOW
    positions = [min(SCENARIO_POSITION + SCENARIO_SPACING * i, last) for i in range(plan.batch)]
    table = "scalars" if plan.batch == 1 else "smem"
    settings = {f"{table}.1": ",".join(str(at) for at in positions)}
    if plan.verify:
        settings["scalars.2"] = str(SCENARIO_ACCEPTED)
    return {"name": f"position {positions[0]}", "positions": positions, "set": settings}
