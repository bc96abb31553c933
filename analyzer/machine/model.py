"""The machine model: peaks and parameters of one chip, each value with its source and kind.

A parameter is addressed by a dotted name (`hbm.bandwidth`, `ici.link.latency`). Units are SI: seconds,
bytes/s, Hz; MXU costs are in core cycles. Changing a value never touches compiled code.
"""

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from analyzer.errors import InputError, UsageError

_FOLDER = Path(__file__).parent
_OPTIONAL = ("fp8_flops", "int8_ops")
KINDS = ("measured", "derived", "assumed")
RATES = ("bytes/s", "Hz")  # units of parameters that are divided by


@dataclass(frozen=True, slots=True)
class Parameter:
    """One number of the timing model.

    value is in `unit`; kind is measured | derived | assumed; source says what it rests on.
    overridden keeps the value of the machine file when a what-if changed it.
    """

    name: str
    value: float
    unit: str
    kind: str
    source: str
    overridden: float | None = None


@dataclass(frozen=True, slots=True)
class Peaks:
    """What JAX states about one TensorCore of the chip (`get_tpu_info_for_chip`).

    Bytes, bytes/s, operations/s; a rate the chip does not have is None, never 0.
    """

    hbm_bytes: int
    hbm_bytes_per_s: float
    vmem_bytes: int
    smem_bytes: int
    bf16_flops: float
    fp8_flops: float | None
    int8_ops: float | None
    mxu_count: int
    mxu_columns: int
    lanes: int
    sublanes: int


@dataclass(frozen=True, slots=True)
class Machine:
    """One chip: its name, shape, peaks (from JAX) and timing parameters (from the data file)."""

    chip: str
    cores_per_chip: int
    peaks: Peaks
    peaks_source: str
    parameters: Mapping[str, Parameter]

    def __getitem__(self, name: str) -> float:
        """Value of parameter `name`; KeyError names the parameter."""
        return self.parameters[name].value

    @property
    def cycle_ps(self) -> float:
        """Length of one core cycle in picoseconds."""
        return 1e12 / self["issue.clock"]

    def with_overrides(self, overrides: Mapping[str, object]) -> "Machine":
        """A copy with some parameters changed.

        Args:
            overrides: name -> number, or a text: `"x2"` multiplies, `"/2"` divides, `"3.2e12"` sets.
                A name may leave out the middle of a dotted name: `ici.latency` means every
                `ici.*.latency`.

        Raises:
            UsageError: no parameter of that name, a value that is no finite number of at least 0, or a
                rate of 0.
        """
        changed = dict(self.parameters)
        for name, change in overrides.items():
            for full in self._resolve(name):
                old = self.parameters[full]
                value = _apply(name, change, old.value)
                if not value and old.unit in RATES:
                    raise UsageError(f"{name}={change}", f"a rate of 0 {old.unit}", "Give more, as x1000")
                changed[full] = replace(old, value=value, overridden=old.value)
        return replace(self, parameters=MappingProxyType(changed))

    def _resolve(self, name: str) -> list[str]:
        if name in self.parameters:
            return [name]
        head, _, tail = name.partition(".")
        hits = [p for p in self.parameters if p.startswith(head + ".") and p.endswith("." + tail) and tail]
        if not hits:
            known = ", ".join(sorted(self.parameters))
            raise UsageError(f"parameter {name!r}", f"{self.chip} has no such parameter", f"Known: {known}")
        return hits


def _apply(name: str, change: object, old: float) -> float:
    if isinstance(change, int | float) and not isinstance(change, bool):
        value = float(change)
    else:
        text = str(change).strip()
        try:
            if text.startswith(("x", "*")):
                value = old * float(text[1:])
            elif text.startswith("/"):
                value = old / float(text[1:])
            else:
                value = float(text)
        except (ValueError, ZeroDivisionError):
            raise UsageError(
                f"{name}={change}", "not a number", "Give a number in SI units, or xN to multiply, or /N"
            ) from None
    if not 0 <= value < math.inf:
        raise UsageError(
            f"{name}={change}", "negative, infinite or not a number", "Give 0 or more, such as x1000"
        )
    return value


def known_chips() -> list[str]:
    """Names of the chips that have a machine file, sorted."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def load_machine(chip: str, path: Path | None = None) -> Machine:
    """Read the machine file of a chip.

    Args:
        chip: `tpu7x`, `v6e`, `v5p` or `v5e` (case and a leading "TPU " do not matter).
        path: another machine file (one that `calibrate` wrote), instead of the one shipped.

    Raises:
        UsageError: no machine file for that chip.
        InputError: the file cannot be read or lacks a value.
    """
    name = chip.lower().replace("tpu ", "").replace(" ", "").split(":")[0]
    name = {"7x": "tpu7x", "v7x": "tpu7x", "tpuv7x": "tpu7x", "tpu7": "tpu7x"}.get(name, name)
    file = path or _FOLDER / f"{name}.toml"
    if path is None and not file.exists():
        raise UsageError(f"chip {chip!r}", "no machine file", f"Known chips: {', '.join(known_chips())}")
    try:
        data = tomllib.loads(file.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(
            file, f"not a readable machine file ({error})", "Compare with those in analyzer/machine"
        ) from error
    return _machine(file, data)


def _machine(file: Path, data: dict[str, object]) -> Machine:
    try:
        peaks = data["peaks"]
        if not isinstance(peaks, dict):
            raise TypeError("peaks: a table is expected")
        source = str(peaks.pop("source"))
        parameters = {p.name: p for p in _parameters(data["parameters"], "")}
        return Machine(
            chip=str(data["chip"]),
            cores_per_chip=int(str(data["cores_per_chip"])),
            peaks=_peaks(peaks),
            peaks_source=source,
            parameters=MappingProxyType(parameters),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            file, f"machine file lacks or mistypes {error}", "See docs/model.md for the format"
        ) from error


def _peaks(table: dict[str, Any]) -> Peaks:
    optional: dict[str, Any] = dict.fromkeys(_OPTIONAL)
    return Peaks(**(optional | table))


def _parameters(node: object, prefix: str) -> list[Parameter]:
    if not isinstance(node, dict):
        raise TypeError(f"{prefix or 'parameters'}: a table is expected")
    if "value" in node:
        if node["kind"] not in KINDS:
            raise ValueError(f"{prefix}.kind={node['kind']!r}")
        return [Parameter(prefix, float(node["value"]), node["unit"], node["kind"], node["source"])]
    found: list[Parameter] = []
    for name, child in node.items():
        found += _parameters(child, f"{prefix}.{name}" if prefix else name)
    return found
