"""The decode loop around the kernel: on a stand-in for it, in one process and in two, and on the real one."""

import dataclasses
import importlib.util
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from megakernels.common.place import everywhere
from megakernels.common.safetensors import CheckpointError
from megakernels.k3 import generate
from megakernels.k3.dspark import LookupDrafter, Sampling, ScriptedDrafter
from megakernels.k3.run import Decoder

HERE = Path(__file__).parent
PROMPTS = [list(range(5, 16)), [7, 3], [1], [9] * 17]


@pytest.fixture(scope="module")
def stand_in() -> ModuleType:
    spec = importlib.util.spec_from_file_location("k3_stand_in", HERE / "stand_in.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["k3_stand_in"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def one(stand_in) -> Decoder:
    plan = stand_in.plan(1)
    return Decoder(plan, stand_in.files(plan, [0]), builder=stand_in.builder)


def test_decode_steps_go_on_from_every_prompt(one, stand_in) -> None:
    for prompt in PROMPTS:
        first = one.prefill([prompt])
        assert [*first, *one.decode(3, per_call=2)[0], *one.decode(2, per_call=2)[0]] == stand_in.expected(
            one.plan, prompt, 6
        )
    assert one._calls.steps._cache_size() == 1  # compiled once for calls of 1 and of 2 steps


def test_sequences_of_a_batch_are_each_their_own(stand_in) -> None:
    plan = stand_in.plan(1, batch=4)
    decoder = Decoder(plan, stand_in.files(plan, [0]), builder=stand_in.builder)
    firsts = decoder.prefill(PROMPTS)
    got = [[first, *more] for first, more in zip(firsts, decoder.decode(4), strict=True)]
    assert got == [stand_in.expected(plan, prompt, 5) for prompt in PROMPTS]
    with pytest.raises(ValueError, match="decode steps"):
        next(decoder.speculate(LookupDrafter([])))


@pytest.mark.parametrize("right", range(8))
def test_cycles_emit_the_text_however_many_are_accepted(one, stand_in, right) -> None:
    prompt = PROMPTS[0]
    wanted = stand_in.expected(one.plan, prompt, 32)
    drafter = ScriptedDrafter(prompt + wanted, (right,), one.plan.config.vocab)
    got = one.prefill([prompt])
    for _, (emitted, accepted) in zip(range(3), one.speculate(drafter), strict=False):
        assert accepted == right
        got += emitted
    assert got == wanted[: len(got)]
    assert drafter.observed == list(range(len(prompt), len(prompt) + 3 * (right + 1)))
    # Decode steps go on from what the cycles left.
    assert one.decode(2)[0] == stand_in.expected(one.plan, prompt + got, 2)


def test_several_cycles_in_one_call(one, stand_in) -> None:
    """A drafter that knows the text and is wrong at every third position."""
    prompt = PROMPTS[1]
    text = jnp.asarray(prompt + stand_in.expected(one.plan, prompt, 62), jnp.int32)

    class Counting:
        def propose(self, memory: Any, anchor: Any, position: Any) -> Any:
            at = position + 1 + jnp.arange(7)
            return jnp.where(at % 3 == 0, 0, text[jnp.minimum(at, 63)])

        def observe(self, memory: Any, tokens: Any, count: Any, position: Any, aux: Any) -> Any:
            return memory + count

    got, drafter = one.prefill([prompt]), Counting()
    total = jax.device_put(np.int32(0), everywhere(one._calls.mesh))  # where a call leaves it
    for _ in range(2):
        each, total = one.speculate_traced(drafter, total, 2)
        got += [token for tokens in each for token in tokens]
    assert one._calls.cycles._cache_size() == 1
    assert got == text[len(prompt) : len(prompt) + len(got)].tolist()
    assert int(total) == len(got) - 1 > 6
    assert one.decode(1)[0] == stand_in.expected(one.plan, prompt + got, 1)


def test_sampling_draws_from_all_ranks_logits(stand_in) -> None:
    """The likeliest token has probability e^9 / (e^9 + 255): top_p leaves it alone, heat does not."""
    plan = stand_in.plan(2)
    wanted = stand_in.expected(plan, PROMPTS[0], 3)
    made = []
    for sampling in (Sampling(1.0, 0.9), Sampling(20.0)):
        files = stand_in.files(plan, [0, 1])
        decoder = Decoder(plan, files, builder=stand_in.builder, sampling=sampling)
        made += [decoder.prefill([PROMPTS[0]]) + decoder.decode(2, per_call=2)[0] for _ in range(2)]
    assert made[0] == made[1] == wanted
    assert made[2] != made[3]
    assert wanted not in made[2:]


def test_what_does_not_fit_is_refused(one) -> None:
    for prompts, said in (
        ([[1], [2]], "2 prompts for 1"),
        ([[]], "of 0 tokens"),
        ([[1] * 60], "takes 1 to 56"),
    ):
        with pytest.raises(ValueError, match=said):
            one.prefill(prompts)
    with pytest.raises(ValueError, match="no prompt to go on from"):
        one.decode(1)
    one.prefill([[1] * 50])
    with pytest.raises(ValueError, match="room for 6"):
        one.decode(7)
    assert len(list(one.speculate(LookupDrafter([1] * 50)))) >= 1
    assert one.room < 0


def test_the_files_of_a_rank_are_missed(stand_in) -> None:
    plan = stand_in.plan(2)
    files = stand_in.files(plan, [0])
    with pytest.raises(CheckpointError, match=r"core1.*bin: is not among the weights"):
        Decoder(plan, files, builder=stand_in.builder)


def test_two_processes_of_a_slice_agree(stand_in) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    flags = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    running = [
        subprocess.Popen(
            [sys.executable, str(HERE / "stand_in.py"), address, "2", str(process)],
            env={**os.environ, **flags},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for process in range(2)
    ]
    said = [process.communicate(timeout=200) for process in running]
    assert [process.returncode for process in running] == [0, 0], said
    results = [json.loads(out.splitlines()[-1]) for out, _ in said]
    assert results[0] == results[1]
    assert len(results[0]) == 1 + (3 + 1) + (0 + 1) + (7 + 1) + 3
    assert results[0] == stand_in.expected(stand_in.plan(4, hosts=2), PROMPTS[0], len(results[0]))


def test_lookup_proposes_what_followed_before() -> None:
    drafter = LookupDrafter([1, 2, 3, 4, 1])
    assert drafter.propose(2, 5) == [3, 4, 1, 2, 0, 0, 0]
    drafter.observe(np.asarray([2, 3]), 5, np.zeros((2, 1, 4)))
    assert drafter.text == [1, 2, 3, 4, 1, 2, 3]
    assert drafter.propose(9, 7) == [0] * 7


def test_requests() -> None:
    assert generate.Request(prompts=("a", "b", "c"), count=1).batch == 4
    for options in (
        {"prompts": ()},
        {"prompts": ("a", "b"), "speculate": True},
        {"prompts": ("a",), "count": 0},
    ):
        with pytest.raises(ValueError, match="prompt"):
            generate.Request(**{"count": 1, **options})
    with pytest.raises(ValueError, match="need --coordinator"):
        generate.join(None, 2, 0, asked=False)
    with pytest.raises(ValueError, match="needs --processes"):
        generate.join("host:1", None, 0, asked=False)
    assert dataclasses.asdict(generate.Request(prompts=("a",), count=1))["per_call"] == 8
    assert jax.process_count() == 1


@pytest.mark.slow
def test_the_kernel_says_what_the_reference_says(simulated) -> None:
    """11 tokens, a block and a part of one; cycles that accept some, none and all proposals; decode steps."""
    run = simulated("k3/loop:generate", cores=2, prompt=11, right=(2, 0, 7), count=3, timeout=400).clean()
    assert run["accepted"] == [2, 0, 7]
    assert run["ours"] == run["theirs"]
