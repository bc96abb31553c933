"""Keeps what the reader found in a bundles file, so that the next read takes milliseconds.

One file per program in the cache folder of the capture: plain arrays behind a JSON header, valid for
one hash of the text and one version of the reader's own code. A file that is damaged, of another
version, or cannot be written is as good as none.
"""

import hashlib
import json
import zlib
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from analyzer.cache import write_atomically
from analyzer.llo.flow import FlowTable
from analyzer.llo.program import NotUnderstood
from analyzer.llo.scan import Columns

_MAGIC = b"megascope llo 1\n"
_ARRAYS = (
    "bundle_address",
    "bundle_head",
    "bundle_first",
    "body_end",
    "window_end",
    "instruction_span",
    "instruction_opcode",
    "instruction_source",
)
_FLOW = ("generation", "inferred", "delay_slots")
_FLOW_ARRAYS = ("regions", "branches")
_CODE = (
    "comments.py",
    "decode.py",
    "file_program.py",
    "flow.py",
    "generation.py",
    "opcodes.py",
    "program.py",
    "scan.py",
    "store.py",
)


@cache
def _code_version() -> bytes:
    folder = Path(__file__).parent
    return hashlib.blake2b(
        b"\0".join((folder / name).read_bytes() for name in _CODE), digest_size=16
    ).digest()


def key_of(data: bytes) -> str:
    """Name of the stored file for this text and this reader."""
    return hashlib.sha256(_code_version() + hashlib.sha256(data).digest()).hexdigest()[:32]


def load(folder: Path, key: str, size: int) -> Columns | None:
    """The stored columns, or None. `size` is the length of the text in bytes."""
    try:
        raw = (folder / f"llo-{key}.bin").read_bytes()
    except OSError:
        return None
    try:
        return _unpack(raw, key, size)
    except (ValueError, KeyError, TypeError, IndexError):
        return None


def save(folder: Path, key: str, columns: Columns) -> str | None:
    """Store the columns; what went wrong, or None."""
    header: dict[str, Any] = {
        "key": key,
        "labels": columns.labels,
        "opcodes": columns.opcodes,
        "locations": columns.locations,
        "lost": [columns.not_understood.count, columns.not_understood.samples],
        "unclosed": columns.unclosed,
        "slow_windows": columns.slow_windows,
        "flow": None if columns.flow is None else [getattr(columns.flow, name) for name in _FLOW],
        "arrays": {},
    }
    blobs: list[bytes] = []
    kept = {name: getattr(columns, name) for name in _ARRAYS}
    if columns.flow is not None:
        kept |= {name: getattr(columns.flow, name) for name in _FLOW_ARRAYS}
    for name, values in kept.items():
        array = np.ascontiguousarray(values)
        header["arrays"][name] = [array.dtype.str, list(array.shape)]
        blobs.append(array.tobytes())
    payload = b"".join(blobs)
    header["payload"] = zlib.adler32(payload)
    text = json.dumps(header).encode()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        head = _MAGIC + len(text).to_bytes(8, "little") + text
        write_atomically(folder / f"llo-{key}.bin", head + payload)
    except OSError as error:
        return f"the reader's cache in {folder} could not be written ({error.strerror or error})"
    return None


def _flow(said: list[Any] | None, arrays: dict[str, np.ndarray]) -> FlowTable | None:
    if said is None:
        return None
    generation, inferred, slots = said
    return FlowTable(generation, inferred, slots, arrays["regions"], arrays["branches"])


def _unpack(raw: bytes, key: str, size: int) -> Columns | None:
    start = len(_MAGIC) + 8
    if raw[: len(_MAGIC)] != _MAGIC:
        return None
    length = int.from_bytes(raw[len(_MAGIC) : start], "little")
    header = json.loads(raw[start : start + length])
    payload = memoryview(raw)[start + length :]
    if header["key"] != key or zlib.adler32(payload) != header["payload"]:
        return None
    arrays: dict[str, np.ndarray] = {}
    offset = 0
    for name, (kind, shape) in header["arrays"].items():
        count = int(np.prod(shape))
        arrays[name] = np.frombuffer(payload, np.dtype(kind), count, offset).reshape(shape)
        offset += arrays[name].nbytes
    spans = arrays["instruction_span"]
    if offset != len(payload) or (len(spans) and int(spans.max()) > size):
        return None
    count, samples = header["lost"]
    table = {name: arrays.pop(name) for name in _FLOW_ARRAYS if name in arrays}
    return Columns(
        **arrays,
        labels=[(int(b), str(label)) for b, label in header["labels"]],
        opcodes=header["opcodes"],
        locations=header["locations"],
        not_understood=NotUnderstood(count, [(int(a), str(t)) for a, t in samples]),
        unclosed=header["unclosed"],
        slow_windows=header["slow_windows"],
        flow=_flow(header["flow"], table),
    )
