"""The digest of a measured run: at most 30 lines of at most 100 columns, made from the report as data."""

from typing import Any

from analyzer.reports.plain import clean, fit, pad, percent
from analyzer.units import duration, rate, size

MAX_LINES, COLUMNS = 30, 100
STAGES, OPERATIONS, COMPARED, CALLS = 9, 5, 8, 4
Line = tuple[str, str]  # style ("", "bold", "dim") and text
Report = dict[str, Any]


def lines(report: Report) -> list[Line]:
    """The digest, styled; `analyzer.reports.text` turns it into text."""
    trace = report["trace"]
    head = [*_head(report), *_traffic(report)]
    label = "measured" if report["step"]["provenance"] == "measured" else "in the trace"
    stages = _compared(trace, label) if trace["comparison"] else _stages(trace)
    if not report["capture"]["kernel"]:
        stages = []  # the runtime's own waits between operations say less than the operations
    operations = _operations(trace, alone=not stages)
    unusable = _not_usable(trace)
    room = MAX_LINES - len(head) - len(stages) - len(operations) - len(unusable)
    return [*head, *stages, *operations, *unusable, *_notes(report, room)]


def _time(value: int | None) -> str:
    return "unknown" if value is None else duration(value)


def _head(report: Report) -> list[Line]:
    capture, step, trace = report["capture"], report["step"], report["trace"]
    runs, reported = trace["runs"], report["reported"]["core"]
    core = next((c["name"] for c in trace["cores"] if c["core"] == reported), "")
    spread = ", ".join(duration(row["duration_ps"]) for row in runs["listed"][:CALLS])
    if runs["count"] > CALLS:
        spread = f"{_time(runs['shortest_ps'])} to {_time(runs['longest_ps'])}"
    name = clean(capture["kernel"]) if capture["kernel"] else "no kernel found"
    found: list[Line] = [
        (
            "dim",
            f"{name} (trace) on {clean(capture['chip'] or 'an unknown chip')}, {capture['cores']} cores;"
            f" {clean(core)}",
        ),
        (
            "bold",
            f"{_time(step['time_ps'])} per run, median ({step['provenance']}): {clean(step['verdict'])}",
        ),
        ("", f"runs    {runs['count']} {clean(runs['what'])}: {spread}"),
    ]
    between = runs["start_to_start_median_ps"]
    if between is not None:
        busy = runs["median_ps"] / between if between and runs["median_ps"] else None
        found.append(
            (
                "",
                f"steps   {duration(between)} from start to start (median); runs fill {percent(busy)} of it",
            )
        )
    if len(trace["cores"]) > 1:
        medians = [c["median_ps"] for c in trace["cores"] if c["median_ps"] is not None]
        if medians:
            found.append(
                (
                    "",
                    f"cores   median run {duration(min(medians))} to {duration(max(medians))} over the cores",
                )
            )
    return found


def _traffic(report: Report) -> list[Line]:
    hbm, trace = report["hbm"], report["trace"]
    peak = "unknown" if hbm["peak_bytes_per_s"] is None else rate(hbm["peak_bytes_per_s"])
    if not report["capture"]["kernel"]:
        return [("", f"HBM     utilization unknown (no kernel); peak {peak}")]
    wait = hbm["exposed_wait_ps"]
    waits = f"; waits for copies {duration(wait)}" if wait is not None else ""
    traffic = trace["traffic"]
    if traffic is None or traffic["read_bytes"] is None or traffic["write_bytes"] is None:
        whole = traffic and traffic["operand_bytes"]
        told = f"; operands and results hold {size(whole)}" if whole else ""
        return [("", f"HBM     bytes unknown, bandwidth unknown, peak {peak}{told}{waits}")]
    moved = traffic["read_bytes"] + traffic["write_bytes"]
    fastest = max((r["bytes_per_s"] for r in trace["runs"]["listed"] if r.get("bytes_per_s")), default=None)
    best = f", best run {rate(fastest)}" if fastest else ""
    return [
        (
            "",
            f"HBM     {size(moved)} ({size(traffic['read_bytes'])} read,"
            f" {size(traffic['write_bytes'])} written) per run, counted{waits}",
        ),
        (
            "",
            f"        {rate(hbm['bytes_per_s'])} (counted / {report['step']['provenance']}){best};"
            f" {percent(hbm['utilization'])} of {peak}",
        ),
    ]


def _label(row: Report) -> str:
    name = clean(row["phase"]) if row["phase"] else "(in no scope)"
    return name if row["layer"] is None else f"{name} [{row['layer']}]"


def fold(stages: list[Report]) -> list[Report]:
    """Stages summed over layers, in the order they came; a stage stands behind what it is nested in."""
    rows: dict[str, Report] = {}
    for stage in stages:
        row = rows.setdefault(stage["phase"], {**stage, "layer": None, "layers": 0})
        if row["layers"]:
            for name in ("entries", "time_ps", "own_ps", "share", "own_share"):
                row[name] += stage[name] or 0
        row["layers"] += 1
    top = sorted((r for r in rows.values() if r["depth"] == 0), key=lambda r: -r["time_ps"])
    result = []
    for row in top:
        result.append(row)
        inner = [r for r in rows.values() if r["depth"] and r["phase"].startswith(row["phase"] + "/")]
        result += sorted(inner, key=lambda r: r["phase"]) if row["phase"] else []
    shown = {id(row) for row in result}
    return result + [row for row in rows.values() if id(row) not in shown]


def _stages(trace: Report) -> list[Line]:
    rows = fold(trace["stages"])
    if not rows:
        return []
    found: list[Line] = [
        ("dim", f"{'stage, mean per run':<44}{'time':>10}{'share':>9}{'alone':>9}{'entries':>10}")
    ]
    for row in rows[:STAGES]:
        name = "  " * row["depth"] + (_label(row).rpartition("/")[2] if row["depth"] else _label(row))
        found.append(
            (
                "",
                pad(name, 44)
                + pad(duration(row["time_ps"]), 10, right=True)
                + pad(percent(row["share"]), 9, right=True)
                + pad(percent(row["own_share"]), 9, right=True)
                + pad(f"{row['entries']:,.4g}", 10, right=True),
            )
        )
    if len(rows) > STAGES:
        rest = sum(row["own_ps"] for row in rows[STAGES:])
        found.append(("dim", f"and {len(rows) - STAGES} more, {duration(rest)} together"))
    return found


def _compared(trace: Report, label: str) -> list[Line]:
    sums: dict[str, list[int | None]] = {}
    for row in trace["comparison"]:
        pair = sums.setdefault(row["phase"], [0, 0])
        for i, name in enumerate(("measured_ps", "modelled_ps")):
            old = pair[i]
            pair[i] = None if old is None or row[name] is None else old + row[name]
    found: list[Line] = [
        ("dim", f"{'phase, all layers, alone':<44}{label:>12}{'modelled':>12}{'difference':>12}")
    ]
    ordered = sorted(sums.items(), key=lambda item: -(item[1][0] or item[1][1] or 0))
    for phase, (seen, model) in ordered[:COMPARED]:
        differ = "unknown" if not seen or model is None else f"{(model - seen) / seen:+.1%}"
        found.append(
            (
                "",
                pad(clean(phase) or "(in no scope)", 44)
                + pad(_time(seen), 12, right=True)
                + pad(_time(model), 12, right=True)
                + pad(differ, 12, right=True),
            )
        )
    if len(ordered) > COMPARED:
        found.append(("dim", f"and {len(ordered) - COMPARED} more (--format json)"))
    return found


def _operations(trace: Report, *, alone: bool) -> list[Line]:
    rows = [r for r in trace["operations"] if alone or r["name"] != "custom-call"]
    if not rows:
        return []
    head = "operations by category, all runs" if alone else "XLA operations around the kernel"
    found: list[Line] = [("dim", f"{head:<36}{'time':>10}{'share':>9}{'count':>8}{'bytes':>11}{'flops':>12}")]
    for row in rows[: OPERATIONS if not alone else OPERATIONS + 3]:
        moved = "unknown" if row["bytes"] is None else size(row["bytes"])
        flops = "unknown" if row["flops"] is None else f"{row['flops']:.3g}"
        found.append(
            (
                "",
                pad(clean(row["name"]), 36)
                + pad(duration(row["time_ps"]), 10, right=True)
                + pad(percent(row["share"]), 9, right=True)
                + pad(f"{row['count']:,}", 8, right=True)
                + pad(moved, 11, right=True)
                + pad(flops, 12, right=True),
            )
        )
    for row in trace["async_operations"][:2]:
        moved = "unknown" if row["bytes"] is None else size(row["bytes"])
        found.append(
            (
                "dim",
                f"asynchronous: {clean(row['name'])} x{row['count']:,}, {moved}, outstanding"
                f" {duration(row['time_ps'])} ({percent(row['share'])})",
            )
        )
    return found


def _not_usable(trace: Report) -> list[Line]:
    return [
        ("dim", fit(f"not usable: {row['name']}, {clean(row['brief'])}", COLUMNS))
        for row in trace["not_usable"]
    ]


def _notes(report: Report, room: int) -> list[Line]:
    """The notes, long ones over two lines, as far as there is room."""
    found: list[Line] = []
    for note in report["notes"]:
        text = f"note: {clean(note)}"
        while text:
            if len(text) <= COLUMNS:
                found.append(("dim", text))
                break
            cut = text.rfind(" ", 0, COLUMNS)
            cut = cut if cut > 20 else COLUMNS
            found.append(("dim", text[:cut]))
            text = "      " + text[cut:].strip()
    if len(found) > room > 0:
        return [
            *found[: room - 1],
            ("dim", f"and {len(found) - room + 1} more lines of notes (--format json)"),
        ]
    return found[: max(room, 0)]
