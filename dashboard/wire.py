"""Figures on the wire: numpy arrays as the typed arrays that plotly.js reads, smaller than JSON text."""

import base64
from typing import Any

import numpy as np

_CODES = {"float64": "f8", "float32": "f4", "int32": "i4", "int16": "i2", "int8": "i1", "uint8": "u1"}
_COARSE = frozenset(("width",))  # lane units: single precision is plenty


def wire(value: Any, key: str = "") -> Any:
    """`value` with every numpy array replaced by {"dtype", "bdata"}; everything else as it is."""
    if isinstance(value, np.ndarray):
        return typed(value.astype(np.float32) if key in _COARSE else value)
    if isinstance(value, dict):
        return {k: wire(v, k) for k, v in value.items()}
    if isinstance(value, (list, tuple)) and not (value and isinstance(value[0], str)):
        return [wire(v) for v in value]
    if isinstance(value, np.generic):
        return value.item()
    return value


def typed(array: np.ndarray) -> dict[str, str] | list[Any]:
    """Numeric arrays as base64; int64 shrinks to int32 where it fits, else becomes float64."""
    if array.ndim not in {1, 2} or array.dtype.kind not in "fiu":
        return array.tolist()
    if array.dtype.itemsize == 8 and array.dtype.kind in "iu":
        fits = array.size == 0 or (array.min() >= -(2**31) and array.max() < 2**31)
        array = array.astype(np.int32 if fits else np.float64)
    code = _CODES.get(array.dtype.name)
    if code is None:
        return array.tolist()
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    found = {"dtype": code, "bdata": base64.b64encode(little.tobytes()).decode("ascii")}
    return found if array.ndim == 1 else {**found, "shape": f"{array.shape[0]}, {array.shape[1]}"}
