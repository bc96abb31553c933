"""From a core's log to rows of the timeline."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analyzer import timeline
from analyzer.llo.program import Unit
from analyzer.simulate.buffers import BufferUse, extent
from analyzer.simulate.compiled import Compiled
from analyzer.simulate.issue import IssueModel
from analyzer.simulate.layout import GRANULES_PER_ROW
from analyzer.simulate.log import CoreLog, Transfer
from analyzer.simulate.sites import Op
from analyzer.timeline import Kind, Provenance, Track

_MATRIX_GAP, _VECTOR_GAP = 24, 12  # bundles without such work that do not end a span
_NAME = list(timeline.COLUMNS).index("name")
_MERGE_CYCLES = 64  # spans of one kind and phase closer than this become one
_VECTOR_UNITS = (Unit.VALU, Unit.XLU, Unit.EUP)
_MEMORY_UNITS = (Unit.VLOAD, Unit.VSTORE)


class Table:
    """Rows as tuples in the order of the columns; much cheaper than a dictionary per row."""

    def __init__(self) -> None:
        self.rows: list[tuple[Any, ...]] = []

    def add(
        self,
        *,
        core: int,
        track: Track,
        kind: Kind,
        name: str,
        start_ps: int,
        duration_ps: int,
        layer: int | None = None,
        phase: str = "",
        bytes: int | None = None,
        queue: str = "",
        bundle_first: int | None = None,
        bundle_last: int | None = None,
        source: str = "",
        issued_ps: int | None = None,
        free_ps: int | None = None,
        cause: int | None = None,
        operand: int | None = None,
    ) -> int:
        """Append a row; gives its span number."""
        span = len(self.rows)
        self.rows.append(
            (
                span, core, track, kind, name, 0, layer, phase, start_ps, duration_ps, bytes, queue,
                bundle_first, bundle_last, source, issued_ps, free_ps, cause, operand, Provenance.MODELLED,
            )
        )  # fmt: skip
        return span

    def frame(self) -> pd.DataFrame:
        """The timeline."""
        columns = zip(*self.rows, strict=True) if self.rows else [()] * len(timeline.COLUMNS)
        series: dict[str, Any] = {}
        for (name, dtype), values in zip(timeline.COLUMNS.items(), columns, strict=True):
            if dtype == "category":
                series[name] = pd.Categorical([str(v) for v in values])
            else:
                series[name] = pd.Series(list(values), dtype=dtype)
        return pd.DataFrame(series)


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


@dataclass(slots=True)
class _Open:
    """A span of work that the next piece may still extend."""

    kind: Kind
    start: float
    end: float
    first: int
    last: int
    context: int


class SpanWriter:
    """Writes the rows of all cores into one table."""

    def __init__(
        self,
        compiled: Compiled,
        issue: IssueModel,
        cycle_ps: float,
        names: Mapping[int, str],
        tags: Mapping[tuple[str, int], str],
    ) -> None:
        self.compiled, self.issue, self.cycle_ps = compiled, issue, cycle_ps
        self.names, self.tags = names, tags
        self.table = Table()
        self.runs = UnitRuns(compiled)

    def _place(self, log: CoreLog, context: int) -> dict[str, Any]:
        phase, layer = log.contexts[context]
        return {"core": log.rank, "layer": layer, "phase": phase}

    def _source(self, site: int) -> str:
        source = self.compiled.sites[site].source
        return "" if source is None else str(source)

    def _tag(self, site: int) -> str | None:
        source = self.compiled.sites[site].source
        if source is None or not self.tags:
            return None
        return self.tags.get((source.file, source.line)) or self.tags.get(
            (source.file.rsplit("/", 1)[-1], source.line)
        )

    # -- transfers ------------------------------------------------------------------------------

    def transfers(self, log: CoreLog) -> list[int]:
        """Rows of a core's copies and messages; gives the span of each, in order, -1 in removed phases."""
        free = self._free_times(log)
        spans = []
        for index, transfer in enumerate(log.transfers):
            if transfer.context in log.removed:
                spans.append(-1)
                continue
            place = self._place(log, transfer.context)
            bundle = self.compiled.sites[transfer.site].bundle
            common = place | {
                "bundle_first": bundle,
                "bundle_last": bundle,
                "source": self._source(transfer.site),
                "issued_ps": round(transfer.issued),
            }
            if transfer.peer >= 0:
                spans.append(self._send(transfer, common))
            else:
                spans.append(self._copy(transfer, common, free[index]))
        return spans

    def _copy(self, transfer: Transfer, common: dict[str, Any], free: float | None) -> int:
        layout = self.compiled.layout
        source, destination = layout.space_of(transfer.source), layout.space_of(transfer.destination)
        start, end = round(transfer.start), round(transfer.end)
        common |= {
            "kind": Kind.TRANSFER,
            "start_ps": start,
            "duration_ps": end - start,
            "bytes": transfer.bytes,
            "free_ps": None if free is None else round(free),
        }
        tag = self._tag(transfer.site)
        first = -1
        if source == "hbm":
            placed = layout.find("hbm", transfer.source)
            operand = placed.operand if placed is not None else None
            name = tag or self._operand_name(operand, placed.name if placed is not None else "hbm")
            first = self.table.add(track=Track.HBM_READ, name=name, queue="hbm", operand=operand, **common)
        if destination == "hbm":
            placed = layout.find("hbm", transfer.destination)
            operand = placed.operand if placed is not None else None
            name = tag or self._operand_name(operand, placed.name if placed is not None else "hbm")
            span = self.table.add(track=Track.HBM_WRITE, name=name, queue="hbm", operand=operand, **common)
            first = span if first < 0 else first
        if first < 0:
            name = tag or f"{source} to {destination}"
            first = self.table.add(track=Track.VMEM_COPY, name=name, queue="vmem", **common)
        return first

    def _operand_name(self, operand: int | None, fallback: str) -> str:
        return fallback if operand is None else self.names.get(operand, f"operand {operand}")

    def _send(self, transfer: Transfer, common: dict[str, Any]) -> int:
        start, end = round(transfer.start), round(transfer.source_end)
        name = self._tag(transfer.site) or ("message" if transfer.bytes else "signal")
        return self.table.add(
            track=Track.ICI_SEND,
            kind=Kind.COLLECTIVE,
            name=name,
            start_ps=start,
            duration_ps=end - start,
            bytes=transfer.bytes,
            queue=f"ici:{transfer.peer}",
            **common,
        )

    def receipts(self, log: CoreLog, senders: Mapping[int, CoreLog]) -> list[int]:
        """Rows of what a core receives; gives the span of each receipt, in order.

        senders: logs of the cores that were simulated; of another, what it sends mirrors `log`.
        """
        spans = []
        for sender, index, _ in log.receipts:
            of = senders.get(sender, log) if len(senders) > 1 else log
            transfer = of.transfers[index]
            if transfer.context in of.removed:
                spans.append(-1)
                continue
            flow = transfer.source_end - transfer.start
            start, end = round(transfer.end - flow), round(transfer.end)
            place = self._place(of, transfer.context) | {"core": log.rank}
            bundle = self.compiled.sites[transfer.site].bundle
            spans.append(
                self.table.add(
                    track=Track.ICI_RECV,
                    kind=Kind.COLLECTIVE,
                    name=self._tag(transfer.site) or ("message" if transfer.bytes else "signal"),
                    start_ps=start,
                    duration_ps=end - start,
                    bytes=transfer.bytes,
                    queue=f"ici:{sender}",
                    bundle_first=bundle,
                    bundle_last=bundle,
                    source=self._source(transfer.site),
                    issued_ps=round(transfer.issued),
                    **place,
                )
            )
        return spans

    def _free_times(self, log: CoreLog) -> list[float | None]:
        """Per transfer, when its destination in VMEM was free before it was issued."""
        layout, cycle = self.compiled.layout, self.cycle_ps
        use = BufferUse(layout)
        touches = iter(log.touches)
        touch = next(touches, None)
        free: list[float | None] = []
        for index, transfer in enumerate(log.transfers):
            while touch is not None and touch[2] <= index:
                self._apply_touch(log, touch, use, cycle)
                touch = next(touches, None)
            found: float | None = None
            if transfer.destination >= 0 and layout.space_of(transfer.destination) == "vmem":
                size = transfer.bytes // 32
                high = transfer.destination + extent(size, transfer.strides, destination=True)
                if transfer.peer < 0:
                    found = use.free(transfer.destination, high)
                    if found is not None:
                        found = min(found, transfer.issued)
                    use.use(transfer.destination, high, transfer.end)
            if transfer.source >= 0 and layout.space_of(transfer.source) == "vmem":
                size = transfer.bytes // 32
                high = transfer.source + extent(size, transfer.strides, destination=False)
                use.use(transfer.source, high, transfer.source_end)
            free.append(found)
        return free

    def _apply_touch(
        self, log: CoreLog, touch: tuple[Any, float, int, int], use: BufferUse, cycle: float
    ) -> None:
        event, base, _, visit = touch
        site = self.compiled.sites[event[0]]
        block = log.visit_block[visit]
        offsets = log.visit_cycles[visit].offset
        first = self.compiled.program.blocks[block].start
        for one in site.touches:
            row = 0 if one.base is None else event[one.base + 1]
            time = base + (offsets[one.last - first] + 1) * cycle
            use.use((row + one.low) * GRANULES_PER_ROW, (row + one.high) * GRANULES_PER_ROW, time)

    # -- waits, work and regions ----------------------------------------------------------------

    def waits(self, log: CoreLog, transfer_spans: list[int], receipt_spans: list[int]) -> None:
        """Rows of a core's waits; one that found its bytes already there has no length."""
        found_there = [(site, now, now, cause, context, 0) for site, now, cause, context in log.satisfied]
        for site_index, start, end, cause, context, _ in log.stalls + found_there:
            site = self.compiled.sites[site_index]
            span: int | None = None
            what = "barrier"
            if cause >= 0:
                span = receipt_spans[cause >> 1] if cause & 1 else transfer_spans[cause >> 1]
                if span < 0:  # of a removed phase
                    span = None
                what = "" if span is None else str(self.table.rows[span][_NAME])
            begin = round(start)
            self.table.add(
                track=Track.WAIT,
                kind=Kind.WAIT if cause >= 0 else Kind.COLLECTIVE,
                name=what,
                start_ps=begin,
                duration_ps=round(end) - begin,
                bundle_first=site.bundle,
                bundle_last=site.bundle,
                source=self._source(site_index),
                cause=span,
                **self._place(log, context),
            )

    def work(self, log: CoreLog) -> None:
        """Rows of matrix, vector and scalar work, joined where they touch within one phase."""
        open_spans: dict[Track, _Open] = {}
        tolerance = _MERGE_CYCLES * self.cycle_ps

        def flush(track: Track) -> None:
            found = open_spans.pop(track, None)
            if found is None:
                return
            begin = round(found.start)
            self.table.add(
                track=track,
                kind=found.kind,
                name=str(track),
                start_ps=begin,
                duration_ps=round(found.end) - begin,
                bundle_first=found.first,
                bundle_last=found.last,
                source="",
                **self._place(log, found.context),
            )

        for start, offsets, block_first, first, last, context, total, after_stall in self._pieces(log):
            if after_stall:
                for track in list(open_spans):
                    flush(track)
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
                flush(track)
                open_spans[track] = _Open(kind, begin, end, a, b - 1, context)
        for track in list(open_spans):
            flush(track)

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

    def regions(self, log: CoreLog) -> None:
        """Rows of the scopes: one per time a phase or a layer was entered."""
        stack: list[tuple[str, float, int, int]] = []
        value_scope = False
        for time, _, site_index, context, _ in log.marks:
            site = self.compiled.sites[site_index]
            if site.op is Op.SCOPE_START:
                stack.append((site.detail, time, site.bundle, context))
            elif site.op is Op.VALUE:
                value_scope = True
                for depth, (name, at, bundle, _) in enumerate(stack):
                    if name == "layer":
                        stack[depth] = (name, at, bundle, context)
            elif value_scope:
                value_scope = False
                if stack:
                    stack.pop()
            else:
                for depth in range(len(stack) - 1, -1, -1):
                    if stack[depth][0] == site.detail:
                        self._region(log, stack[depth], time, site.bundle)
                        del stack[depth:]
                        break
        for entry in reversed(stack):
            self._region(log, entry, log.end, self.compiled.program.bundle_count - 1)

    def _region(self, log: CoreLog, entry: tuple[str, float, int, int], end: float, bundle: int) -> None:
        name, start, first, context = entry
        place = self._place(log, context)
        if name == "layer":
            place["phase"], name = "", ""
        if context in log.removed:
            return
        begin = round(start)
        self.table.add(
            track=Track.REGION,
            kind=Kind.IDLE,
            name=name,
            start_ps=begin,
            duration_ps=round(end) - begin,
            bundle_first=min(first, bundle),
            bundle_last=max(first, bundle),
            source="",
            **place,
        )
