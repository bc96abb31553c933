"""The timeline figure as data: the one route beside Dash's own, because a zoom must be answered at once."""

import json
import logging
import time
from dataclasses import replace
from typing import Any

from flask import Flask, Response, request

from analyzer.errors import MegascopeError
from dashboard import text
from dashboard.context import Context
from dashboard.figures import View, shape_count, step_spec
from dashboard.loading import Loaded
from dashboard.palette import theme
from dashboard.summary import words_spec
from dashboard.wire import wire

ROUTE = "/_timeline"
MAX_SHAPES = 3000  # what Plotly redraws in about a tenth of a second
COLUMNS = 640  # of detail; with the power of two between them, one or two pixels each
MARGIN = 0.2  # of the window, drawn on both sides of it
LONGEST_QUESTION = 4096  # bytes
OPTIONAL = frozenset(("scalar",))  # lanes drawn on request only


def register(server: Flask, context: Context) -> None:
    """Add the route."""

    @server.post(ROUTE)
    def timeline() -> Response:
        raw = request.get_data(cache=False) if (request.content_length or 0) <= LONGEST_QUESTION else b""
        begun = time.perf_counter()
        body = json.dumps(answer(context, raw), separators=(",", ":"))
        milliseconds = 1000 * (time.perf_counter() - begun)
        headers = {"Server-Timing": f"answer;dur={milliseconds:.1f}"}
        return Response(body, mimetype="application/json", headers=headers)


def answer(context: Context, raw: bytes) -> dict[str, Any]:
    """{"data", "layout", "note"} for a question as the page sends it; nonsense in it means the default."""
    try:
        question = json.loads(raw)
    except ValueError:
        question = {}
    if not isinstance(question, dict):
        question = {}
    colours = theme(str(question.get("theme")))
    try:
        path = question.get("path")
        loaded = context.loaded(path if isinstance(path, str) else None)
        return draw_window(loaded, _whole(question.get("core")), view_of(loaded, question))
    except MegascopeError as error:
        return {**words_spec(f"{error.fault}. {error.cure}", colours), "note": ""}
    except Exception as error:
        logging.getLogger("megascope").exception("the timeline could not be drawn")
        words = f"Something went wrong: {type(error).__name__}. The terminal has the details."
        return {**words_spec(words, colours), "note": ""}


def view_of(loaded: Loaded, question: dict[str, Any]) -> View:
    """What a question asks to see."""
    more = question.get("more")
    wanted = {str(x) for x in more} if isinstance(more, list) else set()
    return loaded.view(
        theme(str(question.get("theme"))),
        parse_window(question.get("window")),
        margin=MARGIN,
        max_shapes=MAX_SHAPES,
        columns=COLUMNS,
        hidden=OPTIONAL - wanted,
        selected=_whole(question.get("selected")),
        measuring=bool(question.get("measuring")),
    )


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def parse_window(window: Any) -> tuple[int, int] | None:
    """The window a browser sent, or None for the whole step if it makes no sense."""
    try:
        start, end = int(window["start"]), int(window["end"])
    except (TypeError, KeyError, ValueError, OverflowError):
        return None
    return (start, end) if start < end else None


def draw_window(loaded: Loaded, core: int | None, view: View) -> dict[str, Any]:
    """The figure for the wire, with the note under it."""
    index = loaded.index(core)
    if view.window:
        room = (index.end - index.start) // 20 + 1
        start, end = max(view.window[0], index.start - room), min(view.window[1], index.end + room)
        view = replace(view, window=(start, end) if start < end else None)
    spec = step_spec(index, view, loaded.bubbles(index.core))
    start, end = view.visible(index)
    spec["layout"]["xaxis"]["uirevision"] = f"{start}:{end}"
    lanes = [lane for lane in index.lanes if lane.track not in view.hidden]
    spans = sum(len(lane.all) for lane in lanes)
    marks = shape_count([trace for trace in spec["data"] if "customdata" in trace])
    note = (
        f"Core {index.core}: {text.duration(end - start)} shown, {marks:,} marks for "
        f"{spans:,} spans of the step. Drag or scroll to zoom, double-click for all of it, keys ← → + − 0. "
        "Marks that stand for several spans are as tall as the share of time they were busy."
    )
    return {**wire(spec), "note": note}
