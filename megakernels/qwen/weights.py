"""A checkpoint turned into the kernel's operands on disk, unit by unit, and read back from there.

The folder holds one file per operand and core (`core3.w_in.bin`, raw bytes in the operand's layout), one
`embedding.bin` for all, and `weights.json`. While it is being written it is called `<folder>.partial`, holds
a journal of finished units with their checksums, and can be taken up again where it stopped. A unit is one
operand of one layer, all cores; nothing larger is ever in memory.
"""

import dataclasses
import functools
import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from megakernels.common.safetensors import CheckpointError
from megakernels.qwen import pack
from megakernels.qwen.build import operand_shapes
from megakernels.qwen.checkpoint import Source
from megakernels.qwen.config import QwenConfig
from megakernels.qwen.plan import Plan
from megakernels.qwen.refs import REPLICATED, operand_names

SCHEMA_VERSION = 1
NAME, JOURNAL, PLAN = "weights.json", "journal.jsonl", "plan.json"
TOKENIZER = "tokenizer.json"
EMBEDDING_ROWS = 8192  # rows of a unit of the embedding
# Fields of a plan that decide how weights lie.
LAYOUT = ("cores", "fp8", "bank_rows")

# Told how far a conversion is: units done, units in all, the unit at hand.
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class Unit:
    """One piece of work: file -> bytes from an offset."""

    name: str
    make: Callable[[], Iterator[tuple[str, int, np.ndarray]]]


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
            files[f"{name}.bin"] = (operand.shape, jnp.dtype(operand.dtype))
            continue
        for core in range(plan.cores):
            files[f"core{core}.{name}.bin"] = (operand.shape[1:], jnp.dtype(operand.dtype))
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
            yield f"core{core}.{operand}.bin", place * value.nbytes, value

    return Unit(f"{operand}/{number}", make)


def _head(plan: Plan, source: Source, core: int) -> Iterator[tuple[str, int, np.ndarray]]:
    yield f"core{core}.lm_head.bin", 0, pack.pack_lm_head(plan, core, source.fetch)


def _embedding(plan: Plan, source: Source, first: int) -> Iterator[tuple[str, int, np.ndarray]]:
    rows = source.fetch("model.embed_tokens.weight")[first : first + EMBEDDING_ROWS].astype(pack.BF16)
    yield "embedding.bin", first * plan.config.hidden * 2, rows


def convert(source: Source, plan: Plan, folder: Path, progress: Progress) -> dict[str, Any]:
    """Write the operands of a plan, or finish writing them; gives the manifest.

    Raises:
        CheckpointError: The folder is there already, or an unfinished one is of other weights.
    """
    if folder.exists():
        raise CheckpointError(folder, "is there already", "Choose another folder or remove it.")
    partial = folder.with_name(folder.name + ".partial")
    described = {
        "config": dataclasses.asdict(plan.config),
        "layout": layout_of(plan),
        "source": source.fingerprint,
    }
    done = _begin(partial, plan, described)
    work = list(units(plan, source))
    for number, unit in enumerate(work):
        progress(number, len(work), unit.name)
        if unit.name not in done:
            done[unit.name] = _write(partial, unit)
    progress(len(work), len(work), "done")
    manifest = {
        "schema_version": SCHEMA_VERSION,
        **described,
        "files": {
            name: {"shape": list(shape), "dtype": dtype.name, "bytes": math.prod(shape) * dtype.itemsize}
            for name, (shape, dtype) in file_shapes(plan).items()
        },
        "units": done,
    }
    (partial / NAME).write_text(json.dumps(manifest, indent=1) + "\n")
    for name in (JOURNAL, PLAN):
        (partial / name).unlink()
    os.replace(partial, folder)
    return manifest


def layout_of(plan: Plan) -> dict[str, Any]:
    """What decides how weights lie on disk."""
    return {name: getattr(plan, name) for name in LAYOUT}


def _begin(partial: Path, plan: Plan, described: dict[str, Any]) -> dict[str, Any]:
    """Make the folder's files, or find out what of them is finished: unit -> checksums."""
    note = partial / PLAN
    if note.exists():
        if json.loads(note.read_text()) != json.loads(json.dumps(described)):
            raise CheckpointError(
                partial, "was begun with another checkpoint or layout", "Remove it to begin anew."
            )
        return _journal(partial)
    size = sum(math.prod(shape) * dtype.itemsize for shape, dtype in file_shapes(plan).values())
    partial.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(partial).free
    if free < size:
        raise CheckpointError(
            partial, f"needs {size / 1e9:.1f} GB and {free / 1e9:.1f} GB are free", "Choose another disk."
        )
    for name, (shape, dtype) in file_shapes(plan).items():
        with (partial / name).open("wb") as file:
            file.truncate(math.prod(shape) * dtype.itemsize)
    note.write_text(json.dumps(described))
    return {}


def _journal(partial: Path) -> dict[str, Any]:
    done: dict[str, Any] = {}
    path = partial / JOURNAL
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            entry = json.loads(line)
        except ValueError:  # the last line of a run that was cut off
            break
        done[entry["unit"]] = entry["pieces"]
    return done


def _write(partial: Path, unit: Unit) -> list[dict[str, Any]]:
    """Write one unit and note it in the journal once its bytes are on disk."""
    pieces = []
    for name, offset, value in unit.make():
        data = np.ascontiguousarray(value).view(np.uint8).reshape(-1)
        with (partial / name).open("r+b") as file:
            file.seek(offset)
            file.write(data.data)
            file.flush()
            os.fsync(file.fileno())
        digest = hashlib.sha256(data.data).hexdigest()
        pieces.append({"file": name, "offset": offset, "bytes": data.nbytes, "sha256": digest})
    with (partial / JOURNAL).open("a") as journal:
        journal.write(json.dumps({"unit": unit.name, "pieces": pieces}) + "\n")
    return pieces


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a folder of weights.

    Raises:
        CheckpointError: It is no such folder, or its files are not as long as the manifest says.
    """
    path = folder / NAME
    if not path.exists():
        raise CheckpointError(folder, f"has no {NAME}", "Make it with `megascope weights qwen`.")
    try:
        manifest: dict[str, Any] = json.loads(path.read_text())
        files = manifest["files"]
    except (ValueError, KeyError):
        raise CheckpointError(path, "not a manifest of weights", "Make the folder again.") from None
    for name, about in files.items():
        size = (folder / name).stat().st_size if (folder / name).exists() else None
        if size != about["bytes"]:
            said = "is missing" if size is None else f"has {size} of {about['bytes']} bytes"
            raise CheckpointError(folder / name, said, "Make the folder again.")
    return manifest


def verify(folder: Path, progress: Progress) -> None:
    """Compare every unit with its checksum.

    Raises:
        CheckpointError: One differs; it is named.
    """
    manifest = read_manifest(folder)
    for number, (unit, pieces) in enumerate(manifest["units"].items()):
        progress(number, len(manifest["units"]), unit)
        for piece in pieces:
            data = np.memmap(folder / piece["file"], np.uint8, "r", piece["offset"], (piece["bytes"],))
            if hashlib.sha256(data.data).hexdigest() != piece["sha256"]:
                raise CheckpointError(
                    folder / piece["file"], f"{unit} differs from its checksum", "Make the folder again."
                )


def open_weights(folder: Path) -> tuple[QwenConfig, dict[str, Any], dict[str, np.ndarray]]:
    """Config, layout fields of the plan, and the files' arrays, mapped read-only."""
    manifest = read_manifest(folder)
    arrays = {
        name: np.memmap(folder / name, np.uint8, "r").view(jnp.dtype(about["dtype"])).reshape(about["shape"])
        for name, about in manifest["files"].items()
    }
    return QwenConfig(**manifest["config"]), manifest["layout"], arrays


def copy_tokenizer(checkpoint: Path, folder: Path) -> None:
    """Put the checkpoint's tokenizer beside the weights, if it has one."""
    if (checkpoint / TOKENIZER).exists():
        shutil.copyfile(checkpoint / TOKENIZER, folder / TOKENIZER)
