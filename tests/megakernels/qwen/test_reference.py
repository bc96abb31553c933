"""The reference against transformers' qwen3_5 (tests/goldens/make_qwen_goldens.py made the goldens)."""

import json
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from megakernels.qwen import reference
from megakernels.qwen.config import QWEN3_8_27B, QwenConfig
from megakernels.qwen.parameters import random_parameters, tensor_shapes

# Half a minute of compiling else; the runs take milliseconds.
compiled = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
GOLDENS = Path(__file__).parents[2] / "goldens" / "qwen.npz"
SEED = 5


def load(case: str) -> tuple[QwenConfig, dict[str, np.ndarray]]:
    with np.load(GOLDENS) as file:
        arrays = {
            name.removeprefix(f"{case}."): file[name] for name in file.files if name.startswith(f"{case}.")
        }
    return QwenConfig(**json.loads(arrays.pop("config").tobytes())), arrays


def replay(
    config: QwenConfig, golden: dict[str, np.ndarray], dtype: jnp.dtype
) -> tuple[np.ndarray, np.ndarray]:
    """Logits of the prefill and of the 8 decode steps fed with the golden's tokens."""
    parameters = {n: jnp.asarray(v) for n, v in random_parameters(config, SEED).items()}
    if dtype == jnp.bfloat16:
        exact = ("A_log", "dt_bias", "linear_attn.norm.weight")
        parameters = {n: v if n.endswith(exact) else v.astype(dtype) for n, v in parameters.items()}
    prompt = jnp.asarray(golden["prompt"])[None]
    state = reference.initial_state(config, 1, 24, dtype)
    prefill, state = compiled(partial(reference.prefill, config))(parameters, state, prompt)
    decode_step = compiled(partial(reference.decode_step, config))
    steps = []
    for step, token in enumerate(golden["tokens"][:-1]):
        position = jnp.asarray([prompt.shape[1] + step], jnp.int32)
        _, logits, state = decode_step(parameters, state, jnp.asarray([token]), position)
        steps.append(np.asarray(logits[0]))
    return np.asarray(prefill[0]), np.stack(steps)


def relative_rms(ours: np.ndarray, theirs: np.ndarray) -> float:
    return float(np.sqrt(np.mean((ours - theirs) ** 2) / np.mean(theirs**2)))


@pytest.mark.parametrize("case", ["a", "b", "c"])
def test_float32_matches_transformers(case: str) -> None:
    config, golden = load(case)
    prefill, steps = replay(config, golden, jnp.float32)
    for ours, theirs in ((prefill, golden["prefill"]), (steps, golden["logits"])):
        assert np.max(np.abs(ours - theirs)) / np.max(np.abs(theirs)) <= 1e-4
    assert [int(prefill[-1].argmax()), *steps.argmax(-1)] == golden["tokens"].tolist()


@pytest.mark.parametrize("case", ["a", "b", "c"])
def test_bfloat16_argmax_matches_transformers(case: str) -> None:
    config, golden = load(case)
    prefill, steps = replay(config, golden, jnp.bfloat16)
    assert [int(prefill[-1].argmax()), *steps.argmax(-1)] == golden["bf16_tokens"].tolist()
    assert relative_rms(steps, golden["bf16_logits"]) < 0.2


def test_a_wrong_weight_is_noticed() -> None:
    config, golden = load("a")
    parameters = {n: jnp.asarray(v) for n, v in random_parameters(config, SEED).items()}
    parameters["model.layers.1.linear_attn.dt_bias"] += 0.1
    state = reference.initial_state(config, 1, 24)
    prefill, _ = compiled(partial(reference.prefill, config))(
        parameters, state, jnp.asarray(golden["prompt"])[None]
    )
    assert np.max(np.abs(prefill[0] - golden["prefill"])) / np.max(np.abs(golden["prefill"])) > 1e-3


def test_states_after_every_row_equal_single_steps() -> None:
    config, golden = load("b")
    parameters = {n: jnp.asarray(v) for n, v in random_parameters(config, SEED).items()}
    prompt = jnp.asarray(golden["prompt"])[None]
    state = reference.initial_state(config, 1, 24)
    logits, _, states = compiled(partial(reference.forward, config))(
        parameters, state, prompt, jnp.zeros(1, jnp.int32)
    )
    decode_step = compiled(partial(reference.decode_step, config))
    for row in range(4):
        at = jnp.asarray([row], jnp.int32)
        _, single, state = decode_step(parameters, state, prompt[:, row], at)
        np.testing.assert_allclose(logits[:, row], single, atol=2e-5)
        np.testing.assert_allclose(states[row].recurrent, state.recurrent, atol=2e-5)
        np.testing.assert_allclose(states[row].conv, state.conv, atol=2e-5)


def test_parameter_count_of_the_real_model() -> None:
    total = sum(int(np.prod(shape)) for shape in tensor_shapes(QWEN3_8_27B).values())
    assert round(total / 1e9, 3) == 26.896
