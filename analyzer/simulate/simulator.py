"""Runs a program on a machine model: the one entry point of the simulator.

`Simulator` keeps what does not depend on the machine (generated code, traces), so that many machines or
what-ifs cost only the timing pass; `simulate` is the one-shot form.
"""

import contextlib
import gc
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pandas as pd

from analyzer.errors import UnsupportedProgramError
from analyzer.llo.program import Program
from analyzer.machine import Machine
from analyzer.simulate.buffers import extent
from analyzer.simulate.compiled import Compiled
from analyzer.simulate.cores import UnbalancedError, remote_flags, run_all, run_mirrored
from analyzer.simulate.dependence import dependent_branches
from analyzer.simulate.execute import Core, CoreTrace
from analyzer.simulate.explain import explain
from analyzer.simulate.issue import IssueModel, MxuUse
from analyzer.simulate.layout import HBM_BASE
from analyzer.simulate.log import CoreLog, phase_times
from analyzer.simulate.residency import buffer_history
from analyzer.simulate.result import CoreSpans, LoopTrips, ScenarioRecord, Simulation
from analyzer.simulate.scenario import Assumption, Scenario, entries_of, merge_assumptions
from analyzer.simulate.schedule import CoreRun, RunOptions
from analyzer.simulate.sites import Op
from analyzer.simulate.spans import SpanWriter
from analyzer.simulate.topology import hop_counter
from analyzer.simulate.words import device_words

AUTO_CORES = 8


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Hundreds of thousands of tuples and no cycles: the collector would only walk them again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class Simulator:
    """One program, ready to be simulated under any machine and scenario."""

    @_no_garbage_collection()
    def __init__(self, program: Program) -> None:
        self.program = program
        self.compiled = Compiled(program)
        self.words = device_words(self.compiled)
        self.use = MxuUse(program)
        self._traces: dict[tuple[int, int, int], CoreTrace] = {}
        self._scenarios: dict[int, Scenario] = {}
        self._from_facts: dict[str, Scenario] = {}
        self._decided: dict[frozenset[tuple[str, str]], tuple[int, ...]] = {}

    def trace(self, scenario: Scenario, rank: int, cores_per_chip: int) -> CoreTrace:
        """Execute one core's scalar program (kept: it does not depend on the machine's speeds)."""
        key = (id(scenario), rank, cores_per_chip)
        if key not in self._traces:
            self._scenarios[id(scenario)] = scenario
            core = Core(self.compiled, scenario, self.words, rank, cores_per_chip)
            self._traces[key] = core.run()
        return self._traces[key]

    def forget_traces(self) -> None:
        """Drop the kept traces: the next simulation executes again (benchmarks)."""
        self._traces.clear()
        self._scenarios.clear()

    @_no_garbage_collection()
    def simulate(
        self,
        machine: Machine,
        scenario: Scenario | None = None,
        facts: Mapping[str, Any] | None = None,
        *,
        overrides: Mapping[str, object] | None = None,
        without: Iterable[str] = (),
        cores: Literal["auto", "mirrored", "all"] = "auto",
        rank: int = 0,
        scenarios: Mapping[int, Scenario] | None = None,
        delays_ps: Mapping[int, float] | None = None,
    ) -> Simulation:
        """Model one step.

        Args:
            machine: the chip.
            scenario: values the bundles do not contain; None: those of the capture's facts, else defaults
                (all are listed).
            facts: a capture's manifest: names of operands and copies, topology, cores.
            overrides: machine parameters to change (`{"hbm.bandwidth": "x2"}`).
            without: phases that take no time.
            cores: "mirrored": one core, whose peers do the same at the same time. "all": every core of
                the slice, all in the timeline. "auto": every core of slices of up to 8, the slowest in
                the timeline; larger slices mirrored, or all where a core does not receive what it sends.
            rank: the core to simulate, when mirrored.
            scenarios: per rank, instead of `scenario` (all cores).
            delays_ps: per rank, how much later than the others it starts (all cores).

        Raises:
            UnsupportedProgramError: the program cannot be executed exactly, or a semaphore does not balance.
        """
        machine = machine.with_overrides(overrides or {})
        facts = facts or {}
        scenario = scenario or self._scenario_of(facts)
        given = {e for one in (scenario, *(scenarios or {}).values()) for e in entries_of(one)}
        issue = IssueModel(self.program, self.use, machine)
        count = self.devices(scenario, facts)
        hops = hop_counter(facts.get("topology"), -(-count // machine.cores_per_chip))
        base = RunOptions(without=frozenset(without), hops=hops)
        trace = self.trace((scenarios or {}).get(rank, scenario), rank, machine.cores_per_chip)
        alone = count < 2 or not remote_flags(self.compiled, [trace])
        different = bool(scenarios or delays_ps)
        if cores == "mirrored" or (not different and (alone or (cores == "auto" and count > AUTO_CORES))):
            try:
                run = run_mirrored(self.compiled, trace, issue, machine, base)
                notes = [f"every core does as core {rank} does in the scenario"] if scenarios else []
                return self._result([run], machine, scenario, facts, "mirrored", notes + _idle(given, [run]))
            except UnbalancedError as error:
                if cores == "mirrored" or count < 2:
                    raise
                notes = [f"all cores simulated: {error.fault}"]
        else:
            notes = []
        traces = [
            self.trace((scenarios or {}).get(r, scenario), r, machine.cores_per_chip) for r in range(count)
        ]
        options = {r: replace(base, start=(delays_ps or {}).get(r, 0.0)) for r in range(count)}
        runs = run_all(self.compiled, traces, issue, machine, options)
        shown: Literal["slowest", "all"] = "slowest" if cores == "auto" and not different else "all"
        return self._result(runs, machine, scenario, facts, shown, notes + _idle(given, runs))

    def _scenario_of(self, facts: Mapping[str, Any]) -> Scenario:
        """The scenario that the kernel itself gives in a capture, else the default."""
        given = facts.get("scenario")
        if not isinstance(given, Mapping) or not given:
            return _DEFAULT
        key = repr(sorted(given.items()))
        if key not in self._from_facts:
            self._from_facts[key] = as_scenario(given)
        return self._from_facts[key]

    @cached_property
    def dependent_branches(self) -> tuple[int, ...]:
        """Bundles of the branches that depend on values the bundles do not contain."""
        return tuple(dependent_branches(self.compiled))

    def _branches_of(self, assumed: tuple[Assumption, ...]) -> tuple[int, ...]:
        """Bundles of the branches that depend on some values from outside."""
        key = frozenset((a.what, a.source) for a in assumed)
        if key not in self._decided:
            self._decided[key] = tuple(dependent_branches(self.compiled, assumed))
        return self._decided[key]

    def devices(self, scenario: Scenario, facts: Mapping[str, Any]) -> int:
        """How many cores take part: the scenario, the capture, or the program says so; else 1."""
        return int(scenario.devices or facts.get("cores") or self.words.devices or 1)

    def _result(  # noqa: PLR0917
        self,
        runs: list[CoreRun],
        machine: Machine,
        scenario: Scenario,
        facts: Mapping[str, Any],
        peers: Literal["mirrored", "slowest", "all"],
        notes: list[str],
    ) -> Simulation:
        logs = {run.core.rank: run.log for run in runs}
        slowest = max(logs.values(), key=lambda log: (log.end, -log.rank))
        first = slowest if peers == "slowest" else runs[0].log
        shown = [first.rank] if peers == "slowest" else list(logs)
        executed, executed_bundles = self._executed(first)
        messages = [t for t in first.transfers if t.peer >= 0]
        exposed: Counter[str] = Counter()
        for _, start, end, _, context, _ in first.stalls:
            exposed[first.contexts[context][0]] += round(end) - round(start)
        if peers == "mirrored":
            treated = "mirrored: peers do the same at the same time" if messages else "none"
        else:
            treated = f"all {len(runs)} cores simulated"
        assumed = merge_assumptions([run.core.assumptions for run in runs])
        return Simulation(
            build_timeline=lambda: self._timeline(logs, shown, machine, facts),
            build_residency=lambda: [
                stay
                for rank in shown
                for stay in buffer_history(self.compiled, logs[rank], machine.cycle_ps)[1]
            ],
            build_stories=lambda: [
                story
                for rank in shown
                for story in explain(
                    self.compiled, logs[rank], machine.cycle_ps, machine["hbm.latency"] * 1e12, logs
                )
            ],
            step_time_ps=round(max(log.end for log in logs.values())),
            executed=executed,
            static_bundles=self.program.bundle_count,
            executed_bundles=executed_bundles,
            loop_trips=self._trips(first),
            semaphores={rank: log.semaphores for rank, log in logs.items()},
            operand_bytes=self._operand_bytes(first),
            messages=len(messages),
            sent_bytes=sum(t.bytes for t in messages),
            exposed_wait_ps=dict(exposed),
            phases=tuple(dict.fromkeys(phase for phase, _ in first.contexts)),
            build_phase_ps=lambda: phase_times(list(logs.values())),
            scenario=ScenarioRecord(
                scenario.name,
                assumed,
                treated,
                scenario.devices or self.words.devices,
                self.dependent_branches,
                self._branches_of(tuple(a for a in assumed if not a.given)),
            ),
            machine=machine,
            core_end_ps={rank: round(log.end) for rank, log in logs.items()},
            not_understood=self.program.not_understood.count,
            notes=notes,
            facts=facts,
        )

    @_no_garbage_collection()
    def _timeline(
        self,
        logs: Mapping[int, CoreLog],
        shown: Sequence[int],
        machine: Machine,
        facts: Mapping[str, Any],
    ) -> tuple[pd.DataFrame, dict[int, CoreSpans]]:
        writer = SpanWriter(self.compiled, machine.cycle_ps, operand_names(facts), copy_tags(facts))
        sent = {rank: writer.transfers(logs[rank]) for rank in shown}
        spans = {}
        for rank in shown:
            log = logs[rank]
            received = writer.receipts(log, logs)
            stalls = writer.waits(log, sent[rank], received)
            spans[rank] = CoreSpans(sent[rank], received, stalls)
            writer.work(log)
            writer.regions(log)
        return writer.table.frame(), spans

    def _executed(self, log: CoreLog) -> tuple[np.ndarray, int]:
        executed = np.zeros(self.program.bundle_count, dtype=np.int64)
        for block, count in Counter(log.visit_block).items():
            span = self.program.blocks[block]
            executed[span.start : span.end] += count
        return executed, int(executed.sum())

    def _trips(self, log: CoreLog) -> list[LoopTrips]:
        visits = np.array(log.visit_block, dtype=np.int64)
        starts = np.array([b.start for b in self.program.blocks], dtype=np.int64)[visits]
        trips = []
        for loop in self.program.loops:
            head = starts == loop.start
            inside = (starts >= loop.start) & (starts <= loop.end)
            before = np.concatenate(([False], inside[:-1]))
            entries = int((head & ~before).sum())
            trips.append(LoopTrips(loop.start, loop.end, loop.depth, entries, int(head.sum())))
        return trips

    def _operand_bytes(self, log: CoreLog) -> dict[int, tuple[int, int]]:
        """Bytes per HBM operand, and a check that no copy leaves its operand or the memory it names."""
        self._check_spaces(log)
        read: Counter[int] = Counter()
        written: Counter[int] = Counter()
        transfers = log.transfers
        size = np.array([t.bytes for t in transfers], dtype=np.int64)
        remote = np.array([t.peer >= 0 for t in transfers], dtype=bool)
        for destination, counter in ((False, read), (True, written)):
            address = np.array(
                [t.destination if destination else t.source for t in transfers], dtype=np.int64
            )
            chosen = np.flatnonzero((address >= HBM_BASE) & ~(remote & destination))
            operands = self._check_hbm(log, address[chosen], chosen, destination=destination)
            for operand in np.unique(operands):
                counter[int(operand)] += int(size[chosen][operands == operand].sum())
        return {
            o.index: (read[o.index], written[o.index])
            for o in self.program.operands
            if o.space == "hbm" or read[o.index] or written[o.index]
        }

    def _check_spaces(self, log: CoreLog) -> None:
        """Refuses a copy whose address lies in another memory than its name says (`dma.hbm_to_vmem`)."""
        layout = self.compiled.layout
        for site, source, destination in {
            (t.site, layout.space_of(t.source), layout.space_of(t.destination)) for t in log.transfers
        }:
            where = self.compiled.sites[site]
            if where.op is Op.DMA and where.detail != (found := f"{source}_to_{destination}"):
                raise UnsupportedProgramError(
                    self.program.path,
                    f"{where.where}: the copy's addresses are {found.replace('_', ' ')}",
                    self._cure_of_wrong_space(where.detail),
                )

    def _cure_of_wrong_space(self, named: str) -> str:
        """What to do about a copy that does not touch the memory it names (`hbm_to_vmem`)."""
        moved = [str(o.index) for o in self.program.operands if o.space == "vmem"]
        if "hbm" in named and moved:
            return (
                f"XLA placed operand {', '.join(moved)} in VMEM, and the program mixes up its addresses: "
                "pass what the kernel copies itself through "
                "pltpu.with_memory_space_constraint(x, pltpu.HBM), and compile again"
            )
        return "An address is computed wrongly, or not modelled rightly; report the dump"

    def _check_hbm(
        self, log: CoreLog, address: np.ndarray, which: np.ndarray, *, destination: bool
    ) -> np.ndarray:
        """Operand index per HBM address of the transfers `which`; refuses a copy that leaves its range."""
        placed = [p for p in self.compiled.layout.placed if p.space == "hbm"]
        starts = np.array([p.start for p in placed], dtype=np.int64)
        ends = starts + np.array([p.size for p in placed], dtype=np.int64)
        index = np.searchsorted(starts, address, side="right") - 1
        extents: dict[tuple[int, int], int] = {}
        reach = address.copy()
        for k, number in enumerate(which.tolist()):
            transfer = log.transfers[number]
            shape = (transfer.bytes, id(transfer.strides))  # alive as long as the log
            found = extents.get(shape)
            if found is None:
                found = extent(transfer.bytes // 32, transfer.strides, destination=destination)
                extents[shape] = found
            reach[k] += found
        wrong = np.flatnonzero((index < 0) | (reach > ends[np.maximum(index, 0)]))
        if len(wrong):
            site = self.compiled.sites[log.transfers[int(which[wrong[0]])].site]
            raise UnsupportedProgramError(
                self.program.path,
                f"{site.where}: the copy leaves its HBM operand",
                "A value of the scenario is out of range, or an address is computed wrongly",
            )
        owners = np.array([-1 if p.operand is None else p.operand for p in placed], dtype=np.int64)
        return owners[index]


_DEFAULT = Scenario()


def _idle(given: set[str], runs: list[CoreRun]) -> list[str]:
    """A note on what the scenario gives and no core asks for: it may be meant for another build."""
    left = sorted(given.difference(*(run.core.used for run in runs)))
    if not left:
        return []
    more = f" and {len(left) - 4} more" if len(left) > 4 else ""
    return [f"the scenario gives what the program never asks for: {', '.join(left[:4])}{more}"]


def operand_names(facts: Mapping[str, Any]) -> dict[int, str]:
    """Names of operands from a manifest."""
    return {
        int(row["index"]): str(row["name"])
        for row in facts.get("operands") or []
        if isinstance(row, Mapping) and row.get("name")
    }


def copy_tags(facts: Mapping[str, Any]) -> dict[tuple[str, int], str]:
    """Names of copies by source line from a manifest."""
    return {
        (str(row["file"]), int(row["line"])): str(row["name"])
        for row in facts.get("copy_names") or []
        if isinstance(row, Mapping)
    }


def simulate(
    program: Program,
    machine: Machine,
    scenario: Scenario | Mapping[str, Any] | None = None,
    facts: Mapping[str, Any] | None = None,
    **options: Any,
) -> Simulation:
    """Model one step of `program` on `machine`; options are those of `Simulator.simulate`."""
    given = as_scenario(scenario) if scenario else None
    return Simulator(program).simulate(machine, given, facts, **options)


def as_scenario(value: Scenario | Mapping[str, Any] | None) -> Scenario:
    """A scenario from one, from its fields, or the default."""
    if isinstance(value, Scenario):
        return value
    if not value:
        return _DEFAULT
    fields = {name: value[name] for name in Scenario.__slots__ if name in value}
    pairs = value.get("set")
    if isinstance(pairs, Mapping) and pairs:
        from analyzer.options import scenario_of

        given = scenario_of({str(k): str(v) for k, v in pairs.items()})
        assert given is not None
        return replace(given, **({"name": "set by the kernel"} | fields))
    for table in ("scalars", "smem"):  # JSON has no integer keys
        if table in fields:
            fields[table] = {int(k): v for k, v in fields[table].items()}
    return Scenario(**fields)
