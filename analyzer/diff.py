"""Two reports side by side: what changed in the step, and whether that passes a gate.

Works on reports as data (the JSON contract), so anything that has one can be compared.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Any

from analyzer.errors import UsageError
from analyzer.reports.text import fold_phases

Report = dict[str, Any]
SCHEMA_VERSION = "1.0"

# Figures of the report that are compared, in the order shown.
FIGURES = (
    ("step time", "step", "time_ps"),
    ("executed bundles", "step", "executed_bundles"),
    ("static bundles", "step", "static_bundles"),
    ("spills executed", "program", "spills_executed"),
    ("HBM read", "hbm", "read_bytes"),
    ("HBM written", "hbm", "write_bytes"),
    ("HBM utilization", "hbm", "utilization"),
    ("DMA/compute overlap", "hbm", "overlap"),
    ("exposed DMA wait", "hbm", "exposed_wait_ps"),
    ("HBM bubbles", "hbm", "bubble_ps"),
    ("exposed ICI wait", "ici", "exposed_wait_ps"),
    ("exposed ICI phases", "ici", "exposed_phases"),
    ("ICI messages", "ici", "messages"),
    ("ICI bytes sent", "ici", "sent_bytes"),
    ("VMEM used", "vmem", "used_bytes"),
)


def obstacles(a: Report, b: Report) -> list[str]:
    """Why two reports cannot be compared; empty if they can."""
    found = []
    for what, section, name in (
        ("kernel", "capture", "kernel"),
        ("chip", "capture", "chip"),
        ("number of cores", "capture", "cores"),
        ("batch", "capture", "batch"),
        ("provenance of times", "step", "provenance"),
        ("scenario", "scenario", "name"),
    ):
        one, other = a[section][name], b[section][name]
        if one is not None and other is not None and one != other:
            found.append(f"{what}: {one} and {other}")
    one, other = _layers(a), _layers(b)
    if one and other and one != other:
        found.append(f"number of layers: {one} and {other}")
    for report, place in ((a, "the first"), (b, "the second")):
        if report["step"]["time_ps"] is None:
            found.append(f"{place} has no step time")
    what_if = [{n for n in report["notes"] if n.startswith("what-if")} for report in (a, b)]
    if what_if[0] != what_if[1]:
        found.append("different machine parameters (--what-if)")
    return found


def _layers(report: Report) -> int:
    """Number of layers that the phases of a report tell apart; 0 where none are marked."""
    rows = [*report["phases"], *report.get("trace", {}).get("stages", [])]
    return len({row["layer"] for row in rows} - {None})


def compare(a: Report, b: Report, *, force: bool = False) -> dict[str, Any]:
    """What changed from a to b, as data.

    Args:
        a, b: reports.
        force: compare what is not comparable all the same; the obstacles are in the result.

    Raises:
        UsageError: the two are not comparable.
    """
    found = obstacles(a, b)
    if found and not force:
        raise UsageError(
            f"{a['capture']['path']} and {b['capture']['path']}",
            f"cannot be compared: {'; '.join(found)}",
            "Compare captures of one kernel at the same size, or add --force.",
        )
    return {
        "schema_version": SCHEMA_VERSION,
        "a": a["capture"],
        "b": b["capture"],
        "provenance": b["step"]["provenance"],
        "obstacles": found,
        "figures": [
            _change(what, (a.get(section) or {}).get(name), (b.get(section) or {}).get(name), name)
            for what, section, name in FIGURES
        ],
        "critical_path": [
            _change(part, a["step"]["critical_path"].get(part), b["step"]["critical_path"].get(part), part)
            for part in dict.fromkeys([*a["step"]["critical_path"], *b["step"]["critical_path"]])
        ],
        "phases": _phases(a, b),
        "findings": _findings(a["findings"], b["findings"]),
    }


def is_empty(diff: dict[str, Any]) -> bool:
    """Whether nothing changed."""
    changes = [*diff["figures"], *diff["critical_path"], *diff["phases"]]
    found = diff["findings"]
    return all(change["change"] in (0, None) and change["a"] == change["b"] for change in changes) and not (
        found["appeared"] or found["disappeared"] or found["changed"]
    )


def _change(what: str, a: float | None, b: float | None, unit: str) -> dict[str, Any]:
    known = a is not None and b is not None
    difference = b - a if known else None  # type: ignore[operator]
    return {
        "what": what,
        "unit": "ps" if unit.endswith("_ps") else "bytes" if unit.endswith("bytes") else "number",
        "a": a,
        "b": b,
        "change": difference,
        "relative": difference / a if difference is not None and a else None,
    }


def _phases(a: Report, b: Report) -> list[dict[str, Any]]:
    """Time per phase name, all layers together, in order of the size of the change."""
    before = {row["phase"]: row["time_ps"] for row in fold_phases(a["phases"])}
    after = {row["phase"]: row["time_ps"] for row in fold_phases(b["phases"])}
    rows = [
        _change(name, before.get(name), after.get(name), "time_ps")
        for name in dict.fromkeys([*before, *after])
    ]
    return sorted(rows, key=lambda row: -abs(row["change"] or max(row["a"] or 0, row["b"] or 0)))


def _key(finding: Report) -> tuple[str, str, str]:
    """What makes two findings the same although lines and addresses moved."""
    file = PurePosixPath(str(finding["source"] or "").rpartition(":")[0]).name
    return finding["id"], finding["title"], file


def _findings(a: Sequence[Report], b: Sequence[Report]) -> dict[str, list[Any]]:
    """Findings matched by rule and file; several at once in order of their line, then of their price."""
    groups: dict[tuple[str, str, str], tuple[list[Report], list[Report]]] = defaultdict(lambda: ([], []))
    for side, reports in enumerate((a, b)):
        for finding in reports:
            groups[_key(finding)][side].append(finding)
    appeared, disappeared, changed = [], [], []
    for before, after in groups.values():
        pairs = _pair(before, after)
        matched_a = {id(one) for one, _ in pairs}
        matched_b = {id(other) for _, other in pairs}
        disappeared += [f for f in before if id(f) not in matched_a]
        appeared += [f for f in after if id(f) not in matched_b]
        for one, other in pairs:
            if (one["saving_ps"], one["time_ps"]) != (other["saving_ps"], other["time_ps"]):
                changed.append({"a": one, "b": other})
    order = _worth
    return {
        "appeared": sorted(appeared, key=order),
        "disappeared": sorted(disappeared, key=order),
        "changed": sorted(changed, key=lambda both: order(both["b"])),
    }


def _pair(before: list[Report], after: list[Report]) -> list[tuple[Report, Report]]:
    """Match findings of one key: those on the same line first, the rest in order of the line."""
    pairs, left_a, left_b = [], list(before), list(after)
    for one in before:
        same = next((other for other in left_b if _place(other) == _place(one)), None)
        if same is not None:
            pairs.append((one, same))
            left_a.remove(one)
            left_b.remove(same)
    for one, other in zip(sorted(left_a, key=_line), sorted(left_b, key=_line), strict=False):
        pairs.append((one, other))
    return pairs


def _place(finding: Report) -> tuple[Any, Any]:
    return finding["source"], finding["phase"]


def _line(finding: Report) -> tuple[int, int]:
    line = str(finding["source"] or "").rpartition(":")[2]
    first = finding["bundles"][0] if finding["bundles"] else 0
    return int(line) if line.isdecimal() else 0, first


def _worth(finding: Report) -> tuple[int, str]:
    return -(finding["saving_ps"] or 0), finding["id"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a change may not do.

    Attributes:
        regression: largest allowed growth of the step time, 0.02 is 2 %.
        phase_regression: the same for each phase, as a share of the step; None allows anything.
        forbid: patterns of rules that must not appear in b (`MS1xx`, `MS101`); x stands for any digit.
        forbid_new: the same, for findings that a did not have.
    """

    regression: float = 0.02
    phase_regression: float | None = None
    forbid: tuple[str, ...] = ()
    forbid_new: tuple[str, ...] = ()


def breaches(diff: dict[str, Any], b: Report, limits: Limits) -> list[str]:
    """Why a change fails the gate; empty if it passes."""
    reasons = []
    step = diff["figures"][0]
    if step["change"] is None:
        reasons.append("the step time is unknown")
    elif step["change"] > limits.regression * step["a"]:
        reasons.append(
            f"step time grew by {step['change'] / step['a']:.2%}, more than {limits.regression:.2%}"
        )
    if limits.phase_regression is not None and step["a"]:
        for row in diff["phases"]:
            growth = (row["b"] or 0) - (row["a"] or 0)
            if growth > limits.phase_regression * step["a"]:
                reasons.append(
                    f"phase {row['what'] or '(no phase)'} grew by {growth / step['a']:.2%} of the step,"
                    f" more than {limits.phase_regression:.2%}"
                )
    for patterns, found, word in (
        (limits.forbid, b["findings"], "forbidden"),
        (limits.forbid_new, diff["findings"]["appeared"], "new"),
    ):
        for finding in found:
            if any(matches(pattern, finding["id"]) for pattern in patterns):
                reasons.append(f"{word} finding {finding['id']} ({finding['title']}) at {finding['source']}")
    return reasons


def matches(pattern: str, identifier: str) -> bool:
    """Whether `MS1xx` means a rule: x stands for one digit, `*` and `?` as in file names."""
    return fnmatchcase(identifier, pattern.upper().replace("X", "?"))


def known_rules(patterns: Iterable[str], option: str) -> None:
    """Refuse patterns that no rule has: a gate on a misspelt rule would pass forever.

    Raises:
        UsageError: names the rules there are.
    """
    given = list(patterns)
    if not given:
        return  # the rules take a third of a second to load, which a report from the cache has not

    from analyzer.findings import rules

    known = [rule.identifier for rule in rules()]
    for pattern in given:
        if not any(matches(pattern, identifier) for identifier in known):
            raise UsageError(f"{option} {pattern}", "no such rule", f"Rules: {', '.join(known)}.")


def share(text: str, option: str) -> float:
    """`2%` or `0.02` as a share.

    Raises:
        UsageError: not a number, or negative.
    """
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise UsageError(f"{option} {text}", "not a share", "Give one such as 2% or 0.02.")
    return value
