"""A capture as the dashboard holds it: the analyzer's tables and numbers, loaded once, shared read-only."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import pandas as pd

from dashboard import bubbles as bubble_tables
from dashboard.collectives import Exchange, exchange
from dashboard.index import TimelineIndex, build_index
from dashboard.occupancy import Occupancy, build_occupancy
from dashboard.palette import Theme
from dashboard.panels import View
from dashboard.slices import SliceIndex, build_slice
from dashboard.worker import work_out

if TYPE_CHECKING:
    from analyzer.analysis import Analysis
    from dashboard.listing import Listing


@dataclass(slots=True)
class Later:
    """Another view of a capture that takes seconds to make; kept with the capture once it is there."""

    make: Callable[[], "Loaded"]
    made: "Loaded | None" = None

    def run(self) -> None:
        """Make it."""
        if self.made is None:
            self.made = self.make()


_SERIAL = itertools.count()


@dataclass(slots=True)
class Loaded:
    """One capture, analyzed.

    Attributes:
        title: short name for headings (plain text, may be hostile: escape before Plotly).
        path: the capture folder or file.
        timeline: span table of all its cores.
        find_bubbles: the HBM bubbles of a core; called once per core.
        report: the JSON contract of `megascope report --format json`; unknown is None.
        analysis: the analyzer's own result, for pages that need more; None for made-up timelines.
        others: views made on request: "all": with every core of the slice; "model": what the model says of
            a measured capture. Absent where there is no such view.
        serial: tells it from every other one loaded in this process.
    """

    title: str
    path: Path
    timeline: pd.DataFrame
    report: dict[str, Any]
    find_bubbles: Callable[[int], pd.DataFrame]
    analysis: "Analysis | None" = None
    others: dict[str, Later] = field(default_factory=dict)
    serial: int = field(default_factory=lambda: next(_SERIAL))
    _cores: list[int] | None = None
    _slice: list[SliceIndex] = field(default_factory=list)
    _exchange: list[Exchange] = field(default_factory=list)
    _shifted: dict[tuple[int, int], TimelineIndex] = field(default_factory=dict)
    _occupancies: dict[int, Occupancy | None] = field(default_factory=dict)
    _indexes: dict[int, TimelineIndex] = field(default_factory=dict)
    _bubbles: dict[int, pd.DataFrame] = field(default_factory=dict)
    _allocations: list[list[tuple[str, str, int]]] = field(default_factory=list)
    _listing: list["Listing"] = field(default_factory=list)
    _lock: Lock = field(default_factory=Lock)

    @property
    def cores(self) -> list[int]:
        """Cores with spans, in order; looked for once, since that takes 10 ms in a million spans."""
        if self._cores is None:
            self._cores = sorted(int(c) for c in self.timeline["core"].unique())
        return self._cores

    def index(self, core: int | None = None) -> TimelineIndex:
        """The drawing index of one core, built on first use."""
        chosen = self._core(core)
        with self._lock:
            if chosen not in self._indexes:
                self._indexes[chosen] = build_index(self.timeline, chosen)
            return self._indexes[chosen]

    def slice(self) -> SliceIndex:
        """The drawing index of all cores, built on first use."""
        with self._lock:
            if not self._slice:
                self._slice.append(build_slice(self.timeline))
            return self._slice[0]

    def exchange(self) -> Exchange:
        """What passes between the cores in the reported step, sorted out on first use."""
        with self._lock:
            if not self._exchange:
                self._exchange.append(exchange(self.timeline, self.fact("reported", "step")))
            return self._exchange[0]

    def occupancy(self, core: int | None = None) -> Occupancy | None:
        """What lay in the VMEM of one core over time; None if unknown."""
        chosen = self._core(core)
        with self._lock:
            if chosen not in self._occupancies:
                stays = pd.DataFrame() if self.analysis is None else self.analysis.residency
                capacity = self.fact("vmem", "capacity_bytes")
                self._occupancies[chosen] = build_occupancy(stays, chosen, capacity)
            return self._occupancies[chosen]

    def shifted(self, core: int | None, later_ps: int) -> TimelineIndex:
        """The drawing index of one core with every time moved, to lay it beside another capture's."""
        if later_ps == 0:
            return self.index(core)
        key = (self._core(core), later_ps)
        with self._lock:
            if key not in self._shifted:
                mine = self.timeline[(self.timeline["core"] == key[0]).to_numpy()]
                columns = {c: mine[c] + later_ps for c in ("start_ps", "issued_ps", "free_ps")}
                self._shifted[key] = build_index(mine.assign(**columns), key[0])
                while len(self._shifted) > 4:
                    self._shifted.pop(next(iter(self._shifted)))
            return self._shifted[key]

    def with_every_core(self) -> "Loaded | None":
        """The view with every core of the slice, if it is there already."""
        later = self.others.get("all")
        return later.made if later else self

    @property
    def all_cores(self) -> list[int]:
        """Cores that can be shown: those with spans, or all of the slice where they can be simulated."""
        count = self.fact("capture", "cores")
        return list(range(int(count))) if "all" in self.others and count else self.cores

    def listing(self) -> "Listing":
        """The program of the capture, read on first use.

        Raises:
            MegascopeError: the capture has no program, or its text cannot be read.
        """
        with self._lock:
            if not self._listing:
                self._listing.append(_read_listing(self.path, self.fact("program", "loops")))
            return self._listing[0]

    def allocations(self) -> list[tuple[str, str, int]]:
        """(tag, shape, bytes) of what the compiler placed in VMEM; empty if unknown."""
        with self._lock:
            if not self._allocations:
                self._allocations.append(_read_allocations(self.path))
            return self._allocations[0]

    def bubbles(self, core: int | None = None) -> pd.DataFrame:
        """HBM bubbles of one core, with the columns of `dashboard.bubbles.COLUMNS`."""
        chosen = self._core(core)
        with self._lock:
            if chosen not in self._bubbles:
                self._bubbles[chosen] = bubble_tables.conform(self.find_bubbles(chosen))
            return self._bubbles[chosen]

    @property
    def bubbles_unknown(self) -> str:
        """Why nothing can be said of HBM bubbles; "" where they are known."""
        if self.fact("hbm", "bubble_ps") is not None:
            return ""
        return "Unknown: this capture does not show HBM transfers."

    @property
    def findings_unknown(self) -> str:
        """Why no rule could look; "" where they did."""
        if self.fact("trace") is None:
            return ""
        return (
            "Unknown: rules look at copies and bundles, which a trace does not show. Give --program NAME, or "
            "open the dump of the program, for the findings of the model."
        )

    def _core(self, core: int | None) -> int:
        """`core` if it has spans, else the reported core, else the lowest."""
        known = self.cores
        candidates = (core, self.fact("reported", "core"), known[0] if known else 0)
        return next((c for c in candidates if c in known), 0)

    def fact(self, *keys: str) -> Any:
        """A value of the report by its path, or None where it is unknown."""
        value: Any = self.report
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return value

    @property
    def provenance(self) -> str:
        """Where the step time comes from: "modelled", "measured", ... or "unknown"."""
        return str(self.fact("step", "provenance") or "unknown")

    def view(self, theme: Theme, window: tuple[int, int] | None = None, **more: Any) -> View:
        """How to draw this capture: its bandwidth references and provenance."""
        return View(
            window=window,
            theme=theme,
            peak=self.fact("hbm", "peak_bytes_per_s"),
            achievable=self.fact("hbm", "achievable_bytes_per_s"),
            **more,
        )


Loader = Callable[[Path], Loaded]
WhatIf = Callable[[Path, dict[str, str], tuple[str, ...]], dict[str, Any]]  # path, overrides, phases left out


def from_parts(
    title: str,
    timeline: pd.DataFrame,
    bubbles: pd.DataFrame | None = None,
    report: dict[str, Any] | None = None,
) -> Loaded:
    """A capture from tables already in memory (tests, benchmarks, other programs)."""
    table = bubble_tables.conform(bubbles)

    def find(core: int) -> pd.DataFrame:
        return table[(table["core"].isna() | (table["core"] == core).fillna(False)).to_numpy(bool)]

    return Loaded(title, Path(title), timeline, report or {}, find)


def load(path: Path, chip: str | None = None) -> Loaded:
    """Analyze a capture, using its cache where that is fresh; `chip` for captures that do not say theirs.

    Raises:
        MegascopeError: the capture cannot be read or simulated; the message says what to do.
    """
    from analyzer.analysis import analyze

    loaded = from_analysis(path, analyze(path, chip=chip))
    if loaded.provenance == "modelled" and (loaded.fact("capture", "cores") or 1) > len(loaded.cores):
        loaded.others["all"] = Later(partial(load_all_cores, path, chip))
    if loaded.fact("trace", "join", "joined"):
        loaded.others["model"] = Later(partial(load_model, path, chip))
    return loaded


def load_all_cores(path: Path, chip: str | None = None) -> Loaded:
    """The same with every core of the slice in the timeline, all simulated together."""
    from analyzer.analysis import analyze

    work_out(path.resolve(), chip=chip, cores="all")
    return from_analysis(path, analyze(path.resolve(), chip=chip, cores="all"))


def load_model(path: Path, chip: str | None = None) -> Loaded:
    """What the model says of a measured capture: its bundles, simulated.

    Raises:
        MegascopeError: there are no bundles, or they cannot be simulated.
    """
    from analyzer import fold
    from analyzer.analysis import Analysis
    from analyzer.capture import open_capture
    from analyzer.errors import UsageError
    from analyzer.machine import load_machine

    opened = open_capture(path, chip=chip)
    name = chip or opened.manifest.get("chip")
    if name is None:
        raise UsageError(path, "does not say which chip it was recorded on", "Give one: --chip tpu7x.")
    machine = load_machine(str(name))
    timeline, facts, program = fold.model(opened, machine)
    report, core, step = fold.build(timeline, facts, opened, machine, program)
    more = {name: frame for name, frame in facts.tables().items() if frame is not None}
    return from_analysis(path, Analysis(report, timeline, core, step, more=dict(more)))


def what_if_report(
    path: Path, overrides: dict[str, str], without: tuple[str, ...] = (), chip: str | None = None
) -> dict[str, Any]:
    """The report of a capture simulated on a machine with some parameters changed, without some phases.

    Raises:
        MegascopeError: as for `load`, or a parameter is unknown.
    """
    from analyzer.analysis import analyze

    work_out(path.resolve(), chip=chip, overrides=overrides, without=without)
    return analyze(path.resolve(), chip=chip, overrides=overrides, without=without).report


def from_analysis(path: Path, analysis: "Analysis") -> Loaded:
    """The dashboard's view of an analyzer result."""
    capture = analysis.report.get("capture") or {}
    title = capture.get("kernel") or capture.get("program") or path.name
    return Loaded(str(title), path, analysis.timeline, analysis.report, partial(_bubbles, analysis), analysis)


def _bubbles(analysis: "Analysis", core: int) -> pd.DataFrame:
    """Every bubble of a core; none where the source of the timeline cannot see transfers."""
    from analyzer.bubbles import find_bubbles
    from analyzer.reports.contract import explain

    if (analysis.report.get("hbm") or {}).get("bubble_ps") is None:
        return pd.DataFrame()
    return pd.DataFrame(
        {
            "core": b.core,
            "start_ps": b.start_ps,
            "duration_ps": b.duration_ps,
            "cause": explain(b),
            "source": b.source,
            "bundle_first": b.bundles[0] if b.bundles else None,
            "bundle_last": b.bundles[1] if b.bundles else None,
            "layer": b.layer,
            "phase": b.phase,
        }
        for b in find_bubbles(analysis.core_step(core))
    )


def _read_listing(path: Path, loops: list[dict[str, Any]] | None) -> "Listing":
    from analyzer.capture import open_capture
    from analyzer.errors import DataAbsentError
    from analyzer.executed import executed_counts
    from dashboard.listing import make_listing

    if not path.exists():
        raise DataAbsentError(path, "holds no compiled program", "Open a capture made by compile or record.")
    opened = open_capture(path)
    program = opened.read_kernel()
    executed, note = executed_counts(opened, program)
    return make_listing(program, executed, note or "", loops)


def _read_allocations(path: Path) -> list[tuple[str, str, int]]:
    from analyzer.capture import open_capture
    from analyzer.errors import MegascopeError
    from dashboard.memory import allocations

    try:
        program = open_capture(path).kernel_program()
    except (MegascopeError, OSError):
        return []
    return allocations(program.companions.get("vmem_report"), program.name)
