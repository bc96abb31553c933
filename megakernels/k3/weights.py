"""A checkpoint turned into the step's operands on disk, unit by unit; see common/weight_files.py.

A folder holds the files of some ranks, those of a host, or of all. A unit is one operand of one layer, for
all these ranks, or the routed experts of one layer and group, which pass through memory one by one.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from megakernels.common import weight_files
from megakernels.common.checkpoint import DOWNLOAD
from megakernels.common.safetensors import CheckpointError
from megakernels.common.weight_files import FileShapes, Progress, Unit
from megakernels.k3 import step_pack
from megakernels.k3.build import operand_shapes
from megakernels.k3.checkpoint import Source
from megakernels.k3.config import K3Config
from megakernels.k3.step_pack import EXPERTS, Operand
from megakernels.k3.step_plan import StepPlan
from megakernels.k3.step_refs import REPLICATED, Operands

WEIGHTS = Operands._fields[1:]  # in the order the call takes them; what is before them is of the step
EMBEDDING_ROWS = 8192  # rows of a unit of the embedding
# Fields of a plan that decide how weights lie.
LAYOUT = ("hosts", "members", "width_ranks")
# To be raised whenever the same bytes of a checkpoint are laid out otherwise in the same shapes.
PACKING = 2


def weight_shapes(plan: StepPlan) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    """Shape and dtype of every weight operand on a rank, without the core axis."""
    return {
        name: (array.shape if name in REPLICATED else array.shape[1:], np.dtype(array.dtype))
        for name, array in operand_shapes(plan)._asdict().items()
        if name in WEIGHTS
    }


def file_name(operand: str, rank: int) -> str:
    """Of an operand on a rank."""
    return weight_files.file_name(operand, None if operand in REPLICATED else rank)


def file_shapes(plan: StepPlan, ranks: Sequence[int]) -> FileShapes:
    """Every file of a folder of some ranks: name -> shape and dtype of what it holds."""
    shapes = weight_shapes(plan)
    return {file_name(name, rank): what for name, what in shapes.items() for rank in ranks}


def units(plan: StepPlan, source: Source, ranks: Sequence[int]) -> Iterator[Unit]:
    """All work for some ranks, the trunk first. A unit reads each of its tensors once."""
    c = plan.config
    for operand in step_pack.operands(plan):
        for place in range(len(operand.layers)):
            name = f"{operand.name}/{operand.layers[place]}"
            yield Unit(name, functools.partial(_layer, plan, source, ranks, operand, place))
    groups: dict[int, list[int]] = {}
    for rank in ranks:
        groups.setdefault(rank // plan.width_ranks, []).append(rank)
    for layer in range(c.dense_layers, c.layers):
        for group, members in groups.items():
            yield Unit(f"experts/{layer}/{group}", functools.partial(_experts, plan, source, members, layer))
    for rank in ranks:
        yield Unit(f"lm_head/{rank}", functools.partial(_head, plan, source, rank))
    for first in range(0, c.vocab, EMBEDDING_ROWS):
        yield Unit(f"embedding/{first}", functools.partial(_embedding, plan, source, first))


def _layer(
    plan: StepPlan, source: Source, ranks: Sequence[int], operand: Operand, place: int
) -> Iterator[tuple[str, int, np.ndarray]]:
    fetch = functools.cache(source.fetch)
    for rank in ranks[:1] if operand.name in REPLICATED else ranks:
        value = operand.pack(plan, operand.layers[place], rank, fetch)
        yield file_name(operand.name, rank), place * value.nbytes, value


def _experts(
    plan: StepPlan, source: Source, ranks: Sequence[int], layer: int
) -> Iterator[tuple[str, int, np.ndarray]]:
    """The experts of one group, whose ranks these are."""
    place = (layer - plan.config.dense_layers) * plan.experts.experts
    for index, expert in enumerate(step_pack.group_experts(plan, ranks[0])):
        fetch = functools.cache(source.fetch)
        for rank in ranks:
            try:
                packed = step_pack.pack_one_expert(plan, layer, expert, rank % plan.width_ranks, fetch)
            except ValueError as error:
                raise CheckpointError(f"expert {expert} of layer {layer}", str(error), DOWNLOAD) from None
            for name in EXPERTS:
                value = packed[name]
                yield file_name(name, rank), (place + index) * value.nbytes, value


def _head(plan: StepPlan, source: Source, rank: int) -> Iterator[tuple[str, int, np.ndarray]]:
    yield file_name("lm_head", rank), 0, step_pack.pack_lm_head(plan, rank, source.fetch)


def _embedding(plan: StepPlan, source: Source, first: int) -> Iterator[tuple[str, int, np.ndarray]]:
    rows = step_pack.pack_embedding(plan, source.fetch, slice(first, first + EMBEDDING_ROWS))
    yield file_name("embedding", 0), first * plan.config.hidden * rows.itemsize, rows


def layout_of(plan: StepPlan) -> dict[str, Any]:
    """What decides how weights lie on disk."""
    return {"packing": PACKING, **{name: getattr(plan, name) for name in LAYOUT}}


def convert(
    source: Source,
    plan: StepPlan,
    folder: Path,
    progress: Progress,
    *,
    ranks: Sequence[int] | None = None,
    jobs: int = 1,
) -> dict[str, Any]:
    """Write the operands of some ranks of a plan (all by default), or finish writing them.

    Gives the manifest. jobs: Units at work at a time.

    Raises:
        CheckpointError: The folder is there already, or an unfinished one is of other weights or ranks.
        ValueError: A rank is none of the plan.
    """
    ranks = list(range(plan.cores)) if ranks is None else sorted(set(ranks))
    if not ranks or not 0 <= ranks[0] <= ranks[-1] < plan.cores:
        raise ValueError(f"ranks of {plan.cores} cores are 0 to {plan.cores - 1}")
    described = {
        "config": dataclasses.asdict(plan.config),
        "layout": layout_of(plan),
        "ranks": ranks,
        "source": source.fingerprint,
    }
    work = list(units(plan, source, ranks))
    return weight_files.convert(folder, described, file_shapes(plan, ranks), work, progress, jobs=jobs)


def verify(folder: Path, progress: Progress) -> None:
    """Compare every unit with its checksum.

    Raises:
        CheckpointError: One differs; it is named.
    """
    weight_files.verify(folder, weight_files.read_manifest(folder, "k3"), progress)


def open_weights(folder: Path) -> tuple[K3Config, dict[str, int], dict[str, np.ndarray]]:
    """Config, layout fields of the plan, and the files' arrays, mapped read-only.

    Raises:
        CheckpointError: It is no such folder, or one made for another version of the kernel.
    """
    manifest = weight_files.read_manifest(folder, "k3")
    layout = dict(manifest["layout"])
    if "packing" not in layout:
        raise CheckpointError(folder, "holds weights of another kernel", "Choose another folder.")
    fields = dict(manifest["config"])
    config = K3Config(**{**fields, "aux_layers": tuple(fields["aux_layers"])})
    packing = layout.pop("packing")
    wanted = file_shapes(StepPlan(config, **layout), manifest["ranks"])
    differ = [n for n, (shape, _) in wanted.items() if manifest["files"].get(n, {}).get("shape") != [*shape]]
    if packing != PACKING or differ:
        raise CheckpointError(folder, "was made for another version of the kernel", "Make the folder again.")
    return config, layout, weight_files.map_files(folder, manifest)
