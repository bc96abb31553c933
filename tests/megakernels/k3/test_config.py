"""The sizes of the real model against the published totals, and the config's own rules."""

import dataclasses

import pytest

from megakernels.k3.config import CONFIGS, KIMI_K3, SMALL, TINY, K3Config
from megakernels.k3.counts import Counts
from megakernels.k3.parameters import random_parameters, text_tensors

REAL = Counts(KIMI_K3)

# rows: distinct experts per layer, GB with experts in MXFP4, GB all in bfloat16; published, with the float32
# tensors counted as bfloat16.
BYTES = {
    1: (16.0, 136.97, 208.38),
    2: (31.7, 162.34, 303.88),
    4: (62.3, 211.72, 489.81),
    8: (120.3, 305.31, 842.14),
    9: (134.1, 327.67, 926.33),
    16: (224.4, 473.42, 1475.02),
}


def float32_surplus() -> float:
    """Bytes that the float32 tensors take beyond bfloat16, over the whole model."""
    parts = {name: part for name, part in REAL.parts.items() if name != "expert"}
    return sum(part.count * (part.stored_bytes - part.bf16_bytes) for part in parts.values())


def test_kinds_of_layers() -> None:
    mla = [layer for layer in range(KIMI_K3.layers) if KIMI_K3.is_mla(layer)]
    assert mla == [*range(3, 92, 4), 92]
    assert (KIMI_K3.mla_layers, KIMI_K3.kda_layers, KIMI_K3.moe_layers) == (24, 69, 92)
    assert [i for i in range(93) if KIMI_K3.takes_snapshot(i)] == [*range(0, 85, 12)]
    assert KIMI_K3.snapshots == 8
    assert [KIMI_K3.mixer_index(i) for i in (0, 3, 4, 91, 92)] == [0, 0, 3, 22, 23]


def test_published_parameter_totals() -> None:
    assert round(REAL.parameters / 1e9, 2) == 2779.48
    assert round(REAL.active_parameters / 1e9, 2) == 104.19
    embedding = REAL.parts["embedding"].parameters
    assert round((REAL.active_parameters + embedding) / 1e9, 2) == 105.36
    experts = REAL.parts["expert"]
    assert round(experts.count * experts.parameters / 1e9, 2) == 2722.74
    trunk = REAL.parameters - experts.count * experts.parameters - 2 * embedding
    assert round(trunk / 1e9, 3) == 54.395


@pytest.mark.parametrize(
    ("part", "count", "millions", "megabytes"),
    [
        ("kda", 69, 443.740, 887.48),
        ("mla", 24, 232.196, 464.39),
        ("moe_fixed", 92, 189.928, 379.86),
        ("expert", 92 * 896, 33.030, 66.06),
        ("dense", 1, 726.663, 1453.33),
        ("norms", 93, 0.043, 0.09),
    ],
)
def test_published_parts(part: str, count: int, millions: float, megabytes: float) -> None:
    ours = REAL.parts[part]
    assert ours.count == count
    assert round(ours.parameters / 1e6, 3) == millions
    assert round(ours.bf16_bytes / 1e6, 2) == megabytes


@pytest.mark.parametrize("rows", BYTES)
def test_published_bytes_per_step(rows: int) -> None:
    distinct, packed, plain = BYTES[rows]
    assert round(REAL.distinct_experts(rows), 1) == distinct
    for published, ours in ((packed, REAL.weight_bytes(rows)), (plain, REAL.weight_bytes(rows, True))):
        assert abs((ours - float32_surplus()) / 1e9 - published) < 0.0051


def test_published_state() -> None:
    assert round(REAL.recurrent_bytes / 1e6, 1) == 434.1
    assert round(REAL.conv_bytes / 1e6, 1) == 15.3
    assert REAL.cache_bytes_per_token == 27_648
    assert round(REAL.parts["expert"].stored_bytes / 1e6, 3) == 17.547


@pytest.mark.parametrize("config", [TINY, SMALL], ids=lambda config: config.name)
def test_counts_are_those_of_the_tensors(config: K3Config) -> None:
    tensors = text_tensors(config).values()
    assert Counts(config).parameters == sum(t.elements for t in tensors)
    assert Counts(config).stored_bytes == sum(t.bytes for t in tensors)


def test_stored_forms() -> None:
    tensors = text_tensors(TINY)
    experts = "model.layers.1.block_sparse_moe.experts.3"
    assert tensors[f"{experts}.w1.weight"].stored == "mxfp4"
    assert tensors["model.layers.0.self_attn.A_log"].stored == "f32"
    assert tensors["model.layers.0.self_attn.A_log"].shape == (128,)
    assert tensors["model.layers.0.self_attn.q_proj.weight"].stored == "bf16"
    stored = random_parameters(TINY, 1)
    assert stored[f"{experts}.w2.weight_packed"].shape == (32, 16)
    assert stored[f"{experts}.w2.weight_scale"].shape == (32, 1)
    assert f"{experts}.w2.weight" not in stored


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"active_experts": 13}, "active_experts"),
        ({"latent": 40}, "latent"),
        ({"aux_layers": (5,)}, "aux_layers"),
    ],
)
def test_sizes_that_make_no_model_are_refused(change: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        dataclasses.replace(TINY, **change)


def test_configs_go_by_their_names() -> None:
    assert all(config.name == name for name, config in CONFIGS.items())
