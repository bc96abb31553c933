"""What a simulation gives."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from analyzer import residency, stories
from analyzer.machine import Machine
from analyzer.simulate.explain import Story
from analyzer.simulate.residency import Resident
from analyzer.simulate.scenario import Assumption


@dataclass(frozen=True, slots=True)
class ScenarioRecord:
    """Under what assumptions a result holds.

    name: the scenario's. assumed: every value that the bundles do not contain, with its place and how
    often it was used; `given` tells those the scenario names from defaults. peers: how the other cores
    were treated. dependent_branches: bundles of the branches that depend on values from outside;
    assumed_branches: those of them that depend on a value which nobody gave.
    """

    name: str
    assumed: tuple[Assumption, ...]
    peers: str
    devices: int | None
    dependent_branches: tuple[int, ...] = ()
    assumed_branches: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class LoopTrips:
    """How often a loop ran: entries from outside and iterations in all."""

    start: int
    end: int
    depth: int
    entries: int
    iterations: int


@dataclass(frozen=True, slots=True)
class CoreSpans:
    """Span numbers in the timeline of a core's transfers, receipts and stalls, in order; -1 where none."""

    transfers: list[int]
    receipts: list[int]
    stalls: list[int]


@dataclass(eq=False)
class Simulation:
    """One modelled step.

    Attributes:
        build_timeline, build_residency, build_stories, build_phase_ps: make what they are called after
            when first asked for; the first also gives the spans of each core's transfers and stalls.
        step_time_ps: end of the last core's program.
        executed: int64[B], executions of each bundle on core 0 of the timeline.
        loop_trips: per loop of the program.
        semaphores: core -> {semaphore: value at the exit}; all zero, or the simulation would have failed.
        operand_bytes: HBM operand index -> (bytes read, bytes written) by core 0.
        messages, sent_bytes: remote copies and signals sent by core 0.
        exposed_wait_ps: phase -> stalled time of core 0. phases: every phase path of core 0.
        notes: what a reader must know.
    """

    build_timeline: Callable[[], tuple[pd.DataFrame, dict[int, CoreSpans]]]
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
    build_phase_ps: Callable[[], dict[str, int]]
    scenario: ScenarioRecord
    machine: Machine
    core_end_ps: dict[int, int]
    not_understood: int = 0
    vmem_used: int | None = None
    notes: list[str] = field(default_factory=list)
    facts: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def _built(self) -> tuple[pd.DataFrame, dict[int, CoreSpans]]:
        return self.build_timeline()

    @property
    def timeline(self) -> pd.DataFrame:
        """Table of spans (analyzer/timeline.py) of all simulated cores."""
        return self._built[0]

    @cached_property
    def phase_ps(self) -> dict[str, int]:
        """Phase path -> time inside it, all entries together, of the core that spends most in it."""
        return self.build_phase_ps()

    @cached_property
    def residency(self) -> list[Resident]:
        """What the copies brought into VMEM, and how long it was of use."""
        return self.build_residency()

    @cached_property
    def stories(self) -> list[Story]:
        """Why the core stood still: every exposed wait with its cause chain, the longest first."""
        return self.build_stories()

    @cached_property
    def residency_table(self) -> pd.DataFrame:
        """`residency` as a table (analyzer/residency.py), with the names the timeline has."""
        frame, spans = self._built
        # Single cells of a frame are slow to reach, and there are a hundred thousand of them.
        named = {name: frame[name].tolist() for name in ("name", "layer", "phase", "source")}
        rows = []
        for stay in self.residency:
            span = spans[stay.core].transfers[stay.transfer]
            if span >= 0:  # else of a phase that a what-if took out
                copy = {name: values[span] for name, values in named.items()}
                own = {name: getattr(stay, name) for name in Resident.__slots__ if name != "transfer"}
                rows.append(own | copy | {"span": span, "used": stay.end_ps > stay.arrived_ps})
        return residency.table(rows)

    @cached_property
    def stories_table(self) -> pd.DataFrame:
        """`stories` as a table (analyzer/stories.py), with the spans of the timeline."""
        frame, spans = self._built
        names = frame["name"].tolist()
        rows = []
        for story in self.stories:
            of = spans[story.core]
            cause = -1
            if story.cause >= 0:
                cause = (of.receipts if story.cause & 1 else of.transfers)[story.cause >> 1]
            row = {name: getattr(story, name) for name in Story.__slots__}
            row |= {
                "span": of.stalls[story.stall],
                "source": story.wait_source,
                "cause": None if cause < 0 else cause,
                "name": "" if cause < 0 else names[cause],
                "behind": ", ".join(story.behind),
            }
            row["explanation"] = stories.explanation(row)
            rows.append({name: row[name] for name in stories.COLUMNS})
        return stories.table(rows)
