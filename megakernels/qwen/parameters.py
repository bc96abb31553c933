"""Names and shapes of the checkpoint's tensors, and random weights of any config."""

from collections.abc import Iterator

import ml_dtypes
import numpy as np

from megakernels.qwen.config import QwenConfig

Parameters = dict[str, np.ndarray]
FP8_BLOCK = 128  # rows and columns that share a scale in the FP8 checkpoint
SCALE_SUFFIX = "_scale_inv"
FP8_LARGEST = 448.0  # of float8_e4m3fn


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


def is_fp8(name: str) -> bool:
    """Whether the FP8 checkpoint stores this weight in float8 with block scales.

    The published file size pins it: all projections but in_proj_a and in_proj_b; embedding, lm_head, norms
    and vectors stay bfloat16.
    """
    return name.endswith(("_proj.weight", "in_proj_qkv.weight", "in_proj_z.weight"))


def quantize(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """float8_e4m3fn values and bfloat16 scales, one per 128 x 128 block: value * scale is the weight."""
    rows, columns = (size // FP8_BLOCK for size in weight.shape)
    blocks = weight.astype(np.float32).reshape(rows, FP8_BLOCK, columns, FP8_BLOCK)
    scales = np.abs(blocks).max(axis=(1, 3)) / FP8_LARGEST
    scales = np.where(scales == 0, 1, scales).astype(ml_dtypes.bfloat16)
    # A scale rounded down could push the largest value past what float8 holds.
    scaled = blocks / scales.astype(np.float32)[:, None, :, None]
    values = np.clip(scaled, -FP8_LARGEST, FP8_LARGEST).reshape(weight.shape)
    return values.astype(ml_dtypes.float8_e4m3fn), scales


def dequantize(values: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """The float32 weight of a quantized one."""
    expanded = scales.astype(np.float32).repeat(FP8_BLOCK, 0).repeat(FP8_BLOCK, 1)
    return values.astype(np.float32) * expanded


def quantize_parameters(parameters: Parameters) -> Parameters:
    """The tensors as the FP8 checkpoint names and stores them."""
    out: Parameters = {}
    for name, value in parameters.items():
        if is_fp8(name):
            out[name], out[name + SCALE_SUFFIX] = quantize(value)
        else:
            out[name] = value
    return out


def dequantize_parameters(parameters: Parameters) -> Parameters:
    """Quantized tensors as plain ones again."""
    plain = {name: value for name, value in parameters.items() if not name.endswith(SCALE_SUFFIX)}
    return {
        name: dequantize(value, parameters[name + SCALE_SUFFIX])
        if name + SCALE_SUFFIX in parameters
        else value
        for name, value in plain.items()
    }
