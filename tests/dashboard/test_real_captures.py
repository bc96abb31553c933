"""Captures made by others: a dump, traces, damaged files. Every page shows something true or says why not."""

import json

import pytest

from dashboard.app import PAGES, page
from dashboard.context import Context
from dashboard.export import render_html
from dashboard.jobs import Jobs
from dashboard.library import Library
from dashboard.loading import load, what_if_report
from dashboard.pages.timeline_data import answer


@pytest.fixture
def opened(sample):
    """`opened(part)` -> (context, id) of a copy of some sample data."""

    def start(part):
        context = Context(Library([sample(part)], load), what_if_report, Jobs())
        return context, context.library.entries()[0].id

    return start


def test_the_page_of_a_trace_says_unknown_and_not_none(opened):
    context, identity = opened("v6e-matmul")
    whole = render_html(context.library.get(identity))
    assert "Unknown: this capture does not show HBM transfers." in whole
    assert "Unknown: rules look at copies and bundles" in whole
    assert "none found" not in whole
    for key in ("overview", "findings"):
        assert "Unknown: rules look at" in str(page(context, f"/{identity}/{key}")[0])


@pytest.mark.parametrize("part", ["v6e-matmul/dump", "v6e-matmul", "v6e-hostoffload"])
def test_every_page_of_what_others_made(opened, part):
    context, identity = opened(part)
    for module in PAGES:
        body, _, links = page(context, f"/{identity}/{module.KEY}")
        assert "Something went wrong" not in str(body), module.KEY
        assert len(links) == len(PAGES)


def test_a_bare_dump_is_drawn_with_what_it_holds(opened):
    context, identity = opened("v6e-matmul/dump")
    found = answer(context, json.dumps({"path": f"/{identity}/timeline"}).encode())
    names = {t["name"] for t in found["data"]}
    assert {"HBM → VMEM transfer", "VMEM → HBM", "matrix work", "wait", "HBM bubble"} <= names
    hover = next(t for t in found["data"] if t["name"] == "HBM → VMEM transfer")["hovertext"]
    assert any("MiB at" in text for text in hover)


def test_a_trace_without_copies_shows_none_and_no_zero(opened):
    context, identity = opened("v6e-matmul")
    loaded = context.library.get(identity)
    assert loaded.provenance == "measured"
    assert len(loaded.bubbles()) == 0
    found = answer(context, json.dumps({"path": f"/{identity}/timeline"}).encode())
    names = {t["name"] for t in found["data"]}
    assert "HBM read" not in names
    assert "HBM → VMEM transfer" not in names
    assert any("shows no HBM transfers" in a["text"] for a in found["layout"]["annotations"])


@pytest.mark.parametrize("name", ["empty", "lfs_pointer", "truncated", "utf8_mangled"])
def test_damaged_traces_say_what_to_do(opened, name):
    context, identity = opened(f"bad-inputs/{name}.xplane.pb")
    body, _, _ = page(context, f"/{identity}/overview")
    assert "panel-error" in str(body)
    assert "Something went wrong" not in str(body)


def test_old_bundles_ask_for_the_chip(opened):
    context, identity = opened("old-formats")
    body, _, _ = page(context, f"/{identity}/overview")
    assert "--chip" in str(body)
