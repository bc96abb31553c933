"""Qwen3.8-27B in plain JAX: the meaning of the kernel, written to be read beside the equations.

One function serves decode (one row per sequence) and verify or prefill (several consecutive rows of a
sequence): `forward`. Weights keep the checkpoint's names and (out, in) shapes. dtype is the dtype of
activations and matrix operands; norms, gates, softmax and the recurrent state are float32 always.

The published bfloat16 model rounds every activation. The kernel rounds less: only what a matrix multiplies,
what travels between cores, and what is cached. With a `KernelRounding` and a float32 state `forward` rounds
exactly there, so that kernel and reference differ by the order of float32 sums alone.
"""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from megakernels.qwen.config import QwenConfig

NOTHING = -1e30  # below any score, and finite: less itself it gives 0


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["recurrent", "conv", "keys", "values"],
    meta_fields=[],
)
@dataclass(frozen=True, slots=True)
class ReferenceState:
    """What a sequence carries from step to step; B sequences, all layers.

    recurrent: float32 [gdn layers, B, value heads, key dim, value dim].
    conv: dtype [gdn layers, B, taps - 1, channels], the last inputs of the convolution, oldest first.
    keys, values: dtype [attention layers, B, capacity, KV heads, head dim]; rows at and past a
    sequence's position are never read.
    """

    recurrent: jax.Array
    conv: jax.Array
    keys: jax.Array
    values: jax.Array


@dataclass(frozen=True, slots=True)
class KernelRounding:
    """Where the kernel rounds to bfloat16, for a state whose conv is float32 and whose caches are bfloat16.

    cores: the output projections are sums over this many shares of their inputs, each share rounded.
    kv_tile: tokens of a KV tile; attention weights are rounded relative to the highest score of the tiles
        up to theirs.
    window: the step's own tokens and those before them back to a multiple of this come last, in one piece.
    """

    cores: int = 1
    kv_tile: int = 512
    window: int = 16


def initial_state(
    config: QwenConfig, batch: int, capacity: int, dtype: DTypeLike = jnp.float32
) -> ReferenceState:
    """An empty state for batch sequences of at most capacity tokens."""
    c = config
    cache = (c.attention_layers, batch, capacity, c.kv_heads, c.head_dim)
    return ReferenceState(
        recurrent=jnp.zeros((c.gdn_layers, batch, c.value_heads, c.key_dim, c.value_dim), jnp.float32),
        conv=jnp.zeros((c.gdn_layers, batch, c.conv_taps - 1, c.conv_channels), dtype),
        keys=jnp.zeros(cache, dtype),
        values=jnp.zeros(cache, dtype),
    )


def rms_norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    """The (1 + w) form used everywhere but the GDN output: float32 inside, x.dtype out."""
    y = x.astype(jnp.float32)
    y = y * jax.lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + eps)
    return (y * (1.0 + weight.astype(jnp.float32))).astype(x.dtype)


def silu(x: jax.Array) -> jax.Array:
    """x * sigmoid(x), float32 inside, rounded once to x.dtype."""
    return jax.nn.silu(x.astype(jnp.float32)).astype(x.dtype)


def sigmoid(x: jax.Array) -> jax.Array:
    """Sigmoid, float32 inside, rounded once to x.dtype."""
    return jax.nn.sigmoid(x.astype(jnp.float32)).astype(x.dtype)


def l2_norm(x: jax.Array, eps: float = 1e-6) -> jax.Array:
    """x / sqrt(sum x^2 + eps) over the last axis."""
    return x * jax.lax.rsqrt(jnp.sum(x * x, -1, keepdims=True) + eps)


def rope_tables(config: QwenConfig, positions: jax.Array) -> tuple[jax.Array, jax.Array]:
    """cos and sin, each float32 [..., rope dims / 2], for integer positions [...]."""
    half = config.rope_dims // 2
    frequencies = 1.0 / config.rope_theta ** (np.arange(half, dtype=np.float32) * 2 / config.rope_dims)
    angles = positions[..., None].astype(jnp.float32) * jnp.asarray(frequencies, jnp.float32)
    return jnp.cos(angles), jnp.sin(angles)


def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Rotate pairs (i, i + half) of the first 2 * half elements of x [..., heads, head dim]."""
    half = cos.shape[-1]
    cos, sin = cos[..., None, :], sin[..., None, :]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin, rest], -1)


def _rounded(x: jax.Array, rounding: KernelRounding | None) -> jax.Array:
    """x at a place where only the kernel rounds."""
    # Not two casts: XLA may drop a pair of them.
    return x if rounding is None else jax.lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)


def _linear(x: jax.Array, weight: jax.Array, rounding: KernelRounding | None = None) -> jax.Array:
    x = _rounded(x, rounding)
    y = jnp.einsum("...k,nk->...n", x, weight.astype(x.dtype), preferred_element_type=jnp.float32)
    return y.astype(x.dtype)


def _linear_in_shares(x: jax.Array, weight: jax.Array, rounding: KernelRounding | None) -> jax.Array:
    """`_linear` for the output projections, whose inputs are split over the cores."""
    if rounding is None:
        return _linear(x, weight)
    total = jnp.zeros((), x.dtype)
    for rows, share in zip(*(jnp.split(a, rounding.cores, -1) for a in (x, weight)), strict=True):
        total = total + _rounded(_linear(rows, share, rounding), rounding)
    return total


def _gdn(
    config: QwenConfig,
    p: dict[str, jax.Array],
    x: jax.Array,
    recurrent: jax.Array,
    conv: jax.Array,
    *,
    rounding: KernelRounding | None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Gated DeltaNet over x [B, rows, hidden]: output, states after every row [rows, B, ...], conv inputs."""
    c = config
    batch, rows, _ = x.shape
    f32 = jnp.float32
    qkv = _rounded(_linear(x, p["in_proj_qkv.weight"], rounding), rounding)
    z = _linear(x, p["in_proj_z.weight"], rounding).reshape(batch, rows, c.value_heads, c.value_dim)
    beta = sigmoid(_linear(x, p["in_proj_b.weight"], rounding)).astype(f32)
    a = _linear(x, p["in_proj_a.weight"], rounding).astype(f32)
    decay = jnp.exp(-jnp.exp(p["A_log"].astype(f32)) * jax.nn.softplus(a + p["dt_bias"].astype(f32)))

    history = jnp.concatenate([conv, qkv], 1)
    taps = p["conv1d.weight"][:, 0, :].astype(f32)
    mixed = sum(history[:, t : t + rows].astype(f32) * taps[:, t] for t in range(c.conv_taps))
    mixed = silu(mixed.astype(x.dtype)).astype(f32)
    keys_width = c.key_heads * c.key_dim
    repeat = c.value_heads // c.key_heads
    q, k, v = jnp.split(mixed, [keys_width, 2 * keys_width], -1)
    q = l2_norm(q.reshape(batch, rows, c.key_heads, c.key_dim)) * c.key_dim**-0.5
    k = l2_norm(k.reshape(batch, rows, c.key_heads, c.key_dim))
    q, k = jnp.repeat(q, repeat, 2), jnp.repeat(k, repeat, 2)
    v = v.reshape(batch, rows, c.value_heads, c.value_dim)

    def row(state: jax.Array, inputs: tuple[jax.Array, ...]) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        q_t, k_t, v_t, decay_t, beta_t = inputs
        state = state * decay_t[..., None, None]
        error = v_t - jnp.einsum("bhkv,bhk->bhv", state, k_t, precision="highest")
        state = state + k_t[..., None] * (beta_t[..., None] * error)[..., None, :]
        return state, (jnp.einsum("bhkv,bhk->bhv", state, q_t, precision="highest"), state)

    by_row = tuple(jnp.moveaxis(value, 1, 0) for value in (q, k, v, decay, beta))
    _, (out, states) = jax.lax.scan(row, recurrent, by_row)
    out = jnp.moveaxis(out, 0, 1).astype(x.dtype).astype(f32)
    out = out * jax.lax.rsqrt(jnp.mean(out * out, -1, keepdims=True) + c.norm_eps)
    out = p["norm.weight"].astype(f32) * out.astype(x.dtype).astype(f32)
    out = (out * jax.nn.silu(z.astype(f32))).astype(x.dtype).reshape(batch, rows, -1)
    return _linear_in_shares(out, p["out_proj.weight"], rounding), states, history


def _softmax_in_pieces(
    scores: jax.Array, positions: jax.Array, rounding: KernelRounding
) -> tuple[jax.Array, jax.Array]:
    """Attention weights `[B, rows, G, J, tokens]` as the kernel multiplies them, and their sum `[..., 1]`.

    The kernel reads the cache piece by piece. A weight is rounded as exp(score - highest so far) and shrunk
    exactly when a later piece has a higher score; the sum is of weights that were not rounded.
    """
    token = jnp.arange(scores.shape[-1])
    window = positions[:, None] // rounding.window * rounding.window
    piece = jnp.where(token < window, token // rounding.kv_tile, scores.shape[-1])
    read = piece[:, None, :] <= piece[:, :, None]
    so_far = jnp.max(jnp.where(read[:, None, None, None], scores[..., None, :], NOTHING), -1)
    weights = jnp.exp(scores - so_far)
    later = jnp.exp(so_far - jnp.max(scores, -1, keepdims=True))
    return _rounded(weights, rounding) * later, jnp.sum(weights * later, -1, keepdims=True)


def _attention(
    config: QwenConfig,
    p: dict[str, jax.Array],
    x: jax.Array,
    positions: jax.Array,
    cache: tuple[jax.Array, jax.Array],
    *,
    rounding: KernelRounding | None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Gated attention over x [B, rows, hidden] at consecutive positions; returns output and both caches."""
    c = config
    batch, rows, _ = x.shape
    keys, values = cache
    f32 = jnp.float32
    q_gate = _linear(x, p["q_proj.weight"], rounding).reshape(batch, rows, c.attention_heads, 2 * c.head_dim)
    q, gate = q_gate[..., : c.head_dim], q_gate[..., c.head_dim :]
    k = _linear(x, p["k_proj.weight"], rounding).reshape(batch, rows, c.kv_heads, c.head_dim)
    v = _linear(x, p["v_proj.weight"], rounding).reshape(batch, rows, c.kv_heads, c.head_dim)
    at = positions[:, None] + jnp.arange(rows)
    cos, sin = rope_tables(c, at)
    cos, sin = cos.astype(x.dtype), sin.astype(x.dtype)
    q = rotate(rms_norm(q, p["q_norm.weight"], c.norm_eps), cos, sin)
    k = rotate(rms_norm(k, p["k_norm.weight"], c.norm_eps), cos, sin)
    which = jnp.arange(batch)[:, None]
    keys = keys.at[which, at].set(k.astype(keys.dtype))
    values = values.at[which, at].set(v.astype(values.dtype))
    grouped = _rounded(q, rounding).reshape(batch, rows, c.kv_heads, -1, c.head_dim).astype(f32)
    scores = (
        jnp.einsum("brgjd,btgd->brgjt", grouped, keys.astype(f32), precision="highest") * c.head_dim**-0.5
    )
    visible = jnp.arange(keys.shape[1]) <= at[..., None]
    scores = jnp.where(visible[:, :, None, None, :], scores, -jnp.inf)
    if rounding is None:
        weights, total = jax.nn.softmax(scores, -1).astype(x.dtype).astype(f32), jnp.ones((), f32)
    else:
        weights, total = _softmax_in_pieces(scores, positions, rounding)
    out = jnp.einsum("brgjt,btgd->brgjd", weights, values.astype(f32), precision="highest") / total
    out = out.reshape(batch, rows, -1).astype(x.dtype) * sigmoid(gate.reshape(batch, rows, -1))
    return _linear_in_shares(out, p["o_proj.weight"], rounding), keys, values


def _feed_forward(p: dict[str, jax.Array], x: jax.Array, rounding: KernelRounding | None) -> jax.Array:
    gate, up = (_linear(x, p[f"mlp.{name}_proj.weight"], rounding) for name in ("gate", "up"))
    return _linear_in_shares(silu(gate) * up, p["mlp.down_proj.weight"], rounding)


def _layer_parameters(parameters: dict[str, jax.Array], layer: int, below: str = "") -> dict[str, jax.Array]:
    prefix = f"model.layers.{layer}.{below}"
    return {name.removeprefix(prefix): value for name, value in parameters.items() if name.startswith(prefix)}


def forward(
    config: QwenConfig,
    parameters: dict[str, jax.Array],
    state: ReferenceState,
    tokens: jax.Array,
    positions: jax.Array,
    *,
    rounding: KernelRounding | None = None,
) -> tuple[jax.Array, ReferenceState, list[ReferenceState]]:
    """Run rows consecutive tokens of each of B sequences.

    Args:
        config: the model.
        parameters: name -> array (out, in).
        state: before the first row; its conv dtype is the dtype of all activations.
        tokens: int32 [B, rows].
        positions: int32 [B], position of each sequence's first row.
        rounding: round where the kernel does, and nowhere else; the state's conv must be float32.

    Returns:
        logits float32 [B, rows, vocab]; the state after the last row; the states after every row
        (caches are those after the last row in each: later rows are never read).
    """
    c = config
    rows = tokens.shape[1]
    x = parameters["model.embed_tokens.weight"].astype(state.conv.dtype)[tokens]
    recurrent: list[jax.Array] = []
    conv: list[jax.Array] = []
    keys: list[jax.Array] = []
    values: list[jax.Array] = []
    for layer in range(c.layers):
        p = _layer_parameters(parameters, layer)
        normed = rms_norm(x, p["input_layernorm.weight"], c.norm_eps)
        if c.is_attention(layer):
            index = len(keys)
            mixer = _layer_parameters(parameters, layer, "self_attn.")
            mixed, layer_keys, layer_values = _attention(
                c, mixer, normed, positions, (state.keys[index], state.values[index]), rounding=rounding
            )
            keys.append(layer_keys)
            values.append(layer_values)
        else:
            index = len(recurrent)
            mixer = _layer_parameters(parameters, layer, "linear_attn.")
            mixed, states, history = _gdn(
                c, mixer, normed, state.recurrent[index], state.conv[index], rounding=rounding
            )
            recurrent.append(states)
            conv.append(history)
        x = x + mixed
        x = x + _feed_forward(p, rms_norm(x, p["post_attention_layernorm.weight"], c.norm_eps), rounding)
    x = _rounded(rms_norm(x, parameters["model.norm.weight"], c.norm_eps), rounding)
    head = parameters["lm_head.weight"].astype(x.dtype)
    logits = jnp.einsum("brk,nk->brn", x, head, preferred_element_type=jnp.float32)

    def after(row: int) -> ReferenceState:
        window = slice(row + 1, row + c.conv_taps)
        return ReferenceState(
            recurrent=jnp.stack([s[row] for s in recurrent]) if recurrent else state.recurrent,
            conv=jnp.stack([h[:, window] for h in conv]) if conv else state.conv,
            keys=jnp.stack(keys) if keys else state.keys,
            values=jnp.stack(values) if values else state.values,
        )

    states = [after(row) for row in range(rows)]
    return logits, states[-1], states


def prefill(
    config: QwenConfig, parameters: dict[str, jax.Array], state: ReferenceState, tokens: jax.Array
) -> tuple[jax.Array, ReferenceState]:
    """Run whole prompts int32 [B, length] from position 0: logits of every row, the state after the last."""
    logits, after, _ = forward(config, parameters, state, tokens, jnp.zeros(tokens.shape[0], jnp.int32))
    return logits, after


def decode_step(
    config: QwenConfig,
    parameters: dict[str, jax.Array],
    state: ReferenceState,
    tokens: jax.Array,
    positions: jax.Array,
    *,
    rounding: KernelRounding | None = None,
) -> tuple[jax.Array, jax.Array, ReferenceState]:
    """One token int32 [B] of each sequence: greedy next tokens [B], logits [B, vocab], new state."""
    logits, after, _ = forward(config, parameters, state, tokens[:, None], positions, rounding=rounding)
    return jnp.argmax(logits[:, 0], -1).astype(jnp.int32), logits[:, 0], after
