"""Two reports side by side as a table and as bars; the arithmetic is the analyzer's (analyzer/diff.py)."""

from typing import Any

from dashboard import text
from dashboard.marks import MICROSECOND
from dashboard.palette import Theme
from dashboard.panels import FONT
from dashboard.summary import words_spec


def shown(value: float | None, unit: str) -> str:
    """A figure of a diff in words."""
    if value is None:
        return text.UNKNOWN
    if unit == "ps":
        return text.duration(value)
    if unit == "bytes":
        return text.size(value)
    return f"{value:,.3f}" if isinstance(value, float) else f"{value:,}"


def rows(diff: dict[str, Any]) -> list[dict[str, Any]]:
    """The figures of a diff as texts: what, before, after, change, and `better` (True, False or None)."""
    higher_is_better = {"HBM utilization", "DMA/compute overlap"}
    neutral = {
        "HBM read",
        "HBM written",
        "ICI messages",
        "ICI bytes sent",
        "executed bundles",
        "static bundles",
    }
    out = []
    for figure in diff["figures"]:
        change, unit = figure["change"], figure["unit"]
        better = None
        # A change below a thousandth is no news, better or worse.
        if change and abs(figure["relative"] or 1) >= 0.001 and figure["what"] not in neutral:
            better = (change > 0) == (figure["what"] in higher_is_better)
        words = "" if change is None else "no change" if change == 0 else _signed(change, unit)
        if abs(figure["relative"] or 0) >= 0.0005:
            words += f" ({100 * figure['relative']:+.1f} %)"
        out.append(
            {
                "what": figure["what"],
                "before": shown(figure["a"], unit),
                "after": shown(figure["b"], unit),
                "change": words or text.UNKNOWN,
                "better": better,
            }
        )
    return out


def _signed(value: float, unit: str) -> str:
    return ("+" if value > 0 else "−") + shown(abs(value), unit)


def headline(diff: dict[str, Any]) -> str:
    """What happened to the step time, in one sentence."""
    step = diff["figures"][0]
    if step["change"] is None:
        return "The step time of one of them is unknown."
    if step["change"] == 0:
        return f"The step takes the same time: {text.duration(step['a'])}."
    word = "shorter" if step["change"] < 0 else "longer"
    by = f"{text.duration(abs(step['change']))} ({abs(100 * (step['relative'] or 0)):.1f} %)"
    return f"The step gets {by} {word}: {text.duration(step['a'])} → {text.duration(step['b'])}."


def bars_spec(entries: list[dict[str, Any]], title: str, theme: Theme, limit: int = 16) -> dict[str, Any]:
    """Changes in µs as horizontal bars, largest first; blue saves, orange costs."""
    known = [e for e in entries if e["change"]]
    known = sorted(known, key=lambda e: -abs(e["change"]))[:limit]
    if not known:
        unknown = not entries or any(e["change"] is None for e in entries)
        return words_spec(f"The change in {title} is unknown" if unknown else f"No change in {title}", theme)
    values = [e["change"] / MICROSECOND for e in known]
    reach = 1.55 * max(map(abs, values))  # room for the numbers beside the bars
    limits = [-reach if min(values) < 0 else 0, reach if max(values) > 0 else 0]
    names = [
        text.plain(str(e["what"]).removesuffix("_ps").replace("_", " "), 32) or "no phase" for e in known
    ]
    return {
        "data": [
            {
                "type": "bar",
                "orientation": "h",
                "x": values,
                "y": names,
                "marker": {"color": [theme.colours["transfer" if v < 0 else "bubble"] for v in values]},
                "text": [f"{v:+,.2f} µs" for v in values],
                "textposition": "outside",
                "cliponaxis": False,
                "hovertemplate": "%{y}: %{x:+,.3f} µs<extra></extra>",
            }
        ],
        "layout": {
            "paper_bgcolor": theme.paper,
            "plot_bgcolor": theme.paper,
            "font": {"family": FONT, "size": 12, "color": theme.text},
            "margin": {"l": 8, "r": 70, "t": 4, "b": 40},
            "dragmode": False,
            "showlegend": False,
            "xaxis": {
                "title": {"text": f"change in {title} (µs)", "standoff": 4},
                "range": limits,
                "fixedrange": True,
                "gridcolor": theme.grid,
                "zerolinecolor": theme.muted,
                "tickformat": "+,",
            },
            "yaxis": {
                "fixedrange": True,
                "automargin": True,
                "autorange": "reversed",
                "type": "category",
                "ticklabelstandoff": 4,
            },
        },
    }
