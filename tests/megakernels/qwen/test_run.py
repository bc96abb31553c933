"""Generation end to end: prefill by verify blocks, several steps per call, the verb as a shell sees it."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from megakernels.qwen import checkpoint, weights
from megakernels.qwen.config import SMALL
from megakernels.qwen.plan import Plan

ROOT = Path(__file__).parents[3]
SIZES = {"ring_depth": 3, "capacity": 128, "kv_tile": 32, "kv_slots": 2}
NARROW = {
    "layers": 4,
    "intermediate": 1024,
    "vocab": 508,
    "attention_heads": 4,
    "kv_heads": 2,
    "key_heads": 4,
    "value_heads": 8,
}


@pytest.mark.slow
def test_generated_tokens_are_the_reference_s(simulated) -> None:
    """Prefill in blocks, decode in calls; a token that ends a text stops the steps of its call."""
    # 11 tokens: a whole block and 3 of a second, so the state comes from inside a block.
    run = simulated(
        "qwen:generate",
        sizes=SIZES | {"cores": 2},
        model=NARROW,
        prompt=11,
        count=7,
        per_call=3,
        timeout=580,
    ).clean()
    assert run["ours"] == run["theirs"]
    end = run["stopped_by"]
    assert run["stopped"] == run["theirs"][: run["theirs"].index(end, 1) + 1]
    assert run["steps_after_stop"] == len(run["stopped"]) - 1


def megascope(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "megascope", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)


def test_vmem_verb_adds_up() -> None:
    out = megascope("vmem", "qwen", "--batch", "8")
    assert out.returncode == 0, out.stderr
    *arrays, total = out.stdout.splitlines()
    assert "ring.banks" in arrays[0]
    assert abs(sum(float(line.split()[0]) for line in arrays) - float(total.split()[0])) < 0.1
    assert float(total.split()[0]) < 64


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("weights", "qwen", "--to", "x"), 2, "Give --from FOLDER or --random SEED"),
        (("weights", "qwen", "--to", "x", "--from", "/nonexistent"), 3, "has no config.json"),
        (("weights", "k9", "--to", "x", "--random", "0"), 2, "Kernels: qwen"),
        (("run", "qwen", "--weights", "/nonexistent"), 3, "Make it with `megascope weights qwen`"),
        (("vmem", "nosuch"), 2, "no such kernel"),
        (("vmem", "qwen", "--batch", "3"), 2, "choose 1, 2, 4 or 8"),
        (("vmem", "qwen", "--cores", "0"), 2, "Invalid value for '--cores'"),
    ],
)
def test_faults_of_the_user_are_one_line(arguments, code, said) -> None:
    out = megascope(*arguments)
    assert out.returncode == code
    assert said in out.stderr
    assert "Traceback" not in out.stderr


@pytest.mark.slow
def test_random_weights_are_made_and_checked(tmp_path) -> None:
    made = megascope(
        "weights", "qwen", "--random", "0", "--cores", "2", "--to", str(tmp_path / "w"), "--check"
    )
    assert made.returncode == 0, made.stderr
    assert "for 2 cores" in made.stdout


@pytest.mark.slow
def test_a_small_model_runs_on_the_cpu_which_is_said(tmp_path) -> None:
    config = dataclasses.replace(SMALL, **NARROW | {"layers": 2, "attention_period": 2})
    plan = Plan(config=config, cores=2)
    weights.convert(checkpoint.random_source(config, 0), plan, tmp_path / "w", lambda *_: None)
    out = megascope("run", "qwen", "--weights", str(tmp_path / "w"), "--prompt", "Hi", "--tokens", "2")
    assert out.returncode == 0, out.stderr
    assert "no TPU here" in out.stderr
    assert len(out.stdout.split()) == 2
