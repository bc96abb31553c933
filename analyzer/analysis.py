"""From a capture to everything that is known about it: simulate, fold, look for faults, keep the result.

`analyze` is what reports, the dashboard and `diff` call. What it works out is kept beside the capture
(analyzer/cache.py) and rebuilt when an input, the code, the machine file or the scenario changes. Nothing
heavy is imported until something has to be worked out: a report from the cache takes a fraction of a second.
"""

from collections.abc import Mapping
from dataclasses import dataclass
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
    from analyzer.view import CoreStep


@dataclass(slots=True, eq=False)
class Analysis:
    """The result.

    Attributes:
        report: the JSON contract.
        spans: the timeline, or the bytes it is kept as until somebody asks for it.
        core: the reported core: the one that ends last.
        step: the reported step: the median one where there are several.
        from_cache: whether nothing had to be worked out.
    """

    report: dict[str, Any]
    spans: "pd.DataFrame | bytes"
    core: int
    step: int
    from_cache: bool = False

    @property
    def timeline(self) -> "pd.DataFrame":
        """The table of spans (analyzer/timeline.py)."""
        if isinstance(self.spans, bytes):
            self.spans = cache.unpack(self.spans)
        return self.spans

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
    cores: "Cores" = "auto",
    use_cache: bool = True,
) -> Analysis:
    """Everything about a capture.

    Args:
        capture: an open capture, or the path of one, of a dump folder or of a bundles file.
        chip: chip, where the capture does not say.
        overrides: parameters of the machine model to change, `{"hbm.bandwidth": "x2"}`.
        scenario: values for what the program reads at run time, passed on to the simulator.
        cores: "all" simulates and shows every core; "auto" leaves it to the simulator.
        use_cache: False works everything out anew (and still keeps the result).

    Raises:
        InputError: the capture cannot be read.
        UnsupportedProgramError: the program cannot be executed exactly.
        UsageError: the chip is unknown and none was given, or an override names no parameter.
    """
    opened = capture if isinstance(capture, Capture) else open_capture(capture, chip=chip)
    if opened.trace is not None:
        if overrides or scenario:
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
    key = cache.key_of(opened, machine, {**(scenario or {}), "--cores": cores})
    store = cache.Store(opened, key, variant=bool(overrides or scenario) or cores != "auto")
    if use_cache:
        found = store.load()
        if found is not None:
            report, packed = found
            reported = report["reported"]
            return Analysis(report, packed, reported["core"], reported["step"], from_cache=True)
    from analyzer import fold

    timeline, facts, program = fold.model(opened, machine, wanted, cores=cores)
    report, core, step = fold.build(timeline, facts, opened, machine, program)
    trouble = store.save(report, timeline)
    if trouble:
        report["notes"].append(trouble)
    return Analysis(report, timeline, core, step)


def _measured(opened: Capture, use_cache: bool) -> Analysis:
    """The same for a profiler's trace; what-ifs and scenarios do not touch what was measured."""
    assert opened.trace is not None
    store = cache.Store(opened, cache.key_of_trace(opened), variant=False)
    found = store.load() if use_cache else None
    if found is not None:
        report, packed = found
        return Analysis(report, packed, report["reported"]["core"], report["reported"]["step"], True)
    from analyzer.measured.analyze import measure

    result = measure(opened.trace, opened)
    trouble = store.save(result.report, result.timeline)
    if trouble:
        result.report["notes"].append(trouble)
    return Analysis(result.report, result.timeline, result.core, result.step)
