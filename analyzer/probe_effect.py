"""What instrumentation costs: one kernel compiled at two levels, counted side by side.

Region markers are edges for the compiler's scheduler, so an instrumented program is another program.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from analyzer.capture import Capture, open_capture
from analyzer.errors import MegascopeError

_SPILL = re.compile(rb"\[(smem|vmem):\[#allocation\d+_spill")


@dataclass(frozen=True, slots=True)
class Counts:
    """One program in numbers.

    Attributes:
        bundles: Bundles printed (counted).
        loops: Bundles in each loop, in program order; an inner loop's count in its outer one's too (counted).
        loop_bundles: Bundles that are in any loop (counted).
        vector_spills: Stores to and loads from spill slots in VMEM (counted).
        scalar_spills: The same in SMEM (counted).
        executed_bundles: Bundles executed in a step; None where the program could not be simulated.
        time_ps: Time of a step (modelled); None where it could not be simulated.
        not_modelled: Why the last two are None.
    """

    bundles: int
    loops: tuple[int, ...]
    loop_bundles: int
    vector_spills: int
    scalar_spills: int
    executed_bundles: int | None = None
    time_ps: int | None = None
    not_modelled: str | None = None


def count(capture: Capture) -> Counts:
    """Count one capture's kernel, and simulate it where that is possible.

    Raises:
        InputError: the bundles cannot be read.
    """
    program = capture.read_kernel()
    spills = _SPILL.findall(capture.kernel_program().bundles.read_bytes())
    executed, time, why = _modelled(capture)
    return Counts(
        bundles=program.bundle_count,
        loops=tuple(loop.end - loop.start + 1 for loop in sorted(program.loops, key=lambda x: x.start)),
        loop_bundles=len({b for loop in program.loops for b in range(loop.start, loop.end + 1)}),
        vector_spills=spills.count(b"vmem"),
        scalar_spills=spills.count(b"smem"),
        executed_bundles=executed,
        time_ps=time,
        not_modelled=why,
    )


def compare(captures: Mapping[str, Path]) -> dict[str, Any]:
    """Counts of the captures by level, JSON values, as a manifest keeps them under `probe_effect`."""
    return {level: asdict(count(open_capture(path))) for level, path in captures.items()}


def table(counts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The difference that `regions` makes against `off`, as lines of text."""
    off, on = counts["off"], counts["regions"]
    rows = [
        ("bundles (counted)", off["bundles"], on["bundles"]),
        ("in loops (counted)", off["loop_bundles"], on["loop_bundles"]),
        ("loops (counted)", len(off["loops"]), len(on["loops"])),
        ("vector spills (counted)", off["vector_spills"], on["vector_spills"]),
        ("scalar spills (counted)", off["scalar_spills"], on["scalar_spills"]),
        ("executed bundles (counted)", off["executed_bundles"], on["executed_bundles"]),
        ("step, us (modelled)", _us(off["time_ps"]), _us(on["time_ps"])),
    ]
    lines = [f"{'probe effect':28}{'off':>14}{'regions':>14}{'difference':>22}"]
    for title, before, after in rows:
        lines.append(f"{title:28}{_text(before):>14}{_text(after):>14}{_difference(before, after):>22}")
    for level in ("off", "regions"):
        if counts[level]["not_modelled"]:
            lines.append(f"not modelled at level {level}: {counts[level]['not_modelled']}")
    return lines


def _modelled(capture: Capture) -> tuple[int | None, int | None, str | None]:
    """Executed bundles and step time by the simulator, or why there are none."""
    try:
        from analyzer.analysis import analyze

        step = analyze(capture).report["step"]
    except MegascopeError as error:
        return None, None, str(error)
    except Exception as error:  # the compile it belongs to is sound and must not be lost
        return None, None, f"internal error: {type(error).__name__}: {error}"
    return step["executed_bundles"], step["time_ps"], None


def _us(time_ps: int | None) -> float | None:
    return None if time_ps is None else time_ps / 1e6


def _text(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.2f}" if isinstance(value, float) else f"{value:,}"


def _difference(before: float | None, after: float | None) -> str:
    if before is None or after is None:
        return "unknown"
    change = after - before
    text = f"{change:+,.2f}" if isinstance(change, float) else f"{change:+,}"
    return f"{text} ({change / before:+.1%})" if before else text
