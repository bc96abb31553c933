"""`critical-path`: the dependence chain the scheduler saw in each basic block, before packing."""

import re
from dataclasses import dataclass
from pathlib import Path

from analyzer.llo.textfile import read_text, wrong_form

_BLOCK = re.compile(
    r"^New basic block in region: region(\d+) \{members=(\d+) hlo=(.*?) parent=(-?\d+)\}", re.M
)
_STEP = re.compile(r"^\s+Length to end: (\d+), (.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class CriticalBlock:
    """One basic block: its region, instructions in it, HLO it came from, and its longest chain.

    chain: (cycles to the end of the block, instruction as printed), from the start of the chain.
    """

    region: int
    members: int
    hlo: str
    parent: int
    chain: tuple[tuple[int, str], ...]

    @property
    def length(self) -> int:
        """Cycles from the first instruction of the chain to the end of the block; 0 for no chain."""
        return max((cycles for cycles, _ in self.chain), default=0)


def read_critical_path(path: Path) -> list[CriticalBlock]:
    """Read one critical-path file; blocks in printed order.

    Raises:
        InputError: it is missing, unreadable, or of another form.
    """
    text = read_text(path)
    heads = list(_BLOCK.finditer(text))
    if not heads:
        if text.strip():
            raise wrong_form(path, "critical-path file", "critical-path")
        return []
    ends = [head.start() for head in heads[1:]] + [len(text)]
    return [
        CriticalBlock(
            int(head[1]),
            int(head[2]),
            head[3],
            int(head[4]),
            tuple((int(cycles), step.strip()) for cycles, step in _STEP.findall(text[head.end() : end])),
        )
        for head, end in zip(heads, ends, strict=True)
    ]
