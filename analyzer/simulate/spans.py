"""From a core's log to rows of the timeline."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from analyzer import timeline
from analyzer.simulate.compiled import Compiled
from analyzer.simulate.log import CoreLog, Transfer
from analyzer.simulate.residency import buffer_history
from analyzer.simulate.sites import Op
from analyzer.simulate.work import WorkSpans
from analyzer.timeline import Kind, Provenance, Track

_NAME = list(timeline.COLUMNS).index("name")


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


class SpanWriter:
    """Writes the rows of all cores into one table."""

    def __init__(
        self,
        compiled: Compiled,
        cycle_ps: float,
        names: Mapping[int, str],
        tags: Mapping[tuple[str, int], str],
    ) -> None:
        self.compiled, self.cycle_ps = compiled, cycle_ps
        self.names, self.tags = names, tags
        self.table = Table()
        self.work_spans = WorkSpans(compiled, cycle_ps)

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
        uses = buffer_history(self.compiled, log, self.cycle_ps)[0]
        return [None if use is None else use[0] for use in uses]

    # -- waits, work and regions ----------------------------------------------------------------

    def waits(self, log: CoreLog, transfer_spans: list[int], receipt_spans: list[int]) -> list[int]:
        """Rows of a core's waits; gives the span of each stall, in order.

        A wait that found its bytes already there has no length.
        """
        spans = []
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
            row = self.table.add(
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
            spans.append(row)
        return spans[: len(log.stalls)]

    def work(self, log: CoreLog) -> None:
        """Rows of a core's matrix, vector and scalar work."""
        for span in self.work_spans.of(log):
            begin = round(span.start)
            self.table.add(
                track=span.track,
                kind=span.kind,
                name=str(span.track),
                start_ps=begin,
                duration_ps=round(span.end) - begin,
                bundle_first=span.first,
                bundle_last=span.last,
                source="",
                **self._place(log, span.context),
            )

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
