"""The compiled program as rules see it: loops, what their bundles hold, and how long they run."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from analyzer import intervals, view
from analyzer.intervals import Intervals
from analyzer.llo.occupancy import CAPACITY, COLUMNS, occupancy
from analyzer.llo.program import Unit
from analyzer.llo.reader import FileProgram
from analyzer.simulate.issue import MxuUse
from analyzer.timeline import Track
from analyzer.view import CoreStep

WORK_TRACKS = (Track.MXU, Track.VECTOR, Track.SCALAR)
OUTSIDE = -1
UNITS = 2  # matrix units of a core
ACCOUNTED = 0.9


@dataclass(frozen=True, slots=True, eq=False)
class CodeLoop:
    """One loop, without the loops inside it.

    Attributes:
        first, last: bundles of the whole loop. latch: the branch back, followed by its delay slots.
        own: the bundles that belong to no inner loop.
        iterations: how often its first bundle ran in the step.
        executed: bundles of `own` that ran. time_ps: cycles of those, stalls not counted.
        source: the source line most of its instructions come from, "" if unknown.
    """

    first: int
    last: int
    latch: int
    own: NDArray[np.int64]
    iterations: int
    executed: int
    time_ps: int
    source: str


@dataclass(frozen=True)
class Code:
    """A program with how often each of its bundles ran (int64[B]) on one core.

    parameters: values of the machine model by name; without them matrix units never stall.
    """

    program: FileProgram
    executed: NDArray[np.int64]
    cycle_ps: float
    core: CoreStep
    parameters: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def occupancy(self) -> NDArray[np.int16]:
        """int16[B, columns of the compiler's utilization file]."""
        return occupancy(self.program)

    @cached_property
    def capacity(self) -> NDArray[np.float64]:
        """Slots or units per column of `occupancy`."""
        return np.array(CAPACITY.get(self.program.generation or 7, CAPACITY[7]), dtype=np.float64)

    @cached_property
    def bundle_of(self) -> NDArray[np.int64]:
        """Bundle of each instruction."""
        return np.repeat(np.arange(self.program.bundle_count), np.diff(self.program.bundle_first))

    @cached_property
    def takes_slot(self) -> NDArray[np.bool_]:
        """Whether each instruction takes an issue slot."""
        return ~self.on_units(Unit.PSEUDO)

    def on_units(self, *units: Unit) -> NDArray[np.bool_]:
        """Whether each instruction runs on one of these units."""
        chosen = np.array([unit in units for unit in self.program.opcode_units], dtype=bool)
        return chosen[self.program.instruction_opcode]

    def with_opcodes(self, wanted: Callable[[str], bool]) -> NDArray[np.bool_]:
        """Whether each instruction has an opcode that is wanted."""
        chosen = np.array([wanted(opcode) for opcode in self.program.opcodes], dtype=bool)
        return chosen[self.program.instruction_opcode]

    @cached_property
    def innermost(self) -> NDArray[np.int64]:
        """For each bundle the index of the innermost loop around it, or OUTSIDE."""
        result = np.full(self.program.bundle_count, OUTSIDE, dtype=np.int64)
        for index in sorted(range(len(self.program.loops)), key=lambda i: self.program.loops[i].depth):
            loop = self.program.loops[index]
            result[loop.start : loop.end + 1] = index
        return result

    @cached_property
    def loops(self) -> list[CodeLoop]:
        """Every loop that ran, the one with most time of its own first."""
        found = []
        for index, loop in enumerate(self.program.loops):
            own = np.flatnonzero(self.innermost == index)
            executed = int(self.executed[own].sum())
            if executed:
                found.append(
                    CodeLoop(
                        first=loop.start,
                        last=loop.end,
                        latch=loop.latch,
                        own=own,
                        iterations=int(self.executed[loop.start]),
                        executed=executed,
                        time_ps=round(executed * self.cycle_ps),
                        source=self.source_of(own),
                    )
                )
        return sorted(found, key=lambda loop: -loop.time_ps)

    def source_of(self, bundles: NDArray[np.int64]) -> str:
        """The source line most instructions of these bundles come from, "" if none has one."""
        return self.source_of_instructions(np.isin(self.bundle_of, bundles))

    def source_of_instructions(self, chosen: NDArray[np.bool_]) -> str:
        """The source line most of the chosen instructions come from, "" if none has one."""
        sources = self.program.instruction_source[chosen]
        counted = Counter(sources[sources >= 0].tolist())
        return str(self.program.sources[counted.most_common(1)[0][0]]) if counted else ""

    def mask(self, instructions: Iterable[int]) -> NDArray[np.bool_]:
        """A mask over instructions from their indices."""
        result = np.zeros(len(self.program.instruction_opcode), dtype=bool)
        result[list(instructions)] = True
        return result

    def only(self, chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Bundles in which every instruction that takes a slot is a chosen one, and there is one."""
        count = self.program.bundle_count
        slots = np.bincount(self.bundle_of[self.takes_slot], minlength=count)
        mine = np.bincount(self.bundle_of[self.takes_slot & chosen], minlength=count)
        return (mine > 0) & (mine == slots)

    def time_ps(self, bundles: NDArray[np.bool_]) -> int:
        """Cycles in which these bundles issue, stalls not counted."""
        return round(int(self.executed[bundles].sum()) * self.cycle_ps)

    def stretches(self, first: int, last: int) -> Intervals:
        """When the core worked in bundles first..last, as finely as the timeline tells.

        Spans within the range, if they account for the cycles of its bundles; where spans were merged
        across its edge, every span that touches it.
        """
        low, high, start, end = self._work
        within = (low >= first) & (high <= last)
        found = intervals.from_spans(start[within], end[within])
        cycles = int(self.executed[first : last + 1].sum()) * self.cycle_ps
        if intervals.measure(found) >= ACCOUNTED * cycles:
            return found
        touching = (low <= last) & (high >= first)
        return intervals.from_spans(start[touching], end[touching])

    @cached_property
    def _work(self) -> tuple[NDArray[np.int64], ...]:
        """First and last bundle, start and end of every span of work whose bundles are known."""
        spans = view.on(self.core.spans, WORK_TRACKS)
        spans = spans[spans["bundle_first"].notna() & spans["bundle_last"].notna()]
        return (
            spans["bundle_first"].to_numpy(dtype=np.int64),
            spans["bundle_last"].to_numpy(dtype=np.int64),
            view.starts(spans),
            view.ends(spans),
        )

    def without(self, bundles: NDArray[np.bool_]) -> tuple[tuple[Intervals, float], ...]:
        """What a replay shortens if these bundles were gone: stretches of time, and what they keep."""
        parts: list[tuple[Intervals, int]] = []
        for loop in self.loops:
            mine = self.of_loop(loop)
            parts.append((self.stretches(loop.first, loop.last), self.time_ps(bundles & mine)))
        parts.append((self.core.busy, self.time_ps(bundles & (self.innermost == OUTSIDE))))
        return shorter(parts)

    def slots_used(self, loop: CodeLoop) -> NDArray[np.int64]:
        """Slots that a loop's own bundles took in the step, per column of `occupancy`."""
        return np.asarray((self.occupancy[loop.own] * self.executed[loop.own][:, np.newaxis]).sum(axis=0))

    def slot_bound_ps(self, loop: CodeLoop) -> int:
        """The least time a loop's own instructions take, were they packed perfectly into issue slots."""
        return round(float((self.slots_used(loop) / self.capacity).max()) * self.cycle_ps)

    @cached_property
    def empty(self) -> NDArray[np.bool_]:
        """Bundles without an instruction."""
        return np.asarray(np.diff(self.program.bundle_first) == 0)

    @cached_property
    def marked(self) -> NDArray[np.bool_]:
        """Bundles that hold nothing but markers of regions: a program without markers does not have them."""
        return self.only(self.with_opcodes(lambda opcode: opcode.startswith("vtrace")))

    def of_loop(self, loop: CodeLoop) -> NDArray[np.bool_]:
        """The loop's own bundles as a mask."""
        mine = np.zeros(self.program.bundle_count, dtype=bool)
        mine[loop.own] = True
        return mine

    def latch_slots(self, loop: CodeLoop) -> NDArray[np.bool_]:
        """The branch back and its delay slots as a mask."""
        mine = np.zeros(self.program.bundle_count, dtype=bool)
        mine[loop.latch : loop.last + 1] = True
        return mine

    @cached_property
    def matrix_use(self) -> MxuUse:
        """What each bundle asks of the matrix units."""
        return MxuUse(self.program)

    @property
    def push_cycles(self) -> float:
        """Cycles for which a push of weights holds its matrix unit."""
        return self._matrix_costs[0]

    @property
    def _matrix_costs(self) -> tuple[float, float]:
        """Cycles of a push, and of a matmul of weight 1."""
        return self.parameters.get("mxu.push", 0.0), self.parameters.get("mxu.matmul", 0.0)

    def matrix_source(self, loop: CodeLoop) -> str:
        """The source line most matrix instructions of a loop come from; of all its instructions if none."""
        inside = self.of_loop(loop)[self.bundle_of]
        return self.source_of_instructions(self.on_units(Unit.MXU) & inside) or loop.source

    def matrix_held(self, loop: CodeLoop) -> list[float]:
        """Cycles per iteration for which each matrix unit is held by the loop's own instructions."""
        ports = [0.0] * (self.matrix_use.ports + 1)
        push, product = self._matrix_costs
        for bundle in self._usual(loop, None):
            for port, weight in self.matrix_use.by_bundle.get(bundle, ()):
                ports[port] += weight * product if weight else push
        units = [max(ports[i : i + 2]) for i in range(0, len(ports) - 1, 2)]
        return units + [0.0] * (UNITS - len(units))

    def matrix_cycles(self, loop: CodeLoop) -> float:
        """The same of the busiest unit."""
        return max(self.matrix_held(loop))

    def is_innermost(self, loop: CodeLoop) -> bool:
        """Whether no other loop lies inside a loop."""
        return len(loop.own) == loop.last - loop.first + 1

    def loop_cycles(self, loop: CodeLoop, without: NDArray[np.bool_] | None = None) -> float:
        """Cycles of one iteration in the long run, stalls of the matrix units included.

        Args:
            loop: the loop; its own bundles that run in at least half of the iterations count.
            without: bundles taken out.
        """
        return self.issued(loop, without)[2]

    def issued(
        self, loop: CodeLoop, without: NDArray[np.bool_] | None = None
    ) -> tuple[list[int], list[float], float]:
        """The bundles of a usual iteration, the cycle in which each issues, and the cycles of all."""
        bundles = self._usual(loop, without)
        use, costs = self.matrix_use, self._matrix_costs
        held = [0.0] * use.ports
        cycle, before = 0.0, 0.0
        issued: list[float] = []
        for _ in range(2):  # the second time with what the first left in the units
            before, issued = cycle, []
            for bundle in bundles:
                issued.append(use.issue(bundle, cycle, held, costs))
                cycle = issued[-1] + 1
        return bundles, [one - before for one in issued], cycle - before

    def _usual(self, loop: CodeLoop, without: NDArray[np.bool_] | None) -> list[int]:
        usual = loop.own[self.executed[loop.own] * 2 >= loop.iterations]
        return [int(b) for b in usual if without is None or not without[b]]

    def gain_ps(self, loop: CodeLoop, without: NDArray[np.bool_]) -> int:
        """What all iterations gain where bundles are gone; nothing where a matrix unit is awaited."""
        gone = self.loop_cycles(loop) - self.loop_cycles(loop, without)
        return round(max(gone, 0.0) * loop.iterations * self.cycle_ps)

    def column(self, name: str) -> NDArray[np.int16]:
        """One column of `occupancy` by name."""
        return self.occupancy[:, COLUMNS.index(name)]


def shorter(parts: list[tuple[Intervals, int]]) -> tuple[tuple[Intervals, float], ...]:
    """What a replay shortens so that each of these stretches loses so much time.

    Stretches that overlap (loops whose spans were merged in the timeline) share their losses.
    """
    merged: list[tuple[Intervals, int]] = []
    for stretch, loss in parts:
        if not loss or not len(stretch):
            continue
        touching = [one for one in merged if len(intervals.intersection(stretch, one[0]))]
        together = intervals.union(stretch, *(when for when, _ in touching))
        merged = [one for one in merged if not any(one is other for other in touching)]
        merged.append((together, loss + sum(gone for _, gone in touching)))
    return tuple((when, max(1 - gone / intervals.measure(when), 0.0)) for when, gone in merged)
