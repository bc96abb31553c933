"""Control flow of a program: regions, resolved branches with delay slots, blocks, natural loops.

Nothing of this is printed; the rules below were inferred (docs/llo.md says from what).
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from analyzer.llo.program import Block, Branch, Instruction, Loop, Predicate, Region

_REGION_EVENT = re.compile(rb"(Start/End empty|Start|End) region (\d{1,18})")

# (branch bundle, its predicate, candidate bundle) -> does the candidate use, unguarded, a value made
# under the branch's predicate? Then it cannot be a delay slot of that branch.
GuardUse = Callable[[int, Predicate | None, int], bool]


@dataclass(frozen=True, slots=True)
class FlowTable:
    """Control flow as plain numbers, for keeping.

    generation: what the delay slots rest on; inferred: not told by the caller.
    regions: int64[R, 3], number, start, end or -1. branches: int64[N, 7], instruction, bundle, target
    bundle or -1, delay slots used, predicate value or -1, its physical register or -1, 1 if negated.
    """

    generation: int | None
    inferred: bool
    delay_slots: int
    regions: np.ndarray
    branches: np.ndarray


@dataclass(frozen=True, slots=True)
class Trailer:
    """The comment printed after a bundle: kind "regions", "entry", "exit", "other" or "" (none).

    events: ("Start" | "End" | "Start/End empty", region) in printed order. text: the comment's content.
    """

    kind: str
    events: tuple[tuple[str, int], ...]
    text: str


def read_trailer(text: bytes) -> Trailer:
    """The region list or other comment between a bundle's closing brace and the next bundle."""
    content = text.decode("utf-8", "replace").strip()
    content = " ".join(content.removeprefix("/*").removesuffix("*/").split())
    events = tuple((kind.decode(), int(number)) for kind, number in _REGION_EVENT.findall(text))
    for kind in ("entry", "exit"):
        if content.startswith(f"{kind} bundle"):
            return Trailer(kind, (), content)
    if events:
        return Trailer("regions", events, content)
    return Trailer("other" if content else "", (), content)


@dataclass(slots=True)
class Marks:
    """What is printed around the bundles: region starts and ends, labels, empty bundles (bool[B])."""

    starts: np.ndarray
    ends: np.ndarray
    labelled: np.ndarray
    empty: np.ndarray
    regions: dict[int, Region] = field(default_factory=dict)
    exit_bundle: int | None = None

    @classmethod
    def blank(cls, empty: np.ndarray, labels: dict[int, str]) -> "Marks":
        """No marks yet, for a program whose empty bundles are known."""
        labelled = np.zeros(len(empty), bool)
        labelled[list(labels)] = True
        return cls(np.zeros(len(empty), bool), np.zeros(len(empty), bool), labelled, empty)

    def take_in(self, bundle: int, trailer: Trailer) -> None:
        """Take in the comment printed after bundle `bundle`."""
        if trailer.kind == "exit":
            self.exit_bundle = bundle
        for kind, region in trailer.events:
            known = self.regions.get(region)
            if kind == "End":
                self.ends[bundle] = True
                if known is not None:
                    self.regions[region] = Region(region, known.start, bundle + 1)
                continue
            self.starts[bundle] = True
            if known is None:
                self.regions[region] = Region(region, bundle, bundle + 1 if kind != "Start" else None)

    def target_of(self, region: int | None) -> int | None:
        """The bundle a branch to `region` goes to.

        The entry and exit comments replace the region list of their bundle, so a region that starts
        there is printed nowhere: a branch to an unlisted region goes to the labelled exit bundle.
        """
        if region is None:
            return None
        known = self.regions.get(region)
        if known is not None:
            return known.start
        if self.exit_bundle is not None and self.labelled[self.exit_bundle]:
            return self.exit_bundle
        return None


def guess_slots(branches: Sequence[int], marks: Marks) -> int:
    """Delay slots of a program of unknown generation: 4 (up to v6e) or 6 (TPU7x), by its region marks."""
    count = len(marks.empty)
    votes = {4: 0, 6: 0}
    for branch in branches:
        if any(marks.labelled[branch + k] for k in range(1, 5) if branch + k < count):
            return 6
        for slots, tally in votes.items():
            if branch + slots < count and marks.ends[branch + slots]:
                votes[slots] = tally + 1
    return 6 if votes[6] > votes[4] else 4


def resolve_branches(
    branches: Sequence[Instruction], marks: Marks, slots: int, uses_guard: GuardUse
) -> list[tuple[int, int]]:
    """(target bundle or -1, delay slots used) of each `sbr.*`."""
    resolved = []
    bundles = np.array(sorted(b.bundle for b in branches), dtype=np.int64)
    for instruction in branches:
        target = marks.target_of(instruction.target_region)
        bundle = instruction.bundle
        if slots == 6:
            used = _collapsed_slots(instruction, target, marks, bundles, uses_guard)
        else:
            used = min(slots, len(marks.empty) - 1 - bundle)
        resolved.append((-1 if target is None else target, used))
    return resolved


def _collapsed_slots(
    instruction: Instruction,
    target: int | None,
    marks: Marks,
    branch_bundles: np.ndarray,
    uses_guard: GuardUse,
) -> int:
    """How many printed bundles after a branch run before control moves, on TPU7x.

    The hardware has six slots. A trailing run of empty ones prints as a single `{}`, unless a region
    ends with the last slot: then all of them are printed.
    """
    slots, branch, predicate = 6, instruction.bundle, instruction.predicate
    count = len(marks.empty)
    last = min(slots, count - 1 - branch)
    for k in range(1, last + 1):
        # Code that can be jumped to, or a new region, is behind the branch, never in its slots.
        if marks.labelled[branch + k] or marks.starts[branch + k]:
            last = k - 1
            break
    empties = [k for k in range(1, last + 1) if marks.empty[branch + k]]
    if not empties:
        return last
    first = empties[0]
    after = branch + last + 1
    cut = last < slots or (after < count and (marks.labelled[after] or marks.starts[after]))
    if cut and marks.empty[branch + last] and not (last == slots and marks.ends[branch + last]):
        return last
    if last < slots:
        return empties[-1] if marks.ends[branch + empties[-1]] else first
    behind = (
        not marks.ends[branch + slots]
        or target == branch + slots + 1  # it would skip nothing
        or bool(np.any((branch_bundles > branch + first) & (branch_bundles <= branch + last)))
        or any(uses_guard(branch, predicate, branch + k) for k in range(first + 1, last + 1))
    )
    return first if behind else slots


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
