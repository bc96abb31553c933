"""The HTML file: complete in itself, nothing fetched, hostile names harmless."""

import json
import re
from pathlib import Path

import pytest

from dashboard.export import levels, render_html, write_html
from dashboard.loading import from_parts


@pytest.fixture
def loaded(loader):
    return loader(Path("mlp"))


def test_one_file_with_everything_inside(loaded, tmp_path):
    target = tmp_path / "mlp.html"
    write_html(loaded, target)
    page = target.read_text()
    assert [p.name for p in tmp_path.iterdir()] == ["mlp.html"], "no temporary file stays"
    head = page.split("<script>", 1)[0]
    assert not re.search(r"""(src|href)=["'](?!data:)""", head)
    assert "default-src 'none'" in head
    assert "plotly.js v" in page
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.S).group(1))
    assert len(data["levels"]) == 17
    assert len(page) < 20_000_000


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
