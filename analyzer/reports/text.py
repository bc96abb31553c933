"""The digest: at most 30 lines of at most 100 columns, made from the report as data, without I/O."""

from typing import Any

from analyzer.reports import layers_text
from analyzer.reports.plain import clean, fit, layers, pad, percent, place
from analyzer.units import duration, rate, size

MAX_LINES = 30
COLUMNS = 100
PHASES, BUBBLES, FINDINGS, WAITS, NOTES = 6, 5, 5, 3, 3
LAYERS = 7  # lines on layers; phases, which they name once more, and findings make room for them

_BOLD, _DIM, _RESET = "\x1b[1m", "\x1b[2m", "\x1b[0m"
Line = tuple[str, str]  # style ("", "bold", "dim") and text
Report = dict[str, Any]

CAUSES = {
    "issued_late": "issued late",
    "buffer_not_free": "buffer not free",
    "latency": "latency",
    "issued_at_need": "not issued",
    "result_not_ready": "result not ready",
    "ramp": "ramp",
    "drain": "drain",
    "no_traffic": "no traffic",
}


def render(report: Report, *, colour: bool = False) -> str:
    """The digest as text that ends with a newline."""
    if "trace" in report:
        from analyzer.reports import trace_text

        lines = trace_text.lines(report)
    else:
        of_layers: list[Line] = [("", line) for line in layers_text.lines(report, LAYERS, COLUMNS)]
        head, found = _head(report), _findings(report, FINDINGS - len(of_layers) // 3)
        body = [*_phases(report, PHASES - len(of_layers) // 2), *of_layers]
        most = MAX_LINES - NOTES - len(head) - len(body) - len(found)
        waits = _waits(report, max(most - len(_bubbles(report)), 1))
        lines = [*head, *waits, *body, *_bubbles(report, most - len(waits) - 1), *found]
        lines += _notes(report, MAX_LINES - len(lines))
    styles = {"bold": _BOLD, "dim": _DIM}
    text = []
    for style, line in lines[:MAX_LINES]:
        fitted = fit(line.rstrip(), COLUMNS)
        text.append(f"{styles[style]}{fitted}{_RESET}" if colour and style and fitted else fitted)
    return "\n".join(text) + "\n"


def time(value: int | None) -> str:
    """A time in words, or "unknown"."""
    return "unknown" if value is None else duration(value)


def count(value: int | None) -> str:
    """A count with separators, or "unknown"."""
    return "unknown" if value is None else f"{value:,}"


def bytes_of(value: int | None) -> str:
    """A size in words, or "unknown"."""
    return "unknown" if value is None else size(value)


def known(value: object) -> str:
    """A name or number, or "unknown"."""
    return "unknown" if value is None else clean(value)


def _head(report: Report) -> list[Line]:
    capture, step, hbm, ici, vmem = (report[k] for k in ("capture", "step", "hbm", "ici", "vmem"))
    stalls = report["time"]
    path = [
        (name.removesuffix("_ps").replace("_", " "), value)
        for name, value in step["critical_path"].items()
        if step["time_ps"] and value * 200 >= step["time_ps"]
    ]
    path.sort(key=lambda item: -item[1])
    parts = " | ".join(f"{name} {value / step['time_ps']:.0%}" for name, value in path)
    peak = hbm["peak_bytes_per_s"]
    idle = None if hbm["bubble_ps"] is None or not step["time_ps"] else hbm["bubble_ps"] / step["time_ps"]
    return [
        (
            "dim",
            f"{known(capture['kernel'])} ({capture['kind']}) on {known(capture['chip'])}, "
            f"{known(capture['cores'])} cores, batch {known(capture['batch'])};"
            f" core {report['reported']['core']}",
        ),
        ("bold", f"{time(step['time_ps'])} per step ({step['provenance']}): {step['verdict']}"),
        ("", f"path    {parts}"),
        (
            "",
            f"HBM     read {bytes_of(hbm['read_bytes'])}, written {bytes_of(hbm['write_bytes'])};"
            f" utilization {percent(hbm['utilization'])} of {'unknown' if peak is None else rate(peak)};"
            f" overlap {percent(hbm['overlap'])}",
        ),
        (
            "",
            f"        idle {time(hbm['bubble_ps'])} ({percent(idle)}); ramp {time(hbm['ramp_ps'])},"
            f" drain {time(hbm['drain_ps'])}; at peak these bytes take {time(hbm['at_peak_ps'])}",
        ),
        (
            "",
            f"stalls  DMA {time(hbm['exposed_wait_ps'])}, other {time(stalls['stalled_other_ps'])};"
            f" ICI {time(ici['exposed_wait_ps'])} in {count(ici['exposed_phases'])} exposed phases"
            f" ({count(ici['messages'])} messages, {bytes_of(ici['sent_bytes'])})",
        ),
        (
            "",
            f"program {count(step['executed_bundles'])} bundles executed of"
            f" {count(step['static_bundles'])} static;"
            f" VMEM {bytes_of(vmem['used_bytes'])} of {bytes_of(vmem['capacity_bytes'])}",
        ),
    ]


def fold_phases(phases: list[Report]) -> list[Report]:
    """One row per phase name, summed over layers, in order of time."""
    rows: dict[str, Report] = {}
    for phase in phases:
        row = rows.setdefault(
            phase["phase"], {"phase": phase["phase"], "layers": [], "read_bytes": 0, "sent_bytes": 0}
        )
        row["layers"].append(phase["layer"])
        for name in ("time_ps", "share", "busy_ps", "stalled_dma_ps", "stalled_ici_ps", "in_flight_ps"):
            row[name] = row.get(name, 0) + (phase[name] or 0)
        for name in ("read_bytes", "sent_bytes"):
            row[name] = None if None in (row[name], phase[name]) else row[name] + phase[name]
    return sorted(rows.values(), key=lambda row: -row["time_ps"])


def _of_step(report: Report) -> str:
    """What to add to a heading over totals of the whole step in a report on some layers or phases."""
    return "; totals of the whole step" if report.get("selected", {}).get("totals_of") == "step" else ""


def _left_out(report: Report, name: str) -> str:
    """What to say of a list that is empty only because the entries of it were not asked for, else ""."""
    total = report.get("selected", {}).get(name, {}).get("total", 0)
    return f"none of {total} selected" if total else ""


def _phases(report: Report, most: int = PHASES) -> list[Line]:
    rows = fold_phases(report["phases"])
    if not rows and _left_out(report, "phases"):
        return [("dim", f"phases  {_left_out(report, 'phases')}")]
    if not rows:
        marked = report["capture"].get("probe_level") == "regions"
        cure = "no named scopes in its code" if marked else "compile with --level regions"
        return [("dim", f"phases  none marked in this program ({cure})")]
    head = (
        f"{'phase':<36}{'time':>9}{'share':>8}{'HBM read':>10}{'HBM busy':>9}{'DMA wait':>9}{'ICI wait':>9}"
    )
    lines = [("dim", head)]
    for row in rows[:most]:
        name = row["phase"] or "(no phase)"
        where = layers(row["layers"])
        busy = row["in_flight_ps"] / row["time_ps"] if row["time_ps"] else None
        lines.append(
            (
                "",
                pad(f"{clean(name)} {where}", 36)
                + pad(time(row["time_ps"]), 9, right=True)
                + pad(percent(row["share"]), 8, right=True)
                + pad(bytes_of(row["read_bytes"]), 10, right=True)
                + pad("-" if busy is None else f"{busy:.0%}", 9, right=True)
                + pad(time(row["stalled_dma_ps"]), 9, right=True)
                + pad(time(row["stalled_ici_ps"]), 9, right=True),
            )
        )
    if len(rows) > most:
        rest = sum(row["time_ps"] for row in rows[most:])
        lines.append(("dim", f"and {len(rows) - most} more, {time(rest)} together"))
    return lines


def _waits(report: Report, room: int) -> list[Line]:
    """The costliest waits, each with what it waited for and why that came so late."""
    lines: list[Line] = []
    for story in (report.get("stories") or [])[: min(room, WAITS)]:
        start = f"{'waits' if not lines else '':<8}{time(story['total_ps'])} x{story['count']}  "
        where = f"{place(story['source'], None).rsplit('/', 1)[-1]} "
        lines.append(("", start + where + _chain(story)))
    return lines


def _chain(story: Report) -> str:
    """What the longest wait of a kind waited for, in as few words as there are."""
    transfer = story["transfer"]
    if transfer is None:
        return "for the barrier"
    what = f"{bytes_of(transfer['bytes'])} {story['kind']}" if transfer["bytes"] else "a signal"
    words = f"for {what} of {place(transfer['source'], None).rsplit('/', 1)[-1]}"
    if story["behind"]:
        words += f", queued {duration(story['behind_ps'])}"
    elif transfer["issued_ps"] is not None:
        begun = story["longest_start_ps"] - transfer["issued_ps"]
        words += f", issued {duration(abs(begun))} {'before' if begun >= 0 else 'after'}"
    if story["could_be_earlier_ps"] is not None:
        words += f", buffer free {duration(story['could_be_earlier_ps'])} earlier"
    return words


def _bubbles(report: Report, most: int = BUBBLES) -> list[Line]:
    groups = report["bubble_groups"]
    most = min(BUBBLES, most)
    if not groups:
        return [("dim", f"HBM bubbles: {_left_out(report, 'bubble_groups') or 'none'}")]
    window = report["step"]["time_ps"]
    lines = [
        (
            "dim",
            f"HBM bubbles, largest {min(most, len(groups))} of {len(groups)} kinds: cause, place"
            + _of_step(report),
        )
    ]
    for group in groups[:most]:
        ran = max(group["meanwhile"].items(), key=lambda item: item[1], default=("nothing known", 0))
        share = f"{ran[1] / group['total_ps']:.0%}" if group["total_ps"] else ""
        late = ""
        if group["cause"] == "issued_late" and group["lateness_ps"] is not None:
            late = f" {duration(group['lateness_ps'])}"
        lines.append(
            (
                "",
                pad(duration(group["total_ps"]), 9, right=True)
                + pad(percent(group["total_ps"] / window if window else None), 8, right=True)
                + pad(f"  x{group['count']}", 8)
                + pad(f"{CAUSES.get(group['cause'], group['cause'])}{late}", 22)
                + pad(f" {ran[0]} {share}", 17)
                + "  "
                + fit(place(group["source"], group["bundles"]), 34, keep_end=True),
            )
        )
    return lines


def _findings(report: Report, most: int = FINDINGS) -> list[Line]:
    found = report["findings"]
    if not found:
        return [("dim", f"findings: {_left_out(report, 'findings') or 'none'}")]
    lines: list[Line] = [
        (
            "dim",
            f"findings, {min(most, len(found))} of {len(found)}, by what the step would gain"
            f" (savings overlap{_of_step(report)})",
        )
    ]
    for finding in found[:most]:
        saving = "no estimate" if finding["saving_ps"] is None else duration(finding["saving_ps"])
        lines.append(
            (
                "",
                pad(saving, 11, right=True)
                + f"  {finding['id']} "
                + pad(finding["title"], 47)
                + " "
                + fit(place(finding["source"], finding["bundles"]), 33, keep_end=True),
            )
        )
    return lines


def _notes(report: Report, room: int) -> list[Line]:
    """The counts that every report shows, then as many notes as there is room for."""
    missed, scenario = report["not_understood"], report["scenario"]
    first = (
        f"{count(missed['instructions'])} of {count(missed['of'])} instructions not understood;"
        f" scenario {known(scenario['name'])}, {len(scenario['assumed_values'])} assumed values"
    )
    lines: list[Line] = [("dim", first)]
    counted = ("instructions not understood", "scenario ")
    notes = [note for note in report["notes"] if not any(words in note for words in counted)]
    left = room - 1
    if len(notes) > left > 0:
        more = len(notes) - left + 1
        notes = [*notes[: left - 1], f"and {more} more notes (--format json)"]
    return lines + [("dim", f"note: {clean(note)}") for note in notes[: max(left, 0)]]
