"""The report as Markdown, for pull requests and notes: the digest's tables and every finding in full."""

import re
from typing import Any

from analyzer.reports.layers_text import extent, link_words, parts
from analyzer.reports.plain import clean, layers, percent, place, ranges
from analyzer.reports.text import CAUSES, bytes_of, count, fold_phases, known, time
from analyzer.units import duration, rate

Report = dict[str, Any]
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>()#+!|~&$-])")


def escape(text: object) -> str:
    """Text from a capture as Markdown shows it literally, in one line."""
    return _SPECIAL.sub(r"\\\1", clean(text))


def code(text: object) -> str:
    """Text in a code span, whatever it holds."""
    line = clean(text).replace("|", "\\|")
    fence = "`" * (max((len(run) for run in re.findall(r"`+", line)), default=0) + 1)
    return f"{fence} {line} {fence}" if "`" in line else f"`{line}`"


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    """A Markdown table; cells are ready-made Markdown."""
    return [
        "| " + " | ".join(head) + " |",
        "|" + "---|" * len(head),
        *("| " + " | ".join(r) + " |" for r in rows),
    ]


def render(report: Report) -> str:
    """The report as a Markdown document."""
    if "trace" in report:
        from analyzer.reports import trace_markdown

        return trace_markdown.render(report)
    capture, step, hbm, ici = (report[k] for k in ("capture", "step", "hbm", "ici"))
    peak = hbm["peak_bytes_per_s"]
    rows = [
        ["step", f"{time(step['time_ps'])} ({escape(step['provenance'])})"],
        ["bundles", f"{count(step['executed_bundles'])} executed of {count(step['static_bundles'])}"],
        ["HBM read, written", f"{bytes_of(hbm['read_bytes'])}, {bytes_of(hbm['write_bytes'])}"],
        [
            "HBM utilization",
            f"{percent(hbm['utilization'])} of {'unknown' if peak is None else rate(peak)}",
        ],
        ["DMA/compute overlap", percent(hbm["overlap"])],
        ["exposed DMA wait", time(hbm["exposed_wait_ps"])],
        ["HBM bubbles", time(hbm["bubble_ps"])],
        [
            "exposed ICI wait",
            f"{time(ici['exposed_wait_ps'])} in {count(ici['exposed_phases'])} phases,"
            f" {count(ici['messages'])} messages, {bytes_of(ici['sent_bytes'])}",
        ],
    ]
    lines = [
        f"# {escape(known(capture['kernel']))} on {escape(known(capture['chip']))},"
        f" {escape(known(capture['cores']))} cores, batch {escape(known(capture['batch']))}",
        "",
        f"**{escape(step['verdict'])}**",
        "",
        *table(["", ""], rows),
    ]
    lines += ["", "## Phases", "", *_phases(report)]
    of_layers = _layers(report)
    if of_layers:
        lines += ["", "## Critical path by layer", "", *of_layers]
    lines += ["", "## HBM bubbles", "", *_bubbles(report)]
    lines += ["", "## Findings", "", *_findings(report), "", "## Notes", ""]
    lines += [f"- {escape(note)}" for note in report["notes"]]
    return "\n".join(lines) + "\n"


def _phases(report: Report) -> list[str]:
    rows = [
        [
            code(row["phase"] or "(no phase)"),
            layers(row["layers"]),
            time(row["time_ps"]),
            percent(row["share"]),
            bytes_of(row["read_bytes"]),
            time(row["stalled_dma_ps"]),
            time(row["stalled_ici_ps"]),
        ]
        for row in fold_phases(report["phases"])
    ]
    head = ["phase", "layers", "time", "share", "HBM read", "DMA wait", "ICI wait"]
    return table(head, rows) if rows else ["No phases are marked in this program."]


def _layers(report: Report) -> list[str]:
    """Kinds of layers and what lies outside, with the links of the path in order."""
    rows = [
        [
            ", ".join(ranges(kind["layers"])),
            str(kind["count"]),
            time(kind["mean_ps"]),
            extent(kind["min_ps"], kind["max_ps"]),
            percent(kind["share"]),
            escape(parts(kind["parts"], kind["total_ps"])),
            _chain(kind["chain"], "mean_ps", kind["rest_ps"]),
        ]
        for kind in report.get("layer_kinds") or []
    ]
    rows += [
        [
            "outside",
            "",
            time(row["time_ps"]),
            "",
            percent(row["share"]),
            escape(parts(row["parts"], row["time_ps"])),
            _chain(row["chain"], "time_ps", row["rest_ps"]),
        ]
        for row in report.get("layers") or []
        if row["layer"] is None
    ]
    head = ["layers", "count", "mean", "least-most", "share", "parts", "path in order, mean times"]
    return table(head, rows) if rows else []


def _chain(chain: list[Report], name: str, rest_ps: int) -> str:
    words = [escape(link_words(link["phase"], link["part"], link[name])) for link in chain]
    return ", ".join([*words, *([f"rest {duration(rest_ps)}"] if rest_ps else [])])


def _bubbles(report: Report) -> list[str]:
    rows = [
        [
            duration(group["total_ps"]),
            str(group["count"]),
            CAUSES.get(group["cause"], escape(group["cause"])),
            ", ".join(f"{name} {duration(value)}" for name, value in group["meanwhile"].items()),
            code(place(group["source"], group["bundles"])),
        ]
        for group in report["bubble_groups"][:20]
    ]
    return table(["time", "count", "cause", "meanwhile", "place"], rows) if rows else ["None."]


def _findings(report: Report) -> list[str]:
    lines: list[str] = []
    for number, finding in enumerate(report["findings"], 1):
        saving = "not estimated" if finding["saving_ps"] is None else duration(finding["saving_ps"])
        lines += [
            f"### {number}. {finding['id']}: {escape(finding['title'])}",
            "",
            f"{code(place(finding['source'], finding['bundles']))} {escape(finding['phase'] or '')}"
            f" {layers(finding['layers'])}",
            "",
            f"- takes {time(finding['time_ps'])} ({percent(finding['share'])} of the step);"
            f" saving {saving} ({escape(finding['saving_basis'])}; {finding['provenance']};"
            f" confidence {finding['confidence']})",
            *(f"- {escape(line)}" for line in finding["evidence"]),
            f"- might be wrong because: {escape(finding['might_be_wrong_because'])}",
            f"- try: {escape(finding['try'])}",
            f"- verify with: {escape(finding['verify_with'])}",
            "",
        ]
    return lines or ["None."]
