"""One HTML file with the timeline of a capture: plotly.js inside, nothing loaded from anywhere.

A file has no server to ask for finer detail, so it carries the step at several zoom levels: the whole step
and each layer. The page draws the smallest one that contains what is visible.
"""

import html
import json
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dashboard import text
from dashboard.bubbles import bubble_rows
from dashboard.figures import LEGEND, shape_count, step_spec
from dashboard.index import TimelineIndex
from dashboard.loading import Loaded, from_analysis
from dashboard.palette import DARK, LIGHT
from dashboard.wire import wire

if TYPE_CHECKING:
    from analyzer.analysis import Analysis

WHOLE_SHAPES = 5000
LAYER_SHAPES = 40_000  # over all layers together
HIDDEN = frozenset(("scalar",))
_FACTS = (
    ("step", ("step", "time_ps"), text.duration),
    ("HBM utilization", ("hbm", "utilization"), text.percent),
    ("HBM read", ("hbm", "read_bytes"), text.size),
    ("overlap", ("hbm", "overlap"), text.percent),
    ("exposed wait", ("hbm", "exposed_wait_ps"), text.duration),
    ("HBM bubbles", ("hbm", "bubble_ps"), text.duration),
)


def report_html(path: Path, analysis: "Analysis") -> str:
    """The page of a capture already analyzed: what `megascope report --format html` writes."""
    return render_html(from_analysis(path, analysis))


def levels(loaded: Loaded, core: int | None = None) -> list[dict[str, Any]]:
    """What the file can show: windows in microseconds, each with its traces and layout, coarsest first."""
    index = loaded.index(core)
    windows: list[tuple[int, int] | None] = [None]
    if len(index.layers) > 1:
        for band in index.layers:
            room = (band.end - band.start) // 4
            windows.append((max(index.start, band.start - room), min(index.end, band.end + room)))
    each = max(200, min(3000, LAYER_SHAPES // max(1, len(windows) - 1)))
    out = []
    for window in windows:
        view = loaded.view(LIGHT, window, max_shapes=each if window else WHOLE_SHAPES, hidden=HIDDEN)
        spec = step_spec(index, view, loaded.bubbles(index.core))
        low, high = spec["layout"]["xaxis"]["range"]
        out.append({"from": low, "to": high, "marks": shape_count(spec["data"]), **wire(spec)})
    return out


def render_html(loaded: Loaded, core: int | None = None) -> str:
    """The page as text."""
    index = loaded.index(core)
    data = {"levels": levels(loaded, core), "colours": _colour_pairs()}
    parts = {
        "TITLE": html.escape(text.shorten(loaded.title, 80)),
        "STYLE": asset("style.css"),
        "PLOTLY": plotly(),
        "SCRIPT": _asset_text("export.js"),
        "PROVENANCE": html.escape(loaded.provenance),
        "MACHINE": html.escape(_machine(loaded)),
        "FACTS": _facts(loaded),
        "LEGEND": _legend(index),
        "NOTES": _notes(loaded),
        "LAYERS": _layers(index),
        "BUBBLES": _bubbles(loaded, index.core),
        "FINDINGS": _findings(loaded),
        "DATA": json_text(data),
    }
    page = _asset_text("export.html")
    head, *rest = page.split("{{")
    out = [head]
    for piece in rest:
        name, _, tail = piece.partition("}}")
        out += [parts[name], tail]
    return "".join(out)


def json_text(data: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def plotly() -> str:
    """The text of plotly.js."""
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())


def _asset_text(name: str) -> str:
    return (files("dashboard") / "templates" / name).read_text(encoding="utf-8")


def asset(name: str) -> str:
    """The text of one of the files that the pages load."""
    return (files("dashboard") / "assets" / name).read_text(encoding="utf-8")


def _colour_pairs() -> list[tuple[str, str]]:
    """Light colour -> dark colour, for switching figures that were drawn light."""
    pairs = [(LIGHT.paper, DARK.paper), (LIGHT.panel, DARK.panel), (LIGHT.text, DARK.text)]
    pairs += [(LIGHT.muted, DARK.muted), (LIGHT.grid, DARK.grid)]
    pairs += [(LIGHT.colours[k], DARK.colours[k]) for k in LIGHT.colours]
    pairs += list(zip(LIGHT.bands, DARK.bands, strict=True))
    return sorted(set(pairs))


def _machine(loaded: Loaded) -> str:
    chip = text.shorten(loaded.fact("capture", "chip") or "chip unknown", 40)
    return f"{chip}, {text.count(loaded.fact('capture', 'cores'), 'core')}"


def _facts(loaded: Loaded) -> str:
    return "".join(
        f'<div class="fact"><span class="fact-label">{label}</span>'
        f'<span class="fact-value">{html.escape(show(loaded.fact(*path)))}</span></div>'
        for label, path, show in _FACTS
    )


def _legend(index: TimelineIndex) -> str:
    present = {lane.colour for lane in index.lanes}
    keys = [(k, v) for k, v in LEGEND.items() if k in present and k not in HIDDEN] + [
        ("bubble", "HBM bubble")
    ]
    return "".join(
        f'<span class="legend-item"><span class="swatch swatch-{key}"></span>{label}</span>'
        for key, label in keys
    )


def _layers(index: TimelineIndex) -> str:
    return "".join(
        f'<option value="{band.start / 1e6}:{band.end / 1e6}">{html.escape(band.label)}</option>'
        for band in index.layers
    )


def _notes(loaded: Loaded) -> str:
    notes = loaded.fact("notes") or []
    return "".join(f"<li>{html.escape(text.shorten(note, 400))}</li>" for note in notes)


def _bubbles(loaded: Loaded, core: int) -> str:
    rows = bubble_rows(loaded.bubbles(core), core, 40, loaded.fact("step", "time_ps"))
    names = ("start", "duration", "share", "layer", "phase", "cause", "source", "bundles")
    out = []
    for row in rows:
        window = ":".join(str(t / 1e6) for t in row["window"])
        cells = "".join(f'<td class="cell-{name}">{html.escape(row[name])}</td>' for name in names[1:])
        button = f'<button class="row-button" data-window="{window}">{html.escape(row["start"])}</button>'
        out.append(f'<tr class="bubble-row" data-window="{window}"><td>{button}</td>{cells}</tr>')
    return "".join(out) or _empty(8, loaded.bubbles_unknown or "none found")


def _findings(loaded: Loaded) -> str:
    out = []
    for finding in loaded.fact("findings") or []:
        saving = finding.get("saving_ps")
        cells = (
            str(finding.get("id") or ""),
            text.shorten(finding.get("title") or "", 200),
            text.duration(finding.get("time_ps")),
            text.duration(saving),
            str(finding.get("confidence") or text.UNKNOWN),
            text.place(finding.get("source") or text.UNKNOWN),
        )
        out.append("<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in cells) + "</tr>")
    return "".join(out) or _empty(6, loaded.findings_unknown or "none found")


def _empty(columns: int, why: str) -> str:
    return f'<tr><td colspan="{columns}">{html.escape(why)}</td></tr>'
