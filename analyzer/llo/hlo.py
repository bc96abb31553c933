"""`TLP-hlo`: the HLO module around the programs: which custom call is which kernel, shapes, XLA loops."""

import re
from dataclasses import dataclass
from pathlib import Path

from analyzer.llo.textfile import read_text, wrong_form

_MODULE = re.compile(r"^HloModule ([^\s,]+)")
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([^\s(]+) \(.*\{\s*$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%([^\s=]+) = (\(.*?\)|\S+) ([a-z][\w-]*)\(([^)]*)\)")
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
_OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
_BODY = re.compile(r"\bcondition=%?([^\s,]+), body=%?([^\s,]+)")
_TRIPS = re.compile(r'known_trip_count"?\s*[:=]\s*\{"?n"?\s*:\s*"?(\d+)')
_CONSTANT = re.compile(r"= [su]32\[\][^=]*\bconstant\((-?\d+)\)")
_LAYOUT = re.compile(r"\{[^{}]*\}")
_NAMES = re.compile(r"%([^\s,)]+)")
_LONGEST_LINE = 100_000  # backend_config blobs are cut: nothing that is read lies behind them


@dataclass(frozen=True, slots=True)
class HloInstruction:
    """One instruction: name, shape without layouts, opcode, operand names, target of a custom call."""

    name: str
    shape: str
    opcode: str
    operands: tuple[str, ...]
    target: str | None
    op_name: str | None
    computation: str


@dataclass(frozen=True, slots=True)
class HloLoop:
    """An XLA loop around programs.

    trip_count: the compiler's own count, None where it does not print one. bound: the only integer
    constant of the condition, which is the trip count of a loop that counts up from 0; None otherwise.
    """

    name: str
    condition: str
    body: str
    trip_count: int | None
    bound: int | None


@dataclass(frozen=True, slots=True)
class HloText:
    """The module's name, its instructions by name, and its loops."""

    module: str
    instructions: dict[str, HloInstruction]
    loops: tuple[HloLoop, ...]

    def kernels(self) -> list[HloInstruction]:
        """The Pallas kernels: custom calls to tpu_custom_call."""
        return [i for i in self.instructions.values() if i.target == "tpu_custom_call"]

    def loops_around(self, name: str) -> list[HloLoop]:
        """XLA loops whose body holds instruction `name`, innermost first."""
        around: list[HloLoop] = []
        instruction = self.instructions.get(name)
        while instruction is not None and len(around) <= len(self.loops):
            computation = instruction.computation
            loop = next((loop for loop in self.loops if loop.body == computation), None)
            if loop is None or loop in around:
                break
            around.append(loop)
            instruction = self.instructions.get(loop.name)
        return around


def read_hlo(path: Path) -> HloText:
    """Read one `TLP-hlo.txt`.

    Raises:
        InputError: it is missing, unreadable, or no HLO text.
    """
    text = read_text(path)
    module = _MODULE.match(text)
    if module is None:
        raise wrong_form(path, "HLO module", "final_bundles")
    instructions: dict[str, HloInstruction] = {}
    constants: dict[str, list[int]] = {}
    loops: list[tuple[str, str, str, int | None]] = []
    computation = ""
    for whole in text.splitlines():
        line = whole[:_LONGEST_LINE]
        head = _COMPUTATION.match(line) if not line.startswith(" ") else None
        if head is not None:
            computation = head[1]
            continue
        found = _INSTRUCTION.match(line)
        if found is None:
            continue
        name, shape, opcode, operands = found.groups()
        target, op_name = _TARGET.search(line), _OP_NAME.search(line)
        instructions[name] = HloInstruction(
            name,
            _LAYOUT.sub("", shape),
            opcode,
            tuple(_NAMES.findall(operands)),
            target[1] if target is not None else None,
            op_name[1] if op_name is not None else None,
            computation,
        )
        constant = _CONSTANT.search(line) if opcode == "constant" else None
        if constant is not None:
            constants.setdefault(computation, []).append(int(constant[1]))
        body = _BODY.search(line) if opcode == "while" else None
        if body is not None:
            trips = _TRIPS.search(line)
            loops.append((name, body[1], body[2], int(trips[1]) if trips is not None else None))
    return HloText(
        module[1],
        instructions,
        tuple(
            HloLoop(n, c, b, t, constants[c][0] if len(constants.get(c, ())) == 1 else None)
            for n, c, b, t in loops
        ),
    )
