"""Spans of matrix, vector and scalar work: what each executed stretch of a block did."""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from analyzer.llo.program import Unit
from analyzer.simulate.compiled import Compiled
from analyzer.simulate.log import CoreLog
from analyzer.timeline import Kind, Track

_MATRIX_GAP, _VECTOR_GAP = 24, 12  # bundles without such work that do not end a span
_MERGE_CYCLES = 64  # spans of one kind and phase closer than this become one
_VECTOR_UNITS = (Unit.VALU, Unit.XLU, Unit.EUP)
_MEMORY_UNITS = (Unit.VLOAD, Unit.VSTORE)


@dataclass(slots=True)
class WorkSpan:
    """A span of work; times in ps, bundles inclusive. context: index into `CoreLog.contexts`."""

    track: Track
    kind: Kind
    start: float
    end: float
    first: int
    last: int
    context: int


class UnitRuns:
    """Per block: runs of bundles that do matrix, vector or only scalar work."""

    def __init__(self, compiled: Compiled) -> None:
        program = compiled.program
        units = np.array([_unit_code(u) for u in program.opcode_units], dtype=np.int8)
        codes = units[program.instruction_opcode]
        bundle = np.repeat(np.arange(program.bundle_count), np.diff(program.bundle_first))
        self.matrix = np.zeros(program.bundle_count, bool)
        self.vector = np.zeros(program.bundle_count, bool)
        self.memory = np.zeros(program.bundle_count, bool)
        self.matrix[bundle[codes == 1]] = True
        self.vector[bundle[codes == 2]] = True
        self.memory[bundle[codes == 3]] = True
        self.blocks = program.blocks
        self._known: dict[tuple[int, int], list[tuple[Track, Kind, int, int]]] = {}

    def runs(self, first: int, last: int) -> list[tuple[Track, Kind, int, int]]:
        """(track, kind, first bundle, one past the last) within bundles first..last (half-open)."""
        key = (first, last)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._compute(first, last)
        return found

    def _compute(self, first: int, last: int) -> list[tuple[Track, Kind, int, int]]:
        matrix = _runs(self.matrix[first:last], _MATRIX_GAP)
        inside = np.zeros(last - first, bool)
        for a, b in matrix:
            inside[a:b] = True
        vector_mask = self.vector[first:last] | (self.memory[first:last] & ~inside)
        vector = _runs(vector_mask, _VECTOR_GAP)
        for a, b in vector:
            inside[a:b] = True
        scalar = _runs(~inside, 0)
        return (
            [(Track.MXU, Kind.MATRIX, first + a, first + b) for a, b in matrix]
            + [(Track.VECTOR, Kind.VECTOR, first + a, first + b) for a, b in vector]
            + [(Track.SCALAR, Kind.VECTOR, first + a, first + b) for a, b in scalar]
        )


def _unit_code(unit: Unit) -> int:
    if unit is Unit.MXU:
        return 1
    if unit in _VECTOR_UNITS:
        return 2
    return 3 if unit in _MEMORY_UNITS else 0


def _runs(mask: np.ndarray, gap: int) -> list[tuple[int, int]]:
    """Half-open runs of True, joined over at most `gap` False."""
    where = np.flatnonzero(mask)
    if not len(where):
        return []
    breaks = np.flatnonzero(np.diff(where) > gap + 1)
    starts = where[np.concatenate(([0], breaks + 1))]
    ends = where[np.concatenate((breaks, [len(where) - 1]))] + 1
    return list(zip(starts.tolist(), ends.tolist(), strict=True))


class WorkSpans:
    """Work of a core, joined where it touches within one phase."""

    def __init__(self, compiled: Compiled, cycle_ps: float) -> None:
        self.compiled, self.cycle_ps = compiled, cycle_ps
        self.runs = UnitRuns(compiled)

    def of(self, log: CoreLog) -> list[WorkSpan]:
        """The spans of one core; those of one track in order of time."""
        done: list[WorkSpan] = []
        open_spans: dict[Track, WorkSpan] = {}
        tolerance = _MERGE_CYCLES * self.cycle_ps

        for start, offsets, block_first, first, last, context, total, after_stall in self._pieces(log):
            if after_stall:
                done += open_spans.values()
                open_spans.clear()
            if context in log.removed:
                continue
            for track, kind, a, b in self.runs.runs(first, last):
                begin = start + offsets[a - block_first] * self.cycle_ps
                end_cycle = offsets[b - block_first] if b - block_first < len(offsets) else total
                end = start + end_cycle * self.cycle_ps
                found = open_spans.get(track)
                if found is not None and found.context == context and begin - found.end <= tolerance:
                    found.end = end
                    found.first, found.last = min(found.first, a), max(found.last, b - 1)
                    continue
                if found is not None:
                    done.append(found)
                open_spans[track] = WorkSpan(track, kind, begin, end, a, b - 1, context)
        return [*done, *open_spans.values()]

    def _pieces(self, log: CoreLog) -> list[tuple[float, list[float], int, int, int, int, float, bool]]:
        """Executed stretches without a stall or change of phase inside.

        Each: (time of the block's start with the stalls so far, cycle offsets of the block, its first
        bundle, first bundle, one past the last, context, cycles of the block, a stall ended just before).
        """
        cuts: dict[int, list[tuple[float, int, int, float]]] = defaultdict(list)
        sites = self.compiled.sites
        for site, start, end, _, context, visit in log.stalls:
            cuts[visit].append((start, sites[site].bundle, context, end - start))
        for time, visit, site, context, shift in log.marks:
            cuts[visit].append((time, sites[site].bundle, context, shift))
        pieces = []
        context = 0
        blocks = self.compiled.program.blocks
        for visit, (index, start) in enumerate(zip(log.visit_block, log.visit_start, strict=True)):
            block = blocks[index]
            cycles = log.visit_cycles[visit]
            first, base, after_stall = block.start, start, False
            if visit in cuts:
                for _, bundle, new_context, stall in sorted(cuts[visit], key=lambda c: c[0]):
                    if bundle > first:
                        pieces.append(
                            (
                                base,
                                cycles.offset,
                                block.start,
                                first,
                                bundle,
                                context,
                                cycles.total,
                                after_stall,
                            )
                        )
                        after_stall = False
                    base += stall
                    after_stall |= stall != 0
                    first, context = bundle, new_context
            if block.end > first:
                pieces.append(
                    (base, cycles.offset, block.start, first, block.end, context, cycles.total, after_stall)
                )
        return pieces
