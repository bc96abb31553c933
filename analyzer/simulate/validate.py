"""Modelled against measured times over many captures.

A case file:

    [[case]]
    capture = "captures/stream-400"     # relative to the file
    measured_us = 128.0
    phase = "op"                        # time in this phase instead of the whole step
    source = "where the number comes from"
    cores = "all"                       # or "mirrored", "auto" (default)
    fitted = true                       # the machine's parameters were fitted to it
    [case.overrides]
    "hbm.latency" = 1e-6
"""

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from analyzer.errors import DataAbsentError, InputError
from analyzer.machine import Machine, load_machine

_FORM = "See docs/model.md for the form"
_KNOWN = {
    "name", "capture", "chip", "measured_us", "outside_us", "phase", "source", "cores", "fitted", "scenario",
    "overrides",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Case:
    """One measured time and the capture it belongs to.

    outside_us: the part of it in which other things than the kernel ran; added to what the model says.
    """

    name: str
    capture: Path
    measured_us: float
    chip: str | None = None
    phase: str | None = None
    source: str = ""
    cores: str = "auto"
    fitted: bool = False
    scenario: Path | None = None
    overrides: Mapping[str, object] = field(default_factory=dict)
    outside_us: float = 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """A case and what the model says. error: modelled / measured - 1."""

    case: Case
    modelled_us: float
    assumed: int

    @property
    def error(self) -> float:
        """Relative error of the model."""
        return self.modelled_us / self.case.measured_us - 1


@dataclass(frozen=True, slots=True)
class Statistics:
    """Of the relative errors: root mean square, mean, the one of largest size."""

    cases: int
    rms: float
    mean: float
    worst: float


def read_cases(path: Path) -> list[Case]:
    """Read a case file.

    Raises:
        InputError: not readable, or an entry is missing, unknown or of the wrong kind.
    """
    try:
        data = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(
            path, f"not a readable case file ({error})", "See docs/model.md for the form"
        ) from error
    rows = data.get("case")
    if not isinstance(rows, list) or not rows:
        raise InputError(path, "holds no [[case]]", _FORM)
    return [_case(path, number, row) for number, row in enumerate(rows, 1)]


def _case(path: Path, number: int, row: Mapping[str, Any]) -> Case:
    unknown = set(row) - _KNOWN
    if unknown:
        known = ", ".join(sorted(_KNOWN))
        raise InputError(path, f"case {number}: unknown entry {sorted(unknown)[0]!r}", f"Known: {known}")
    capture, measured = row.get("capture"), row.get("measured_us")
    if not isinstance(capture, str):
        raise InputError(path, f"case {number} names no capture", 'Give capture = "folder"')
    if not isinstance(measured, int | float) or isinstance(measured, bool) or measured <= 0:
        raise InputError(path, f"case {number}: measured_us = {measured!r}", "Give microseconds above 0")
    outside = row.get("outside_us", 0.0)
    if not isinstance(outside, int | float) or isinstance(outside, bool) or not 0 <= outside < measured:
        raise InputError(
            path, f"case {number}: outside_us = {outside!r}", "Give microseconds, less than measured_us"
        )
    cores = row.get("cores", "auto")
    if cores not in ("auto", "mirrored", "all"):
        raise InputError(path, f"case {number}: cores = {cores!r}", "Give auto, mirrored or all")
    scenario = row.get("scenario")
    return Case(
        name=str(row.get("name", capture)),
        capture=path.parent / capture,
        measured_us=float(measured),
        chip=row.get("chip"),
        phase=row.get("phase"),
        source=str(row.get("source", "")),
        cores=cores,
        fitted=bool(row.get("fitted", False)),
        scenario=None if scenario is None else path.parent / str(scenario),
        overrides=dict(row.get("overrides", {})),
        outside_us=float(outside),
    )


class PreparedCase:
    """A case with its program executed: times under any machine cost one timing pass.

    Raises:
        InputError, UnsupportedProgramError: the capture cannot be read or executed.
    """

    def __init__(self, case: Case) -> None:
        from analyzer.capture import open_capture
        from analyzer.options import combined
        from analyzer.simulate.scenario_file import read_scenario
        from analyzer.simulate.simulator import Simulator, as_scenario

        self.case = case
        opened = open_capture(case.capture, chip=case.chip)
        chip = case.chip or opened.manifest.get("chip")
        if chip is None:
            raise InputError(
                case.capture, "does not say which chip it was compiled for", 'Give chip = "tpu7x"'
            )
        self.chip, self.facts = str(chip), opened.manifest
        self.simulator = Simulator(opened.read_kernel())
        self.options: dict[str, Any] = {"cores": case.cores, "overrides": case.overrides}
        self.scenario = None
        if case.scenario is not None:
            read = read_scenario(case.scenario)
            wanted = combined(as_scenario(self.facts.get("scenario")), read)
            self.scenario = wanted.common
            self.options |= {"scenarios": wanted.cores, "delays_ps": wanted.delays_ps}

    def run(self, machine: Machine | None = None) -> Outcome:
        """Simulate the case.

        Raises:
            DataAbsentError: the phase does not occur in the step.
        """
        result = self.simulator.simulate(
            machine or load_machine(self.chip), self.scenario, self.facts, **self.options
        )
        phase = self.case.phase
        time = result.step_time_ps if phase is None else result.phase_ps.get(phase)
        if time is None:
            raise DataAbsentError(
                self.case.capture, f"phase {phase!r} does not occur in the step", "Compile with level regions"
            )
        return Outcome(self.case, time / 1e6 + self.case.outside_us, len(result.scenario.assumed))


def statistics(outcomes: list[Outcome]) -> Statistics | None:
    """Error statistics; None of no outcomes."""
    if not outcomes:
        return None
    errors = [outcome.error for outcome in outcomes]
    return Statistics(
        cases=len(errors),
        rms=math.sqrt(sum(e * e for e in errors) / len(errors)),
        mean=sum(errors) / len(errors),
        worst=max(errors, key=abs),
    )
