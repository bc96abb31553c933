"""What checkpoints of every model have in common: a config.json, and tensors to compare with it."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from megakernels.common.safetensors import CheckpointError, Entry

DOWNLOAD = "Download the checkpoint again."


def read_config(folder: Path) -> dict[str, Any]:
    """The config.json of a checkpoint.

    Raises:
        CheckpointError: There is none, or it is not JSON.
    """
    path = folder / "config.json"
    if not path.exists():
        raise CheckpointError(folder, "has no config.json", "Give the folder of a checkpoint.")
    try:
        described: dict[str, Any] = json.loads(path.read_text())
    except ValueError:
        raise CheckpointError(path, "not JSON", DOWNLOAD) from None
    return described


def compare(
    folder: Path,
    shapes: Mapping[str, tuple[int, ...]],
    kinds: Mapping[str, tuple[str, ...]],
    entries: Mapping[str, Entry],
) -> None:
    """Compare what is there with what the config says.

    Args:
        folder: Of the checkpoint.
        shapes: Every tensor the config says.
        kinds: The dtypes each may have, as safetensors calls them.
        entries: What is there, under the same names.

    Raises:
        CheckpointError: They differ; missing, unknown, mis-shaped tensors and wrong dtypes are each named.
    """
    faults = {
        "missing": sorted(set(shapes) - set(entries)),
        "unknown": sorted(set(entries) - set(shapes)),
        "of another shape": [
            f"{name} {list(entries[name].shape)} instead of {list(shape)}"
            for name, shape in shapes.items()
            if name in entries and entries[name].shape != shape
        ],
        "of another dtype": [
            f"{name} {entries[name].dtype}"
            for name, allowed in kinds.items()
            if name in entries and entries[name].dtype not in allowed
        ],
    }
    if any(faults.values()):
        said = "; ".join(f"{what}: {_some(names)}" for what, names in faults.items() if names)
        raise CheckpointError(folder, f"its tensors are not those of its config.json: {said}", DOWNLOAD)


def file_sizes(entries: Iterable[Entry]) -> dict[str, int]:
    """Names and sizes of the files that hold some tensors: what tells one checkpoint from another."""
    return {path.name: path.stat().st_size for path in sorted({entry.path for entry in entries})}


def _some(names: list[str], at_most: int = 4) -> str:
    rest = len(names) - at_most
    return ", ".join(names[:at_most]) + (f" and {rest} more" if rest > 0 else "")
