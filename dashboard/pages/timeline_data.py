"""The timeline figure as data: the one route beside Dash's own, because a zoom must be answered at once."""

import json
import logging
import time
from dataclasses import replace
from typing import Any

from flask import Flask, Response, request

from analyzer.errors import MegascopeError
from dashboard import text
from dashboard.beside import shift_between
from dashboard.context import ALL_CORES, Context
from dashboard.cores import cores_spec
from dashboard.figures import shape_count, step_spec
from dashboard.index import TimelineIndex
from dashboard.jobs import State
from dashboard.loading import Loaded
from dashboard.palette import theme
from dashboard.panels import View
from dashboard.slices import DEFAULT_KINDS, SliceIndex
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
        begun, worked = time.perf_counter(), time.thread_time()
        body = json.dumps(answer(context, raw), separators=(",", ":"))
        wall, cpu = 1000 * (time.perf_counter() - begun), 1000 * (time.thread_time() - worked)
        headers = {"Server-Timing": f"answer;dur={wall:.1f}, cpu;dur={cpu:.1f}"}
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
        return _drawn(context, loaded, question)
    except MegascopeError as error:
        return {**words_spec(f"{error.fault}. {error.cure}", colours), "note": ""}
    except Exception as error:
        logging.getLogger("megascope").exception("the timeline could not be drawn")
        words = f"Something went wrong: {type(error).__name__}. The terminal has the details."
        return {**words_spec(words, colours), "note": ""}


def _drawn(context: Context, loaded: Loaded, question: dict[str, Any]) -> dict[str, Any]:
    core, account = _whole(question.get("core")), question.get("account")
    modelled: Loaded | None = None
    if account in {"model", "both"} and "model" in loaded.others:
        modelled, state = context.other(loaded, "model")
        if modelled is None:
            return _pending(state, "Simulating the recorded program")
    if account == "model" and modelled is not None:
        loaded, modelled = modelled, None
    owner, state = context.of_core(loaded, core)
    if owner is None:
        return _pending(state, f"Simulating all {loaded.fact('capture', 'cores')} cores together")
    view = view_of(owner, question)
    if core == ALL_CORES:
        kinds = question.get("kinds")
        return draw_cores(owner, view, tuple(str(k) for k in kinds) if isinstance(kinds, list) else ())
    return draw_window(owner, core, view, modelled, str(question.get("align") or ""))


def _pending(state: State | None, words: str) -> dict[str, Any]:
    """Tells the page to ask again; `pending` is what it says meanwhile."""
    queue = f", {text.count(state.waiting, 'job')} before it" if state and state.waiting else ""
    return {"pending": f"{words}: {state.seconds if state else 0:.0f} s{queue} …"}


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


def draw_window(
    loaded: Loaded, core: int | None, view: View, modelled: Loaded | None = None, align: str = ""
) -> dict[str, Any]:
    """The figure of one core for the wire, with the note under it; `modelled` goes below it."""
    index = loaded.index(core)
    beside, note = None, ""
    if modelled is not None:
        shift = shift_between(index, modelled.index(index.core), align)
        beside = modelled.shifted(index.core, shift)
        where = text.shorten(align) or "the step"
        note = f" The model is moved by {text.duration(shift)}, so that both begin {where} together."
    view = _inside(view, index)
    bubbles, occupancy = loaded.bubbles(index.core), loaded.occupancy(index.core)
    spec = step_spec(index, view, bubbles, occupancy, beside)
    lanes = [lane for lane in index.lanes if lane.track not in view.hidden]
    spans = sum(len(lane.all) for lane in lanes)
    note = (
        f"Core {index.core}, {loaded.provenance}: {_counts(spec, index, view)} for {spans:,} spans of the "
        f"step.{note} {_KEYS} "
        "Marks that stand for several spans are as tall as the share of time they were busy."
    )
    return _sent(spec, index, view, note)


def draw_cores(loaded: Loaded, view: View, kinds: tuple[str, ...]) -> dict[str, Any]:
    """The figure of all cores for the wire, with the note under it."""
    index = loaded.slice()
    view = _inside(view, index)
    spec = cores_spec(index, view, kinds or DEFAULT_KINDS)
    note = (
        f"{text.count(len(index.cores), 'core')}, {loaded.provenance}: {_counts(spec, index, view)}. {_KEYS} "
        "Strips show the share of time in which a core did that; zoomed in, they become single spans."
    )
    return _sent(spec, index, view, note)


_KEYS = "Drag or scroll to zoom, double-click for all of it, keys ← → + − 0."


def _inside(view: View, index: TimelineIndex | SliceIndex) -> View:
    if not view.window:
        return view
    room = (index.end - index.start) // 20 + 1
    start, end = max(view.window[0], index.start - room), min(view.window[1], index.end + room)
    return replace(view, window=(start, end) if start < end else None)


def _counts(spec: dict[str, Any], index: TimelineIndex | SliceIndex, view: View) -> str:
    start, end = view.visible(index)
    marks = shape_count([trace for trace in spec["data"] if "customdata" in trace])
    return f"{text.duration(end - start)} shown, {marks:,} marks"


def _sent(spec: dict[str, Any], index: TimelineIndex | SliceIndex, view: View, note: str) -> dict[str, Any]:
    start, end = view.visible(index)
    spec["layout"]["xaxis"]["uirevision"] = f"{start}:{end}"
    return {**wire(spec), "note": note}
