"""Reading and writing safetensors files, as far as checkpoints of weights need it.

A file is 8 bytes (length of the header, little endian), a JSON header, and the tensors' bytes. Tensors are
mapped, not read: looking at a slice of one reads that slice. Source of the format: the safetensors README.
"""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

DTYPES: dict[str, Any] = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E8M0": ml_dtypes.float8_e8m0fnu,
    "I64": np.int64,
    "I32": np.int32,
    "U8": np.uint8,
}
INDEX = "model.safetensors.index.json"
LARGEST_HEADER = 100 << 20  # what the format's own reader accepts


class CheckpointError(ValueError):
    """A checkpoint that cannot be used.

    Args:
        where: The file or folder at fault.
        fault: What is wrong with it.
        cure: What to do about it.
    """

    def __init__(self, where: object, fault: str, cure: str) -> None:
        super().__init__(f"{where}: {fault}. {cure}")
        self.where, self.fault, self.cure = str(where), fault, cure


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of a file: where it is and what it is."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    def array(self) -> np.ndarray:
        """The tensor, mapped read-only."""
        kind = np.dtype(DTYPES[self.dtype])
        if not math.prod(self.shape):
            return np.zeros(self.shape, kind)
        raw = np.memmap(self.path, np.uint8, "r", self.begin, (self.end - self.begin,))
        return raw.view(kind).reshape(self.shape)


def read_header(path: Path) -> dict[str, Entry]:
    """The tensors of one file by name.

    Raises:
        CheckpointError: It is not a safetensors file, or shorter than its header says.
    """
    size = path.stat().st_size
    broken = "Download it again."
    with path.open("rb") as file:
        start = file.read(8)
        length = int.from_bytes(start, "little") if len(start) == 8 else 0
        if not 2 <= length <= LARGEST_HEADER:
            raise CheckpointError(path, "not a safetensors file", broken)
        if size < 8 + length:
            raise CheckpointError(path, f"truncated inside its header: {size} bytes", broken)
        try:
            header = json.loads(file.read(length))
        except ValueError:
            raise CheckpointError(path, "its header is not JSON", broken) from None
    header.pop("__metadata__", None)
    entries = {name: _entry(path, 8 + length, name, fields) for name, fields in header.items()}
    wanted = max((entry.end for entry in entries.values()), default=8 + length)
    if size < wanted:
        cut = sorted(name for name, entry in entries.items() if entry.end > size)
        raise CheckpointError(
            path, f"truncated: {size} of {wanted} bytes, {cut[0]} and {len(cut) - 1} more are cut", broken
        )
    return entries


def _entry(path: Path, data: int, name: str, fields: Mapping[str, Any]) -> Entry:
    try:
        dtype, shape = str(fields["dtype"]), tuple(int(n) for n in fields["shape"])
        begin, end = (int(n) for n in fields["data_offsets"])
    except (KeyError, TypeError, ValueError):
        raise CheckpointError(
            path, f"the header's entry of {name} is incomplete", "Download it again."
        ) from None
    if dtype in DTYPES and math.prod(shape) * np.dtype(DTYPES[dtype]).itemsize != end - begin:
        raise CheckpointError(
            path, f"{name} is {dtype}{list(shape)} but has {end - begin} bytes", "Download it again."
        )
    return Entry(path, dtype, shape, data + begin, data + end)


def read_folder(folder: Path) -> dict[str, Entry]:
    """The tensors of all files of a folder: those its index names, else every `*.safetensors` in it.

    Raises:
        CheckpointError: There is none, or a file the index names is missing, or a tensor is not in its file.
    """
    index = folder / INDEX
    if not index.exists():
        paths = sorted(folder.glob("*.safetensors"))
        if not paths:
            raise CheckpointError(folder, "holds no safetensors file", "Give the folder of a checkpoint.")
        return {name: entry for path in paths for name, entry in read_header(path).items()}
    try:
        places = json.loads(index.read_text())["weight_map"]
    except (ValueError, KeyError):
        raise CheckpointError(index, "not an index of safetensors files", "Download it again.") from None
    missing = sorted({file for file in places.values() if not (folder / file).exists()})
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise CheckpointError(folder, f"{missing[0]}{more} of its index are missing", "Download them.")
    headers = {file: read_header(folder / file) for file in sorted(set(places.values()))}
    absent = sorted(name for name, file in places.items() if name not in headers[file])
    if absent:
        raise CheckpointError(
            folder / places[absent[0]],
            f"does not hold {absent[0]}, which the index says",
            "Download it again.",
        )
    return {name: headers[file][name] for name, file in places.items()}


def write_file(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Write one file, to a temporary name first."""
    names = {np.dtype(kind): name for name, kind in DTYPES.items()}
    header, at = {}, 0
    for name, value in tensors.items():
        header[name] = {
            "dtype": names[value.dtype],
            "shape": list(value.shape),
            "data_offsets": [at, at + value.nbytes],
        }
        at += value.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for value in tensors.values():
            file.write(np.ascontiguousarray(value).tobytes())
    os.replace(temporary, path)
