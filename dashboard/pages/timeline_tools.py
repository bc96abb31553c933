"""Tools of the timeline page: what a clicked span has to do with others, search, and measuring a stretch."""

from typing import Any

import pandas as pd
from dash import Dash, Input, Output, State, ctx, dcc, html, no_update

from analyzer.errors import MegascopeError
from dashboard import text
from dashboard.components import link
from dashboard.context import ALL_CORES, Context
from dashboard.index import TimelineIndex
from dashboard.loading import Loaded
from dashboard.relations import describe, measure, relation, search, slice_relation


def tools() -> list[Any]:
    """Search and measure, for the toolbar."""
    return [
        dcc.Input(
            id="search",
            placeholder="search name or source",
            debounce=True,
            className="control",
        ),
        html.Button("Next", id="search-next", title="Show the next match"),
        dcc.Checklist([{"label": "measure", "value": "measure"}], [], id="measure", className="checks"),
    ]


def register(app: Dash, context: Context) -> None:
    """Callbacks of the tools; they write the line under the figure."""

    @app.callback(
        Output("selected", "data"),
        Output("timeline-detail", "children"),
        Input("clicked", "data"),
        Input("stretch", "data"),
        State("core", "value"),
        State("account", "value"),
        State("url", "pathname"),
        prevent_initial_call=True,
    )
    def select(click: Any, stretch: Any, core: int | None, account: str, pathname: str) -> tuple[Any, Any]:
        loaded = shown(context, pathname, core, account)
        if loaded is None:
            return no_update, no_update
        index = loaded.index(core)
        if any(t["prop_id"] == "stretch.data" for t in ctx.triggered):
            chosen = _range(stretch)
            return (no_update, no_update) if chosen is None else (None, _measured(loaded, index, *chosen))
        span = _span(click)
        if span is None:
            return None, ""
        found = slice_relation(loaded.slice(), span) if core == ALL_CORES else relation(index, span)
        if found is None:
            return None, ""
        owner = f"Core {int(found.row['core'])}: " if core == ALL_CORES else ""
        identity = context.identity(pathname)
        low, high = found.window
        room = (high - low) // 4 + 1000
        where = link(identity, "timeline", **{"from": max(0, low - room), "to": high + room})
        parts: list[Any] = [owner + " · ".join(describe(found)), " ", html.A("zoom to it", href=where)]
        first = found.row["bundle_first"]
        if not pd.isna(first):
            parts += [" ", dcc.Link("bundles", href=link(identity, "bundles", bundle=f"{int(first):#x}"))]
        return span, html.Span(parts)

    @app.callback(
        Output("window", "data", allow_duplicate=True),
        Output("timeline-detail", "children", allow_duplicate=True),
        Output("search-place", "data"),
        Output("selected", "data", allow_duplicate=True),
        Input("search", "value"),
        Input("search-next", "n_clicks"),
        State("search-place", "data"),
        State("core", "value"),
        State("account", "value"),
        State("url", "pathname"),
        prevent_initial_call=True,
    )
    def find(*values: Any) -> tuple[Any, Any, Any, Any]:
        words, _, place, core, account, pathname = values
        nothing = (no_update, no_update, no_update, no_update)
        if not words:
            return nothing
        loaded = shown(context, pathname, core, account)
        if loaded is None:
            return nothing
        index = loaded.index(core)
        matches = search(index, str(words))
        if not matches:
            return no_update, f"Nothing in this core is called “{text.shorten(words, 60)}”.", 0, None
        current = int(place or 0) % len(matches) if ctx.triggered_id == "search-next" else 0
        span, start, end = matches[current]
        room = max(3 * (end - start), 2_000_000)
        window = {"start": max(index.start, start - room), "end": min(index.end, end + room)}
        many = f"first {len(matches)}" if len(matches) == 200 else str(len(matches))
        found = relation(index, span)
        about = " · ".join(describe(found)) if found else ""
        return window, f"Match {current + 1} of {many}: {about}", current + 1, span


def shown(context: Context, pathname: str, core: int | None, account: str) -> Loaded | None:
    """What the figure shows, above where it shows two; None while it is being made, or where it cannot be."""
    try:
        loaded: Loaded | None = context.loaded(pathname)
        if loaded is not None and account == "model":
            loaded, _ = context.other(loaded, "model")
        return None if loaded is None else context.of_core(loaded, core)[0]
    except MegascopeError:
        return None


def _span(click: Any) -> int | None:
    try:
        span = int(click["span"])
    except (TypeError, KeyError, ValueError):
        return None
    return span if span >= 0 else None


def _range(stretch: Any) -> tuple[int, int] | None:
    try:
        low, high = sorted(float(v) for v in stretch)
    except (TypeError, ValueError):
        return None
    return (round(low * 1e6), round(high * 1e6)) if high > low else None


def _measured(loaded: Loaded, index: TimelineIndex, start: int, end: int) -> str:
    found = measure(index, start, end)
    seconds = found["length_ps"] * 1e-12
    hbm = (
        f"HBM read {text.size(found['read_bytes'])} at {text.rate(found['read_bytes'] / seconds)}, "
        f"written {text.size(found['written_bytes'])}; transfer in flight {text.percent(found['hbm_read'])}"
    )
    return (
        f"Measured {text.duration(found['length_ps'])}: "
        f"{'HBM transfers unknown' if loaded.bubbles_unknown else hbm}, matrix {text.percent(found['mxu'])}, "
        f"vector {text.percent(found['vector'])}, waiting {text.percent(found['wait'])}"
    )
