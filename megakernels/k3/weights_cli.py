"""What the verb `weights` does for K3."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from megakernels.common.weight_files import Progress

SMALL_CORES, SLICE_CORES = 8, 32
MOST_JOBS = 16


def make(
    to: Path,
    progress: Progress,
    *,
    source: Path | None,
    seed: int | None,
    model: str | None,
    split: Mapping[str, int | None],
    ranks: str | None,
    jobs: int | None = None,
) -> dict[str, Any]:
    """Convert a checkpoint, or make random weights; gives the manifest.

    Args:
        to: Folder to write.
        progress: Told how far it is.
        source: Folder of the checkpoint, or None.
        seed: Of random weights.
        model: Name of the config of random weights.
        split: cores, hosts and width_ranks, or None for each.
        ranks: Whose files, "0-3,8"; all by default.
        jobs: Units at work at a time; as many as there are processors, at most 16, by default.

    Raises:
        CheckpointError: The checkpoint or the folder cannot be used.
        ValueError: The model does not split so, or there are no such ranks.
    """
    from megakernels.cli import known_model
    from megakernels.k3 import checkpoint, weights
    from megakernels.k3.config import CONFIGS, KIMI_K3
    from megakernels.k3.topology import step_plan

    if source is not None:
        opened = checkpoint.open_checkpoint(source)
    else:
        opened = checkpoint.random_source(CONFIGS[known_model(model or "k3-small", CONFIGS)], seed or 0)
    sizes = dict(split)
    default = SLICE_CORES if opened.config.layers == KIMI_K3.layers else SMALL_CORES
    plan = step_plan(opened.config, sizes.pop("cores", None) or default, **sizes)
    wanted = None if ranks is None else numbers(ranks)
    jobs = jobs or min(os.cpu_count() or 1, MOST_JOBS)
    return weights.convert(opened, plan, to, progress, ranks=wanted, jobs=jobs)


def numbers(text: str) -> list[int]:
    """The numbers of a list such as "0-3,8".

    Raises:
        ValueError: It is no such list.
    """
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        try:
            found += range(int(first), int(last or first) + 1)
        except ValueError:
            raise ValueError(f"{text!r} is no list of ranks such as 0-3,8") from None
    return found
