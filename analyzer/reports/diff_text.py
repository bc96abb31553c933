"""A comparison as text: what changed, largest first."""

from typing import Any

from analyzer.reports.plain import clean, fit, pad, place
from analyzer.units import duration, size

COLUMNS = 100
MAX_LINES = 30
PHASES, FINDINGS = 6, 3
FACTOR = 10  # growth from here on is shown as a factor


def render(diff: dict[str, Any]) -> str:
    """At most 30 lines of at most 100 columns."""
    a, b = diff["a"], diff["b"]
    lines = [
        f"{clean(a['kernel'])} on {clean(a['chip'])}: {clean(a['path'])} -> {clean(b['path'])}"
        f" ({diff['provenance']})"
    ]
    lines += [f"not comparable: {clean(reason)}" for reason in diff["obstacles"]]
    rows = [row for row in diff["figures"] if row["a"] != row["b"]]
    lines += [_row(row, row["what"]) for row in rows] or ["figures: no difference"]
    path = [row for row in diff["critical_path"] if row["change"]]
    if path:
        path.sort(key=lambda row: -abs(row["change"]))
        parts = ", ".join(
            f"{row['what'].removesuffix('_ps').replace('_', ' ')} {_signed(row['change'])}"
            for row in path[:4]
        )
        lines.append(f"critical path: {parts}")
    phases = [row for row in diff["phases"] if row["a"] != row["b"]]
    if phases:
        lines.append("phases")
        lines += [_row(row, "  " + (row["what"] or "(no phase)")) for row in phases[:PHASES]]
    found = diff["findings"]
    for name in ("appeared", "disappeared"):
        lines += [f"{name:<12}{_finding(finding)}" for finding in found[name][:FINDINGS]]
    lines += [
        f"{'changed':<12}{_finding(both['b'])} (was {_price(both['a'])})"
        for both in found["changed"][:FINDINGS]
    ]
    more = sum(max(len(found[name]) - FINDINGS, 0) for name in found)
    if more:
        lines.append(f"and {more} more findings (--format json)")
    return "\n".join(fit(line.rstrip(), COLUMNS) for line in lines[:MAX_LINES]) + "\n"


def _value(value: float | None, unit: str) -> str:
    if value is None:
        return "unknown"
    if unit == "ps":
        return duration(value)
    if unit == "bytes":
        return size(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _row(row: dict[str, Any], name: str) -> str:
    change = "" if row["relative"] is None else f"{row['relative']:+.1%}"
    if row["relative"] is not None and row["relative"] >= FACTOR - 1:
        change = f"x{row['relative'] + 1:.3g}"
    return (
        pad(clean(name), 32)
        + pad(_value(row["a"], row["unit"]), 14, right=True)
        + "  ->"
        + pad(_value(row["b"], row["unit"]), 14, right=True)
        + pad(change, 12, right=True)
    )


def _signed(value: int) -> str:
    return ("+" if value > 0 else "-") + duration(abs(value))


def _price(finding: dict[str, Any]) -> str:
    return "no estimate" if finding["saving_ps"] is None else duration(finding["saving_ps"])


def _finding(finding: dict[str, Any]) -> str:
    return (
        f"{finding['id']} {clean(finding['title'])}, {_price(finding)},"
        f" {place(finding['source'], finding['bundles'])}"
    )
