"""Names, shapes and stored forms of the checkpoint's text tensors, and random weights of any config."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from megakernels.k3.config import MXFP4_GROUP, K3Config
from megakernels.k3.mxfp4 import quantize

# No `type` statements here: goldens are made with this file by older Pythons too.
Stored = Literal["bf16", "f32", "mxfp4"]
Parameters = dict[str, np.ndarray]

PREFIX = "language_model."
BITS: dict[str, int] = {"bf16": 16, "f32": 32, "mxfp4": 4}
# Stored as float32; everything else but the experts is bfloat16.
FLOAT32_NAMES = (
    "A_log",
    "dt_bias",
    "e_score_correction_bias",
    "q_conv1d.weight",
    "k_conv1d.weight",
    "v_conv1d.weight",
    "o_norm.weight",
)


@dataclass(frozen=True, slots=True)
class Tensor:
    """One weight tensor: shape (out, in), and how the checkpoint stores it.

    An mxfp4 tensor `x` is two arrays of bytes in the files: `x_packed` and `x_scale`.
    """

    shape: tuple[int, ...]
    stored: Stored

    @property
    def elements(self) -> int:
        """How many weights."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def bytes(self) -> int:
        """Bytes in the checkpoint, scales included."""
        scales = self.elements // MXFP4_GROUP if self.stored == "mxfp4" else 0
        return self.elements * BITS[self.stored] // 8 + scales


def tensor(name: str, *shape: int) -> Tensor:
    """A tensor stored as its name says."""
    if ".experts." in name:
        return Tensor(shape, "mxfp4")
    return Tensor(shape, "f32" if name.endswith(FLOAT32_NAMES) else "bf16")


def mixer_shapes(config: K3Config, layer: int) -> dict[str, tuple[int, ...]]:
    """The attention tensors of a layer, names relative to `model.layers.N.self_attn.`."""
    c = config
    if c.is_mla(layer):
        return {
            "q_a_proj.weight": (c.q_rank, c.hidden),
            "q_a_layernorm.weight": (c.q_rank,),
            "q_b_proj.weight": (c.heads * c.query_dim, c.q_rank),
            "kv_a_proj_with_mqa.weight": (c.cache_width, c.hidden),
            "kv_a_layernorm.weight": (c.kv_rank,),
            "kv_b_proj.weight": (c.heads * (c.nope_dim + c.value_dim), c.kv_rank),
            "g_proj.weight": (c.mla_width, c.hidden),
            "o_proj.weight": (c.hidden, c.mla_width),
        }
    wide = (c.kda_width, c.hidden)
    return {
        **{f"{name}_proj.weight": wide for name in "qkv"},
        **{f"{name}_conv1d.weight": (c.kda_width, 1, c.conv_taps) for name in "qkv"},
        "f_a_proj.weight": (c.decay_rank, c.hidden),
        "f_b_proj.weight": (c.kda_width, c.decay_rank),
        "A_log": (c.a_log_stored,),
        "dt_bias": (c.kda_width,),
        "b_proj.weight": (c.heads, c.hidden),
        "g_proj.weight": wide,
        "o_norm.weight": (c.head_dim,),
        "o_proj.weight": (c.hidden, c.kda_width),
    }


def mlp_shapes(hidden: int, width: int) -> dict[str, tuple[int, ...]]:
    """The three matrices of a dense FFN or of the shared expert."""
    return {
        "gate_proj.weight": (width, hidden),
        "up_proj.weight": (width, hidden),
        "down_proj.weight": (hidden, width),
    }


def expert_shapes(config: K3Config) -> dict[str, tuple[int, int]]:
    """One routed expert: w1 is the gate, w3 up, w2 down."""
    c = config
    return {
        "w1.weight": (c.expert_width, c.latent),
        "w3.weight": (c.expert_width, c.latent),
        "w2.weight": (c.latent, c.expert_width),
    }


def ffn_shapes(config: K3Config, layer: int, experts: bool = True) -> dict[str, tuple[int, ...]]:
    """The FFN tensors of a layer, names relative to `model.layers.N.`; the routed experts can be left out."""
    c = config
    if not c.is_moe(layer):
        return {f"mlp.{name}": shape for name, shape in mlp_shapes(c.hidden, c.dense_width).items()}
    shapes: dict[str, tuple[int, ...]] = {
        "gate.weight": (c.experts, c.hidden),
        "gate.e_score_correction_bias": (c.experts,),
        "routed_expert_down_proj.weight": (c.latent, c.hidden),
        "routed_expert_norm.weight": (c.latent,),
        "routed_expert_up_proj.weight": (c.hidden, c.latent),
    }
    shapes |= {f"shared_experts.{n}": shape for n, shape in mlp_shapes(c.hidden, c.shared_width).items()}
    for expert in range(c.experts if experts else 0):
        shapes |= {f"experts.{expert}.{name}": shape for name, shape in expert_shapes(c).items()}
    return {f"block_sparse_moe.{name}": shape for name, shape in shapes.items()}


def layer_tensors(config: K3Config, layer: int, experts: bool = True) -> dict[str, Tensor]:
    """The tensors of one layer in the order they are used, names relative to `model.layers.N.`."""
    row, one = (config.hidden,), (1, config.hidden)
    shapes = {"self_attention_res_norm.weight": row, "self_attention_res_proj.weight": one}
    shapes |= {"input_layernorm.weight": row}
    shapes |= {f"self_attn.{name}": shape for name, shape in mixer_shapes(config, layer).items()}
    shapes |= {"mlp_res_norm.weight": row, "mlp_res_proj.weight": one, "post_attention_layernorm.weight": row}
    shapes |= ffn_shapes(config, layer, experts)
    return {name: tensor(name, *shape) for name, shape in shapes.items()}


def text_tensors(config: K3Config) -> dict[str, Tensor]:
    """Every text tensor, names without the checkpoint's `language_model.`; 249,756 of the real model."""
    c = config
    tensors = {"model.embed_tokens.weight": tensor("", c.vocab, c.hidden)}
    for layer in range(c.layers):
        prefix = f"model.layers.{layer}."
        tensors |= {prefix + name: value for name, value in layer_tensors(c, layer).items()}
    tensors["model.output_attn_res_norm.weight"] = tensor("", c.hidden)
    tensors["model.output_attn_res_proj.weight"] = tensor("", 1, c.hidden)
    tensors["model.norm.weight"] = tensor("", c.hidden)
    tensors["lm_head.weight"] = tensor("", c.vocab, c.hidden)
    return tensors


def _seeded(name: str, seed: int) -> np.random.RandomState:
    """A generator that depends only on name and seed; numpy's legacy one, whose stream is frozen for good."""
    digest = np.frombuffer(name.encode(), dtype=np.uint8).astype(np.uint64)
    weights = np.arange(1, digest.size + 1, dtype=np.uint64)
    return np.random.RandomState(
        (int((digest * weights * weights).sum()) * 2654435761 + seed * 40503) % 2**32
    )


def random_tensor(name: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """One random tensor, float32, not yet rounded to how it is stored."""
    rng = _seeded(name, seed)
    if name.endswith("A_log"):
        values = np.log(rng.uniform(0.6, 2.8, shape))
    elif name.endswith("dt_bias"):
        values = rng.uniform(-4.0, 1.0, shape)
    elif name.endswith("e_score_correction_bias"):
        values = rng.uniform(-0.1, 0.1, shape)
    elif "norm.weight" in name:
        values = rng.uniform(0.5, 1.5, shape)
    elif name.endswith("conv1d.weight"):
        values = rng.standard_normal(shape) * 0.5
    elif name.endswith("embed_tokens.weight"):
        values = rng.standard_normal(shape)
    elif name.endswith("res_proj.weight"):
        values = rng.standard_normal(shape) * (2.0 / np.sqrt(shape[-1]))
    else:
        values = rng.standard_normal(shape) / np.sqrt(shape[-1])
    return values.astype(np.float32)


def random_stored(config: K3Config, seed: int) -> Iterator[tuple[str, np.ndarray]]:
    """Random weights as the checkpoint holds them: one tensor (or packed pair) at a time, names as in files.

    bfloat16 tensors come as float32 arrays of values that bfloat16 holds; packed experts as bytes.
    """
    import ml_dtypes

    for name, what in text_tensors(config).items():
        values = random_tensor(name, what.shape, seed)
        match what.stored:
            case "f32":
                yield name, values
            case "bf16":
                yield name, values.astype(ml_dtypes.bfloat16).astype(np.float32)
            case "mxfp4":
                packed, scale = quantize(values)
                yield f"{name}_packed", packed
                yield f"{name}_scale", scale


def random_parameters(config: K3Config, seed: int) -> Parameters:
    """All of `random_stored` at once; for small configs."""
    return dict(random_stored(config, seed))


def tensors_of(parameters: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """Those whose names start with `prefix`, without it."""
    return {n.removeprefix(prefix): v for n, v in parameters.items() if n.startswith(prefix)}
