"""A checkpoint turned into the kernel's operands on disk, unit by unit; see common/weight_files.py.

One `embedding.bin` for all cores, every other operand core by core. A unit is one operand of one layer, all
cores.
"""

import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from megakernels.common import weight_files
from megakernels.common.weight_files import Progress, Unit, file_name
from megakernels.qwen import pack
from megakernels.qwen.build import operand_shapes
from megakernels.qwen.checkpoint import Source
from megakernels.qwen.config import QwenConfig
from megakernels.qwen.plan import Plan
from megakernels.qwen.refs import REPLICATED, operand_names

EMBEDDING_ROWS = 8192  # rows of a unit of the embedding
# Fields of a plan that decide how weights lie.
LAYOUT = ("cores", "fp8", "bank_rows")


def weight_names(plan: Plan) -> list[str]:
    """Operands that are kept on disk: the weights, without what depends on the run."""
    return [n for n in operand_names(plan) if n not in ("tokens", "positions", "accepted", "rope")]


def file_shapes(plan: Plan) -> dict[str, tuple[tuple[int, ...], Any]]:
    """Every file of a folder: name -> shape and dtype of what it holds."""
    shapes = operand_shapes(plan)
    files: dict[str, tuple[tuple[int, ...], Any]] = {}
    for name in weight_names(plan):
        operand = getattr(shapes, name)
        if name in REPLICATED:
            files[file_name(name, None)] = (operand.shape, jnp.dtype(operand.dtype))
            continue
        for core in range(plan.cores):
            files[file_name(name, core)] = (operand.shape[1:], jnp.dtype(operand.dtype))
    return files


def units(plan: Plan, source: Source) -> Iterator[Unit]:
    """All work, in the order of the checkpoint's layers. A unit reads each of its tensors once."""
    config = plan.config
    gdn = 0
    for layer in range(config.layers + 1):
        yield _unit(plan, source, "constants", (layer, layer), pack.pack_constants)
        if layer == config.layers:
            break
        if not config.is_attention(layer):
            yield _unit(plan, source, "w_ab", (layer, gdn), pack.pack_w_ab)
            gdn += 1
        if plan.fp8:
            yield _unit(plan, source, "scales", (layer, layer), pack.pack_scales)
        for matrix in plan.layer_matrices:
            packer = functools.partial(_matrix, matrix)
            yield _unit(plan, source, matrix.name, (layer, layer), packer)
    for core in range(plan.cores):
        yield Unit(f"lm_head/{core}", functools.partial(_head, plan, source, core))
    for first in range(0, config.vocab, EMBEDDING_ROWS):
        yield Unit(f"embedding/{first}", functools.partial(_embedding, plan, source, first))


def _matrix(matrix: Any, plan: Plan, layer: int, core: int, fetch: pack.Fetch) -> np.ndarray:
    return pack.pack_matrix(plan, matrix, layer, core, fetch)


def _unit(plan: Plan, source: Source, operand: str, layer: tuple[int, int], packer: Any) -> Unit:
    """One operand of one layer; `layer` is its number in the model and its place in the operand."""
    number, place = layer

    def make() -> Iterator[tuple[str, int, np.ndarray]]:
        fetch = functools.cache(source.fetch)
        for core in range(plan.cores):
            value = packer(plan, number, core, fetch)
            yield file_name(operand, core), place * value.nbytes, value

    return Unit(f"{operand}/{number}", make)


def _head(plan: Plan, source: Source, core: int) -> Iterator[tuple[str, int, np.ndarray]]:
    yield file_name("lm_head", core), 0, pack.pack_lm_head(plan, core, source.fetch)


def _embedding(plan: Plan, source: Source, first: int) -> Iterator[tuple[str, int, np.ndarray]]:
    rows = source.fetch("model.embed_tokens.weight")[first : first + EMBEDDING_ROWS].astype(pack.BF16)
    yield file_name("embedding", None), first * plan.config.hidden * 2, rows


def convert(source: Source, plan: Plan, folder: Path, progress: Progress) -> dict[str, Any]:
    """Write the operands of a plan, or finish writing them; gives the manifest.

    Raises:
        CheckpointError: The folder is there already, or an unfinished one is of other weights.
    """
    described = {
        "config": dataclasses.asdict(plan.config),
        "layout": layout_of(plan),
        "source": source.fingerprint,
    }
    return weight_files.convert(folder, described, file_shapes(plan), list(units(plan, source)), progress)


def layout_of(plan: Plan) -> dict[str, Any]:
    """What decides how weights lie on disk."""
    return {name: getattr(plan, name) for name in LAYOUT}


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a folder of weights.

    Raises:
        CheckpointError: It is no such folder, or its files are not as long as the manifest says.
    """
    return weight_files.read_manifest(folder, "qwen")


def verify(folder: Path, progress: Progress) -> None:
    """Compare every unit with its checksum.

    Raises:
        CheckpointError: One differs; it is named.
    """
    weight_files.verify(folder, read_manifest(folder), progress)


def open_weights(folder: Path) -> tuple[QwenConfig, dict[str, Any], dict[str, np.ndarray]]:
    """Config, layout fields of the plan, and the files' arrays, mapped read-only."""
    manifest = read_manifest(folder)
    return QwenConfig(**manifest["config"]), manifest["layout"], weight_files.map_files(folder, manifest)
