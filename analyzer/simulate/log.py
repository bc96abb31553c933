"""What one core did, with times; filled by the scheduler, read by the timeline writer."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from analyzer.simulate.issue import BlockCycles


class Transfer(NamedTuple):
    """One DMA or remote signal. Times in ps; addresses in granules, -1 where there is none.

    start: bytes begin to flow; end: the destination is complete (at a peer: arrival); source_end: the
    source may be overwritten; peer: rank of the other core, or -1; context: index into
    `CoreLog.contexts`.
    """

    site: int
    issued: float
    start: float
    end: float
    source_end: float
    bytes: int
    source: int
    destination: int
    peer: int
    context: int
    strides: tuple[int, ...] | None


@dataclass(slots=True)
class CoreLog:
    """One core's step.

    Attributes:
        visit_block, visit_start, visit_cycles: block visits in order, with the cycles of their bundles.
        marks: (time, visit, site, context, shift) where a scope started or ended; shift: time taken
            back where a removed phase ended, else 0.
        stalls: (site, start, end, cause, context, visit). A cause is 2 * t for the end of own transfer t,
            2 * r + 1 for receipt r, negative for a barrier.
        satisfied: (site, time, cause, context) of waits that found what they waited for already there.
        touches: (event, time of the block's start with the stalls so far, transfers issued so far, visit).
        receipts: (sender rank, sender's transfer, semaphore), one per message or signal received.
        contexts: (phase path, layer); removed: those a what-if takes out.
        semaphores: value of each at the exit.
    """

    rank: int
    visit_block: list[int] = field(default_factory=list)
    visit_start: list[float] = field(default_factory=list)
    visit_cycles: list[BlockCycles] = field(default_factory=list)
    stalls: list[tuple[int, float, float, int, int, int]] = field(default_factory=list)
    satisfied: list[tuple[int, float, int, int]] = field(default_factory=list)
    marks: list[tuple[float, int, int, int, float]] = field(default_factory=list)
    transfers: list[Transfer] = field(default_factory=list)
    receipts: list[tuple[int, int, int]] = field(default_factory=list)
    touches: list[tuple[Any, float, int, int]] = field(default_factory=list)
    contexts: list[tuple[str, int | None]] = field(default_factory=lambda: [("", None)])
    removed: set[int] = field(default_factory=set)
    end: float = 0.0
    semaphores: dict[int, int] = field(default_factory=dict)


class Scopes:
    """Phase path and layer from scope markers; gives the index of the current context.

    A trace value is a scope with `vtrace.arg` inside: it names a value (the layer index), not a phase.
    The layer holds until the scope around the trace value ends.
    """

    LAYER = "layer"

    def __init__(self, contexts: list[tuple[str, int | None]]) -> None:
        self.contexts = contexts
        self.known = {context: i for i, context in enumerate(contexts)}
        self.stack: list[tuple[str, int | None, str]] = []  # name, layer around it, phase path with it
        self.value_scope = False
        self.layer: int | None = None
        self.low = 0

    def start(self, name: str) -> int:
        """A scope begins."""
        path = self.stack[-1][2] if self.stack else ""
        if name and name != self.LAYER:
            path = f"{path}/{name}" if path else name
        self.stack.append((name, self.layer, path))
        return self.current()

    def end(self, name: str) -> int:
        """The innermost scope of that name ends, and whatever is still open inside it."""
        if self.value_scope:
            self.value_scope = False
            if self.stack:
                self.stack.pop()
            return self.current()
        for depth in range(len(self.stack) - 1, -1, -1):
            if self.stack[depth][0] == name:
                self.layer = self.stack[depth][1]
                del self.stack[depth:]
                break
        return self.current()

    def value(self, tag: int, value: int) -> int:
        """`vtrace.arg`: tag 1 carries the low 16 bits, tag 3 the high ones of a trace value."""
        if tag == 1:
            self.low = value & 0xFFFF
        number = self.low | ((value & 0xFFFF) << 16) if tag == 3 else self.low
        if self.stack and self.stack[-1][0].rpartition("/")[2] == self.LAYER:
            self.layer = number
        self.value_scope = True
        return self.current()

    def current(self) -> int:
        """Index of the context that now holds."""
        context = (self.stack[-1][2] if self.stack else "", self.layer)
        index = self.known.get(context)
        if index is None:
            index = self.known[context] = len(self.contexts)
            self.contexts.append(context)
        return index


def phase_matches(phase: str, wanted: frozenset[str]) -> bool:
    """Is a phase path one of `wanted`, or inside one? (`ffn` matches `ffn`, `ffn/gate` and `block/ffn`)."""
    if not wanted or not phase:
        return False
    parts = phase.split("/")
    return any(
        "/".join(parts[a:b]) in wanted for a in range(len(parts)) for b in range(a + 1, len(parts) + 1)
    )


def phase_times(logs: Sequence[CoreLog]) -> dict[str, int]:
    """Time in ps that each phase takes, everything inside it included, on the core that spends most in it."""
    longest: dict[str, int] = {}
    for log in logs:
        spent: dict[str, float] = {}
        now, phase = 0.0, ""
        for time, _, _, context, shift in [*log.marks, (log.end, 0, 0, 0, 0.0)]:
            parts = phase.split("/") if phase else []
            for depth in range(1, len(parts) + 1):
                path = "/".join(parts[:depth])
                spent[path] = spent.get(path, 0.0) + time - now
            now, phase = time + shift, log.contexts[context][0]
        for path, value in spent.items():
            longest[path] = max(longest.get(path, 0), round(value))
    return longest
