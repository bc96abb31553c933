"""Who waits for whom: messages between cores, the waits they ended, and which cores send late.

Pure functions over a timeline. With every core in it the picture is whole; with one core it says what that
core sends, receives and waits for, and leaves the rest unknown.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from dashboard import text
from dashboard.lanes import equals
from dashboard.palette import Theme
from dashboard.panels import FONT
from dashboard.summary import words_spec

MEASURES = {"waiting": "waiting time (µs)", "bytes": "bytes (KiB)", "messages": "messages"}


@dataclass(frozen=True, slots=True)
class Exchange:
    """Everything that passes between cores.

    Attributes:
        messages: a row per received message: sender, core (the receiver), bytes, issued_ps, phase, layer,
            start_ps, end_ps.
        waits: a row per wait that a message ended: sender, core (who waited), wait_ps, phase, layer,
            start_ps, and sent_phase, sent_layer: where that message was sent.
        barriers: the same for waits that no single message ended; their sender is unknown.
        seen: the cores whose waits are in the timeline. cores: every core that is mentioned.
    """

    messages: pd.DataFrame
    waits: pd.DataFrame
    barriers: pd.DataFrame
    seen: tuple[int, ...]
    cores: tuple[int, ...]

    @property
    def phases(self) -> list[str]:
        """Phases in which somebody waits or sends, the longest waits first."""
        waited = self.waits.groupby("phase")["wait_ps"].sum()
        names = dict.fromkeys([*self.waits["phase"], *self.messages["phase"]])
        return sorted(names, key=lambda p: (-int(waited.get(p, 0)), p))

    @property
    def layers(self) -> list[int]:
        """Layers in which somebody waits or sends."""
        return sorted({int(x) for f in (self.waits, self.messages) for x in f["layer"].dropna().unique()})

    def where(self, phase: str | None, layer: int | None) -> "Exchange":
        """Only what is waited for or sent in one phase, in one layer; None for all."""
        waits, messages, barriers = self.waits, self.messages, self.barriers
        if phase is not None:
            waits = waits[((waits["phase"] == phase) | (waits["sent_phase"] == phase)).to_numpy(bool)]
            messages = messages[messages["phase"].isin([phase, *waits["sent_phase"]]).to_numpy(bool)]
            barriers = barriers[(barriers["phase"] == phase).to_numpy(bool)]
        if layer is not None:
            waits, messages, barriers = (
                frame[(frame["layer"] == layer).fillna(False).to_numpy(bool)]
                for frame in (waits, messages, barriers)
            )
        return Exchange(messages, waits, barriers, self.seen, self.cores)

    def matrix(self, measure: str) -> np.ndarray:
        """float64[waiter, sender] of a key of `MEASURES`; NaN where it is not known and on the diagonal."""
        place = {core: k for k, core in enumerate(self.cores)}
        out = np.full((len(self.cores), len(self.cores)), np.nan)
        for core in self.seen:
            out[place[core]] = 0.0
        frame, column = (self.waits, "wait_ps") if measure == "waiting" else (self.messages, "bytes")
        groups = frame.groupby(["core", "sender"])[column]
        found = groups.size() if measure == "messages" else groups.sum()
        cells = found.rename("value").reset_index()
        for core, sender, value in zip(cells["core"], cells["sender"], cells["value"], strict=True):
            out[place[int(core)], place[int(sender)]] = float(value)
        np.fill_diagonal(out, np.nan)
        return out / {"waiting": 1e6, "bytes": 1024.0, "messages": 1.0}[measure]


def exchange(timeline: pd.DataFrame, step: int | None = None) -> Exchange:
    """What passes between the cores of a timeline (in one step of it)."""
    if step is not None and len(timeline):
        timeline = timeline[(timeline["step"] == step).to_numpy(bool)]
    received = timeline[equals(timeline["track"], "ici_recv")]
    messages = _named(received).rename(columns={"duration_ps": "flow_ps"})
    messages["end_ps"] = messages["start_ps"] + messages["flow_ps"]
    messages["bytes"] = messages["bytes"].fillna(0).astype(np.int64)
    stalls = timeline[equals(timeline["track"], "wait") & (timeline["duration_ps"] > 0).to_numpy(bool)]
    stalls = stalls.rename(columns={"duration_ps": "wait_ps"})
    stalls["cause"] = stalls["cause"].fillna(-1).astype(np.int64)
    sent = messages[["span", "sender", "phase", "layer"]]
    sent = sent.rename(columns={"span": "cause", "phase": "sent_phase", "layer": "sent_layer"})
    columns = ["core", "wait_ps", "phase", "layer", "start_ps", "cause"]
    waits = stalls[columns].merge(sent, on="cause")
    unknown = ~stalls["cause"].isin(sent["cause"]).to_numpy(bool)
    barriers = stalls.loc[unknown & equals(stalls["kind"], "collective"), columns]
    seen = tuple(sorted(int(c) for c in timeline["core"].unique()))
    queues = timeline["queue"][equals(timeline["track"], "ici_send")].unique()
    peers = {int(q[4:]) for q in map(str, queues) if q[4:].isdigit()} | set(messages["sender"].tolist())
    cores = tuple(sorted({*seen, *(int(p) for p in peers)}))
    return Exchange(messages, waits, barriers, seen, cores)


def _named(received: pd.DataFrame) -> pd.DataFrame:
    """Received messages whose sender the queue names."""
    columns = ["span", "core", "bytes", "issued_ps", "phase", "layer", "start_ps", "duration_ps"]
    codes, names = pd.factorize(received["queue"])
    peers = [int(str(n)[4:]) if str(n)[:4] == "ici:" and str(n)[4:].isdigit() else -1 for n in names]
    sender = np.array([*peers, -1], np.int64)[codes]
    out = received[columns].assign(sender=sender)
    return out[sender >= 0]


def lateness(found: Exchange) -> dict[int, float]:
    """Per core: how many ps after the first core it issues its last message of a phase and layer, on average.

    Empty where the messages of one core only are known: then nobody knows who is late.
    """
    known = found.messages.dropna(subset=["issued_ps"])
    if len(found.seen) < 2 or len(known) == 0:
        return {}
    known = known.assign(layer=known["layer"].fillna(-1).astype(np.int64))
    last = known.groupby(["phase", "layer", "sender"])["issued_ps"].max().astype("float64")
    first = last.groupby(["phase", "layer"]).transform("min")
    count = last.groupby(["phase", "layer"]).transform("size")
    late = (last - first)[count > 1]
    mean = late.groupby("sender").mean()
    return dict(zip([int(core) for core in mean.index], mean.astype(float).tolist(), strict=True))


def rows(found: Exchange, by_layer: bool, limit: int = 100) -> list[dict[str, Any]]:
    """Phases, or each layer's, the longest waits first, as texts for a table.

    Keys: phase, layer, waits, waiting (all cores together), worst (the core that waited longest), last (the
    core whose messages most of it ended with), sent (the phase that sent what was waited for), messages and
    bytes of that, and window (ps) around the longest wait. Messages that nobody stood still for come last.
    """
    messages, waits = _unlayered(found.messages, by_layer), _unlayered(found.waits, by_layer)
    by = messages.groupby(["phase", "layer"])
    sums = pd.DataFrame(
        {"n": by.size(), "bytes": by["bytes"].sum(), "low": by["start_ps"].min(), "high": by["end_ps"].max()}
    )
    sent = ["sent_phase", "sent_layer"]
    sums.index.names = sent
    stalled = waits.groupby(["phase", "layer", *sent])
    table = pd.DataFrame({"waits": stalled.size(), "waiting": stalled["wait_ps"].sum()}).reset_index()
    table = table.merge(sums.reset_index(), on=sent, how="outer").fillna({"waits": 0, "waiting": 0})
    table = table.sort_values(["waiting", "n"], ascending=False, kind="stable").head(limit)
    out = []
    for row in table.to_dict("records"):
        waited = row["waits"] > 0
        own = waits[(waits["phase"] == row["phase"]) & (waits["layer"] == row["layer"])]
        layer = int(row["layer"] if waited else row["sent_layer"])
        low, high = int(row["low"]), int(row["high"])
        if waited:
            longest = own.loc[own["wait_ps"].idxmax()]
            low, high = int(longest["start_ps"]), int(longest["start_ps"] + longest["wait_ps"])
        room = max(1_000_000, (high - low) // 2)
        out.append(
            {
                "phase": (text.shorten(row["phase"], 60) or "—") if waited else "nobody",
                "layer": "—" if layer < 0 else str(layer),
                "waits": f"{int(row['waits']):,}",
                "waiting": text.duration(int(row["waiting"])) if waited else "—",
                "worst": _most(own, "core"),
                "last": _most(own, "sender"),
                "sent": text.shorten(row["sent_phase"], 60) or "—",
                "messages": f"{int(row['n']):,}",
                "bytes": text.size(int(row["bytes"])),
                "window": (max(0, low - room), high + room),
            }
        )
    return out


def _unlayered(frame: pd.DataFrame, keep: bool) -> pd.DataFrame:
    """Layers as plain numbers, -1 for none (or for all, unless `keep`), so that such rows are grouped too."""
    columns = [c for c in ("layer", "sent_layer") if c in frame]
    return frame.assign(**{c: frame[c].fillna(-1).astype(np.int64) if keep else -1 for c in columns})


def _most(waits: pd.DataFrame, by: str) -> str:
    sums = _sums(waits, by)
    if not sums:
        return "—"
    core = max(sums, key=lambda c: (sums[c], -c))
    return f"core {core}: {text.duration(sums[core])}"


def matrix_spec(found: Exchange, measure: str, theme: Theme) -> dict[str, Any]:
    """Waiters by senders as a heat map."""
    if len(found.messages) == 0:
        return words_spec("No messages between cores are known in this capture", theme)
    z = found.matrix(measure)
    others = {name: found.matrix(name) for name in MEASURES}
    names = [f"core {c}" for c in found.cores]
    hover = [
        [_pair(waiter, sender, {k: v[i, j] for k, v in others.items()}) for j, sender in enumerate(names)]
        for i, waiter in enumerate(names)
    ]
    scale = [[0, theme.heat[0]], [0.5, theme.heat[1]], [1, theme.heat[2]]]
    every = max(1, -(-len(names) // 16))
    ticks = {
        "tickmode": "array",
        "tickvals": names[::every],
        "ticktext": [str(c) for c in found.cores[::every]],
    }
    axis = {
        "fixedrange": True,
        "showgrid": False,
        "zeroline": False,
        "type": "category",
        "ticks": "",
        **ticks,
    }
    return {
        "data": [
            {
                "type": "heatmap",
                "x": names,
                "y": names,
                "z": [[None if np.isnan(v) else v for v in line] for line in z.tolist()],
                "zmin": 0,
                "text": hover,
                "hoverinfo": "text",
                "hoverongaps": False,
                "xgap": 1,
                "ygap": 1,
                "colorscale": scale,
                "colorbar": {
                    "title": {"text": MEASURES[measure], "side": "right"}, "thickness": 10, "outlinewidth": 0,
                },
            }
        ],
        "layout": {
            **_base(theme),
            "margin": {"l": 60, "r": 8, "t": 6, "b": 44},
            "xaxis": {**axis, "title": {"text": "sender (core)", "standoff": 4}, "side": "bottom"},
            "yaxis": {**axis, "title": {"text": "waiter (core)", "standoff": 4}, "autorange": "reversed"},
        },
    }  # fmt: skip


def _pair(waiter: str, sender: str, values: dict[str, float]) -> str:
    if np.isnan(values["waiting"]):
        return f"{waiter}: {text.UNKNOWN}" if waiter != sender else waiter
    return (
        f"<b>{waiter} waits for {sender}</b><br>{values['waiting']:,.2f} µs<br>"
        f"{int(values['messages']):,} messages, {text.size(1024 * values['bytes'])}"
    )


def cores_bars(found: Exchange, theme: Theme) -> dict[str, Any]:
    """Per core: how long it waits for others, how long others wait for it, and how late it sends."""
    if len(found.messages) == 0:
        return words_spec("", theme)
    waits, caused = _sums(found.waits, "core"), _sums(found.waits, "sender")
    barrier, late = _sums(found.barriers, "core"), lateness(found)
    cores = [f"{c}" for c in found.cores]
    seen = set(found.seen)
    whole = len(seen) == len(found.cores)
    series: list[tuple[str, list[float | None], str]] = [
        ("waits for others", [waits.get(c, 0) if c in seen else None for c in found.cores], "wait"),
        ("waits at barriers", [barrier.get(c, 0) if c in seen else None for c in found.cores], "scalar"),
        ("others wait for it" + ("" if whole else f" (core {found.seen[0]} only)"),
         [caused.get(c, 0) for c in found.cores], "bubble"),
        ("sends later than the first (mean)", [late.get(c) for c in found.cores], "collective"),
    ]  # fmt: skip
    data = [
        {
            "type": "bar",
            "name": name,
            "x": cores,
            "y": [None if v is None else v / 1e6 for v in values],
            "marker": {"color": theme.colours[colour]},
            "hovertemplate": f"core %{{x}}: {name} %{{y:,.3f}} µs<extra></extra>",
        }
        for name, values, colour in series
        if any(values)
    ]
    return {
        "data": data,
        "layout": {
            **_base(theme),
            "barmode": "group",
            "bargap": 0.25,
            "showlegend": True,
            "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "font": {"size": 11}},
            "margin": {"l": 64, "r": 8, "t": 44, "b": 40},
            "xaxis": {
                "title": {"text": "core", "standoff": 4}, "type": "category", "fixedrange": True,
                "tickangle": 0, "tickvals": cores[:: max(1, -(-len(cores) // 16))],
            },
            "yaxis": {
                "title": {"text": "µs in the step"}, "gridcolor": theme.grid, "rangemode": "tozero",
                "fixedrange": True, "zeroline": False,
            },
        },
    }  # fmt: skip


def _sums(frame: pd.DataFrame, by: str) -> dict[int, int]:
    if by == "sender":  # of a mirrored peer it is only known what it sends, not which one it is
        frame = frame[(frame["sender"] != frame["core"]).to_numpy(bool)]
    sums = frame.groupby(by)["wait_ps"].sum()
    return dict(zip([int(core) for core in sums.index], sums.astype(int).tolist(), strict=True))


def _base(theme: Theme) -> dict[str, Any]:
    return {
        "paper_bgcolor": theme.paper,
        "plot_bgcolor": theme.paper,
        "showlegend": False,
        "dragmode": False,
        "font": {"family": FONT, "size": 12, "color": theme.text},
        "hoverlabel": {"bgcolor": theme.panel, "font": {"color": theme.text}, "align": "left"},
    }


def verdict(found: Exchange) -> str:
    """The exchange in one sentence."""
    if len(found.messages) == 0:
        return "No messages between cores are known in this capture."
    total = _sums(found.waits, "core")
    if not total:
        return "Nobody stood still for a message."
    worst = max(total, key=lambda c: (total[c], -c))
    words = f"Core {worst} stands still for {text.duration(total[worst])} because of messages"
    if len(found.seen) < 2:
        return words + "; the other cores were not simulated."
    mean = sum(total.values()) / len(found.seen)
    words += f", a core on average for {text.duration(mean)}."
    caused = _sums(found.waits, "sender")
    if not caused:
        return words
    first = max(caused, key=lambda c: (caused[c], -c))
    share = caused[first] / sum(caused.values())
    even = share < max(0.25, 2 / len(found.cores))
    most = f"Most of it ends with a message from core {first} ({text.percent(share)})."
    return words + " " + ("No single core makes the others wait." if even else most)
