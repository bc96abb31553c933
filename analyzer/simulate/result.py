"""What a simulation gives."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from analyzer.machine import Machine
from analyzer.simulate.explain import Story
from analyzer.simulate.residency import Resident
from analyzer.simulate.scenario import Assumption


@dataclass(frozen=True, slots=True)
class ScenarioRecord:
    """Under what assumptions a result holds.

    name: the scenario's. assumed: every value that the bundles do not contain, with its place and how
    often it was used; `given` tells those the scenario names from defaults. peers: how the other cores
    were treated. dependent_branches: bundles of the branches that depend on values from outside.
    """

    name: str
    assumed: tuple[Assumption, ...]
    peers: str
    devices: int | None
    dependent_branches: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class LoopTrips:
    """How often a loop ran: entries from outside and iterations in all."""

    start: int
    end: int
    depth: int
    entries: int
    iterations: int


@dataclass(eq=False)
class Simulation:
    """One modelled step.

    Attributes:
        build_timeline, build_residency, build_stories: make `timeline`, `residency` and `stories`
            when first asked for.
        step_time_ps: end of the last core's program.
        executed: int64[B], executions of each bundle on core 0 of the timeline.
        loop_trips: per loop of the program.
        semaphores: core -> {semaphore: value at the exit}; all zero, or the simulation would have failed.
        operand_bytes: HBM operand index -> (bytes read, bytes written) by core 0.
        messages, sent_bytes: remote copies and signals sent by core 0.
        exposed_wait_ps: phase -> stalled time of core 0. phases: every phase path of core 0.
        phase_ps: phase path -> time inside it, all entries together, of the core that spends most in it.
        notes: what a reader must know.
    """

    build_timeline: Callable[[], pd.DataFrame]
    build_residency: Callable[[], list[Resident]]
    build_stories: Callable[[], list[Story]]
    step_time_ps: int
    executed: np.ndarray
    static_bundles: int
    executed_bundles: int
    loop_trips: list[LoopTrips]
    semaphores: dict[int, dict[int, int]]
    operand_bytes: dict[int, tuple[int, int]]
    messages: int
    sent_bytes: int
    exposed_wait_ps: dict[str, int]
    phases: tuple[str, ...]
    phase_ps: dict[str, int]
    scenario: ScenarioRecord
    machine: Machine
    core_end_ps: dict[int, int]
    not_understood: int = 0
    vmem_used: int | None = None
    notes: list[str] = field(default_factory=list)
    facts: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def timeline(self) -> pd.DataFrame:
        """Table of spans (analyzer/timeline.py) of all simulated cores."""
        return self.build_timeline()

    @cached_property
    def residency(self) -> list[Resident]:
        """What the copies brought into VMEM, and how long it was of use."""
        return self.build_residency()

    @cached_property
    def stories(self) -> list[Story]:
        """Why the core stood still: every exposed wait with its cause chain, the longest first."""
        return self.build_stories()
