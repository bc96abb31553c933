"""Names and shapes of the checkpoint's tensors, and random weights of any config."""

from collections.abc import Iterator

import numpy as np

from megakernels.qwen.config import QwenConfig

Parameters = dict[str, np.ndarray]


def tensor_shapes(config: QwenConfig) -> dict[str, tuple[int, ...]]:
    """Every text tensor of the checkpoint: name (as transformers has it) -> shape (out, in)."""
    c = config
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (c.vocab, c.hidden)}
    for layer in range(c.layers):
        shapes.update(
            {f"model.layers.{layer}.{name}": shape for name, shape in layer_shapes(c, layer).items()}
        )
    shapes["model.norm.weight"] = (c.hidden,)
    shapes["lm_head.weight"] = (c.vocab, c.hidden)
    return shapes


def layer_shapes(config: QwenConfig, layer: int) -> dict[str, tuple[int, ...]]:
    """The tensors of one layer, names relative to `model.layers.N.`, in the order they are used."""
    c = config
    shapes: dict[str, tuple[int, ...]] = {"input_layernorm.weight": (c.hidden,)}
    if c.is_attention(layer):
        width = c.attention_heads * c.head_dim
        shapes |= {
            "self_attn.q_proj.weight": (2 * width, c.hidden),
            "self_attn.k_proj.weight": (c.kv_heads * c.head_dim, c.hidden),
            "self_attn.v_proj.weight": (c.kv_heads * c.head_dim, c.hidden),
            "self_attn.q_norm.weight": (c.head_dim,),
            "self_attn.k_norm.weight": (c.head_dim,),
            "self_attn.o_proj.weight": (c.hidden, width),
        }
    else:
        shapes |= {
            "linear_attn.in_proj_qkv.weight": (c.conv_channels, c.hidden),
            "linear_attn.in_proj_z.weight": (c.gate_channels, c.hidden),
            "linear_attn.in_proj_b.weight": (c.value_heads, c.hidden),
            "linear_attn.in_proj_a.weight": (c.value_heads, c.hidden),
            "linear_attn.conv1d.weight": (c.conv_channels, 1, c.conv_taps),
            "linear_attn.A_log": (c.value_heads,),
            "linear_attn.dt_bias": (c.value_heads,),
            "linear_attn.norm.weight": (c.value_dim,),
            "linear_attn.out_proj.weight": (c.hidden, c.gate_channels),
        }
    shapes |= {
        "post_attention_layernorm.weight": (c.hidden,),
        "mlp.gate_proj.weight": (c.intermediate, c.hidden),
        "mlp.up_proj.weight": (c.intermediate, c.hidden),
        "mlp.down_proj.weight": (c.hidden, c.intermediate),
    }
    return shapes


def random_tensor(name: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """One random tensor, float32. Depends only on its shape, name and the seed, so order does not matter.

    Uses numpy's legacy generator: its stream is frozen for good, so goldens need to hold results only.
    """
    digest = np.frombuffer(name.encode(), dtype=np.uint8).astype(np.uint64)
    weights = np.arange(1, digest.size + 1, dtype=np.uint64)
    mixed = (int((digest * weights * weights).sum()) * 2654435761 + seed * 40503) % 2**32
    rng = np.random.RandomState(mixed)
    if name.endswith("A_log"):
        values = np.log(rng.uniform(0.1, 8.0, shape))
    elif name.endswith("dt_bias"):
        values = rng.uniform(-2.0, 1.0, shape)
    elif name.endswith("linear_attn.norm.weight"):
        values = rng.uniform(0.5, 1.5, shape)
    elif name.endswith("norm.weight"):
        values = rng.uniform(-0.3, 0.3, shape)
    elif name.endswith("conv1d.weight"):
        values = rng.standard_normal(shape) * 0.5
    elif name == "model.embed_tokens.weight":
        values = rng.standard_normal(shape)
    else:
        values = rng.standard_normal(shape) / np.sqrt(shape[-1])
    return values.astype(np.float32)


def random_tensors(config: QwenConfig, seed: int) -> Iterator[tuple[str, np.ndarray]]:
    """Every tensor of the checkpoint in order, one at a time, so that nothing large piles up."""
    for name, shape in tensor_shapes(config).items():
        yield name, random_tensor(name, shape, seed)


def random_parameters(config: QwenConfig, seed: int) -> Parameters:
    """All tensors at once; for small configs."""
    return dict(random_tensors(config, seed))
