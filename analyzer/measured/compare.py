"""Measured against modelled, phase by phase, where the bundles are of the traced program."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analyzer.errors import MegascopeError
from analyzer.measured.join import Identity, TracedCode, identify
from analyzer.measured.stages import Stage

if TYPE_CHECKING:
    from analyzer.capture import Capture
    from analyzer.dump import DumpProgram


@dataclass(frozen=True, slots=True)
class Joined:
    """The bundles beside a trace, and whether they are of the traced program."""

    identity: Identity
    where: Path | None = None
    program: "DumpProgram | None" = None

    def entry(self) -> dict[str, Any]:
        """As the report has it."""
        return {
            "bundles": None if self.program is None else str(self.program.bundles),
            "joined": self.identity.same,
            "reason": self.identity.reason,
            "address_base": self.identity.base,
            "checks": self.identity.checks,
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    """Phases side by side; empty where nothing is joined."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    executed_bundles: int | None = None
    hbm_bytes: tuple[int, int, int] | None = None  # read, written, copies: counted by executing the bundles
    occupancy: list[dict[str, Any]] = field(default_factory=list)


def join_with(capture: "Capture", code: TracedCode) -> Joined:
    """Hold the bundles beside a trace against it."""
    if not capture.programs():
        return Joined(Identity(False, "no bundles beside the trace"))
    chosen = capture.kernel_program()
    try:
        identity = identify(code, capture.read_kernel())
    except MegascopeError as error:
        identity = Identity(False, f"the bundles cannot be read: {error.fault}")
    return Joined(identity, chosen.bundles.parent, chosen)


def compare_phases(
    joined: Joined, table: list[Stage], runs: int, capture: "Capture", chip: str | None
) -> Comparison:
    """Own time of each phase, mean of the measured runs beside the modelled step.

    A phase of several layers is compared layer by layer where both sides know the layers, else summed.
    """
    if not joined.identity.same or not runs:
        return Comparison()
    if chip is None:
        return Comparison(notes=["no model for this chip"])
    from analyzer import fold
    from analyzer.machine import load_machine

    try:
        machine = load_machine(chip)
        timeline, facts, program = fold.model(capture, machine)
        modelled, _, _ = fold.build(timeline, facts, capture, machine, program)
    except MegascopeError as error:
        return Comparison(notes=[f"not modelled: {error}"])
    both = {row["layer"] for row in modelled["phases"]} & {stage.layer for stage in table}
    by_layer = bool(both - {None})
    measured_ps: dict[tuple[int | None, str], int] = {}
    modelled_ps: dict[tuple[int | None, str], int] = {}
    for stage in table:
        key = (stage.layer if by_layer else None, stage.phase)
        measured_ps[key] = measured_ps.get(key, 0) + stage.own_ps
    for row in modelled["phases"]:
        key = (row["layer"] if by_layer else None, row["phase"])
        modelled_ps[key] = modelled_ps.get(key, 0) + row["time_ps"]
    rows = []
    for key in dict.fromkeys([*measured_ps, *modelled_ps]):
        seen, model = measured_ps.get(key), modelled_ps.get(key)
        rows.append(
            {
                "layer": key[0],
                "phase": key[1],
                "measured_ps": seen,
                "modelled_ps": model,
                "difference_ps": None if seen is None or model is None else model - seen,
                "error": None if not seen or model is None else (model - seen) / seen,
            }
        )
    moved = tuple(modelled["hbm"][name] for name in ("read_bytes", "write_bytes", "copies"))
    filled = occupancy_on(table, program, facts.executed, machine.cycle_ps)
    return Comparison(rows, [], facts.executed_bundles, None if None in moved else moved, filled)


def occupancy_on(table: list[Stage], program: Any, executed: Any, cycle_ps: float) -> list[dict[str, Any]]:
    """How full the units were during each phase: executed slots over the slots of its measured time.

    Static occupancy weighted by how often each bundle ran, on measured time: not the trace's own counters,
    which are neither weighted nor on the right interval. The clock that turns time into slots is the machine
    model's.
    """
    import numpy as np

    from analyzer.llo.occupancy import CAPACITY, COLUMNS, occupancy
    from analyzer.llo.phases import static_phases

    capacity = CAPACITY.get(program.generation or -1)
    if capacity is None or executed is None:
        return []
    names, phase = static_phases(program)
    used = occupancy(program).astype(np.int64) * np.asarray(executed, dtype=np.int64)[:, None]
    result = []
    for index, path in enumerate(names):
        measured = sum(stage.own_ps for stage in table if stage.phase == path)
        slots = measured / cycle_ps
        if not slots:
            continue
        taken = used[phase == index].sum(axis=0)
        units = {
            name: float(count) / (slots * most)
            for name, count, most in zip(COLUMNS, taken.tolist(), capacity, strict=True)
            if ":" not in name
        }
        result.append(
            {
                "phase": path,
                "time_ps": measured,
                "bundles": int(np.asarray(executed)[phase == index].sum()),
                "units": units,
                "provenance": "counted / measured; clock assumed",
            }
        )
    return result
