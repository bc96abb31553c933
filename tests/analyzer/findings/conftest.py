"""The planted kernels, compiled once per session in two processes, and their reports."""

import importlib.util
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from compile_many import compile_many  # noqa: E402

from analyzer import analysis  # noqa: E402

# planted.py: one fault of a streaming kernel on 8 cores, and what it is compared with.
STREAM = (
    "none", "urgent", "urgent_first", "store", "store_late", "ramp", "exchange", "pieces", "barrier",
    "behind", "behind_first", "division", "bounds", "no_bounds", "twice",
    "shallow", "deep", "pause", "pause_deep", "uneven", "pushes", "pushed_once", "vector",
)  # fmt: skip
# planted_units.py: work of one core, with the fault and ("+good") without.
UNITS = (
    "convert", "transpose", "reduce", "idle_mxu", "overhead", "straight", "small", "padded", "one_mxu",
    "spills", "never", "narrow", "early", "stacked",
)  # fmt: skip
# Three faults in one kernel, and all but one of them.
THREE = ("three", "three+transpose", "three+reduce", "three+overhead")


def _options(name: str) -> dict[str, object]:
    """What the builder takes: the fault, and what to leave out."""
    fault, plus, without = name.partition("+")
    return {"fault": fault} | ({"good": True if without == "good" else without} if plus else {})


class Planted:
    """Captures and reports of the planted kernels, by name ("exchange", "convert", "convert+good")."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._made: dict[tuple, dict] = {}
        self._compiled: set[str] = set()

    def capture(self, name: str) -> Path:
        """The capture of a kernel."""
        of_units = name.partition("+")[0] in (*UNITS, "three")
        file, topology = ("planted_units", "1x1x1") if of_units else ("planted", "2x2x1")
        if file not in self._compiled:
            names = [f"{n}{g}" for n in UNITS for g in ("", "+good")] if of_units else STREAM
            names = [*names, *(THREE if of_units else ())]
            jobs = [
                {
                    "name": n,
                    "target": f"{HERE / file}.py:build",
                    "topology": topology,
                    "options": _options(n),
                }
                for n in names
            ]
            compile_many(jobs, self.folder / file)
            self._compiled.add(file)
        return self.folder / file / name

    def report(self, name: str, cores: str = "auto", **overrides: str) -> dict:
        """Its report as data."""
        key = (name, cores, *overrides.items())
        if key not in self._made:
            given = {parameter.replace("_", "."): value for parameter, value in overrides.items()}
            capture = self.capture(name)
            with pytest.MonkeyPatch.context() as patch:  # a rule that fails must not pass as silence
                patch.setenv("MEGASCOPE_DEBUG", "1")
                made = analysis.analyze(capture, overrides=given, cores=cores, use_cache=False)
            self._made[key] = made.report
        return self._made[key]


@pytest.fixture(scope="session")
def planted(tmp_path_factory):
    """The planted kernels."""
    if importlib.util.find_spec("libtpu") is None:
        pytest.skip("libtpu is not installed: nothing can be compiled for a TPU")
    return Planted(tmp_path_factory.mktemp("planted"))
