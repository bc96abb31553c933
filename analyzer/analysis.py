"""From a capture to everything that is known about it: simulate, fold, look for faults, keep the result.

`analyze` is what reports, the dashboard and `diff` call. What it works out is kept beside the capture
(analyzer/cache.py) and rebuilt when an input, the code, the machine file or the scenario changes. Nothing
heavy is imported until something has to be worked out: a report from the cache takes a fraction of a second.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analyzer import cache
from analyzer.capture import Capture, open_capture
from analyzer.errors import UsageError
from analyzer.machine import load_machine
from analyzer.options import scenario_of

if TYPE_CHECKING:
    import pandas as pd

    from analyzer.fold import Cores
    from analyzer.simulate.scenario_file import ScenarioFile
    from analyzer.view import CoreStep


@dataclass(slots=True, eq=False)
class Analysis:
    """The result.

    Attributes:
        report: the JSON contract.
        spans: the timeline, or the bytes it is kept as until somebody asks for it.
        more: the same for the tables "residency" and "stories"; absent where nothing can tell (a trace).
        core: the reported core: the one that ends last.
        step: the reported step: the median one where there are several.
        from_cache: whether nothing had to be worked out.
    """

    report: dict[str, Any]
    spans: "pd.DataFrame | bytes"
    core: int
    step: int
    from_cache: bool = False
    more: "dict[str, pd.DataFrame | bytes]" = field(default_factory=dict)

    @property
    def timeline(self) -> "pd.DataFrame":
        """The table of spans (analyzer/timeline.py)."""
        if isinstance(self.spans, bytes):
            from analyzer.timeline import COLUMNS

            self.spans = cache.unpack(self.spans, COLUMNS)
        return self.spans

    @property
    def residency(self) -> "pd.DataFrame":
        """What lay in VMEM from when to when (analyzer/residency.py); empty where nothing can tell."""
        from analyzer import residency

        return self._table("residency", residency.COLUMNS, residency.table)

    @property
    def stories(self) -> "pd.DataFrame":
        """Every exposed wait with its cause chain (analyzer/stories.py); empty where nothing can tell."""
        from analyzer import stories

        return self._table("stories", stories.COLUMNS, stories.table)

    def _table(
        self, name: str, columns: Mapping[str, str], make: "Callable[[list[dict[str, Any]]], pd.DataFrame]"
    ) -> "pd.DataFrame":
        found = self.more.get(name)
        if found is None:
            found = make([])
        elif isinstance(found, bytes):
            found = cache.unpack(found, columns)
        self.more[name] = found
        return found

    def core_step(self, core: int | None = None, step: int | None = None) -> "CoreStep":
        """One core in one step; by default the reported ones."""
        from analyzer import view

        return view.core_step(
            self.timeline, self.core if core is None else core, self.step if step is None else step
        )

    @property
    def notes(self) -> list[str]:
        """What the reader must know."""
        return list(self.report["notes"])


def analyze(
    capture: Capture | Path | str,
    *,
    chip: str | None = None,
    overrides: Mapping[str, str] | None = None,
    scenario: Mapping[str, str] | None = None,
    scenario_file: Path | None = None,
    cores: "Cores" = "auto",
    without: Sequence[str] = (),
    use_cache: bool = True,
) -> Analysis:
    """Everything about a capture.

    Args:
        capture: an open capture, or the path of one, of a dump folder or of a bundles file.
        chip: chip, where the capture does not say.
        overrides: parameters of the machine model to change, `{"hbm.bandwidth": "x2"}`.
        scenario: values for what the program reads at run time, passed on to the simulator.
        scenario_file: the same from a file (analyzer/simulate/scenario_file.py); `scenario` goes over it.
        cores: "all" simulates and shows every core; "auto" leaves it to the simulator.
        without: phases that take no time and move nothing, as a what-if.
        use_cache: False works everything out anew (and still keeps the result).

    Raises:
        InputError: the capture or the scenario file cannot be read.
        UnsupportedProgramError: the program cannot be executed exactly.
        UsageError: the chip is unknown and none was given, or an override names no parameter.
    """
    opened = capture if isinstance(capture, Capture) else open_capture(capture, chip=chip)
    if opened.trace is not None:
        if overrides or scenario or scenario_file or without:
            raise UsageError(
                opened.path,
                "is a trace, and what was measured does not change with a what-if or a scenario",
                "Point at the bundles, or name them with --program.",
            )
        return _measured(opened, use_cache)
    name = chip or opened.manifest.get("chip")
    if name is None:
        raise UsageError(
            opened.path, "does not say which chip it was compiled for", "Give one: --chip tpu7x."
        )
    machine = load_machine(str(name)).with_overrides(dict(overrides or {}))
    wanted = scenario_of(scenario or {})
    file = _read(scenario_file)
    words = {"--cores": cores, "--scenario": f"{scenario_file} {file}", "--without": repr(sorted(without))}
    key = cache.key_of(opened, machine, {**(scenario or {}), **words})
    variant = bool(overrides or scenario or scenario_file or without) or cores != "auto"
    store = cache.Store(opened, key, variant=variant)
    if use_cache:
        found = store.load()
        if found is not None:
            return _kept(*found)
    from analyzer import fold

    timeline, facts, program = fold.model(opened, machine, wanted, file=file, cores=cores, without=without)
    report, core, step = fold.build(timeline, facts, opened, machine, program)
    report["notes"] += [f"what-if: without {phase}" for phase in without]
    report["scenario"] |= {"file": None, "cores": [], "delayed_cores": []}
    if file is not None:
        own, late = sorted(file.cores), sorted(file.delays_ps)
        report["scenario"] |= {"file": str(scenario_file), "cores": own, "delayed_cores": late}
        report["notes"].append(_of_file(str(scenario_file), own, late))
    more = {name: frame for name, frame in facts.tables().items() if frame is not None}
    trouble = store.save(report, {"timeline": timeline, **more})
    if trouble:
        report["notes"].append(trouble)
    return Analysis(report, timeline, core, step, more=dict(more))


def _read(path: Path | None) -> "ScenarioFile | None":
    if path is None:
        return None
    from analyzer.simulate.scenario_file import read_scenario

    return read_scenario(path)


def _of_file(name: str, own: list[int], late: list[int]) -> str:
    """What a scenario file brought, in words."""
    parts = [f"values of their own for {len(own)} cores"] if own else []
    parts += [f"core {', '.join(map(str, late))} delayed"] if late else []
    return f"scenario file {name}" + (f": {'; '.join(parts)}" if parts else "")


def _kept(report: dict[str, Any], tables: dict[str, bytes]) -> Analysis:
    """The result that the cache holds."""
    reported = report["reported"]
    more = {name: table for name, table in tables.items() if name != "timeline"}
    return Analysis(
        report, tables["timeline"], reported["core"], reported["step"], from_cache=True, more=dict(more)
    )


def _measured(opened: Capture, use_cache: bool) -> Analysis:
    """The same for a profiler's trace; what-ifs and scenarios do not touch what was measured."""
    assert opened.trace is not None
    store = cache.Store(opened, cache.key_of_trace(opened), variant=False)
    found = store.load() if use_cache else None
    if found is not None:
        return _kept(*found)
    from analyzer.measured.analyze import measure

    result = measure(opened.trace, opened)
    trouble = store.save(result.report, {"timeline": result.timeline})
    if trouble:
        result.report["notes"].append(trouble)
    return Analysis(result.report, result.timeline, result.core, result.step)
