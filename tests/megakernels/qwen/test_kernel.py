"""The Qwen decode kernel against plain JAX, on 1, 2 and 8 simulated cores, in two interpreter modes.

Eager copies with the race detector catch a missing handshake; copies done at the wait, into memory full of
NaN, catch a missing wait. Neither catches both. Positions cross a KV tile (32 tokens) and a window (16).

Rows and cores meet in one place only: the shares of a sum, which travel as words where there are fewer than 8
rows. So not every batch runs on every slice. Each form (batch 1, 2, 4, 8, verify) runs in full length on some
slice, and each slice (no exchange; KV heads of its own; KV heads shared by pairs) runs decode and verify;
where there is an exchange, shares are of a lone row, of several, and of 8.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

ON_WAIT = {"dma": "on_wait"}
EAGER = {"dma": "eager", "detect_races": True}
SIZES = {"ring_depth": 3, "capacity": 128, "kv_tile": 32, "kv_slots": 2}
# Half the heads for slices of 1 and 2 cores: a core of them is then the size of one of 8 cores.
NARROW = {
    "intermediate": 1024,
    "vocab": 508,
    "attention_heads": 4,
    "kv_heads": 2,
    "key_heads": 4,
    "value_heads": 8,
}
# Two layers, one of each kind, where the length of the stream is not the question.
SHORT = NARROW | {"layers": 2, "attention_period": 2}

# Kernel and reference round at the same places, so after few layers they agree to the last bits of float32
# until a value falls on the other side of a rounding, which later layers amplify to about 0.005 of a logit's
# size. Choices are clear by 0.1 (cases.GAP), so tokens must be equal. Wrong heads, tiles or gates move logits
# by about 1.
TOLERANCE = 0.015
EXACT = 1e-5


@pytest.fixture
def run(simulated) -> Callable[..., dict[str, Any]]:
    """A flawless run of cases.run."""
    return lambda **options: simulated("qwen:run", timeout=580, **options).clean()


def check(run: dict[str, Any]) -> None:
    """Tokens equal on every core, logits of every row and all states within rounding."""
    assert run["cores_agree"]
    assert run["tokens"] == run["expected"]
    assert max(max(row) for row in run["row_errors"]) < TOLERANCE
    assert max(run["state_errors"]) < TOLERANCE


def check_exact(run: dict[str, Any]) -> None:
    """Besides, some rows of a short model are free of any rounding difference.

    A rounding left out, added, or of another kind (a truncated share, an epsilon of 1e-4, a softmax sum of
    rounded weights) puts every row at more than 0.001.
    """
    check(run)
    assert np.min(run["row_errors"]) < EXACT


# The default tier: 2 layers, few steps, each form in one of the two modes.


def test_one_core_and_small_faults(run) -> None:
    """Every small fault moves the logits far more than the kernel differs from the reference without it."""
    vectors = (
        "dt_bias",
        "A_log",
        "conv1d.weight",
        "linear_attn.norm.weight",
        "q_norm.weight",
        "k_norm.weight",
    )
    vectors += ("input_layernorm.weight", "post_attention_layernorm.weight", "model.norm.weight")
    result = run(
        sizes=SIZES | {"cores": 1, "batch": 4},
        model=SHORT,
        steps=1,
        first_position=31,
        faults=vectors,
        **ON_WAIT,
    )
    check_exact(result)
    for fault, errors in result["faults"].items():
        assert np.min(errors) > 10 * EXACT, fault


def test_two_cores_two_sequences(run) -> None:
    sizes = SIZES | {"cores": 2, "batch": 2}
    check_exact(run(sizes=sizes, model=SHORT, steps=2, first_position=26, **EAGER))


def test_verify_and_every_state_it_can_go_on_from(run) -> None:
    sizes = SIZES | {"cores": 1}
    every = tuple(range(1, 9))
    check_exact(
        run(sizes=sizes, model=SHORT, accepted=[3, 8, 1], first_position=27, compared_rows=every, **EAGER)
    )


def test_float8_weights(run) -> None:
    sizes = SIZES | {"cores": 1, "batch": 4, "fp8": True, "head_depth": 2}
    check_exact(run(sizes=sizes, model=SHORT, steps=1, first_position=31, **EAGER))


def test_hooks_change_no_bit_of_the_result(run) -> None:
    sizes = SIZES | {"cores": 2, "batch": 2}
    off, regions = (
        run(sizes=sizes, model=SHORT, steps=1, first_position=26, level=level, **EAGER)
        for level in ("off", "regions")
    )
    np.testing.assert_array_equal(off["logits"], regions["logits"])
    assert off["tokens"] == regions["tokens"]


def test_the_comparison_notices_wrong_weights(run) -> None:
    result = run(
        sizes=SIZES | {"cores": 1, "batch": 4},
        model=SHORT,
        steps=1,
        first_position=31,
        swap_gate_and_up=True,
        **ON_WAIT,
    )
    assert np.min(result["row_errors"]) > 5 * TOLERANCE
    assert result["tokens"] != result["expected"]


# The slow tier: the pattern of the real model, 6 steps over a KV tile's end, every slice.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cores", "batch", "mode"),
    [
        (1, 8, ON_WAIT),
        (2, 1, EAGER),
        (2, 4, ON_WAIT),
        (8, 1, EAGER),
        (8, 2, ON_WAIT),
    ],
    ids=lambda value: value["dma"] if isinstance(value, dict) else str(value),
)
def test_decode_over_six_steps(run, cores, batch, mode) -> None:
    model = {} if cores == 8 else NARROW
    sizes = SIZES | {"cores": cores, "batch": batch}
    # The published model's rounding knows of no cores: comparing with it once is enough.
    published = (cores, batch) == (1, 8)
    result = run(sizes=sizes, model=model, steps=6, first_position=28, published=published, **mode)
    check(result)
    if published:
        assert result["published_tokens"] == result["tokens"]
        assert result["published_error"] < 2 * TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("cores", [1, 2, 8])
def test_verify_over_six_steps(run, cores) -> None:
    model = {} if cores == 8 else NARROW
    sizes = SIZES | {"cores": cores}
    accepted = [3, 8, 1, 5, 8, 2]
    check(run(sizes=sizes, model=model, accepted=accepted, first_position=27, **ON_WAIT))


@pytest.mark.slow
@pytest.mark.parametrize("form", [{"steps": 3, "batch": 4}, {"accepted": [3, 8]}], ids=str)
def test_float8_weights_on_two_cores(run, form) -> None:
    form = dict(form)
    sizes = SIZES | {"cores": 2, "batch": form.pop("batch", 1), "fp8": True, "head_depth": 1}
    check(run(sizes=sizes, model=NARROW, first_position=30, **form, **ON_WAIT))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "form"),
    [
        ({"cores": 1, "ring_depth": 1, "kv_slots": 1, "kv_tile": 16}, {"steps": 1}),
        # Banks of several column pairs, more of them than tiles.
        ({"cores": 1, "ring_depth": 40, "bank_rows": 6144}, {"steps": 1}),
        # Shares that leave in two messages, of 8 rows and of fewer, of one tile and of two.
        ({"cores": 2, "bank_rows": 1024, "message_bytes": 4096}, {"accepted": [5]}),
        ({"cores": 2, "batch": 4, "message_bytes": 4096, "hidden": 1024}, {"steps": 1}),
    ],
    ids=str,
)
def test_every_way_to_stream_gives_the_same_result(run, sizes, form) -> None:
    sizes = SIZES | sizes
    hidden = sizes.pop("hidden", 512)
    model = SHORT | {"hidden": hidden, "intermediate": 2 * hidden}
    check(run(sizes=sizes, model=model, first_position=63, **form, **EAGER))
