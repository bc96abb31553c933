"""Kimi K3 in plain JAX: the meaning of the kernel, written to be read beside the equations.

One function serves decode (one row per sequence), verify (the anchor and its proposals) and prefill (a
prompt): `forward`, over consecutive rows of each sequence. dtype is that of activations and matrix operands;
norms, gates, softmax, router and the recurrent state are float32 always. Rounding to dtype happens where the
published model code rounds: after every projection, norm, mixture and expert.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from megakernels.k3.config import K3Config
from megakernels.k3.mxfp4 import dequantize
from megakernels.k3.parameters import expert_shapes, text_tensors
from megakernels.k3.state import Block, State

type Weights = dict[str, jax.Array]
# What the drafter is given of a layer: the running prefix as it is, or as the layer's attention sees it.
type AuxStream = Literal["prefix", "mixed"]


class Output(NamedTuple):
    """What a forward over `[B, rows]` tokens returns beside the block it leaves.

    logits: float32 `[B, rows, vocab]`. aux: dtype `[B, rows, aux layers, hidden]`, what the drafter reads.
    routing: int32 `[MoE layers, B, rows, active experts]`, the experts each row visited, highest score first.
    """

    logits: jax.Array
    aux: jax.Array
    routing: jax.Array


def load(config: K3Config, stored: Mapping[str, np.ndarray], dtype: DTypeLike = jnp.float32) -> Weights:
    """Weights as `forward` takes them: names as in the checkpoint, the experts of a layer stacked.

    Args:
        config: The model.
        stored: The checkpoint's text tensors (see `parameters.random_stored`).
        dtype: Of matrices and norms; tensors stored as float32 stay float32. Both float32 and bfloat16 hold
            every expert weight exactly.
    """
    weights: Weights = {}
    for name, what in text_tensors(config).items():
        if what.stored != "mxfp4":
            weights[name] = jnp.asarray(stored[name], jnp.float32 if what.stored == "f32" else dtype)
    for layer in range(config.dense_layers, config.layers):
        prefix = f"model.layers.{layer}.block_sparse_moe.experts."
        for matrix in expert_shapes(config):
            names = [f"{prefix}{expert}.{matrix}" for expert in range(config.experts)]
            values = [dequantize(stored[f"{name}_packed"], stored[f"{name}_scale"]) for name in names]
            weights[prefix + matrix] = jnp.asarray(np.stack(values), dtype)
    return weights


def rms_norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    """`weight * x / sqrt(mean(x^2) + eps)` over the last axis; float32 inside, x.dtype out."""
    y = x.astype(jnp.float32)
    y = y * jax.lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + eps)
    return (weight.astype(jnp.float32) * y.astype(x.dtype).astype(jnp.float32)).astype(x.dtype)


def situ(gate: jax.Array, up: jax.Array, gate_cap: float, up_cap: float) -> jax.Array:
    """`gate_cap tanh(gate / gate_cap) sigmoid(gate) * up_cap tanh(up / up_cap)`; float32 inside."""
    g, u = gate.astype(jnp.float32), up.astype(jnp.float32)
    activated = gate_cap * jnp.tanh(g / gate_cap) * jax.nn.sigmoid(g)
    return (activated * up_cap * jnp.tanh(u / up_cap)).astype(gate.dtype)


def attention_residual(
    config: K3Config, p: Weights, prefix: jax.Array, snapshots: tuple[jax.Array, ...]
) -> jax.Array:
    """Mix the running prefix with the snapshots, each row deciding how much of itself is taken.

    Args:
        config: The model.
        p: The mixer's `norm.weight` `[hidden]` and `proj.weight` `[1, hidden]`.
        prefix: `[..., hidden]`.
        snapshots: As the prefix, oldest first; without any, the prefix goes through.
    """
    if not snapshots:
        return prefix
    rows = jnp.stack([*snapshots, prefix]).astype(jnp.float32)
    score_weight = p["norm.weight"].astype(jnp.float32) * p["proj.weight"][0].astype(jnp.float32)
    normed = rows * jax.lax.rsqrt(jnp.mean(rows * rows, -1, keepdims=True) + config.norm_eps)
    shares = jax.nn.softmax(jnp.sum(normed * score_weight, -1), axis=0)
    return jnp.sum(shares[..., None] * rows, axis=0).astype(prefix.dtype)


def linear(x: jax.Array, weight: jax.Array) -> jax.Array:
    """`x @ weight.T`, sums in float32, rounded to x.dtype."""
    y = jnp.einsum(
        "...k,nk->...n",
        x,
        weight.astype(x.dtype),
        preferred_element_type=jnp.float32,
        precision="highest",
    )
    return y.astype(x.dtype)


def exact(equation: str, *operands: jax.Array) -> jax.Array:
    """An einsum in float32 throughout."""
    return jnp.einsum(equation, *(o.astype(jnp.float32) for o in operands), precision="highest")


class KdaInputs(NamedTuple):
    """What a row brings to the delta rule, `[B, rows, heads, width]` float32 each (beta has no width)."""

    query: jax.Array  # normalized and scaled
    key: jax.Array  # normalized
    value: jax.Array
    decay: jax.Array  # the factor itself, per key channel, between e^bound and 1
    beta: jax.Array


def delta_rule(recurrent: jax.Array, inputs: KdaInputs) -> tuple[jax.Array, jax.Array]:
    """The gated delta rule over rows; outputs and errors, `[B, rows, heads, value]`.

    Per head, with the state S `[key, value]`: S <- diag(decay) S; error = beta (v - S^T k);
    S <- S + k error^T; output = S^T q.
    """

    def row(state: jax.Array, now: KdaInputs) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        state = state * now.decay[..., None]
        error = now.beta[..., None] * (now.value - exact("bhkv,bhk->bhv", state, now.key))
        state = state + now.key[..., None] * error[..., None, :]
        return state, (exact("bhkv,bhk->bhv", state, now.query), error)

    by_row = KdaInputs(*(jnp.moveaxis(value, 1, 0) for value in inputs))
    _, (out, errors) = jax.lax.scan(row, recurrent, by_row)
    return jnp.moveaxis(out, 0, 1), jnp.moveaxis(errors, 0, 1)


def log_decay(config: K3Config, p: Weights, x: jax.Array) -> jax.Array:
    """`bound * sigmoid(exp(A_log) * (f_b f_a x + dt_bias))`, float32 `[B, rows, heads, key]`."""
    c = config
    raw = linear(linear(x, p["f_a_proj.weight"]), p["f_b_proj.weight"]).astype(jnp.float32)
    raw = (raw + p["dt_bias"]).reshape(*x.shape[:-1], c.heads, c.head_dim)
    return c.decay_bound * jax.nn.sigmoid(jnp.exp(p["A_log"][: c.heads])[:, None] * raw)


def l2_norm(x: jax.Array, eps: float = 1e-6) -> jax.Array:
    """`x / sqrt(sum(x^2) + eps)` over the last axis."""
    return x * jax.lax.rsqrt(jnp.sum(x * x, -1, keepdims=True) + eps)


def kda(
    config: K3Config, p: Weights, x: jax.Array, recurrent: jax.Array, conv: jax.Array
) -> tuple[jax.Array, jax.Array, KdaInputs, jax.Array]:
    """Kimi Delta Attention over x `[B, rows, hidden]`: output, conv history, inputs and errors."""
    c = config
    rows = x.shape[1]
    heads = (*x.shape[:2], c.heads, c.head_dim)
    qkv = jnp.concatenate([linear(x, p[f"{name}_proj.weight"]) for name in "qkv"], -1)
    taps = jnp.concatenate([p[f"{name}_conv1d.weight"][:, 0] for name in "qkv"])
    history = jnp.concatenate([conv, qkv], 1)
    mixed = sum(history[:, t : t + rows].astype(jnp.float32) * taps[:, t] for t in range(c.conv_taps))
    mixed = jax.nn.silu(mixed).astype(x.dtype).astype(jnp.float32)
    q, k, v = (part.reshape(heads) for part in jnp.split(mixed, 3, -1))
    inputs = KdaInputs(
        query=l2_norm(q) * c.head_dim**-0.5,
        key=l2_norm(k),
        value=v,
        decay=jnp.exp(log_decay(c, p, x)),
        beta=jax.nn.sigmoid(linear(x, p["b_proj.weight"]).astype(jnp.float32)),
    )
    out, errors = delta_rule(recurrent, inputs)
    out = out.astype(x.dtype).astype(jnp.float32)
    out = out * jax.lax.rsqrt(jnp.mean(out * out, -1, keepdims=True) + c.norm_eps) * p["o_norm.weight"]
    gate = linear(x, p["g_proj.weight"]).astype(jnp.float32).reshape(heads)
    out = (out * jax.nn.sigmoid(gate)).astype(x.dtype).reshape(*x.shape[:2], -1)
    return linear(out, p["o_proj.weight"]), history, inputs, errors


def mla(
    config: K3Config, p: Weights, x: jax.Array, positions: jax.Array, cache: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Gated attention over the latent cache, absorbed; x `[B, rows, hidden]`, output and the new cache."""
    c = config
    batch, rows, _ = x.shape
    at = positions[:, None] + jnp.arange(rows)
    query = rms_norm(linear(x, p["q_a_proj.weight"]), p["q_a_layernorm.weight"], c.latent_norm_eps)
    query = linear(query, p["q_b_proj.weight"]).reshape(batch, rows, c.heads, c.query_dim)
    latent = linear(x, p["kv_a_proj_with_mqa.weight"])
    normed = rms_norm(latent[..., : c.kv_rank], p["kv_a_layernorm.weight"], c.latent_norm_eps)
    entry = jnp.concatenate([normed, latent[..., c.kv_rank :]], -1)
    cache = cache.at[jnp.arange(batch)[:, None], at].set(entry)

    expand = p["kv_b_proj.weight"].reshape(c.heads, c.nope_dim + c.value_dim, c.kv_rank)
    to_keys, to_values = expand[:, : c.nope_dim], expand[:, c.nope_dim :]
    absorbed = exact("brhd,hdc->brhc", query[..., : c.nope_dim], to_keys).astype(x.dtype)
    absorbed = jnp.concatenate([absorbed, query[..., c.nope_dim :]], -1)
    scores = exact("brhc,btc->brht", absorbed, cache) * c.query_dim**-0.5
    visible = jnp.arange(cache.shape[1]) <= at[..., None]
    scores = jnp.where(visible[:, :, None], scores, -jnp.inf)
    weights = jax.nn.softmax(scores, -1).astype(x.dtype)
    attended = exact("brht,btc->brhc", weights, cache[..., : c.kv_rank]).astype(x.dtype)
    out = exact("brhc,hdc->brhd", attended, to_values).astype(x.dtype).reshape(batch, rows, -1)
    gate = jax.nn.sigmoid(linear(x, p["g_proj.weight"]).astype(jnp.float32)).astype(x.dtype)
    return linear(out * gate, p["o_proj.weight"]), cache


def feed_forward(config: K3Config, p: Weights, prefix: str, x: jax.Array) -> jax.Array:
    """`down(situ(gate(x), up(x)))`: the dense FFN or the shared expert."""
    gate, up = (linear(x, p[f"{prefix}{name}_proj.weight"]) for name in ("gate", "up"))
    return linear(situ(gate, up, config.gate_cap, config.up_cap), p[f"{prefix}down_proj.weight"])


def route(config: K3Config, p: Weights, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The experts of each row, int32 `[..., active]`, and their weights, float32.

    The correction bias takes part in the choice only; the weights are the scores, made to add up to 1.
    """
    scores = jax.nn.sigmoid(exact("...k,nk->...n", x, p["gate.weight"]))
    _, chosen = jax.lax.top_k(scores + p["gate.e_score_correction_bias"], config.active_experts)
    weights = jnp.take_along_axis(scores, chosen, -1)
    return chosen.astype(jnp.int32), weights / (jnp.sum(weights, -1, keepdims=True) + 1e-20)


def mixture(config: K3Config, p: Weights, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Latent mixture of experts plus the shared expert over x `[..., hidden]`; output and routing."""
    c = config
    chosen, weights = route(c, p, x)
    latent = linear(x, p["routed_expert_down_proj.weight"])

    def product(name: str, values: jax.Array) -> jax.Array:
        matrices = p[f"experts.{name}.weight"][chosen]
        return exact("...ek,...enk->...en", values, matrices).astype(x.dtype)

    each = jnp.broadcast_to(latent[..., None, :], (*chosen.shape, c.latent))
    out = product("w2", situ(product("w1", each), product("w3", each), c.gate_cap, c.up_cap))
    routed = jnp.sum(out.astype(jnp.float32) * weights[..., None], -2).astype(x.dtype)
    routed = rms_norm(routed, p["routed_expert_norm.weight"], c.norm_eps)
    routed = linear(routed, p["routed_expert_up_proj.weight"])
    return routed + feed_forward(c, p, "shared_experts.", x), chosen


def _under(weights: Weights, prefix: str) -> Weights:
    return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}


def forward(
    config: K3Config,
    weights: Weights,
    state: State,
    tokens: jax.Array,
    positions: jax.Array,
    *,
    aux_stream: AuxStream = "prefix",
) -> tuple[Output, Block]:
    """Run consecutive rows of each sequence.

    Args:
        config: The model.
        weights: From `load`.
        state: Of the B sequences, before the first row.
        tokens: int32 `[B, rows]`.
        positions: int32 `[B]`, position of each sequence's first row.
        aux_stream: What `Output.aux` holds of the layers in `config.aux_layers`.

    Returns:
        The output of every row, and the block from which `Block.after` gives the state after any row.
    """
    c = config
    prefix = weights["model.embed_tokens.weight"][tokens].astype(state.conv.dtype)
    snapshots: tuple[jax.Array, ...] = ()
    aux: dict[int, jax.Array] = {}
    routing: list[jax.Array] = []
    histories: list[jax.Array] = []
    caches: list[jax.Array] = []
    entered: list[KdaInputs] = []
    errors: list[jax.Array] = []
    for layer in range(c.layers):
        p = _under(weights, f"model.layers.{layer}.")
        mixer = _under(p, "self_attn.")
        hidden = attention_residual(c, _under(p, "self_attention_res_"), prefix, snapshots)
        if layer in c.aux_layers:
            aux[layer] = prefix if aux_stream == "prefix" else hidden
        begins_anew = c.takes_snapshot(layer)
        if begins_anew:
            snapshots = (*snapshots, prefix)
        hidden = rms_norm(hidden, p["input_layernorm.weight"], c.norm_eps)
        if c.is_mla(layer):
            attended, cache = mla(c, mixer, hidden, positions, state.latent[len(caches)])
            caches.append(cache)
        else:
            index = len(histories)
            attended, history, inputs, error = kda(
                c, mixer, hidden, state.recurrent[index], state.conv[index]
            )
            histories.append(history)
            entered.append(inputs)
            errors.append(error)
        prefix = attended if begins_anew else prefix + attended
        hidden = attention_residual(c, _under(p, "mlp_res_"), prefix, snapshots)
        hidden = rms_norm(hidden, p["post_attention_layernorm.weight"], c.norm_eps)
        if c.is_moe(layer):
            out, chosen = mixture(c, _under(p, "block_sparse_moe."), hidden)
            routing.append(chosen)
        else:
            out = feed_forward(c, p, "mlp.", hidden)
        prefix = prefix + out
    hidden = attention_residual(c, _under(weights, "model.output_attn_res_"), prefix, snapshots)
    hidden = rms_norm(hidden, weights["model.norm.weight"], c.norm_eps)
    output = Output(
        logits=exact("brk,nk->brn", hidden, weights["lm_head.weight"]),
        aux=jnp.stack([aux[layer] for layer in c.aux_layers], -2),
        routing=_stack(routing, (0, *tokens.shape, c.active_experts), jnp.int32),
    )
    kept: Any = partial(_stack, shape=(0,), dtype=jnp.float32)
    block = Block(
        recurrent=state.recurrent,
        history=kept(histories),
        keys=kept([inputs.key for inputs in entered]),
        errors=kept(errors),
        decays=kept([inputs.decay for inputs in entered]),
        latent=kept(caches),
    )
    return output, block


def _stack(arrays: list[jax.Array], shape: tuple[int, ...], dtype: DTypeLike) -> jax.Array:
    """Stacked, also when there is nothing to stack."""
    return jnp.stack(arrays) if arrays else jnp.zeros(shape, dtype)


def decode_step(
    config: K3Config, weights: Weights, state: State, tokens: jax.Array, positions: jax.Array
) -> tuple[Output, State]:
    """One token int32 `[B]` of each sequence: the output of its row, and the new state."""
    output, block = forward(config, weights, state, tokens[:, None], positions)
    return output, block.after(jnp.int32(1))


def sequence(
    config: K3Config, weights: Weights, state: State, tokens: jax.Array, first: int = 0
) -> tuple[Output, State]:
    """Whole rows int32 `[B, length]` by decode steps, as a prefill: outputs along the row axis, new state."""

    def step(carry: State, at: tuple[jax.Array, jax.Array]) -> tuple[State, Output]:
        token, position = at
        output, after = decode_step(config, weights, carry, token, jnp.full(token.shape, position))
        return after, output

    positions = first + jnp.arange(tokens.shape[1], dtype=jnp.int32)
    state, outputs = jax.lax.scan(step, state, (tokens.T, positions))
    rows_last = {"logits": (0, 1), "aux": (0, 1), "routing": (0, 2)}
    joined = {}
    for name, (steps, axis) in rows_last.items():
        value = getattr(outputs, name)
        value = jnp.squeeze(value, axis=3 if name == "routing" else 2)
        joined[name] = jnp.moveaxis(value, steps, axis)
    return Output(**joined), state
