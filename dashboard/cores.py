"""All cores of a slice side by side: a band per core with a thin lane per kind of work.

Where a kind has more spans than can be told apart, its lanes become a strip of shares (a heat map: one
picture, however many spans); where there are few enough they are drawn one by one, with bytes and source.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from dashboard import text
from dashboard.figures import fit_bands, lane_axis
from dashboard.marks import MOVING, Canvas, Slot, band_trace, bar, hover_texts, label_trace, microseconds
from dashboard.panels import View, bandwidth_axis, bandwidth_traces, base_layout, with_margin
from dashboard.relations import Row, overlay, slice_relation
from dashboard.slices import DEFAULT_KINDS, KINDS, SliceIndex, marks_of

_GAP = 0.3  # between cores, in heights of a band


def cores_spec(index: SliceIndex, view: View, kinds: tuple[str, ...] = DEFAULT_KINDS) -> dict[str, Any]:
    """The figure of all cores over one time axis, HBM bandwidth of all of them below.

    Args:
        index: the slice.
        view: window, colours, limit of shapes; `peak` and `achievable` are of one core.
        kinds: keys of `KINDS` to show.
    """
    shown = [key for key in index.kinds if key in kinds] or index.kinds
    visible = view.visible(index)
    drawn = with_margin(index, view, visible)
    height = 1.0 / max(1, len(shown))
    bands: list[tuple[str, str, Slot]] = []
    top = 0.0
    scale = max(1.0, (1 + _GAP) * len(index.cores) / 14)  # bands keep their height, however many the cores
    for key, label, found in (("layer", "Layer", index.layers), ("phase", "Phase", index.phases)):
        if found:
            bands.append((key, f"{label} (core {index.cores[0]})", Slot(top, 0.5 * scale)))
            top += 0.55 * scale
    top += 0.2 * scale
    tops = {core: top + k * (1 + _GAP) for k, core in enumerate(index.cores)}
    pixels = Canvas(view.theme, visible, drawn, max(1, (visible[1] - visible[0]) // view.columns))
    traces: list[dict[str, Any]] = []
    labels = []
    for key, _, slot in bands:
        some = fit_bands(
            index.layers if key == "layer" else index.phases,
            drawn=drawn, visible=visible, budget=view.max_shapes // 8, columns=view.columns,
        )  # fmt: skip
        part = band_trace(key, some, slot, pixels)
        traces.append(part.trace)
        labels += part.labels
    room = view.max_shapes - sum(len(t["base"]) for t in traces)
    single = _drawn_singly(index, shown, drawn, room)
    for number, key in enumerate(shown):
        make = _bars if key in single else _strip
        traces.append(make(index, view, key, {c: t + number * height for c, t in tops.items()}, height))
    traces.append(label_trace(labels))
    layout = base_layout(index, view)
    every = max(1, -(-len(index.cores) // 16))
    rows = [(slot.middle, label) for _, label, slot in bands]
    rows += [(tops[c] + 0.5, f"core {c}") for k, c in enumerate(index.cores) if k % every == 0]
    bottom = max(tops.values(), default=0.0) + 1 + _GAP / 2
    layout["yaxis"] = {**lane_axis(rows, bottom, view.theme), "domain": [0.24, 1.0]}
    layout["yaxis"]["tickfont"] = {"size": 12, "color": view.theme.text}
    whole = _of_all(view, len(index.cores))
    rate_axis, shapes, notes = bandwidth_axis(index, whole, "y2")
    rate_axis["title"] = {"text": "HBM, all (GB/s)", "standoff": 6, "font": {"size": 12}}
    layout["xaxis"]["anchor"] = "y2"
    layout["yaxis2"] = {**rate_axis, "domain": [0.0, 0.19]}
    if view.selected is not None:
        frames, arrows = _tied(index, view, shown, tops, height)
        shapes, notes = shapes + frames, notes + arrows
    layout["shapes"], layout["annotations"] = shapes, notes
    return {"data": traces + bandwidth_traces(index, whole, "y2"), "layout": layout}


def _tied(
    index: SliceIndex, view: View, shown: list[str], tops: dict[int, float], height: float
) -> tuple[list[Row], list[Row]]:
    """Frames and arrows of the chosen span, over cores: from a message's sender to the wait it ended."""
    found = slice_relation(index, view.selected) if view.selected is not None else None
    if found is None:
        return [], []

    def place(row: Row) -> tuple[float, float] | None:
        kind = next((key for key, _, tracks, _ in KINDS if row["track"] in tracks), "")
        if kind not in shown or int(row["core"]) not in tops:
            return None
        return tops[int(row["core"])] + (shown.index(kind) + 0.5) * height, height / 2

    return overlay(found, place, view.theme)


def _of_all(view: View, cores: int) -> View:
    peak, achievable = view.peak, view.achievable
    return replace(view, peak=peak and cores * peak, achievable=achievable and cores * achievable)


def _drawn_singly(index: SliceIndex, shown: list[str], drawn: tuple[int, int], room: int) -> set[str]:
    """The kinds whose spans all fit into the limit of shapes, those with the fewest spans first."""
    counts = dict.fromkeys(shown, 0)
    for (_, key), lane in index.lanes.items():
        if key in counts:
            which = lane.touching(*drawn)
            counts[key] += which.stop - which.start
    out = set()
    for key in sorted(counts, key=lambda k: counts[k]):
        room -= counts[key]
        if room < 0:
            break
        out.add(key)
    return out


def _bars(index: SliceIndex, view: View, key: str, tops: dict[int, float], height: float) -> dict[str, Any]:
    """Every span of a kind as a bar."""
    _, label, tracks, colour = next(kind for kind in KINDS if kind[0] == key)
    visible = view.visible(index)
    drawn = with_margin(index, view, visible)
    rows, top, owners = [np.empty(0, np.int64)], [np.empty(0)], []
    for core, at in tops.items():
        lane = index.lanes.get((core, key))
        if lane is not None:
            rows.append(lane.row[lane.touching(*drawn)])
            top.append(np.full(len(rows[-1]), at))
            owners += [f"core {core} · {label}"] * len(rows[-1])
    row = np.concatenate(rows)
    facts, found = index.timeline.iloc[row], marks_of(index, row)
    names = [text.shorten(n, 60) for n in facts["name"]]
    return bar(
        label,
        start=found.start,
        length=np.maximum(found.end - found.start, max(1, (visible[1] - visible[0]) // view.columns)),
        top=np.concatenate(top),
        height=np.full(len(row), height),
        hover=hover_texts(owners, any(t in MOVING for t in tracks), found, facts, names),
        marker={"color": view.theme.colours[colour]},
        customdata=facts["span"].to_numpy(np.int64),
        showlegend=False,
    )


def _strip(index: SliceIndex, view: View, key: str, tops: dict[int, float], height: float) -> dict[str, Any]:
    """Share of each column of time in which a core did a kind of work; in percent, never 0 for a little."""
    _, label, _, colour = next(kind for kind in KINDS if kind[0] == key)
    drawn = with_margin(index, view, view.visible(index))
    width = view.visible(index)[1] - view.visible(index)[0]
    columns = int(max(1, min(drawn[1] - drawn[0], view.columns * (drawn[1] - drawn[0]) / max(1, width))))
    edges = np.linspace(drawn[0], drawn[1], columns + 1)
    z = np.zeros((2 * len(tops) - 1, columns), np.uint8)  # a row of nothing between two cores
    y: list[float] = []
    names: list[str] = []
    for number, (core, top) in enumerate(tops.items()):
        y += [top, top + height]
        names += [f"core {core}", ""]
        lane = index.lanes.get((core, key))
        if lane is not None:
            share = np.diff(lane.busy(edges)) / np.diff(edges)
            z[2 * number] = np.where(share > 0, np.clip(np.rint(100 * share), 1, 100), 0)
    tint = view.theme.colours[colour]
    red, green, blue = (int(tint[i : i + 2], 16) for i in (1, 3, 5))
    fade = [[0, 0.0], [0.01, 0.13], [1, 1.0]]
    return {
        "type": "heatmap",
        "name": label,
        "x": microseconds(edges),
        "y": np.array(y),
        "z": z,
        "zmin": 0,
        "zmax": 100,
        "showscale": False,
        "colorscale": [[at, f"rgba({red},{green},{blue},{alpha})"] for at, alpha in fade],
        "hovertemplate": f"{label}: %{{z}} % of the time around %{{x:,.3f}} µs<extra></extra>",
        "meta": {"colour": tint, "labels": names[:-1]},
    }
