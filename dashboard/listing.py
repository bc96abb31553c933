"""The program of a capture as rows: address, units in use, instructions, source; pure functions over it."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dashboard import text
from dashboard.palette import Theme
from dashboard.panels import FONT

if TYPE_CHECKING:
    from analyzer.llo.file_program import FileProgram

UNITS = ("MXU", "XLU", "VALU", "VPOP", "EUP", "VLOAD", "VSTORE", "SALU")
PAGE = 48  # bundles in one listing
SOURCE_BYTES = 2 << 20
_LOCATION = re.compile(r"\s*/\* loc\([^*]*\) \*/")  # shown in a column of its own


@dataclass(frozen=True, slots=True)
class Listing:
    """A program ready to list.

    Attributes:
        program: the reader's result.
        used: float32[bundles, units], share of each unit's capacity in use, 0 to 1.
        executed: how often each bundle ran, or None if unknown; note: what that rests on, or why it is not.
        trips: (first, last bundle) of a loop -> its entry in the report (entries, iterations, time_ps ...).
    """

    program: "FileProgram"
    used: np.ndarray
    executed: np.ndarray | None
    note: str = ""
    trips: dict[tuple[int, int], dict[str, Any]] = field(default_factory=dict)


def make_listing(
    program: "FileProgram",
    executed: np.ndarray | None = None,
    note: str = "",
    loops: list[dict[str, Any]] | None = None,
) -> Listing:
    """Work out what each bundle uses; `loops` as the report has them."""
    from analyzer.llo.occupancy import CAPACITY, COLUMNS, occupancy

    capacity = CAPACITY.get(program.generation or 7, CAPACITY[7])
    table = occupancy(program)
    columns = [COLUMNS.index(u) for u in UNITS]
    used = table[:, columns] / np.array([capacity[c] for c in columns], np.float32)
    trips = {(int(x["bundles"][0]), int(x["bundles"][1])): x for x in loops or []}
    return Listing(program, np.clip(used, 0, 1).astype(np.float32), executed, note, trips)


def rows(listing: Listing, start: int, count: int = PAGE) -> list[dict[str, Any]]:
    """Bundles [start, start + count): number, unit use, instructions, sources, times run, loop depth."""
    program = listing.program
    out = []
    for bundle in range(max(0, start), min(program.bundle_count, start + count)):
        instructions = program.bundle(bundle)
        sources = list(dict.fromkeys(str(s) for i in instructions for s in i.sources[:1]))
        depth = max((x.depth for x in program.loops if x.start <= bundle <= x.end), default=0)
        out.append(
            {
                "bundle": bundle,
                "used": listing.used[bundle].tolist(),
                "instructions": [text.shorten(_LOCATION.sub("", i.text), 220) for i in instructions],
                "sources": sources,
                "executed": None if listing.executed is None else int(listing.executed[bundle]),
                "depth": depth,
            }
        )
    return out


def parse_bundle(words: object, total: int) -> int | None:
    """A bundle number typed as `0x1a2` or `418`, or None if it is not one of the program's."""
    found = re.fullmatch(r"\s*(?:0[xX]([0-9a-fA-F]{1,8})|(\d{1,9}))\s*", str(words or ""))
    if not found:
        return None
    number = int(found.group(1), 16) if found.group(1) else int(found.group(2))
    return number if number < total else None


def loops(listing: Listing) -> list[tuple[str, int]]:
    """(words, first bundle) of every loop in the program's order, inner ones indented, with its trips."""
    out = []
    for loop in sorted(listing.program.loops, key=lambda x: (x.start, -x.end)):
        words = f"{'· ' * (loop.depth - 1)}loop {loop.start:#x}-{loop.end:#x}"
        facts = listing.trips.get((loop.start, loop.end))
        if facts is not None:
            words += f", {_trips(facts)}"
        elif listing.executed is not None:
            words += f", latch ran {int(listing.executed[loop.latch]):,} times"
        out.append((words, loop.start))
    return out


def _trips(facts: dict[str, Any]) -> str:
    entries, iterations = int(facts["entries"]), int(facts["iterations"])
    if entries == 0:
        return "never entered"
    each = f"{iterations / entries:,.1f}".removesuffix(".0")
    return f"{each} trips" if entries == 1 else f"{entries:,} × {each} trips"


def loop_rows(listing: Listing, limit: int = 40) -> list[dict[str, Any]]:
    """Loops, the longest first, as texts: bundles, trips, ran (bundles executed), time, source, path.

    `start` is the first bundle.
    """
    found = sorted(listing.trips.items(), key=lambda x: (-(x[1].get("time_ps") or 0), x[0]))
    return [
        {
            "bundles": f"{first:#x}-{last:#x}",
            "trips": _trips(facts),
            "ran": f"{int(facts['executed_bundles']):,}",
            "time": text.duration(facts.get("time_ps")),
            "source": text.shorten(str(facts.get("source") or text.UNKNOWN).rsplit("/", 1)[-1], 40),
            "path": text.shorten(facts.get("source") or "", 300),
            "start": first,
        }
        for (first, last), facts in found[:limit]
    ]


def map_spec(listing: Listing, start: int, theme: Theme, columns: int = 480) -> dict[str, Any]:
    """Mean use of every unit along the program, at most `columns` cells wide; the listed range framed."""
    total = listing.program.bundle_count
    edges = np.unique(np.linspace(0, total, min(columns, total) + 1).astype(int))
    z = np.add.reduceat(listing.used, edges[:-1], axis=0).T / np.diff(edges)
    scale = [[0, theme.heat[0]], [0.5, theme.heat[1]], [1, theme.heat[2]]]
    axis = {"fixedrange": True, "showgrid": False, "zeroline": False}
    frame = {
        "type": "rect",
        "x0": start,
        "x1": min(total, start + PAGE),
        "y0": 0,
        "y1": 1,
        "yref": "paper",
        "line": {"color": theme.colours["bubble"], "width": 2},
    }
    step = 1 << max(0, (total // 8).bit_length() - 1)
    marks = list(range(0, total, max(1, step)))
    middle = (edges[:-1] + edges[1:]) / 2
    hover = [
        [f"{unit}: {100 * value:.0f} % used<br>bundles {a:#x}-{b - 1:#x}" for value, a, b in zip(
            line, edges[:-1].tolist(), edges[1:].tolist(), strict=True)]
        for unit, line in zip(UNITS, z, strict=True)
    ]  # fmt: skip
    ran, ran_axis, domain = _executions(listing, edges, theme)
    return {
        "data": [
            *ran,
            {
                "type": "heatmap",
                "x": middle,
                "y": list(UNITS),
                "z": z,
                "zmin": 0,
                "zmax": 1,
                "text": hover,
                "hoverinfo": "text",
                "colorscale": scale,
                "colorbar": {
                    "title": {"text": "used", "side": "right"},
                    "thickness": 10,
                    "tickformat": ".0%",
                    "outlinewidth": 0,
                },
            },
        ],
        "layout": {
            "paper_bgcolor": theme.paper,
            "plot_bgcolor": theme.paper,
            "font": {"family": FONT, "size": 11, "color": theme.text},
            "margin": {"l": 8, "r": 8, "t": 4, "b": 38},
            "dragmode": False,
            "shapes": [frame],
            "xaxis": {
                **axis,
                "title": {"text": "bundle", "standoff": 2},
                "range": [0, total],
                "tickvals": marks,
                "ticktext": [f"{m:#x}" for m in marks],
            },
            "yaxis": {
                **axis,
                "autorange": "reversed",
                "automargin": True,
                "ticks": "",
                "ticklabelstandoff": 4,
                "domain": domain,
            },
            **ran_axis,
            "hoverlabel": {"bgcolor": theme.panel, "font": {"color": theme.text}, "align": "left"},
        },
    }


def _executions(
    listing: Listing, edges: np.ndarray, theme: Theme
) -> tuple[list[dict[str, Any]], dict[str, Any], list[float]]:
    """(curve of how often bundles ran, its axis, room left for the map): nothing where that is unknown."""
    if listing.executed is None:
        return [], {}, [0.0, 1.0]
    most = np.maximum.reduceat(listing.executed, edges[:-1])
    label = [
        f"ran {count:,} times{' at most' if b - a > 1 else ''}<br>bundles {a:#x}-{b - 1:#x}"
        for count, a, b in zip(most.tolist(), edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    ]
    curve = {
        "type": "bar",
        "x": (edges[:-1] + edges[1:]) / 2,
        "width": np.diff(edges).astype(np.float64),
        "y": most.astype(np.float64),
        "yaxis": "y2",
        "marker": {"color": theme.colours["wait"], "line": {"width": 0}},
        "hovertext": label,
        "hoverinfo": "text",
        "showlegend": False,
    }
    top = max(1.0, float(np.log10(max(1, int(most.max()))))) * 1.05
    decades = [10.0**k for k in range(int(top) + 1)]
    axis = {
        "domain": [0.74, 1.0], "type": "log", "range": [-0.3, top], "fixedrange": True, "zeroline": False,
        "gridcolor": theme.grid, "tickvals": decades, "ticktext": [f"{d:,.0f}×" for d in decades],
        "title": {"text": "ran", "standoff": 2},
    }  # fmt: skip
    return [curve], {"yaxis2": axis, "bargap": 0}, [0.0, 0.68]


def source_lines(place: str, around: int = 4) -> list[tuple[int, str, bool]] | None:
    """(number, line, is the one) of a Python file around `file:line`; None if it is not there or not Python.

    A capture made elsewhere names files as it likes, so only readable, not too large `.py` files are shown.
    """
    file, _, number = place.rpartition(":")
    if not file.endswith(".py") or not number.isdigit():
        return None
    path = Path(file)
    try:
        if not path.is_file() or path.stat().st_size > SOURCE_BYTES:
            return None
        lines = path.read_text("utf-8", "replace").splitlines()
    except (OSError, ValueError):
        return None
    wanted = int(number)
    if not 1 <= wanted <= len(lines):
        return None
    first, last = max(1, wanted - around), min(len(lines), wanted + around)
    return [(n, lines[n - 1].replace("\t", "    ")[:160], n == wanted) for n in range(first, last + 1)]
