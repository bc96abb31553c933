"""The few facts of a dump that stand in plain sight: kernels of the HLO, a program's operands, the chip.

For a full reading of the bundles see analyzer/llo; this needs no more than a text search, so that a
capture opens at once.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analyzer.llo.signature import signature

_CUSTOM_CALL = re.compile(
    r"^\s*(?:ROOT )?%(?P<name>\S+) = .*? custom-call\((?P<operands>[^)]*)\), "
    r'custom_call_target="tpu_custom_call"',
    re.MULTILINE,
)
_OPERAND = re.compile(
    r"inlined_call_operand\.(?P<space>\w+) \[shape: (?P<shape>[^\[]+\[[\d,]*\])[^\]]*?, "
    r"index: (?P<index>\d+), kind: (?P<kind>\w+)"
)
_TABLE = "index: -1, kind: input"  # how a call says that its operands are listed in a table


@dataclass(frozen=True, slots=True)
class HloModule:
    """What one `TLP-hlo.txt` says.

    Attributes:
        path: The file.
        stem: The nanosecond stamp its name starts with, or "".
        name: The module's name (`jit_step`).
        partitions: Cores it was compiled for; None where it does not say.
        kernels: Name of each Pallas custom call to the names of its operands in the HLO.
        parameters: Name in the HLO of each parameter, and of its copies, to the argument's name.
    """

    path: Path
    stem: str
    name: str
    partitions: int | None
    kernels: dict[str, tuple[str, ...]]
    parameters: dict[str, str]


def read_module(path: Path) -> HloModule:
    """The kernels and parameters of an HLO module printed beside a dump."""
    text = path.read_text(errors="replace")
    name = re.match(r"\s*HloModule ([^\s,]+)", text)
    parameters = {}
    for match in re.finditer(r"^\s*%(\S+) = [^\n]*? parameter\(\d+\)([^\n]*)", text, re.MULTILINE):
        label = re.search(r'op_name="([^"]*)"', match.group(2))
        parameters[match.group(1)] = label.group(1) if label else match.group(1)
    # An operand that the compiler copied or re-laid out first still is the parameter's data.
    moved = re.compile(
        r"^\s*%(\S+) = [^\n]*? "
        r"(?:copy|bitcast|copy-start|copy-done|reshape|transpose|convert)\(%([^\s,)]+)[,)]",
        re.MULTILINE,
    )
    for match in moved.finditer(text):
        if match.group(2) in parameters:
            parameters.setdefault(match.group(1), parameters[match.group(2)])
    kernels = {
        m.group("name"): tuple(re.findall(r"%([^\s,()]+)", m.group("operands")))
        for m in _CUSTOM_CALL.finditer(text)
    }
    stamp = re.match(r"(\d{15,})-", path.name)
    partitions = re.search(r"\bnum_partitions=(\d+)", text.partition("\n")[0])
    return HloModule(
        path=path,
        stem=stamp.group(1) if stamp else "",
        name=name.group(1) if name else "",
        # A program for one core prints no count.
        partitions=int(partitions.group(1)) if partitions else 1 if name else None,
        kernels=kernels,
        parameters=parameters,
    )


def declared_operands(bundles: Path) -> list[dict[str, Any]]:
    """Operands a kernel declares in its bundles: index, kind, space, shape (of one core), dtype, bytes.

    bytes is None for a dtype whose size is not known.
    """
    from analyzer.llo.operands import shape_bytes  # numpy takes longer than opening a capture may

    rows: dict[int, dict[str, Any]] = {}
    text = bundles.read_text(errors="replace")
    for match in _OPERAND.finditer(text):
        dtype, _, sizes = match.group("shape").partition("[")
        dimensions = [int(n) for n in sizes.rstrip("]").split(",") if n]
        index = int(match.group("index"))
        rows[index] = {
            "index": index,
            "kind": match.group("kind"),
            "space": match.group("space"),
            "shape": dimensions,
            "dtype": dtype,
            "bytes": shape_bytes(dtype, tuple(dimensions)),
        }
    if _TABLE in text:
        rows |= _listed_operands(bundles)
    return [rows[i] for i in sorted(rows)]


def _listed_operands(bundles: Path) -> dict[int, dict[str, Any]]:
    """Operands that the bundles take from a table: only the HLO beside them says what they are."""
    from analyzer.llo.file_program import program_name
    from analyzer.llo.operands import shape_bytes

    listed = signature(bundles, program_name(bundles))
    if listed is None:
        return {}
    return {
        index: {
            "index": index,
            "kind": "input" if index < len(listed.inputs) else "output",
            "space": "vmem" if array.in_vmem else "hbm",
            "shape": list(array.dimensions),
            "dtype": array.dtype,
            "bytes": shape_bytes(array.dtype, array.dimensions),
        }
        for index, array in enumerate((*listed.inputs, *listed.outputs))
    }


def describe_operands(
    bundles: Path,
    kernel: str,
    module: HloModule | None,
    facts: Mapping[str, Any] | None = None,
    arguments: Sequence[Mapping[str, Any]] = (),
) -> list[dict[str, Any]]:
    """Operands as the bundles declare them, named by the kernel's facts, else by the HLO's parameters.

    Args:
        bundles: The kernel's final bundles.
        kernel: Its name in the HLO (`mlp.1`).
        module: The HLO module, where there is one.
        facts: The kernel's own facts; `operands` there names operands by index.
        arguments: Arguments of the whole program by name, with their global shapes and shardings.

    Returns:
        One row per operand; `name_from` is "facts", "hlo", or None where nothing names it.
    """
    told = _told_operands(facts or {})
    in_order = module.kernels.get(kernel, ()) if module else ()
    by_name = {a["name"]: a for a in arguments}
    rows = []
    for row in declared_operands(bundles):
        index = row["index"]
        label = None
        if module and index < len(in_order) and row["kind"] == "input":
            label = module.parameters.get(in_order[index])
        own = told.get(index, {})
        argument = by_name.get(label or "", {})
        rows.append(
            {
                **row,
                "name": own.get("name") or label,
                "name_from": "facts" if own.get("name") else "hlo" if label else None,
                "role": own.get("role"),
                "argument": label,
                "global_shape": argument.get("shape"),
                "sharding": argument.get("sharding"),
            }
        )
    return rows


def _told_operands(facts: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    """`facts["operands"]` by index: a list or a mapping of names or of {"name", "role", ...}."""
    told = facts.get("operands") or {}
    if not isinstance(told, Mapping | list | tuple):
        return {}
    rows = {}
    for position, value in told.items() if isinstance(told, Mapping) else enumerate(told):
        row = dict(value) if isinstance(value, Mapping) else {"name": str(value)}
        try:
            rows[int(row.get("index", position))] = row
        except (TypeError, ValueError):
            continue
    return rows


def silent_copies(bundles: Path, operands: Sequence[Mapping[str, Any]]) -> list[str]:
    """Warnings for inputs that XLA copied into VMEM before the kernel ran.

    Such operands cost time that the kernel's bundles do not show, and their loads are missing from it.
    """
    copied = [
        o["name"] or f"operand {o['index']}"
        for o in operands
        if o["kind"] == "input" and o["space"] == "vmem"
    ]
    notes = []
    if copied:
        notes.append(
            f"XLA places {', '.join(copied)} in VMEM before the kernel starts, so the bundles hold no load "
            "of it: use pltpu.with_memory_space_constraint(x, pltpu.HBM) for what the kernel fetches itself"
        )
    reads = any(o["kind"] == "input" and o["space"] == "hbm" for o in operands)
    if reads and not re.search(rb"\bdma\.(general|hbm_to_vmem|hbm_to_smem)\b", bundles.read_bytes()):
        notes.append(
            "operands live in HBM but the bundles hold no copy from there (dma.general, dma.hbm_to_vmem)"
        )
    return notes
