"""The compiler's VMEM report: read where it is sound, unknown otherwise."""

import json

import pytest

from analyzer import vmem


def page(data):
    return f"<html><script>const DATA = {data}; const x = 1;</script></html>"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (page(json.dumps({"hlo_breakdowns": {"mlp.1": {"total_size": 262}, "copy": {}}})), 262),
        (page(json.dumps({"hlo_breakdowns": {"other": {"total_size": 5}}})), None),
        (page(json.dumps({"hlo_breakdowns": {"mlp.1": {"total_size": "5"}}})), None),
        (page(json.dumps({"hlo_breakdowns": []})), None),
        (page("{broken"), None),
        ("<html></html>", None),
        ("", None),
    ],
)  # fmt: skip
def test_used_bytes(tmp_path, text, expected):
    report = tmp_path / "1-TLP-04-vmem_report.html"
    report.write_text(text)
    assert vmem.used_bytes(report, "mlp.1") == expected


def test_no_report_is_unknown(tmp_path):
    assert vmem.used_bytes(None, "mlp.1") is None
    assert vmem.used_bytes(tmp_path / "missing.html", "mlp.1") is None
