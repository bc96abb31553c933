"""Findings as SARIF 2.1.0, which editors and code hosts show on the source lines."""

import hashlib
import json
import re
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote

from analyzer.findings import rules
from analyzer.findings.base import Rule
from analyzer.reports.plain import clean
from analyzer.reports.text import time

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
# A finding that costs this share of the step is a warning, a smaller or unpriced one a note.
WARNING_SHARE = 0.02


def render(report: dict[str, Any]) -> str:
    """The findings of a report as a SARIF log, ending with a newline."""
    known = list(rules())
    index = {rule.identifier: number for number, rule in enumerate(known)}
    log = {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": {"name": "megascope", "rules": [_rule(rule) for rule in known]}},
                "results": [
                    _result(finding, index, report["step"]["time_ps"]) for finding in report["findings"]
                ],
                "columnKind": "unicodeCodePoints",
                "properties": {
                    "kernel": report["capture"]["kernel"],
                    "chip": report["capture"]["chip"],
                    "step_ps": report["step"]["time_ps"],
                    "provenance": report["step"]["provenance"],
                    "verdict": report["step"]["verdict"],
                    "notes": report["notes"],
                },
            }
        ],
    }
    return json.dumps(log, indent=1, ensure_ascii=True, allow_nan=False) + "\n"


def _rule(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.identifier,
        "name": "".join(word.capitalize() for word in re.findall(r"[A-Za-z0-9]+", rule.title)),
        "shortDescription": {"text": rule.title},
        "fullDescription": {"text": f"{rule.sees} {rule.costs}"},
        "help": {"text": f"Try: {rule.advice} Might be wrong because: {rule.doubt} Verify: {rule.verify}"},
        "defaultConfiguration": {"level": "warning"},
        "properties": {"family": rule.family},
    }


def _result(finding: dict[str, Any], index: dict[str, int], step_ps: int | None) -> dict[str, Any]:
    saving, taken = finding["saving_ps"], finding["time_ps"]
    worth = saving / step_ps if saving is not None and step_ps else 0.0
    priced = "saving not estimated" if saving is None else f"the step would gain {time(saving)}"
    result: dict[str, Any] = {
        "ruleId": finding["id"],
        "ruleIndex": index[finding["id"]],
        "level": "warning" if worth >= WARNING_SHARE else "note",
        "message": {
            "text": clean(
                f"{finding['title']}: takes {time(taken)} of the step, {priced} ({finding['provenance']}; "
                f"{finding['saving_basis']}). {'. '.join(finding['evidence'])}."
            )
        },
        "rank": round(100 * min(worth, 1.0), 3),
        "partialFingerprints": {"megascope/v1": _fingerprint(finding)},
        "properties": {
            key: finding[key]
            for key in (
                "time_ps",
                "saving_ps",
                "saving_basis",
                "confidence",
                "provenance",
                "bundles",
                "phase",
                "layers",
                "count",
                "might_be_wrong_because",
                "try",
                "verify_with",
            )
        },
    }
    location = _location(finding["source"])
    if location is not None:
        result["locations"] = [location]
    return result


def _location(source: str | None) -> dict[str, Any] | None:
    """A line of a file; None where the source is unknown."""
    if not source:
        return None
    path, _, line = source.rpartition(":")
    if not path or not line.isdecimal() or int(line) < 1:
        return None
    pure = PurePosixPath(path)
    uri = ("file://" if pure.is_absolute() else "") + quote(str(pure), errors="replace")
    return {"physicalLocation": {"artifactLocation": {"uri": uri}, "region": {"startLine": int(line)}}}


def _fingerprint(finding: dict[str, Any]) -> str:
    """Stays the same when lines move or the price changes: rule, phase and file."""
    file = PurePosixPath(str(finding["source"] or "").rpartition(":")[0]).name
    return hashlib.sha256(f"{finding['id']}\0{finding['phase']}\0{file}".encode()).hexdigest()[:16]
