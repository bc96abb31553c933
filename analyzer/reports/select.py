"""A part of a report: findings, phases and bubbles of some rules, phases or layers, a page at a time."""

from dataclasses import dataclass
from typing import Any

from analyzer.diff import known_rules, matches
from analyzer.errors import DataAbsentError

Report = dict[str, Any]
# Lists of a report that a selection applies to; their entries are of one layer or of several.
LISTS = ("findings", "phases", "bubbles", "bubble_groups", "wait_groups", "stories", "layers", "layer_kinds")
OF_LAYERS = ("layers", "layer_kinds")  # whole layers: those with a phase that was asked for


@dataclass(frozen=True, slots=True)
class Selection:
    """What to keep.

    Attributes:
        rules: patterns such as `MS1xx`, for findings.
        phases: names; what is nested in one belongs to it.
        layers: layer numbers. limit, offset: a page of each list; None is everything.
    """

    rules: tuple[str, ...] = ()
    phases: tuple[str, ...] = ()
    layers: tuple[int, ...] = ()
    limit: int | None = None
    offset: int = 0

    @property
    def is_everything(self) -> bool:
        """Whether nothing is left out."""
        return self == Selection()


def select(report: Report, selection: Selection) -> Report:
    """A copy of the report with the lists cut down; `selected` says how many there were and are.

    What is folded over layers (findings, kinds of bubbles and waits) keeps its totals: `selected` says so.
    """
    if selection.is_everything:
        return report
    result = dict(report)
    counts = {}
    with_phase = {row["layer"] for row in report["phases"] if _of_phase(row["phase"], selection)}
    for name in LISTS:
        entries = report.get(name) or []
        if name in OF_LAYERS:
            kept = [entry for entry in entries if _layer_wanted(entry, selection, with_phase)]
        else:
            kept = [entry for entry in entries if _wanted(entry, selection)]
        end = None if selection.limit is None else selection.offset + selection.limit
        page = kept[selection.offset : end]
        counts[name] = {"total": len(entries), "matching": len(kept), "returned": len(page)}
        result[name] = page
    if "trace" in report:
        trace = report["trace"]
        chosen = {
            name: [row for row in trace[name] if _wanted(row, selection)] for name in ("stages", "comparison")
        }
        result["trace"] = trace | chosen
    result["selected"] = counts | {"offset": selection.offset}
    result["notes"] = [*report["notes"], f"a part of the report: {_words(selection)}"]
    if selection.phases or selection.layers:
        # Of bubbles beyond those listed nobody knows where they are.
        complete = report["bubbles_total"] == len(report["bubbles"])
        result["bubbles_total"] = counts["bubbles"]["matching"] if complete else None
        if report.get("stories_total") is not None:
            complete = report["stories_total"] == len(report["stories"])
            result["stories_total"] = counts["stories"]["matching"] if complete else None
        result["selected"]["totals_of"] = "step"
        result["notes"].append(
            "times, counts and savings of findings and of kinds of bubbles, waits and layers are those of the"
            " whole step: of every layer and phase in which they occur"
        )
    return result


def refuse_unknown(report: Report, selection: Selection) -> None:
    """Refuse names that exist nowhere, instead of a report that looks as if nothing was found.

    Raises:
        UsageError: a pattern that no rule has.
        DataAbsentError: a phase or layer that the report does not have.
    """
    known_rules(selection.rules, "--rule")
    rows = [*report["phases"], *report.get("trace", {}).get("stages", [])]
    phases = sorted({str(row.get("phase") or "") for row in rows} - {""})
    for name in selection.phases:
        if not any(phase == name or phase.startswith(name + "/") for phase in phases):
            there = f"Phases: {', '.join(phases[:20])}." if phases else "Compile with --level regions."
            raise DataAbsentError(f"--phase {name}", "no such phase in this report", there)
    layers = sorted({n for row in rows for n in (row.get("layers") or [row.get("layer")]) if n is not None})
    for layer in selection.layers:
        if layer not in layers:
            there = f"Layers: {layers[0]} to {layers[-1]}." if layers else "The program marks no layers."
            raise DataAbsentError(f"--layer {layer}", "no such layer in this report", there)


def _layer_wanted(entry: Report, selection: Selection, with_phase: set[int | None]) -> bool:
    layers = set(entry["layers"] if "layers" in entry else [entry["layer"]])
    if selection.phases and not layers & with_phase:
        return False
    return not selection.layers or bool(layers & set(selection.layers))


def _wanted(entry: Report, selection: Selection) -> bool:
    if selection.rules and "id" in entry and not any(matches(rule, entry["id"]) for rule in selection.rules):
        return False
    if selection.phases and not _of_phase(entry.get("phase") or "", selection):
        return False
    if selection.layers:
        layers = entry["layers"] if "layers" in entry else [entry.get("layer")]
        if not set(layers) & set(selection.layers):
            return False
    return True


def _of_phase(phase: str, selection: Selection) -> bool:
    return any(phase == name or phase.startswith(name + "/") for name in selection.phases)


def _words(selection: Selection) -> str:
    parts = [
        f"{name} {', '.join(map(str, values))}"
        for name, values in (
            ("rules", selection.rules),
            ("phases", selection.phases),
            ("layers", selection.layers),
        )
        if values
    ]
    if selection.limit is not None or selection.offset:
        most = "all" if selection.limit is None else selection.limit
        parts.append(f"entries from {selection.offset}, at most {most}")
    return "; ".join(parts)
