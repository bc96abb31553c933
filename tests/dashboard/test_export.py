"""The HTML file: complete in itself, nothing fetched, hostile names harmless."""

import json
import re
from pathlib import Path

import pytest

from analyzer.errors import UsageError
from dashboard.app import PAGES
from dashboard.cli import write
from dashboard.export import levels, render_html
from dashboard.export_page import export_page
from dashboard.headless import Asked, Headless, address
from dashboard.loading import from_parts

PAGE = {module.KEY: module for module in PAGES}


@pytest.fixture
def loaded(loader):
    return loader(Path("mlp"))


@pytest.fixture
def analyzed(monkeypatch, rich):
    """What the command line loads is made up."""
    monkeypatch.setattr("dashboard.loading.load", lambda path, chip=None: rich(path))


def test_one_file_with_everything_inside(analyzed, captures, tmp_path):
    target = tmp_path / "new" / "mlp.html"
    write(captures("mlp"), target)
    page = target.read_text()
    assert [p.name for p in target.parent.iterdir()] == ["mlp.html"], "no temporary file stays"
    head = page.split("<script>", 1)[0]
    assert not re.search(r"""(src|href)=["'](?!data:)""", head)
    assert "default-src 'none'" in head
    assert "plotly.js v" in page
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.S).group(1))
    assert len(data["levels"]) == 17
    assert len(page) < 20_000_000


def test_the_command_writes_any_page_and_says_what_it_takes(analyzed, captures, tmp_path):
    paths, target = captures("mlp", "slow"), tmp_path / "page.html"
    write(paths, target, page="diff")
    assert "longer" in target.read_text()
    with pytest.raises(UsageError, match=r"takes two captures, 1 were given. Give two captures"):
        write(paths[:1], target, page="diff")
    with pytest.raises(UsageError, match=r"takes one capture, 2 were given. Give one capture"):
        write(paths, target)
    with pytest.raises(UsageError, match=r"no such page. Pages: overview, timeline"):
        write(paths[:1], target, page="nothing")


def test_zoom_levels_hold_finer_marks_within_limits(loaded):
    whole, *layers = levels(loaded)
    assert whole["marks"] <= 5000
    assert all(0 < level["marks"] <= 3000 for level in layers)
    assert all(level["to"] - level["from"] < (whole["to"] - whole["from"]) / 5 for level in layers)


def test_hostile_names_cannot_inject(step):
    timeline = step[0].copy()
    timeline["name"] = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
    bubbles = step[1].assign(cause="<b onmouseover=alert(3)>", source="</td><script>alert(4)</script>")
    report = {
        "findings": [{"id": "MS1", "title": "<script>alert(5)</script>", "time_ps": 1}],
        "notes": ["<i>x"],
    }
    page = render_html(from_parts("<script>alert(6)</script>", timeline, bubbles, report))
    own = page.count("<script")
    assert own == render_html(from_parts("x", *step, {})).count("<script")
    for number in range(1, 7):
        assert f"<script>alert({number})" not in page
    assert "<b onmouseover" not in page
    assert "<i>x" not in page


def test_unknown_numbers_are_unknown(step):
    page = render_html(from_parts("x", *step, {}))
    assert re.search(r'HBM utilization</span><span class="fact-value">unknown<', page)


@pytest.fixture
def app(captures, rich):
    """(dashboard of two captures, id of the first)."""
    from dashboard.app import create_app
    from dashboard.library import identify

    paths = captures("mlp", "slow")
    return create_app(paths, loader=rich), identify(paths[0])


def exported(app, loaded, page, **options):
    """(text of the exported page, its figures as place -> figure)."""
    made = export_page(app[0], loaded, app[1], PAGE[page], Asked(**options))
    found = re.search(r'id="figures">(.*?)</script>', made, re.S)
    return made, json.loads(found.group(1)) if found else []


@pytest.mark.parametrize("page", ["overview", "findings", "vmem", "collectives", "whatif", "diff", "post"])
def test_every_page_can_be_a_file(app, loaded, page):
    made, figures = exported(app, loaded, page)
    markup = re.sub(r"<(script|style)\b.*?</\1>", "", made, flags=re.S)
    assert not re.search(r"""\b(src|href)=["'](?!data:)""", markup), "nothing is fetched"
    assert not re.search(r"<(button|input|select)\b", markup), "controls that would do nothing"
    assert "default-src 'none'" in made
    assert f'<div class="page page-{page}"' in markup
    assert all(f'id="{figure["place"]}"' in markup for figure in figures)
    assert bool(figures) == (page in {"overview", "vmem", "collectives"})


def test_an_exported_figure_is_the_one_of_the_page(app, loaded, rich):
    from dashboard.palette import DARK
    from dashboard.summary import gauge_spec
    from dashboard.wire import wire

    _, figures = exported(app, loaded, "overview", theme="dark")
    assert {"data": figures[0]["data"], "layout": figures[0]["layout"]} == json.loads(
        json.dumps(wire(gauge_spec(rich(Path("mlp")).report, DARK)))
    )


def test_what_was_chosen_is_what_is_exported(app, loaded):
    shown = Headless(app[0], address(app[1], "diff"), Asked())
    (other,) = [o["value"] for o in shown._prop("diff-other", "options")]
    made, figures = exported(app, loaded, "diff", values={"diff-other": other, "no-such": 1, "url": "/x"})
    assert "longer" in made
    assert len(figures) == 2
    made, _ = exported(app, loaded, "diff")
    assert "Choose the capture" in made


def test_hostile_words_stay_words_in_every_file(captures, step):
    from dashboard.app import create_app
    from dashboard.library import identify

    bad = "</script><img src=x onerror=alert(1)>"
    report = {
        "step": {"time_ps": 5, "verdict": bad},
        "notes": [bad],
        "findings": [],
        "capture": {"chip": bad},
    }
    made = from_parts(bad, *step, report)
    (path,) = captures("bad")
    app = (create_app([path], loader=lambda _: made), identify(path))
    page, _ = exported(app, made, "overview")
    assert "<img src=x" not in page
    assert "&lt;img src=x onerror=alert(1)&gt;" in page


def test_the_route_hands_out_files_and_says_what_is_wrong(app):
    client = app[0].server.test_client()
    good = client.post("/_export", json={"path": address(app[1], "findings")}, base_url="http://127.0.0.1")
    assert good.status_code == 200
    assert good.headers["Content-Disposition"].startswith("attachment")
    assert b"page-findings" in good.data
    gone = client.post("/_export", json={"path": "/nothing/overview"}, base_url="http://127.0.0.1")
    assert gone.status_code == 404
    assert "no capture here has that name" in gone.get_data(as_text=True)
    assert client.post("/_export", data=b"\xff{", base_url="http://127.0.0.1").status_code == 404
    assert client.post("/_export", json={}, base_url="http://evil.example").status_code == 403


def test_a_dashboard_with_a_token_exports_too(captures, rich):
    from dashboard.app import create_app
    from dashboard.library import identify

    (path,) = captures("mlp")
    app = create_app([path], host="0.0.0.0", token="secret", loader=rich)
    page = export_page(app, rich(path), identify(path), PAGE["findings"], Asked(token="secret"))
    assert 'class="page page-findings"' in page


def test_all_cores_are_exported_where_they_are_shown(captures, synthetic):
    from dashboard.app import create_app
    from dashboard.context import ALL_CORES
    from dashboard.library import identify

    made = from_parts("many", synthetic.make(layers=2, cores=3))
    (path,) = captures("many")
    app = (create_app([path], loader=lambda _: made), identify(path))
    _, figures = exported(app, made, "timeline", values={"core": ALL_CORES, "kinds": ["wait", "mxu"]})
    (figure,) = figures
    assert "core 2" in figure["layout"]["yaxis"]["ticktext"]
    names = {t["name"] for t in figure["data"]}
    assert {"matrix work", "wait"} <= names
    assert "collective" not in names
    page = export_page(app[0], made, app[1], PAGE["timeline"], Asked())
    assert 'id="data"' in page, "one core: with the finer pictures to zoom into"
