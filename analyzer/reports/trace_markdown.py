"""The report on a trace as Markdown: stages, categories, what is not usable and why, the join, the notes."""

from typing import Any

from analyzer.reports.markdown import code, escape, table
from analyzer.reports.plain import clean, percent
from analyzer.reports.text import bytes_of, count, known, time
from analyzer.units import rate

Report = dict[str, Any]


def render(report: Report) -> str:
    """The report as a Markdown document."""
    capture, step, hbm, trace = (report[k] for k in ("capture", "step", "hbm", "trace"))
    peak, seen, runs = hbm["peak_bytes_per_s"], step["provenance"], trace["runs"]
    speed = "unknown" if hbm["bytes_per_s"] is None else f"{rate(hbm['bytes_per_s'])} (counted / {seen})"
    rows = [
        ["run, median of", f"{time(step['time_ps'])} ({seen}), {count(runs['count'])} runs"],
        ["start to start", time(runs["start_to_start_median_ps"])],
        ["HBM read, written", f"{bytes_of(hbm['read_bytes'])}, {bytes_of(hbm['write_bytes'])} (counted)"],
        ["HBM bandwidth", speed],
        [
            "HBM utilization",
            f"{percent(hbm['utilization'])} of {'unknown' if peak is None else rate(peak)}",
        ],
        ["waits for copies", time(hbm["exposed_wait_ps"])],
    ]
    lines = [
        f"# {escape(known(capture['kernel']))} on {escape(known(capture['chip']))}, trace of"
        f" {count(capture['cores'])} cores",
        "",
        f"**{escape(step['verdict'])}**",
        "",
        *table(["", ""], rows),
    ]
    stages = [
        [
            code(s["phase"] or "(in no scope)"),
            "" if s["layer"] is None else str(s["layer"]),
            time(s["time_ps"]),
            percent(s["share"]),
            percent(s["own_share"]),
            f"{s['entries']:,.4g}",
        ]
        for s in trace["stages"]
    ]
    if stages:
        head = ["stage, mean per run", "layer", "time", "share", "alone", "entries"]
        lines += ["", "## Stages", "", *table(head, stages)]
    compared = [
        [
            code(c["phase"] or "(in no scope)"),
            "" if c["layer"] is None else str(c["layer"]),
            time(c["measured_ps"]),
            time(c["modelled_ps"]),
            percent(c["error"]),
        ]
        for c in trace["comparison"]
    ]
    if compared:
        head = ["phase", "layer", "measured", "modelled", "error of the model"]
        lines += ["", "## Measured and modelled", "", *table(head, compared)]
    operations = [
        [
            code(o["name"]),
            time(o["time_ps"]),
            percent(o["share"]),
            count(o["count"]),
            bytes_of(o["bytes"]),
            count(o["flops"]),
        ]
        for o in trace["operations"]
    ]
    if operations:
        head = ["operations", "time", "share", "count", "bytes", "flops"]
        lines += ["", "## XLA operations", "", *table(head, operations)]
    if trace["not_usable"]:
        lines += ["", "## Not usable", ""]
        lines += [
            f"- {escape(n['name'])} ({escape(n['in_trace'])}): {escape(n['reason'])}"
            for n in trace["not_usable"]
        ]
    lines += ["", "## Bundles", "", escape(clean(trace["join"]["reason"])), "", "## Notes", ""]
    return "\n".join([*lines, *(f"- {escape(note)}" for note in report["notes"])]) + "\n"
