"""What generating text has in common for every kernel: weights must be given, and a CPU interprets."""

from pathlib import Path
from typing import Any

from megakernels.common.safetensors import CheckpointError


def no_weights(kernel: str, verb: str = "run") -> CheckpointError:
    """The error where weights are needed and none are given."""
    return CheckpointError(
        verb, "no weights given", f"Give --weights FOLDER, made by `megascope weights {kernel}`."
    )


def too_large(kernel: str, model: str, weights: Path | None) -> CheckpointError:
    """The error where interpret mode on a CPU is no way to run a model."""
    return CheckpointError(
        weights or model,
        f"{model} is too large for interpret mode on a CPU",
        f"Run it on a TPU, or a small model: megascope weights {kernel} --random 0 --to FOLDER.",
    )


def interpreter() -> Any:
    """How a kernel runs on a CPU."""
    from jax.experimental.pallas import tpu as pltpu

    return pltpu.InterpretParams(dma_execution_mode="on_wait")
