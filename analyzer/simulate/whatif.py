"""Bounds and sensitivities of a step: the same program timed again under changed machines.

The scalar program is executed once; each question costs one timing pass.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from analyzer.errors import UsageError
from analyzer.machine import Machine
from analyzer.simulate.scenario import Scenario
from analyzer.simulate.simulator import Simulator

FREE = "x1e9"
_NO_HBM = {"hbm.bandwidth": FREE, "hbm.latency": 0, "hbm.descriptor": 0}

# What is taken away, and the parameters that say so. "perfect prefetch" is bounded below.
IDEALS: dict[str, dict[str, object]] = {
    "perfect prefetch": _NO_HBM,
    "infinite HBM": _NO_HBM,
    "no HBM latency": {"hbm.latency": 0},
    "free messages": {
        "ici.latency": 0,
        "ici.bandwidth": FREE,
        "ici.send.cost": 0,
    },
    "infinite MXU": {"mxu.push": 0, "mxu.matmul": 0},
}


@dataclass(frozen=True, slots=True)
class Bound:
    """The step if one thing cost nothing.

    name: `infinite MXU`, `without attention`; step_ps: the step then; saving_ps: what it would save.
    """

    name: str
    step_ps: int
    saving_ps: int


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """How the step follows one parameter: percent of the step per percent of the parameter."""

    parameter: str
    value: float
    unit: str
    elasticity: float


class WhatIf:
    """Answers for one program, machine and scenario."""

    def __init__(
        self,
        simulator: Simulator,
        machine: Machine,
        scenario: Scenario | None = None,
        facts: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.simulator, self.machine, self.scenario, self.facts = simulator, machine, scenario, facts or {}
        self.options = options
        self.base = self._run({})

    def _run(self, overrides: Mapping[str, object], without: Iterable[str] = ()) -> Any:
        options = {**self.options, "without": [*self.options.get("without", ()), *without]}
        return self.simulator.simulate(
            self.machine, self.scenario, self.facts, overrides=overrides, **options
        )

    def bound(self, name: str) -> Bound:
        """The bound of one ideal by name, or `without PHASE`.

        Raises:
            UsageError: there is no ideal of that name, or no phase of that name in the step.
        """
        if name.startswith("without "):
            step = self._without(name.removeprefix("without "))
        elif name in IDEALS:
            step = self._run(IDEALS[name]).step_time_ps
            if name == "perfect prefetch":
                # the bytes still have to come, only never waited for beyond that
                traffic = sum(sum(pair) for pair in self.base.operand_bytes.values())
                step = max(step, round(traffic / self.machine["hbm.bandwidth"] * 1e12))
        else:
            raise UsageError(name, "no such ideal", f"Known: {', '.join(IDEALS)}, without PHASE")
        return Bound(name, step, self.base.step_time_ps - step)

    def require_phases(self, names: Iterable[str]) -> None:
        """Refuse a phase that the step does not have: to leave it out would change nothing, silently.

        Raises:
            UsageError: names the phases there are.
        """
        for phase in names:
            if not any(self._inside(phase)):
                known = ", ".join(sorted(p for p in self.phases() if p)) or "none"
                raise UsageError(f"without {phase}", "no such phase in the step", f"Phases: {known}")

    def _without(self, phase: str) -> int:
        self.require_phases([phase])
        return int(self._run({}, [phase]).step_time_ps)

    def _inside(self, phase: str) -> list[str]:
        from analyzer.simulate.log import phase_matches

        return [p for p in self.phases() if phase_matches(p, frozenset([phase]))]

    def phases(self) -> list[str]:
        """Phases of the step, as paths."""
        return list(self.base.phases)

    def bounds(self) -> list[Bound]:
        """All ideals and every phase, the largest saving first."""
        names = [*IDEALS, *(f"without {p}" for p in self.phases() if p)]
        return sorted((self.bound(n) for n in names), key=lambda b: -b.saving_ps)

    def sensitivities(self, change: float = 0.1) -> list[Sensitivity]:
        """Every parameter of the machine that is not 0, the strongest first.

        Args:
            change: relative step to both sides.
        """
        found = []
        for name, parameter in self.machine.parameters.items():
            if not parameter.value:
                continue
            up = self._run({name: f"x{1 + change}"}).step_time_ps
            down = self._run({name: f"x{1 - change}"}).step_time_ps
            elasticity = (up - down) / (2 * change) / self.base.step_time_ps
            found.append(Sensitivity(name, parameter.value, parameter.unit, elasticity))
        return sorted(found, key=lambda s: -abs(s.elasticity))
