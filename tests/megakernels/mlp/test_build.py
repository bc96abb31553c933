"""What the builder promises: shapes, facts that add up, and refusals that name the option."""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from megakernels.mlp.build import VMEM_LIMIT_BYTES, build
from megakernels.mlp.config import MlpConfig
from megakernels.mlp.reference import mlp_stack, pack_weights, random_inputs
from megakernels.registry import KERNELS

SMALL = MlpConfig(hidden=512, ffn=512, layers=2, cores=2, block=128, pack=2, ring_depth=3)


def test_the_demo_streams_every_weight_once_and_fits() -> None:
    kernel = KERNELS["mlp"]()
    read = {operand["name"]: operand["read_bytes"] for operand in kernel.facts["operands"]}
    assert read["w_gate"] == read["w_up"] == read["w_down"] == 16 * 8192 * 28672 // 8 * 2
    assert sum(read[name] for name in ("w_gate", "w_up", "w_down")) == (
        kernel.facts["tiles"] * kernel.facts["tile_bytes"]
    )
    assert kernel.facts["tile_bytes"] == 2 << 20
    assert sum(kernel.facts["vmem"].values()) < VMEM_LIMIT_BYTES


def test_facts_are_json_and_say_what_was_built() -> None:
    kernel = build(layers=3, cores=1, ffn=3584, prefetch_distance=1, level="off")
    facts = json.loads(json.dumps(kernel.facts))
    assert (facts["layers"], facts["cores"], facts["prefetch_distance"], facts["level"]) == (3, 1, 1, "off")
    assert [operand["name"] for operand in facts["operands"]] == [
        "x",
        "norm",
        "w_gate",
        "w_up",
        "w_down",
        "out",
    ]


def test_facts_count_the_bytes_of_the_arguments() -> None:
    kernel = build()
    for argument, spec, operand in zip(
        kernel.arguments, kernel.in_specs, kernel.facts["operands"], strict=False
    ):
        everywhere = math.prod(argument.shape) * argument.dtype.itemsize
        assert operand["read_bytes"] == everywhere // (kernel.cores if spec else 1)


def test_packed_tiles_hold_each_weight_once_and_in_order_of_use() -> None:
    c = SMALL
    _, weights = random_inputs(c)
    _, gate, _, down = (np.asarray(array, np.float32) for array in pack_weights(c, weights))
    whole_gate, whole_down = (np.asarray(array, np.float32) for array in (weights.w_gate, weights.w_down))
    core, layer, block, pack = 1, 1, 1, 1
    number = ((core * c.layers + layer) * c.ffn_blocks + block) * c.hidden_packs + pack
    first = core * c.ffn_per_core + block * c.block
    rows = slice(pack * c.tile_columns, (pack + 1) * c.tile_columns)
    columns = slice(first, first + c.block)
    np.testing.assert_array_equal(gate[number].reshape(-1, c.block), whole_gate[layer, rows, columns])
    number = ((core * c.layers + layer) * c.hidden_packs + pack) * c.ffn_blocks + block
    side_by_side = np.concatenate(list(down[number]), axis=1)
    np.testing.assert_array_equal(side_by_side, whole_down[layer, columns, rows])


def test_the_reference_is_the_formula() -> None:
    x, weights = random_inputs(MlpConfig(hidden=256, ffn=256, layers=1, cores=1, block=128, pack=1))
    norm, gate, up, down = (np.asarray(array[0], np.float64) for array in weights)
    normed = np.asarray(x, np.float64)
    normed = normed / np.sqrt((normed**2).mean(-1, keepdims=True) + 1e-6) * norm
    gated = normed @ gate
    gated = gated / (1 + np.exp(-gated)) * (normed @ up)
    np.testing.assert_allclose(mlp_stack(x, weights, 1e-6), x + gated @ down, atol=0.03)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"block": 100}, "block is 100; it must be a multiple of 128"),
        ({"hidden": 8000}, "hidden is 8000"),
        ({"ffn": 28000}, "ffn is 28000"),
        ({"layers": 0}, "layers is 0"),
        ({"prefetch_distance": 19}, "prefetch_distance is 19; it must be from 1 to ring_depth"),
        ({"prefetch_distance": 0}, "prefetch_distance is 0"),
        ({"level": "everything"}, "unknown hook level 'everything'"),
    ],
)
def test_what_cannot_be_tiled_is_refused_by_name(options, named) -> None:
    with pytest.raises(ValueError, match=named):
        build(**options)


def test_the_mesh_wants_enough_devices() -> None:
    with pytest.raises(ValueError, match="mlp needs 8 cores and 1 are there"):
        build().mesh(jax.devices()[:1])


def test_shaped_arguments_are_sharded_over_the_cores() -> None:
    kernel = build(hidden=512, ffn=512, layers=1, cores=2, block=128, pack=2)
    mesh = kernel.mesh(jax.devices())
    x, _, gate, _, _ = kernel.shaped_arguments(mesh)
    assert x.sharding.shard_shape(x.shape) == x.shape
    assert gate.sharding.shard_shape(gate.shape)[0] * 2 == gate.shape[0]
    assert gate.dtype == jnp.bfloat16
