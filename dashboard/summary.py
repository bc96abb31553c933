"""Figures of the overview: how much of the bandwidth was used, where the step went, phase by layer."""

from typing import Any

import numpy as np

from dashboard import text
from dashboard.index import Band
from dashboard.marks import INK, MICROSECOND
from dashboard.palette import Theme
from dashboard.panels import FONT

# key of report["step"]["critical_path"] -> (words, colour key), in the order drawn.
PARTS: tuple[tuple[str, str, str], ...] = (
    ("hbm_bytes_ps", "HBM bytes", "transfer"),
    ("dma_latency_ps", "copy latency", "write"),
    ("matrix_work_ps", "matrix work", "matrix"),
    ("other_work_ps", "other work", "vector"),
    ("collectives_ps", "collectives", "collective"),
    ("semaphores_ps", "semaphores", "scalar"),
    ("unexplained_waits_ps", "unexplained waits", "bubble"),
    ("outside_the_program_ps", "outside the program", "wait"),
)
METRICS: dict[str, tuple[str, str]] = {
    "time": ("time", "µs"),
    "bandwidth": ("HBM read", "GB/s"),
    "stalled": ("stalled", "% of the phase"),
}


def _layout(theme: Theme, **more: Any) -> dict[str, Any]:
    return {
        "paper_bgcolor": theme.paper,
        "plot_bgcolor": theme.paper,
        "font": {"family": FONT, "size": 12, "color": theme.text},
        "hoverlabel": {
            "bgcolor": theme.panel,
            "font": {"color": theme.text},
            "align": "left",
            "namelength": -1,
        },
        "showlegend": False,
        "dragmode": False,
        **more,
    }


def gauge_spec(report: dict[str, Any], theme: Theme) -> dict[str, Any]:
    """Mean HBM bandwidth of the step against what the chip can do, in GB/s."""
    hbm = report.get("hbm") or {}
    peak, reachable, used = (
        hbm.get("peak_bytes_per_s"),
        hbm.get("achievable_bytes_per_s"),
        hbm.get("utilization"),
    )
    if not peak or used is None:
        return words_spec("HBM utilization is unknown for this capture", theme)
    mean = used * peak
    bars = [("peak", peak, theme.bands[0], 0.9)]
    if reachable:
        bars.append(("achievable", reachable, theme.bands[1], 0.9))
    bars.append(("mean of the step", mean, theme.colours["transfer"], 0.5))
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "x": [value / 1e9],
            "y": ["HBM"],
            "width": width,
            "marker": {"color": colour},
            "hovertemplate": f"{name}: %{{x:,.0f}} GB/s<extra></extra>",
            "name": name,
        }
        for name, value, colour, width in bars
    ]
    notes = [
        {
            "x": value / 1e9,
            "y": 1.0,
            "yref": "paper",
            "text": f"{name}<br>{value / 1e9:,.0f}",
            "xanchor": side,
        }
        for name, value, side in (("achievable", reachable, "right"), ("peak", peak, "left"))
        if value
    ]
    style = {"showarrow": False, "yanchor": "bottom", "font": {"size": 11, "color": theme.muted}}
    return {
        "data": data,
        "layout": _layout(
            theme,
            barmode="overlay",
            annotations=[{**note, **style} for note in notes],
            margin={"l": 8, "r": 56, "t": 34, "b": 40},
            yaxis={"visible": False, "fixedrange": True},
            xaxis={
                "title": {"text": "HBM bandwidth of one core (GB/s)"},
                "range": [0, peak / 1e9],
                "fixedrange": True,
                "gridcolor": theme.grid,
                "tickformat": ",",
            },
        ),
    }


def parts_spec(report: dict[str, Any], theme: Theme) -> dict[str, Any]:
    """The critical path of the step as one stacked bar, in µs."""
    step = report.get("step") or {}
    parts = step.get("critical_path") or {}
    known = [(words, int(parts[key]), colour) for key, words, colour in PARTS if parts.get(key)]
    if not known:
        return words_spec("The critical path of this capture is unknown", theme)
    total = sum(value for _, value, _ in known)
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": words,
            "x": [value / MICROSECOND],
            "y": ["step"],
            "marker": {"color": theme.colours[colour], "line": {"width": 1, "color": theme.paper}},
            "text": [f"{words}<br>{100 * value / total:.0f} %" if value > 0.14 * total else ""],
            "textposition": "inside",
            "insidetextanchor": "middle",
            "constraintext": "none",
            "textangle": 0,
            "textfont": {"color": INK[colour]},
            "hovertemplate": f"{words}: {text.duration(value)}, {100 * value / total:.1f} %<extra></extra>",
        }
        for words, value, colour in known
    ]
    return {
        "data": data,
        "layout": _layout(
            theme,
            barmode="stack",
            showlegend=True,
            legend={
                "orientation": "h",
                "yref": "container",
                "y": 0,
                "yanchor": "bottom",
                "x": 0,
                "traceorder": "normal",
                "font": {"size": 11},
            },
            margin={"l": 8, "r": 16, "t": 4, "b": 62},
            yaxis={"visible": False, "fixedrange": True},
            xaxis={
                "ticksuffix": " µs",
                "nticks": 6,
                "range": [0, total / MICROSECOND],
                "fixedrange": True,
                "gridcolor": theme.grid,
                "tickformat": ",",
            },
        ),
    }


def cells(report: dict[str, Any], bands: tuple[Band, ...]) -> tuple[list[dict[str, Any]], str]:
    """(one entry per phase and column, title of the columns) of the heat map.

    Columns are layers where the capture names them; otherwise the successive runs of each phase, of which
    only the time is known. Each entry: phase, column, time_ps, read_bytes, stalled_ps (None if unknown) and
    `window`, the first stretch of the step it covers.
    """
    first: dict[tuple[int | None, str], tuple[int, int]] = {}
    for band in bands:
        first.setdefault((band.layer, band.label), (band.start, band.end))
    phases = report.get("phases") or []
    if any(p.get("layer") is not None for p in phases):
        return [
            {
                "phase": text.shorten(p["phase"], 40) or "no phase",
                "column": p["layer"],
                "time_ps": p["time_ps"],
                "read_bytes": p.get("read_bytes"),
                "stalled_ps": (p.get("stalled_dma_ps") or 0) + (p.get("stalled_ici_ps") or 0),
                "window": first.get((p["layer"], text.shorten(p["phase"]))),
            }
            for p in phases
            if p.get("layer") is not None
        ], "layer"
    seen: dict[str, int] = {}
    out = []
    for band in bands:
        number = seen.get(band.label, 0)
        seen[band.label] = number + 1
        out.append(
            {
                "phase": text.shorten(band.label, 40),
                "column": number,
                "time_ps": band.end - band.start,
                "read_bytes": None,
                "stalled_ps": None,
                "window": (band.start, band.end),
            }
        )
    return out, "run of the phase"


def _value(cell: dict[str, Any], metric: str) -> float:
    time, size, stalled = cell["time_ps"], cell["read_bytes"], cell["stalled_ps"]
    if metric == "time":
        return float(time / MICROSECOND)
    if metric == "bandwidth":
        return float(size / (time * 1e-12) / 1e9) if time and size is not None else np.nan
    return float(100 * stalled / time) if time and stalled is not None else np.nan


def heat_spec(found: list[dict[str, Any]], columns_title: str, metric: str, theme: Theme) -> dict[str, Any]:
    """Phases (rows, in order of appearance) by layers (columns), coloured by `metric` of `METRICS`."""
    if not found:
        return words_spec("This capture names no phases (hooks off), so there is no map of them", theme)
    rows = list(dict.fromkeys(c["phase"] for c in found))
    columns = sorted({c["column"] for c in found})
    where = {value: i for i, value in enumerate(columns)}
    z = np.full((len(rows), len(columns)), np.nan)
    hover = [["" for _ in columns] for _ in rows]
    windows: list[list[str]] = [["" for _ in columns] for _ in rows]
    title, unit = METRICS[metric]
    for cell in found:
        i, j = rows.index(cell["phase"]), where[cell["column"]]
        z[i, j] = _value(cell, metric)
        lines = [f"<b>{text.plain(cell['phase'])}</b>, {columns_title} {cell['column']}"]
        lines.append(text.duration(cell["time_ps"]))
        if cell["read_bytes"] is not None:
            lines.append(f"HBM read {text.size(cell['read_bytes'])}, {_value(cell, 'bandwidth'):,.0f} GB/s")
        if cell["stalled_ps"] is not None:
            lines.append(f"stalled {text.duration(cell['stalled_ps'])}")
        hover[i][j] = "<br>".join(lines)
        if cell["window"]:
            windows[i][j] = f"{cell['window'][0]}:{cell['window'][1]}"
    if np.isnan(z).all():
        return words_spec(f"{title} by phase is unknown where layers are not named", theme)
    scale = [[0, theme.heat[0]], [0.5, theme.heat[1]], [1, theme.heat[2]]]
    axis = {"fixedrange": True, "showgrid": False, "zeroline": False}
    return {
        "data": [
            {
                "type": "heatmap",
                "z": z,
                "x": [str(c) for c in columns],
                "y": [text.plain(r, 28) for r in rows],
                "text": hover,
                "customdata": windows,
                "hoverinfo": "text",
                "colorscale": scale,
                "zmin": 0,
                "zmax": float(np.nanmax(z)) or 1.0,
                "xgap": 1,
                "ygap": 1,
                "colorbar": {"title": {"text": unit, "side": "right"}, "thickness": 12, "outlinewidth": 0},
            }
        ],
        "layout": _layout(
            theme,
            margin={"l": 8, "r": 8, "t": 6, "b": 42},
            xaxis={**axis, "title": {"text": columns_title, "standoff": 4}, "type": "category", "nticks": 24},
            yaxis={
                **axis,
                "autorange": "reversed",
                "automargin": True,
                "type": "category",
                "ticklabelstandoff": 4,
            },
        ),
    }


def words_spec(message: str, theme: Theme) -> dict[str, Any]:
    """An empty figure that says why it is empty."""
    where = {"xref": "paper", "yref": "paper", "x": 0.5, "y": 0.5}
    note = {"text": text.plain(message, 300), "showarrow": False, "font": {"size": 13, "color": theme.muted}}
    return {
        "data": [],
        "layout": _layout(
            theme, xaxis={"visible": False}, yaxis={"visible": False}, annotations=[{**note, **where}]
        ),
    }
