"""Folds a timeline into a report: metrics, bubbles, critical path, findings, the JSON contract."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from analyzer import (
    bubbles,
    critical,
    findings,
    groups,
    layer_path,
    metrics,
    residency,
    stories,
    view,
    vmem,
    waits,
)
from analyzer.capture import Capture
from analyzer.findings.base import Context
from analyzer.options import combined
from analyzer.reports import contract
from analyzer.view import CoreStep

if TYPE_CHECKING:
    from analyzer.findings.code import Code
    from analyzer.llo.program import Program
    from analyzer.machine.model import Machine
    from analyzer.simulate.scenario import Scenario
    from analyzer.simulate.scenario_file import ScenarioFile


Cores = Literal["auto", "mirrored", "all"]
# What the simulator calls an assumed value -> the name that `--set` takes for it.
_OPTIONS = (
    (r"operand (\d+) .*passed by value", "scalars."),
    (r"SMEM content copied from operand (\d+)", "smem."),
    (r"SMEM word (\S+)", "words."),
    (r"vector to scalar pop", "pops."),
)


@dataclass(frozen=True, slots=True, eq=False)
class Facts:
    """What is known beside the timeline. None is unknown.

    Attributes:
        executed: int64[B], how often each bundle ran on the reported core.
        guessed_branches: bundles of branches that depend on values that nobody gave.
        peers: how the other cores were treated, in words.
        assumed_values: every value that was assumed to get the timeline.
        not_understood: (instructions not understood, of how many), with samples.
        transfers_visible: False if the source of the timeline cannot see copies and messages.
        residency, stories: tables of analyzer/residency.py and analyzer/stories.py; None if nothing can tell.
    """

    static_bundles: int | None = None
    executed_bundles: int | None = None
    executed: Any = None
    scenario: str | None = None
    peers: str | None = None
    assumed_values: list[dict[str, Any]] = field(default_factory=list)
    not_understood: tuple[int, int] | None = None
    not_understood_samples: list[str] = field(default_factory=list)
    operand_bytes: dict[int, tuple[int, int]] | None = None
    vmem_used: int | None = None
    transfers_visible: bool = True
    loop_trips: list[dict[str, Any]] = field(default_factory=list)
    semaphores: dict[int, dict[int, int]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    guessed_branches: tuple[int, ...] = ()
    residency: pd.DataFrame | None = None
    stories: pd.DataFrame | None = None

    def tables(self) -> dict[str, pd.DataFrame | None]:
        """The tables beside the timeline, by name."""
        return {"residency": self.residency, "stories": self.stories}


def model(
    capture: Capture,
    machine: "Machine",
    scenario: "Scenario | None" = None,
    *,
    file: "ScenarioFile | None" = None,
    cores: Cores = "auto",
    without: Sequence[str] = (),
) -> tuple[pd.DataFrame, Facts, "Program"]:
    """The modelled timeline of a capture and what the simulator counted on the way.

    Args:
        capture: an open capture.
        machine: the chip.
        scenario: what the command line says; it goes over the capture's own scenario, and the file's.
        file: what a scenario file says, for all cores and for single ones.
        cores: which cores to simulate and show, as `Simulator.simulate` takes it.
        without: phases that take no time and move nothing; of an unknown one nothing changes.
    """
    from analyzer.simulate.simulator import as_scenario, simulate

    chosen = capture.kernel_program()
    program = capture.read_kernel()
    own = as_scenario(capture.manifest.get("scenario"))
    wanted = combined(own, file, scenario)
    result = simulate(
        program,
        machine,
        scenario=wanted.common,
        facts=capture.manifest,
        cores=cores,
        without=without,
        scenarios=wanted.cores,
        delays_ps=wanted.delays_ps,
    )
    facts = Facts(
        static_bundles=program.bundle_count,
        executed_bundles=result.executed_bundles,
        executed=np.asarray(result.executed, dtype=np.int64),
        scenario=result.scenario.name,
        peers=result.scenario.peers,
        assumed_values=[asdict(value) for value in result.scenario.assumed],
        not_understood=(program.not_understood.count, len(program.instruction_opcode)),
        not_understood_samples=[text for _, text in program.not_understood.samples[:10]],
        operand_bytes=dict(result.operand_bytes),
        vmem_used=vmem.used_bytes(chosen.companions.get("vmem_report"), chosen.name),
        loop_trips=[asdict(trips) for trips in result.loop_trips],
        semaphores=result.semaphores,
        notes=list(result.notes),
        guessed_branches=result.scenario.assumed_branches,
        residency=result.residency_table,
        stories=result.stories_table,
    )
    return result.timeline, facts, program


def _hbm_peak(machine: "Machine") -> float:
    """Peak of one core, bytes/s; a what-if on the bandwidth is of another memory, whose peak moves along."""
    peak, bandwidth = machine.peaks.hbm_bytes_per_s, machine.parameters.get("hbm.bandwidth")
    if bandwidth is None or not bandwidth.overridden:
        return peak
    return peak * bandwidth.value / bandwidth.overridden


def build(
    timeline: pd.DataFrame, facts: Facts, capture: Capture, machine: "Machine", program: "Program | None"
) -> tuple[dict[str, Any], int, int]:
    """Fold a timeline into a report.

    Returns:
        (the report as the JSON contract has it, the reported core, the reported step).
    """
    step = _reported_step(timeline)
    cores = view.cores(timeline) or [0]
    views = [view.core_step(timeline, core, step) for core in cores]
    reported = max(views, key=lambda one: (int(one.program[-1, 1]) if len(one.program) else -1, -one.core))
    peak = _hbm_peak(machine)
    visible = facts.transfers_visible
    hbm = {one.core: metrics.hbm(one, peak, visible=visible) for one in views}
    ici = {one.core: metrics.ici(one, visible=visible) for one in views}
    time = metrics.core_time(reported)
    phases = metrics.phases(reported, transfers_visible=visible)
    all_bubbles = bubbles.find_bubbles(reported) if visible else []
    all_waits = waits.exposed_waits(reported)
    path = critical.critical_path(reported)
    parts = critical.totals(reported, path)
    bound, sentence = critical.verdict(reported, parts)
    context = Context(
        core=reported,
        others=[one for one in views if one is not reported],
        hbm=hbm[reported.core],
        ici=ici[reported.core],
        time=time,
        phases=phases,
        bubbles=all_bubbles,
        waits=all_waits,
        program=program,
        executed=facts.executed,
        cycle_ps=machine.cycle_ps,
        hbm_rate=machine.parameters["hbm.bandwidth"].value if "hbm.bandwidth" in machine.parameters else None,
        operand_bytes=facts.operand_bytes,
        parameters={name: parameter.value for name, parameter in machine.parameters.items()},
        stays=None
        if facts.residency is None
        else facts.residency[(facts.residency["core"] == reported.core).to_numpy()],
        vmem_used=facts.vmem_used,
        vmem_capacity=machine.peaks.vmem_bytes,
        facts=dict(capture.manifest)
        | {"identical_recompiles": list(getattr(capture.kernel_program(), "identical", ()))},
        target=str(capture.path),
    )
    by_layer = layer_path.layer_paths(reported, path, _source_of(context.code))
    found, failures = findings.look(context)
    provenance = context.provenance
    told = None if facts.stories is None else stories.folded(facts.stories, reported.core)
    listed = sorted(all_bubbles, key=lambda b: (-b.duration_ps, b.start_ps))[: contract.BUBBLES_LISTED]
    manifest = capture.manifest
    report: dict[str, Any] = {
        "schema_version": contract.SCHEMA_VERSION,
        "notes": _notes(capture, machine, facts, views, timeline) + failures,
        "capture": {
            "path": str(capture.path),
            "kind": capture.kind,
            "kernel": manifest.get("kernel"),
            "program": capture.kernel_program().name,
            "model": manifest.get("model"),
            "chip": machine.chip,
            "topology": manifest.get("topology"),
            "cores": manifest.get("cores"),
            "batch": manifest.get("batch"),
            "probe_level": manifest.get("probe_level"),
        },
        "reported": {"core": reported.core, "step": step, "cores_in_timeline": len(cores)},
        "step": {
            "time_ps": reported.window_ps,
            "provenance": provenance,
            "executed_bundles": facts.executed_bundles,
            "static_bundles": facts.static_bundles,
            "bound_by": bound,
            "verdict": sentence,
            "critical_path": contract.parts_entry(parts),
        },
        "time": contract.time_entry(time, provenance),
        "hbm": contract.hbm_entry(
            hbm[reported.core], list(hbm.values()), context.hbm_rate, provenance, "counted"
        ),
        "ici": contract.ici_entry(ici[reported.core], list(ici.values()), provenance, "counted"),
        "vmem": {
            "used_bytes": facts.vmem_used,
            "capacity_bytes": machine.peaks.vmem_bytes,
            "provenance": "counted",
            "residency": None
            if facts.residency is None
            else residency.summary(facts.residency, reported.core, reported.window_ps),
        },
        "program": contract.program_entry(context.code, facts.loop_trips),
        "phases": [contract.phase_entry(phase) for phase in phases],
        "layers": [contract.layer_entry(row, reported.window_ps, provenance) for row in by_layer],
        "layer_kinds": [
            contract.layer_kind_entry(kind, reported.window_ps, provenance)
            for kind in layer_path.layer_kinds(by_layer)
        ],
        "bubbles": [contract.bubble_entry(bubble) for bubble in listed],
        "bubbles_total": len(all_bubbles),
        "bubble_groups": [contract.group_entry(g) for g in groups.group_bubbles(all_bubbles)],
        "wait_groups": [contract.group_entry(g) for g in groups.group_waits(all_waits)],
        "stories": [] if told is None else told[: stories.LISTED],
        "stories_total": None if told is None else len(told),
        "findings": [contract.finding_entry(finding, reported.window_ps) for finding in found],
        "scenario": {
            "name": facts.scenario,
            "assumed_values": facts.assumed_values,
            "assumed_branches": list(facts.guessed_branches),
        },
        "not_understood": {
            "instructions": facts.not_understood[0] if facts.not_understood else None,
            "of": facts.not_understood[1] if facts.not_understood else None,
            "samples": facts.not_understood_samples,
        },
    }
    return report, reported.core, step


def _source_of(code: "Code | None") -> layer_path.SourceOf | None:
    """The source line that most of some bundles come from; None without the program."""
    if code is None:
        return None
    return lambda first, last: code.source_of(np.arange(first, last + 1))


def _reported_step(timeline: pd.DataFrame) -> int:
    """The step of median length; the first of several equals."""
    steps = view.steps(timeline)
    if len(steps) < 2:
        return steps[0] if steps else 0
    windows = {}
    for step in steps:
        rows = timeline[timeline["step"] == step]
        windows[step] = int(view.ends(rows).max() - view.starts(rows).min())
    ordered = sorted(steps, key=lambda s: (windows[s], s))
    return ordered[(len(ordered) - 1) // 2]


def _notes(
    capture: Capture, machine: "Machine", facts: Facts, views: list[CoreStep], timeline: pd.DataFrame
) -> list[str]:
    """What the reader must know, the choices first."""
    notes = [f"program {capture.kernel_program().name}; machine model {machine.chip}"]
    changed = [p for p in machine.parameters.values() if p.overridden is not None]
    notes += [f"what-if: {p.name} = {p.value:g} {p.unit} instead of {p.overridden:g}" for p in changed]
    if any(p.name == "hbm.bandwidth" for p in changed):
        notes.append("what-if: the peak that utilization refers to is scaled like hbm.bandwidth")
    assumed = len(facts.assumed_values)
    if facts.scenario or assumed:
        notes.append(f"scenario {facts.scenario or 'unnamed'}: {assumed} assumed values")
    notes += _guessed(facts)
    if facts.not_understood is not None:
        notes.append(f"{facts.not_understood[0]} of {facts.not_understood[1]} instructions not understood")
    steps = view.steps(timeline)
    if len(steps) > 1:
        notes.append(f"{len(steps)} steps; the one of median length is reported")
    if facts.peers and (capture.manifest.get("cores") or len(views)) > 1:
        notes.append(f"cores: {facts.peers}")
    return notes + list(capture.notes) + facts.notes


def _guessed(facts: Facts) -> list[str]:
    """A note where values that nobody gave decide which way the program goes."""
    count = len(facts.guessed_branches)
    if not count:
        return []
    missing = list(dict.fromkeys(_option(value) for value in facts.assumed_values if not value["given"]))
    if not missing:
        return []
    depend = "branches depend" if count > 1 else "branch depends"
    return [
        f"what runs may differ: {count} {depend} on assumed values (first {facts.guessed_branches[0]:#x}); "
        f"give --set {'=N --set '.join(missing)}=N"
    ]


def _option(value: Mapping[str, Any]) -> str:
    """The name that `--set` takes for an assumed value."""
    what, source = str(value["what"]), str(value["source"])
    for pattern, name in _OPTIONS:
        if found := re.match(pattern, what):
            return name + (found[1] if found.groups() else source.rsplit("/", 1)[-1])
    return "default"
