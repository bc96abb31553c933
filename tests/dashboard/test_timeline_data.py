"""The route that answers zooms: any question gets a figure, never a fault."""

import json
from pathlib import Path

import pytest

from dashboard.app import create_app
from dashboard.context import Context
from dashboard.jobs import Jobs
from dashboard.library import Library
from dashboard.loading import Later, from_parts
from dashboard.pages.timeline_data import MAX_SHAPES, answer
from dashboard.pages.timeline_tools import _measured, shown


@pytest.fixture
def context(captures, loader):
    return Context(Library(captures("mlp"), loader), lambda *_: {}, Jobs())


def marks(found):
    return sum(len(t["hovertext"]) for t in found["data"] if t["type"] == "bar")


def ask(context, **question):
    return answer(context, json.dumps({"path": "/", "theme": "light", **question}).encode())


def test_a_window_is_answered_with_its_own_range(context):
    found = ask(context, window={"start": 100_000_000, "end": 120_000_000}, core=0)
    assert found["layout"]["xaxis"]["range"] == [100.0, 120.0]
    assert 0 < marks(found) <= MAX_SHAPES
    assert "20 µs shown" in found["note"]


@pytest.mark.parametrize(
    "window",
    [None, {}, {"start": "x", "end": 3}, {"start": 5, "end": 5}, {"start": 9, "end": 2},
     {"start": 1e400, "end": 2},
     {"start": -(10**30), "end": 10**30}, {"start": 10**20, "end": 10**21}, [1, 2], "abc"],
)  # fmt: skip
def test_windows_that_make_no_sense_give_a_figure_all_the_same(context, window):
    found = answer(context, json.dumps({"path": "/", "window": window}).encode())
    low, high = found["layout"]["xaxis"]["range"]
    assert -100 < low < high < 1100
    assert marks(found) > 0


@pytest.mark.parametrize(
    "raw", [b"", b"null", b"[]", b"\xff", b"{" * 5000, b'{"path": 5, "theme": {}, "more": 3}']
)
def test_questions_that_are_none_give_the_default(context, raw):
    assert marks(answer(context, raw)) > 0


def test_extra_lanes_core_theme_and_selection(context):
    dark = ask(context, theme="dark")
    assert dark["layout"]["paper_bgcolor"] == "#14181d"
    assert ask(context, core=99)["note"].startswith("Core 0")
    assert ask(context, core=True, selected="x")["note"].startswith("Core 0")
    chosen = ask(context, selected=0)
    assert len(chosen["layout"]["shapes"]) > 2, "a selected span is framed"
    assert ask(context, measuring=True)["layout"]["dragmode"] == "select"


def test_the_account_that_is_drawn_is_named_and_asked(captures, step):
    trace = from_parts("trace", *step, {"step": {"provenance": "measured"}})
    model = from_parts("model", *step, {"step": {"provenance": "modelled"}})
    trace.others["model"] = Later(lambda: model, made=model)
    context = Context(Library(captures("mlp"), lambda path: trace), lambda *_: {}, Jobs())
    for account, wanted in (("trace", trace), ("both", trace), ("model", model)):
        assert shown(context, "/", 0, account) is wanted
        assert ask(context, account=account)["note"].startswith(f"Core 0, {wanted.provenance}: ")
    assert shown(context, "/../x", 0, "trace") is None


def test_measuring_where_no_transfers_are_shown_says_unknown(step):
    index = from_parts("x", *step).index()
    known = from_parts("x", *step, {"hbm": {"bubble_ps": 0}})
    assert "HBM read" in _measured(known, index, 0, 1_000_000)
    found = _measured(from_parts("x", *step), index, 0, 1_000_000)
    assert found.startswith("Measured 1 µs: HBM transfers unknown, matrix ")
    assert "GB/s" not in found


def test_an_unknown_capture_is_a_figure_with_words(context):
    found = answer(context, b'{"path": "/../x/timeline"}')
    assert "no capture here has that name" in found["layout"]["annotations"][0]["text"]


def test_a_fault_of_ours_is_a_figure_with_words(captures):
    def broken(path):
        raise RuntimeError("<b>boom</b>")

    context = Context(Library(captures("mlp"), broken), lambda *_: {}, Jobs())
    found = answer(context, b'{"path": "/"}')
    assert "Something went wrong: RuntimeError" in found["layout"]["annotations"][0]["text"]


def test_the_route_is_guarded_and_answers_json(captures, loader):
    client = create_app(captures("mlp"), loader=loader).server.test_client()
    found = client.post("/_timeline", json={"path": "/"}, headers={"Host": "localhost"})
    assert found.mimetype == "application/json"
    assert len(found.data) < 3_000_000
    assert client.post("/_timeline", json={}, headers={"Host": "evil.example"}).status_code == 403
    big = client.post("/_timeline", data=b"x" * 100_000, headers={"Host": "localhost"})
    assert big.status_code == 200


@pytest.mark.slow
def test_a_million_spans_stay_within_the_limits(synthetic):
    timeline = synthetic.make(detail=370)
    context = Context(
        Library([Path(__file__)], lambda path: from_parts("x", timeline)), lambda *_: {}, Jobs()
    )
    identity = context.library.entries()[0].id
    for window in (None, {"start": 0, "end": 3_000_000}, {"start": 0, "end": 30_000_000}):
        found = ask(context, path=f"/{identity}/timeline", window=window)
        assert 0 < marks(found) <= MAX_SHAPES
        assert len(json.dumps(found)) < 3_000_000
