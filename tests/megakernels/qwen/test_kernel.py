"""The Qwen decode kernel against plain JAX, on 1, 2, 4 and 8 simulated cores, in two interpreter modes.

Eager copies with the race detector catch a missing handshake; copies done at the wait, into memory full of
NaN, catch a missing wait. Neither catches both. Positions cross a KV tile (32 tokens) and a window (16).
"""

from typing import Any

import numpy as np
import pytest

ON_WAIT = {"dma": "on_wait"}
EAGER = {"dma": "eager", "detect_races": True}
# Half a minute each: the short tier takes each case in one of the modes, the slow tier in the other.
QUICK_ON_WAIT = [pytest.param(ON_WAIT, id="on_wait"), pytest.param(EAGER, id="eager", marks=pytest.mark.slow)]
QUICK_EAGER = [pytest.param(ON_WAIT, id="on_wait", marks=pytest.mark.slow), pytest.param(EAGER, id="eager")]
SIZES = {"ring_depth": 3, "capacity": 128, "kv_tile": 32, "kv_slots": 2}
# Two layers, one of each kind, for what costs most: race detection and the default tier.
SHORT = {"layers": 2, "attention_period": 2}

# Activations round to bfloat16 at other places in the kernel than in the reference (the kernel keeps more in
# float32), which moves logits of size 1 by about 0.01. A wrong head, tile or gate moves them by about 1.
TOLERANCE = 0.02


def check(run: dict[str, Any]) -> None:
    """Tokens equal on every core, logits and states within rounding.

    A token may differ from the reference's where the reference's two logits are closer than rounding.
    """
    assert run["cores_agree"]
    assert not run["unexplained_tokens"]
    equal = np.asarray(run["tokens"]) == np.asarray(run["expected"])
    assert equal.mean() > 0.8
    assert max(run["logits_error"]) < TOLERANCE
    assert max(run["state_error"].values()) < TOLERANCE


def check_verify(run: dict[str, Any]) -> None:
    """The same for verify, where a token may differ where two logits are closer than rounding."""
    assert max(run["logits_error"]) < TOLERANCE
    assert max(run["state_error"]) < TOLERANCE
    assert not run["unexplained_tokens"]


@pytest.mark.parametrize("mode", QUICK_ON_WAIT)
def test_one_core(simulated, mode) -> None:
    sizes = SIZES | {"cores": 1}
    check(simulated("qwen:decode", sizes=sizes, model=SHORT, steps=2, first_position=31, **mode).clean())


@pytest.mark.parametrize("mode", QUICK_EAGER)
def test_two_cores_two_sequences(simulated, mode) -> None:
    sizes = SIZES | {"cores": 2, "batch": 2}
    check(simulated("qwen:decode", sizes=sizes, model=SHORT, steps=2, first_position=26, **mode).clean())


@pytest.mark.parametrize("mode", QUICK_EAGER)
def test_verify_and_every_state_it_can_go_on_from(simulated, mode) -> None:
    sizes = SIZES | {"cores": 1}
    check_verify(
        simulated(
            "qwen:verify", sizes=sizes, model=SHORT, accepted=[3, 8, 1], first_position=27, **mode
        ).clean()
    )


@pytest.mark.parametrize("mode", QUICK_ON_WAIT)
def test_float8_weights(simulated, mode) -> None:
    sizes = SIZES | {"cores": 1, "fp8": True, "head_depth": 2}
    check(simulated("qwen:decode", sizes=sizes, model=SHORT, steps=1, first_position=31, **mode).clean())


@pytest.mark.parametrize("cores", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_hooks_change_no_bit_of_the_result(simulated, cores) -> None:
    sizes = SIZES | {"cores": cores}
    off, regions = (
        simulated("qwen:decode", sizes=sizes, model=SHORT, steps=1, first_position=40, level=level).clean()
        for level in ("off", "regions")
    )
    np.testing.assert_array_equal(off["logits"], regions["logits"])
    assert off["tokens"] == regions["tokens"]


def test_the_comparison_notices_wrong_weights(simulated) -> None:
    run = simulated(
        "qwen:decode",
        sizes=SIZES | {"cores": 1},
        model=SHORT,
        steps=1,
        first_position=31,
        swap_gate_and_up=True,
    ).clean()
    assert max(run["logits_error"]) > 5 * TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cores", "batch"), [*((cores, batch) for cores in (1, 2, 8) for batch in (1, 2, 4, 8)), (4, 2)]
)
def test_decode_of_every_batch_on_every_slice(simulated, cores, batch) -> None:
    sizes = SIZES | {"cores": cores, "batch": batch}
    check(simulated("qwen:decode", sizes=sizes, steps=6, first_position=28, timeout=900, **ON_WAIT).clean())


@pytest.mark.slow
@pytest.mark.parametrize("cores", [1, 2, 8])
def test_verify_on_every_slice(simulated, cores) -> None:
    sizes = SIZES | {"cores": cores}
    check_verify(
        simulated(
            "qwen:verify", sizes=sizes, accepted=[3, 8, 1, 5, 8, 2], first_position=27, timeout=900
        ).clean()
    )


@pytest.mark.slow
@pytest.mark.parametrize("cores", [2, 8])
@pytest.mark.parametrize("batch", [1, 4])
def test_float8_weights_on_every_slice(simulated, cores, batch) -> None:
    sizes = SIZES | {"cores": cores, "batch": batch, "fp8": True, "head_depth": 1}
    check(simulated("qwen:decode", sizes=sizes, steps=6, first_position=28, timeout=900, **ON_WAIT).clean())


@pytest.mark.slow
def test_float8_verify(simulated) -> None:
    sizes = SIZES | {"cores": 2, "fp8": True, "head_depth": 1}
    check_verify(
        simulated("qwen:verify", sizes=sizes, accepted=[3, 8, 1], first_position=27, timeout=900).clean()
    )


@pytest.mark.slow
def test_eight_layers_eager(simulated) -> None:
    sizes = SIZES | {"cores": 2, "batch": 2, "ring_depth": 5}
    model = {"layers": 8}
    check(
        simulated(
            "qwen:decode", sizes=sizes, model=model, steps=2, first_position=31, timeout=900, dma="eager"
        ).clean()
    )


@pytest.mark.slow
def test_eight_cores_race_free(simulated) -> None:
    sizes = SIZES | {"cores": 8, "batch": 2}
    check(
        simulated(
            "qwen:decode", sizes=sizes, model=SHORT, steps=2, first_position=31, timeout=900, **EAGER
        ).clean()
    )


@pytest.mark.parametrize(
    "change",
    [{"ring_depth": 1}, {"ring_depth": 40}, {"kv_slots": 1}, {"kv_tile": 16}, {"bank_rows": 6144}],
    ids=str,
)
@pytest.mark.slow
def test_every_way_to_stream_gives_the_same_result(simulated, change) -> None:
    sizes = SIZES | {"cores": 2} | change
    check(
        simulated(
            "qwen:decode", sizes=sizes, model=SHORT, steps=2, first_position=63, timeout=600, **EAGER
        ).clean()
    )
