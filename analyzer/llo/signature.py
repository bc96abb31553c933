"""What a custom call takes and gives, from the HLO module printed beside its bundles.

A call with more than 29 operands and results does not name them in its bundles: it is passed one table of
addresses in SMEM, and only the HLO says what they are.
"""

import re
from dataclasses import dataclass
from pathlib import Path

_ARRAY = re.compile(r"(\w+)\[([\d,]*)\](\{[^{}]*\})?")
_VMEM = "S(1)"  # how a layout says that the array is in VMEM


@dataclass(frozen=True, slots=True)
class Array:
    """One operand or result: dtype as XLA names it, dimensions, and whether it lives in VMEM."""

    dtype: str
    dimensions: tuple[int, ...]
    in_vmem: bool

    @property
    def shape(self) -> str:
        """As printed: `bf16[92,16,7168]`."""
        return f"{self.dtype}[{','.join(map(str, self.dimensions))}]"


@dataclass(frozen=True, slots=True)
class Signature:
    """The operands of a call and its results, in order."""

    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]

    def array(self, index: int) -> Array | None:
        """Operand `index`, results counted on after the operands; None where there is none."""
        arrays = (*self.inputs, *self.outputs)
        return arrays[index] if 0 <= index < len(arrays) else None


def signature(bundles: Path, call: str) -> Signature | None:
    """The signature of `call` (`k3.1`) in the HLO beside `bundles`; None where no HLO there has it."""
    line = re.compile(
        rf"^\s*(?:ROOT )?%{re.escape(call)} = (?P<results>[^\n]*?) custom-call\((?P<operands>[^\n)]*)\)"
        r"[^\n]*?operand_layout_constraints=\{(?P<layouts>[^\n]*?\})\}",
        re.MULTILINE,
    )
    for path in sorted(bundles.parent.glob("*hlo.txt"), reverse=True):
        text = path.read_text(errors="replace")
        found = line.search(text)
        if found is None:
            continue
        names = re.findall(r"%([^\s,()]+)", found["operands"])
        return Signature(_named(text, names, _arrays(found["layouts"])), _arrays(found["results"]))
    return None


def _named(text: str, names: list[str], declared: tuple[Array, ...]) -> tuple[Array, ...]:
    """The operands; the layout of what the caller passes says where it is, the declared one does not."""
    if len(names) != len(declared):
        return declared
    arrays = []
    for name, array in zip(names, declared, strict=True):
        made = re.search(rf"^\s*%{re.escape(name)} = ([^\n]*?\}}) ", text, re.MULTILINE)
        in_vmem = made is not None and _VMEM in made[1]
        arrays.append(Array(array.dtype, array.dimensions, in_vmem))
    return tuple(arrays)


def _arrays(text: str) -> tuple[Array, ...]:
    """The arrays of a tuple type or list of layouts."""
    return tuple(
        Array(m[1], tuple(int(n) for n in m[2].split(",") if n), _VMEM in (m[3] or ""))
        for m in _ARRAY.finditer(re.sub(r"/\*.*?\*/", "", text))
    )
