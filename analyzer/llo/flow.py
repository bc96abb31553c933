"""Control flow of a program: regions, resolved branches with delay slots, blocks, natural loops.

Nothing of this is printed; the rules below were inferred (docs/llo.md says from what).
"""

import re
from collections.abc import Sequence

import numpy as np

from analyzer.llo.program import Block, Branch, Instruction, Loop, Predicate, Region

DELAY_SLOTS = 6
_REGION_EVENT = re.compile(rb"(Start/End empty|Start|End)(?: empty)? region (\d+)")


class Flow:
    """What the region lists say: where regions start and end, and which bundles carry marks."""

    def __init__(self, bundle_count: int) -> None:
        self.regions: dict[int, Region] = {}
        self.starts = np.zeros(bundle_count, bool)
        self.ends = np.zeros(bundle_count, bool)

    def read_trailer(self, bundle: int, text: bytes) -> None:
        """Take in the region list printed after bundle `bundle`."""
        for kind, number in _REGION_EVENT.findall(text):
            region = int(number)
            known = self.regions.get(region)
            if kind == b"End":
                self.ends[bundle] = True
                if known is not None:
                    self.regions[region] = Region(region, known.start, bundle + 1)
                continue
            self.starts[bundle] = True
            if known is None:
                self.regions[region] = Region(region, bundle, bundle + 1 if kind != b"Start" else None)


def resolve_branches(
    branches: Sequence[Instruction],
    flow: Flow,
    empty: np.ndarray,
    labelled: np.ndarray,
    uses_guard: "GuardUse",
) -> tuple[dict[int, Branch], list[Instruction]]:
    """Targets and delay slots of `sbr.*`: (branch per bundle, branches without a known target)."""
    resolved: dict[int, Branch] = {}
    dangling: list[Instruction] = []
    branch_bundles = np.array(sorted(b.bundle for b in branches), dtype=np.int64)
    for instruction in branches:
        region = (
            flow.regions.get(instruction.target_region) if instruction.target_region is not None else None
        )
        if region is None:
            dangling.append(instruction)
            continue
        slots = delay_slots(
            instruction.bundle, instruction.predicate, flow, empty, labelled, branch_bundles, uses_guard
        )
        resolved[instruction.bundle] = Branch(instruction.bundle, region.start, slots, instruction.predicate)
    return resolved, dangling


class GuardUse:
    """Answers whether a bundle has an unpredicated DMA or store that uses a value made under a predicate."""

    def __call__(self, branch: int, predicate: Predicate | None, bundle: int) -> bool:
        """True if `bundle` cannot be a delay slot of `branch` for that reason."""
        del branch, predicate, bundle
        return False


def delay_slots(
    branch: int,
    predicate: Predicate | None,
    flow: Flow,
    empty: np.ndarray,
    labelled: np.ndarray,
    branch_bundles: np.ndarray,
    uses_guard: GuardUse,
) -> int:
    """How many printed bundles after `branch` run before control moves.

    The hardware has a fixed number of slots, but a trailing run of empty ones prints as one `{}`.
    """
    count = len(empty)
    last = min(DELAY_SLOTS, count - 1 - branch)
    for k in range(1, last + 1):
        if labelled[branch + k]:
            last = k - 1
            break
    empties = [k for k in range(1, last + 1) if empty[branch + k]]
    if not empties:
        return last
    for k in empties:
        after = branch + k + 1
        if after < count and (labelled[after] or flow.starts[after]):
            return k
    if last == DELAY_SLOTS and flow.ends[branch + DELAY_SLOTS]:
        first = empties[0]
        for k in range(first + 1, last + 1):
            if uses_guard(branch, predicate, branch + k):
                return first
        if np.any((branch_bundles > branch + first) & (branch_bundles <= branch + last)):
            return first
        return DELAY_SLOTS
    return empties[0]


def find_blocks(count: int, branches: dict[int, Branch]) -> list[Block]:
    """Basic blocks; a branch's block includes its delay slots."""
    leaders = {0}
    for branch in branches.values():
        leaders.add(branch.target)
        leaders.add(branch.bundle + branch.delay_slots + 1)
    ordered = sorted(leader for leader in leaders if leader < count)
    return [
        Block(start, end) for start, end in zip(ordered, [*ordered[1:], count], strict=True) if end > start
    ]


def find_loops(branches: dict[int, Branch]) -> list[Loop]:
    """Natural loops from backward branches, outer before inner; loops with one header are merged."""
    extents: dict[int, tuple[int, int]] = {}
    for branch in branches.values():
        if branch.target <= branch.bundle:
            end = branch.bundle + branch.delay_slots
            known = extents.get(branch.target)
            if known is None or end > known[0]:
                extents[branch.target] = (end, branch.bundle)
    loops: list[Loop] = []
    stack: list[int] = []
    for start, (end, latch) in sorted(extents.items(), key=lambda item: (item[0], -item[1][0])):
        while stack and stack[-1] < start:
            stack.pop()
        loops.append(Loop(start, end, len(stack) + 1, latch))
        stack.append(end)
    return loops
