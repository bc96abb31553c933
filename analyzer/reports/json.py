"""The report as JSON text: strict (no NaN), with the fields of docs/schema/report.schema.json."""

import json
from typing import Any


def render(report: dict[str, Any]) -> str:
    """The whole report, indented, ending with a newline."""
    return json.dumps(report, indent=1, ensure_ascii=True, allow_nan=False) + "\n"
