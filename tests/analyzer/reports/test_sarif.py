"""SARIF: valid by the official schema, and with the parts that consumers need, on every finding."""

import json
from pathlib import Path
from urllib.parse import unquote

import jsonschema
import pytest

from analyzer.findings import rules
from analyzer.reports import sarif

SCHEMA = json.loads((Path(__file__).parent / "sarif_schema/sarif-2.1.0-rtm.5.json").read_text())


def log_of(report):
    log = json.loads(sarif.render(report))
    jsonschema.Draft4Validator(SCHEMA, format_checker=jsonschema.Draft4Validator.FORMAT_CHECKER).validate(log)
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"] == "megascope"
    assert [rule["id"] for rule in driver["rules"]] == [rule.identifier for rule in rules()]
    for rule in driver["rules"]:
        assert set(rule) <= {
            "id", "name", "shortDescription", "fullDescription", "help", "defaultConfiguration", "properties",
        }  # fmt: skip
        assert rule["name"].isalnum()
    for result in run["results"]:
        assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in ("warning", "note")
        assert result["message"]["text"]
        assert 0 <= result["rank"] <= 100
        for location in result.get("locations", ()):
            physical = location["physicalLocation"]
            assert physical["region"]["startLine"] >= 1
            assert physical["artifactLocation"]["uri"].isascii()
            assert " " not in physical["artifactLocation"]["uri"]
    return run


def test_findings_open_on_their_lines(late_ring, make_report):
    report = make_report(late_ring)
    run = log_of(report)
    assert len(run["results"]) == len(report["findings"])
    first = run["results"][0]
    assert (first["ruleId"], first["level"]) == ("MS101", "warning")
    physical = first["locations"][0]["physicalLocation"]
    assert physical == {"artifactLocation": {"uri": "k.py"}, "region": {"startLine": 5}}


def test_paths_are_escaped_and_unknown_places_left_out(late_ring, make_report):
    report = make_report(late_ring)
    path = "/home/me/my kernels/\u00e9\x1b%.py"
    report["findings"][0]["source"] = f"{path}:7"
    report["findings"][1]["source"] = None
    results = log_of(report)["results"]
    uri = results[0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert uri.startswith("file:///home/me/my%20kernels/")
    assert unquote(uri.removeprefix("file://")) == path
    assert "locations" not in results[1]


def test_fingerprints_survive_moved_lines(late_ring, make_report):
    report = make_report(late_ring)
    before = [r["partialFingerprints"] for r in log_of(report)["results"]]
    for finding in report["findings"]:
        finding["saving_ps"] = 1
        if finding["source"]:
            finding["source"] = "/elsewhere/" + finding["source"] + "0"
    assert [r["partialFingerprints"] for r in log_of(report)["results"]] == before


def test_the_schema_refuses_what_is_no_sarif(late_ring, make_report):
    log = json.loads(sarif.render(make_report(late_ring)))
    log["runs"][0]["results"][0]["level"] = "high"
    with pytest.raises(jsonschema.ValidationError, match="high"):
        jsonschema.Draft4Validator(SCHEMA).validate(log)
