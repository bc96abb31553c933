"""The tools that read captures: report, findings, show, diff, gate, what_if."""

from typing import Any

from agents.limits import Answer, page
from agents.progress import say
from agents.root import Root
from analyzer.errors import DataAbsentError, UsageError

Json = dict[str, Any]
# Lists of a report that the tool `report` pages through.
SECTIONS = ("phases", "layers", "layer_kinds", "bubbles", "bubble_groups", "wait_groups", "notes")
_IN_BRIEF = ("id", "title", "time_ps", "share", "saving_ps", "confidence", "provenance", "source", "bundles")


def _report_of(root: Root, arguments: Json, name: str = "capture") -> Json:
    """The report of a capture below the root; its path is as callers know it."""
    from analyzer.analysis import analyze
    from analyzer.diff_cli import load

    given, chip = arguments[name], arguments.get("chip")
    path = root.inside(given)
    if path.suffix == ".json" and path.name != "manifest.json" and path.is_file():
        return load(path, chip)
    opened = root.open(given, program=arguments.get("program"), chip=chip)
    say(f"reading and simulating {given}")
    analysis = analyze(opened, chip=chip, cores=arguments.get("cores", "auto"))
    report = dict(analysis.report)
    report["capture"] = {**report["capture"], "path": root.relative(path)}
    return report


def report(root: Root, arguments: Json) -> Answer:
    """The digest and the figures of a step, or one list of the report."""
    from analyzer.reports import text
    from analyzer.reports.select import Selection, refuse_unknown, select

    whole = _report_of(root, arguments)
    section = arguments.get("section", "summary")
    limit, offset = arguments.get("limit", 20), arguments.get("offset", 0)
    if section == "summary":
        body = {name: whole[name] for name in ("schema_version", "capture", "reported", "step")}
        body["digest"] = text.render(whole, colour=False).splitlines()
        body |= {name: whole.get(name) for name in ("hbm", "ici", "vmem", "scenario", "not_understood")}
        body["lists"] = {name: len(whole.get(name) or []) for name in (*SECTIONS, "findings")}
        body["notes"] = whole["notes"]
        return Answer(body)
    wanted = Selection((), tuple(arguments.get("phases", ())), tuple(arguments.get("layers", ())))
    refuse_unknown(whole, wanted)
    entries = select(whole, wanted).get(section) or [] if section != "notes" else whole["notes"]
    body = {name: whole[name] for name in ("schema_version", "capture")}
    body["step"] = {name: whole["step"][name] for name in ("time_ps", "provenance", "verdict")}
    return Answer(body, section, page(entries, limit, offset), len(entries), offset)


def findings(root: Root, arguments: Json) -> Answer:
    """Findings in full, what the step would gain first."""
    from analyzer.reports.select import Selection, refuse_unknown, select

    whole = _report_of(root, arguments)
    wanted = Selection(
        tuple(arguments.get("rules", ())),
        tuple(arguments.get("phases", ())),
        tuple(arguments.get("layers", ())),
    )
    refuse_unknown(whole, wanted)
    found = select(whole, wanted)["findings"]
    if arguments.get("brief", False):
        found = [{name: one.get(name) for name in _IN_BRIEF} for one in found]
    offset = arguments.get("offset", 0)
    body = {
        "schema_version": whole["schema_version"],
        "capture": {name: whole["capture"][name] for name in ("path", "kernel", "chip", "cores")},
        "step": {name: whole["step"][name] for name in ("time_ps", "provenance", "verdict")},
        "savings": "overlap: never add them up",
    }
    return Answer(body, "findings", page(found, arguments.get("limit", 5), offset), len(found), offset)


def show(root: Root, arguments: Json) -> Answer:
    """Bundles that match, or the loops of the program."""
    from analyzer.executed import executed_counts
    from analyzer.show import Query
    from analyzer.show import show as listing_of

    chip = arguments.get("chip")
    opened = root.open(arguments["capture"], program=arguments.get("program"), chip=chip)
    code = opened.read_kernel()
    limit, offset = arguments.get("limit", 20), arguments.get("offset", 0)
    what = arguments.get("list", "bundles")
    conditions = {name: arguments.get(name) for name in ("bundles", "source", "grep", "opcode", "loop")}
    executed, why = executed_counts(opened, code) if arguments.get("counts", True) else (None, None)
    listing = listing_of(code, Query(**conditions, limit=limit, offset=offset), executed)
    entries, loops, total = listing.pop("bundles"), listing.pop("loops"), listing.pop("total")
    for name in ("returned", "offset"):  # `page` has them
        del listing[name]
    listing["path"] = root.relative(opened.kernel_program().bundles.resolve())
    listing["notes"] = [*opened.notes, *([why] if why else []), *listing["notes"]]
    listing["loop_count"] = len(loops)
    if what == "loops":
        return Answer(listing, "loops", page(loops, limit, offset), len(loops), offset)
    return Answer(listing, "bundles", entries, total, offset)


def _compared(root: Root, arguments: Json) -> tuple[Json, Json]:
    from analyzer import diff as comparison

    before, after = _report_of(root, arguments, "a"), _report_of(root, arguments, "b")
    return comparison.compare(before, after, force=arguments.get("force", False)), after


def diff(root: Root, arguments: Json) -> Answer:
    """What changed from a to b; figures and phases that did not change are left out."""
    from analyzer import diff as comparison

    result, _ = _compared(root, arguments)
    found = result["findings"]
    entries: list[Json] = [
        {"change": change, "finding": {name: one.get(name) for name in _IN_BRIEF}}
        for change in ("appeared", "disappeared")
        for one in found[change]
    ]
    entries += [
        {"change": "changed", **{side: {n: both[side].get(n) for n in _IN_BRIEF} for side in ("a", "b")}}
        for both in found["changed"]
    ]
    body = {name: result[name] for name in ("schema_version", "a", "b", "provenance", "obstacles")}
    body["equal"] = comparison.is_empty(result)
    body["step"] = result["figures"][0]
    for name in ("figures", "critical_path", "phases"):
        body[name] = [row for row in result[name] if row["a"] != row["b"]]
    offset = arguments.get("offset", 0)
    return Answer(body, "findings", page(entries, arguments.get("limit", 10), offset), len(entries), offset)


def gate(root: Root, arguments: Json) -> Answer:
    """Whether a change may go in, and if not, why."""
    from analyzer import diff as comparison

    phase = arguments.get("max_phase_regression")
    limits = comparison.Limits(
        regression=comparison.share(arguments.get("max_regression", "2%"), "max_regression"),
        phase_regression=None if phase is None else comparison.share(phase, "max_phase_regression"),
        forbid=tuple(arguments.get("forbid", ())),
        forbid_new=tuple(arguments.get("forbid_new", ())),
    )
    comparison.known_rules((*limits.forbid, *limits.forbid_new), "forbid")
    result, after = _compared(root, arguments)
    reasons = comparison.breaches(result, after, limits)
    body = {"schema_version": result["schema_version"], "passed": not reasons, "reasons": reasons}
    return Answer(body | {"step": result["figures"][0], "provenance": result["provenance"]})


def what_if(root: Root, arguments: Json) -> Answer:
    """The step on another machine or without a phase; without a change, what each ideal would save."""
    from analyzer.machine import load_machine
    from analyzer.simulate.simulator import Simulator
    from analyzer.simulate.whatif import WhatIf

    chip = arguments.get("chip")
    opened = root.open(arguments["capture"], program=arguments.get("program"), chip=chip)
    name = chip or opened.manifest.get("chip")
    if opened.trace is not None and not opened.programs():
        raise DataAbsentError(
            arguments["capture"], "was measured, and what-if asks the model", "Give the dump of the program."
        )
    if name is None:
        raise UsageError(arguments["capture"], "does not say which chip it is for", "Give chip: tpu7x.")
    machine = load_machine(str(name))
    changes = {key: str(value) for key, value in arguments.get("changes", {}).items()}
    changed_machine = machine.with_overrides(changes)  # an unknown parameter is refused before any work
    without = arguments.get("without", [])
    say(f"simulating {arguments['capture']}")
    code = opened.read_kernel()
    cores = arguments.get("cores", "auto")
    question = WhatIf(Simulator(code), machine, None, opened.manifest, cores=cores)
    base = question.base
    body: Json = {
        "schema_version": 1,
        "capture": root.relative(opened.path.resolve()),
        "chip": machine.chip,
        "provenance": "modelled",
        "peers": base.scenario.peers,
        "step_ps": base.step_time_ps,
    }
    if not changes and not without:
        offset = arguments.get("offset", 0)
        say("simulating each ideal")
        bounds = [
            {"name": one.name, "step_ps": one.step_ps, "saving_ps": one.saving_ps}
            for one in question.bounds()
        ]
        shown = page(bounds, arguments.get("limit", 20), offset)
        return Answer(body, "bounds", shown, len(bounds), offset)
    for phase in without:
        question.bound(f"without {phase}")  # refuses a phase that is not there
    changed = question.simulator.simulate(
        machine, None, opened.manifest, overrides=changes, without=without, cores=cores
    )
    saving = base.step_time_ps - changed.step_time_ps
    body |= {
        "changes": {
            key: {"from": machine[key], "to": changed_machine[key], "unit": machine.parameters[key].unit}
            for key in changes
        },
        "without": without,
        "changed_step_ps": changed.step_time_ps,
        "saving_ps": saving,
        "saving_share": saving / base.step_time_ps if base.step_time_ps else None,
    }
    return Answer(body)
