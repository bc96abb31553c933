"""Sizes, facts and refusals of the plan, without running the kernel."""

import json
import math

import numpy as np
import pytest

from megakernels.common.gemv import LANES
from megakernels.qwen.build import build, operand_shapes
from megakernels.qwen.config import QWEN3_8_27B, SMALL
from megakernels.qwen.facts import vmem_bytes
from megakernels.qwen.plan import VMEM_BYTES, Plan
from megakernels.qwen.refs import REPLICATED, operand_names
from megakernels.registry import KERNELS
from profiler.record_child import sample_values


def test_the_real_model_on_eight_cores_pads_nothing_but_lm_head() -> None:
    plan = Plan()
    assert [(m.k, m.n, m.tiles) for m in plan.layer_matrices] == [
        (5120, 2048, 8),
        (768, 5120, 4),
        (5120, 4352, 17),
        (2176, 5120, 10),
    ]
    assert plan.lm_head.n - plan.vocab == 192
    assert sum(plan.weight_bytes().values()) < 1.01 * plan.ideal_weight_bytes()
    assert math.isclose(plan.ideal_weight_bytes() * 8, 51.25e9, rel_tol=1e-3)
    assert math.isclose(Plan(fp8=True).ideal_weight_bytes() * 8, 26.93e9, rel_tol=1e-3)


@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize("cores", [1, 2, 4, 8])
def test_weights_stay_near_their_ideal_on_every_slice(cores, fp8) -> None:
    plan = Plan(cores=cores, fp8=fp8)
    assert sum(plan.weight_bytes().values()) <= 1.03 * plan.ideal_weight_bytes()


@pytest.mark.parametrize(
    "options", [{}, {"batch": 8}, {"verify": True}, {"fp8": True, "batch": 8}, {"cores": 1}]
)
def test_every_variant_fits_and_says_so(options) -> None:
    facts = json.loads(json.dumps(KERNELS["qwen"](**options).facts))
    assert facts["vmem_bytes"] == sum(facts["vmem"].values()) < VMEM_BYTES
    names = [o["name"] for o in facts["operands"] if o["kind"] == "input"]
    assert [o["index"] for o in facts["operands"]] == list(range(len(facts["operands"])))
    assert ("scales" in names) == bool(options.get("fp8"))
    assert ("correction" in names) == bool(options.get("verify"))


@pytest.mark.parametrize(
    "options", [{}, {"batch": 8}, {"verify": True}, {"batch": 2, "capacity": 512}], ids=str
)
def test_a_recorded_step_is_a_typical_one(options) -> None:
    built = KERNELS["qwen"](**options)
    values = sample_values(built.facts)
    assert sorted(values) == [0, 1, 2]  # tokens, positions, accepted
    for index, given in values.items():
        assert len(given) == math.prod(built.arguments[index].shape)
    tokens, positions, _ = values.values()
    assert len(set(tokens)) == len(tokens)
    assert max(tokens) < QWEN3_8_27B.vocab
    assert 400 < min(positions) <= max(positions) < built.facts["capacity"]


def test_facts_count_the_bytes_of_the_weight_operands() -> None:
    for fp8 in (False, True):
        plan = Plan(fp8=fp8)
        shapes = operand_shapes(plan)
        for name in operand_names(plan):
            if name not in REPLICATED:
                operand = getattr(shapes, name)
                size = math.prod(operand.shape[1:]) * np.dtype(operand.dtype).itemsize
                assert plan.weight_bytes()[name] == size, name


def test_scales_of_a_layer_do_not_overlap() -> None:
    for cores in (1, 8):
        plan = Plan(cores=cores, fp8=True)
        used = np.zeros(plan.all_scale_rows, int)
        for matrix in plan.layer_matrices:
            first, rows, tiles = plan.scale_rows(matrix)
            used[first : first + rows * -(-matrix.tiles // tiles)] += 1
            assert rows >= matrix.k // LANES
            assert tiles * (matrix.columns // LANES) <= LANES
        assert (used == 1).all()


def test_vmem_of_few_rows_counts_small_memory_tiles() -> None:
    sizes = vmem_bytes(Plan())
    assert sizes["rope_rows"] == 512
    assert sizes["ring.banks"] == 16 * 10240 * 128 * 2
    # 20 rows of words, in memory tiles of 8 rows.
    assert sizes["mixer_exchange.mail"] == 8 * 24 * 128 * 4


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"batch": 3}, "batch 3: choose 1, 2, 4 or 8"),
        ({"batch": 2, "verify": True}, "1 with verify"),
        ({"cores": 3}, "does not split over 3 cores"),
        ({"cores": 16}, "does not split over 16 cores"),
        ({"capacity": 1000}, "must be a multiple of kv_tile"),
        ({"bank_rows": 1024}, "bank_rows 1024 cannot hold a column pair of w_in"),
        ({"fp8": True, "head_depth": 0}, "head_depth 0"),
    ],
)
def test_what_cannot_be_built_is_refused_by_name(options, named) -> None:
    with pytest.raises(ValueError, match=named):
        build(**options)


def test_pattern_and_sizes_of_the_real_model() -> None:
    c = QWEN3_8_27B
    assert [i for i in range(c.layers) if c.is_attention(i)] == list(range(3, 64, 4))
    assert (c.gdn_layers, c.attention_layers, c.conv_channels, c.rope_dims) == (48, 16, 10240, 64)
    assert SMALL.vocab % 256 != 0
