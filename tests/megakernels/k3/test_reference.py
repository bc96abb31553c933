"""The reference against implementations and transcriptions that share no code with it.

Goldens come from tests/goldens/make_k3_goldens.py: the recurrence from fla-core, whole models from NVIDIA
NeMo AutoModel, which also loads our random checkpoint by its published names and packing.
"""

import dataclasses
import json
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from megakernels.k3 import reference
from megakernels.k3.config import TINY, K3Config
from megakernels.k3.mxfp4 import dequantize

GOLDENS = Path(__file__).parents[2] / "goldens" / "k3.npz"
MODELS = ("k3-tiny", "k3-other")


def golden(prefix: str) -> dict[str, Any]:
    with np.load(GOLDENS) as file:
        return {n.removeprefix(f"{prefix}."): file[n] for n in file.files if n.startswith(f"{prefix}.")}


def model_golden(name: str) -> tuple[K3Config, dict[str, Any]]:
    arrays = golden(f"model.{name}")
    fields = json.loads(arrays.pop("config").tobytes())
    return K3Config(**{**fields, "aux_layers": tuple(fields["aux_layers"])}), arrays


def relative_rms(ours: Any, theirs: Any) -> float:
    a, b = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    return float(np.sqrt(np.mean((a - b) ** 2) / np.mean(b**2)))


def run(models: Any, config: K3Config, tokens: Any, dtype: Any = jnp.float32, changed: Any = None) -> Any:
    weights = models.weights(config, dtype)
    state = models.begin(config, 1, 16, dtype)
    rows = jnp.asarray(tokens)[None]
    return models.forward(config)({**weights, **(changed or {})}, state, rows, jnp.zeros(1, jnp.int32))[0]


@pytest.mark.parametrize("name", MODELS)
def test_whole_model_matches_nemo(models, name: str) -> None:
    config, arrays = model_golden(name)
    out = run(models, config, arrays["tokens"])
    for ours, theirs in ((out.logits[0], arrays["logits_f32"]), (out.aux[0], arrays["aux"])):
        assert np.max(np.abs(ours - theirs)) <= 1e-4 * np.max(np.abs(theirs))
    np.testing.assert_array_equal(np.sort(out.routing[:, 0], -1), arrays["experts"])


def test_bfloat16_model_matches_nemo(models) -> None:
    config, arrays = model_golden("k3-tiny")
    out = run(models, config, arrays["tokens"], jnp.bfloat16)
    # Rounding moves logits of size 1 by about 1 %; where it changes a choice of expert, by much more.
    # Both bfloat16 models are that far from the float32 one.
    ours = relative_rms(out.logits[0], arrays["logits_f32"])
    theirs = relative_rms(arrays["logits_bf16"], arrays["logits_f32"])
    assert ours < 2 * theirs
    agree = np.mean(np.argmax(out.logits[0], -1) == np.argmax(arrays["logits_bf16"], -1))
    assert agree >= 0.9


@pytest.mark.parametrize(
    "weight",
    [
        "model.layers.1.self_attn.dt_bias",
        "model.layers.2.self_attn.A_log",
        "model.layers.2.self_attn.o_norm.weight",
        "model.layers.1.self_attn.k_conv1d.weight",
        "model.layers.3.self_attn.kv_a_layernorm.weight",
        "model.layers.1.mlp_res_norm.weight",
        "model.layers.2.block_sparse_moe.gate.e_score_correction_bias",
        "model.layers.4.block_sparse_moe.routed_expert_norm.weight",
        "model.output_attn_res_proj.weight",
    ],
)
def test_a_wrong_weight_is_noticed(models, weight: str) -> None:
    config, arrays = model_golden("k3-tiny")
    values = models.weights(config)[weight]
    ramp = jnp.linspace(0, 0.3, values.size, dtype=jnp.float32).reshape(values.shape)
    out = run(models, config, arrays["tokens"], changed={weight: values + ramp})
    assert np.max(np.abs(out.logits[0] - arrays["logits_f32"])) > 1e-3 * np.max(np.abs(arrays["logits_f32"]))


def fla_inputs() -> dict[str, np.ndarray]:
    """The inputs of the recurrence's goldens, made as the script makes them."""
    rng = np.random.RandomState(5)
    batch, rows, heads, dim = 1, 6, 2, 128

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    made = {"raw": normal(batch, rows, heads, dim), "a_log": normal(heads), "dt_bias": normal(heads * dim)}
    made |= {name: normal(batch, rows, heads, dim) for name in ("q", "k", "v")}
    for name in ("q", "k"):
        made[name] = made[name] / np.linalg.norm(made[name], axis=-1, keepdims=True)
    made["beta"] = 1 / (1 + np.exp(-normal(batch, rows, heads)))
    made["state"] = normal(batch, heads, dim, dim) * np.float32(0.1)
    return made


def test_recurrence_and_decay_match_fla() -> None:
    made, theirs = fla_inputs(), golden("fla")
    config = dataclasses.replace(TINY, heads=2, head_dim=128, hidden=256, decay_rank=256)
    # The projections are the identity here, so that the decay sees fla's raw values.
    eye = jnp.eye(256, dtype=jnp.float32)
    p = {"f_a_proj.weight": eye, "f_b_proj.weight": eye}
    p |= {"A_log": jnp.asarray(made["a_log"]), "dt_bias": jnp.asarray(made["dt_bias"])}
    gate = reference.log_decay(config, p, jnp.asarray(made["raw"].reshape(1, 6, 256)))
    np.testing.assert_allclose(gate, theirs["gate"], rtol=1e-5, atol=1e-6)
    inputs = reference.KdaInputs(
        query=made["q"] * np.float32(128**-0.5),
        key=jnp.asarray(made["k"]),
        value=jnp.asarray(made["v"]),
        decay=jnp.exp(gate),
        beta=jnp.asarray(made["beta"]),
    )
    out, errors = reference.delta_rule(jnp.asarray(made["state"]), inputs)
    np.testing.assert_allclose(out, theirs["out"], rtol=1e-4, atol=1e-5)
    state = made["state"].astype(np.float64)
    for row in range(6):  # replayed from what the rows left behind
        decay, key = (np.asarray(x)[:, row, :, :, None] for x in (inputs.decay, inputs.key))
        state = decay * state + key * np.asarray(errors)[:, row, :, None, :]
    np.testing.assert_allclose(state[..., ::8, :], theirs["state"], rtol=1e-4, atol=1e-5)


def test_absorbed_attention_equals_the_expanded_form(models) -> None:
    """Keys and values expanded per head for every token, float64, one row at a time."""
    c = TINY
    p = {n.removeprefix("model.layers.3.self_attn."): v for n, v in models.weights(c).items()}
    rng = np.random.RandomState(1)
    x = rng.standard_normal((2, 5, c.hidden)).astype(np.float32)
    before = rng.standard_normal((2, 16, c.cache_width)).astype(np.float32)
    positions = np.asarray([4, 0])
    out, cache = reference.mla(c, p, jnp.asarray(x), jnp.asarray(positions), jnp.asarray(before))
    w = {name: np.asarray(value, np.float64) for name, value in p.items() if "weight" in name}

    def norm(v: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return v / np.sqrt((v**2).mean() + c.latent_norm_eps) * weight

    expected = np.zeros(x.shape)
    for b in range(2):
        entries = [entry.astype(np.float64) for entry in before[b, : positions[b]]]
        for row in range(5):
            now = x[b, row].astype(np.float64)
            latent = w["kv_a_proj_with_mqa.weight"] @ now
            latent[: c.kv_rank] = norm(latent[: c.kv_rank], w["kv_a_layernorm.weight"])
            entries.append(latent)
            query = w["q_b_proj.weight"] @ norm(w["q_a_proj.weight"] @ now, w["q_a_layernorm.weight"])
            heads = []
            for head in range(c.heads):
                q = query[head * c.query_dim : (head + 1) * c.query_dim]
                first = head * (c.nope_dim + c.value_dim)
                kv = [
                    w["kv_b_proj.weight"][first : first + c.nope_dim + c.value_dim] @ e[: c.kv_rank]
                    for e in entries
                ]
                keys = np.stack(
                    [
                        np.concatenate([m[: c.nope_dim], e[c.kv_rank :]])
                        for m, e in zip(kv, entries, strict=True)
                    ]
                )
                scores = keys @ q / np.sqrt(c.query_dim)
                shares = np.exp(scores - scores.max())
                heads.append((shares / shares.sum()) @ np.stack([m[c.nope_dim :] for m in kv]))
            gate = 1 / (1 + np.exp(-w["g_proj.weight"] @ now))
            expected[b, row] = w["o_proj.weight"] @ (np.concatenate(heads) * gate)
        np.testing.assert_allclose(cache[b, : len(entries)], np.stack(entries), atol=1e-5)
    np.testing.assert_allclose(out, expected, atol=2e-5)


def test_residual_mixing_equals_the_equations_in_float64() -> None:
    rng = np.random.RandomState(2)
    for count in range(4):
        rows = rng.standard_normal((count + 1, 3, 40)) * rng.uniform(0.1, 10, (count + 1, 1, 1))
        norm, projection = rng.uniform(0.5, 1.5, 40), rng.standard_normal((1, 40))
        expected = np.zeros((3, 40))
        for token in range(3):
            v = rows[:, token]
            scores = np.asarray([v_j @ (norm * projection[0]) / np.sqrt((v_j**2).mean() + 1e-5) for v_j in v])
            shares = np.exp(scores - scores.max())
            expected[token] = (shares / shares.sum()) @ v if count else v[0]
        as_f32 = [jnp.asarray(row, jnp.float32) for row in rows]
        p = {
            "norm.weight": jnp.asarray(norm, jnp.float32),
            "proj.weight": jnp.asarray(projection, jnp.float32),
        }
        ours = reference.attention_residual(TINY, p, as_f32[-1], tuple(as_f32[:-1]))
        np.testing.assert_allclose(ours, expected, atol=1e-5)


def test_routing_and_mixture_equal_a_direct_transcription(models) -> None:
    """Expert by expert, token by token, in float64; experts decoded from the packed bytes."""
    c = TINY
    prefix = "model.layers.2.block_sparse_moe."
    p = {n.removeprefix(prefix): v for n, v in models.weights(c).items() if n.startswith(prefix)}
    x = np.random.RandomState(4).standard_normal((5, c.hidden)).astype(np.float32)
    out, chosen = reference.mixture(c, p, jnp.asarray(x))
    stored = models.stored(c)

    def matrix(name: str) -> np.ndarray:
        if ".experts." in f".{name}":
            pair = (stored[f"{prefix}{name}.weight_{what}"] for what in ("packed", "scale"))
            return dequantize(*pair).astype(np.float64)
        return stored[f"{prefix}{name}.weight"].astype(np.float64)

    def sigmoid(v: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-v))

    def situ(g: np.ndarray, u: np.ndarray) -> np.ndarray:
        return 4 * np.tanh(g / 4) * sigmoid(g) * 25 * np.tanh(u / 25)

    bias = stored[f"{prefix}gate.e_score_correction_bias"]
    for token, row in enumerate(x.astype(np.float64)):
        scores = sigmoid(matrix("gate") @ row)
        order = sorted(range(c.experts), key=lambda e: -(scores[e] + bias[e]))[: c.active_experts]
        assert list(chosen[token]) == order
        total = sum(scores[e] for e in order)
        latent = matrix("routed_expert_down_proj") @ row
        y = np.zeros(c.latent)
        for e in order:
            inner = situ(matrix(f"experts.{e}.w1") @ latent, matrix(f"experts.{e}.w3") @ latent)
            y += scores[e] / total * (matrix(f"experts.{e}.w2") @ inner)
        y = y / np.sqrt((y**2).mean() + 1e-5) * stored[f"{prefix}routed_expert_norm.weight"]
        shared = situ(matrix("shared_experts.gate_proj") @ row, matrix("shared_experts.up_proj") @ row)
        expected = matrix("routed_expert_up_proj") @ y + matrix("shared_experts.down_proj") @ shared
        np.testing.assert_allclose(out[token], expected, atol=3e-5)


def test_the_correction_bias_chooses_but_does_not_weigh() -> None:
    p = {"gate.weight": jnp.eye(TINY.experts), "gate.e_score_correction_bias": jnp.zeros(TINY.experts)}
    x = jnp.zeros((1, TINY.experts)).at[0, :4].set(jnp.asarray([3.0, 2.0, 1.0, 0.5]))
    chosen, weights = reference.route(TINY, p, x)
    assert chosen[0].tolist() == [0, 1, 2]
    p["gate.e_score_correction_bias"] = p["gate.e_score_correction_bias"].at[7].set(9.0)
    chosen, weights = reference.route(TINY, p, x)
    assert chosen[0].tolist() == [7, 0, 1]
    scores = jax.nn.sigmoid(jnp.asarray([0.0, 3.0, 2.0]))
    np.testing.assert_allclose(weights[0], scores / scores.sum(), rtol=1e-6)


def test_rows_of_one_forward_equal_single_steps(models) -> None:
    """Logits, auxiliary streams, routing and the state after every row; two sequences at different places."""
    c = TINY
    weights = models.weights(c)
    rows = models.tokens(c, 2, 8)
    earlier = models.tokens(c, 2, 8, seed=8)
    _, block = models.forward(c)(weights, models.begin(c, 2), earlier, jnp.asarray([0, 3]))
    state = models.after(block, jnp.int32(5))
    positions = jnp.asarray([5, 8])
    together, block = models.forward(c)(weights, state, rows, positions)
    for row in range(8):
        single, after = models.forward(c)(weights, state, rows[:, row : row + 1], positions + row)
        state = models.after(after, jnp.int32(1))
        for name in ("logits", "aux"):
            ours, theirs = getattr(together, name)[:, row], getattr(single, name)[:, 0]
            np.testing.assert_allclose(ours, theirs, atol=2e-4)
        np.testing.assert_array_equal(together.routing[:, :, row], single.routing[:, :, 0])
        ours = models.after(block, jnp.int32(row + 1))
        np.testing.assert_allclose(ours.recurrent, state.recurrent, atol=2e-5)
        np.testing.assert_allclose(ours.conv, state.conv, atol=2e-5)
        for b in range(2):
            seen = positions[b] + row + 1
            np.testing.assert_allclose(ours.latent[:, b, :seen], state.latent[:, b, :seen], atol=2e-5)


def test_a_sequence_by_steps_equals_one_forward(models) -> None:
    c = TINY
    weights, rows = models.weights(c), models.tokens(c, 2, 8)
    together, block = models.forward(c)(weights, models.begin(c, 2), rows, jnp.zeros(2, jnp.int32))
    by_steps = jax.jit(partial(reference.sequence, c), compiler_options=models.quick)
    out, state = by_steps(weights, models.begin(c, 2), rows)
    np.testing.assert_allclose(out.logits, together.logits, atol=2e-4)
    np.testing.assert_allclose(out.aux, together.aux, atol=2e-4)
    np.testing.assert_array_equal(out.routing, together.routing)
    after = models.after(block, jnp.int32(8))
    np.testing.assert_allclose(state.recurrent, after.recurrent, atol=2e-5)


def test_auxiliary_streams_can_be_the_mixed_ones(models) -> None:
    c = dataclasses.replace(TINY, layers=2, aux_layers=(0, 1))
    args = (models.weights(c), models.begin(c, 1, 16), models.tokens(c, 1, 8), jnp.zeros(1, jnp.int32))
    plain, _ = models.forward(c)(*args)
    mixed, _ = models.forward(c, "mixed")(*args)
    np.testing.assert_array_equal(plain.aux[:, :, 0], mixed.aux[:, :, 0])  # nothing to mix before layer 0
    assert relative_rms(plain.aux[:, :, 1:], mixed.aux[:, :, 1:]) > 0.1
    np.testing.assert_allclose(plain.logits, mixed.logits, atol=1e-6)
