"""The verbs of the simulator: `bounds`, `validate` and `calibrate`."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer


def register(app: typer.Typer) -> None:
    """Add the verbs to the application."""
    app.command("bounds")(bounds_verb)
    app.command("validate")(validate_verb)
    app.command("calibrate")(calibrate_verb)


def bounds_verb(
    capture: Annotated[Path, typer.Argument(help="A capture, a dump folder or a bundles file.")],
    *,
    what_if: Annotated[
        list[str] | None,
        typer.Option("--what-if", metavar="NAME=VALUE", help="Machine parameter, in SI units, xN or /N."),
    ] = None,
    without: Annotated[
        list[str] | None, typer.Option("--without", metavar="PHASE", help="A phase that takes no time.")
    ] = None,
    scenario: Annotated[Path | None, typer.Option(help="A scenario file (TOML).")] = None,
    cores: Annotated[
        str | None,
        typer.Option(help="mirrored, all or auto. [default: mirrored; all where the file has single cores]"),
    ] = None,
    sensitivity: Annotated[bool, typer.Option(help="Also how the step follows every parameter.")] = True,
    chip: Annotated[str | None, typer.Option(help="tpu7x, v6e, v5p, v5e: where the dump is silent.")] = None,
    output_format: Annotated[str, typer.Option("--format", help="text or json.")] = "text",
) -> None:
    """Say what the step would take if one thing cost nothing, and which parameters it follows."""
    from analyzer.capture import open_capture
    from analyzer.cli import pairs
    from analyzer.errors import UsageError
    from analyzer.machine import load_machine
    from analyzer.options import combined
    from analyzer.simulate.scenario_file import read_scenario
    from analyzer.simulate.simulator import Simulator, as_scenario
    from analyzer.simulate.whatif import WhatIf

    if output_format not in ("text", "json"):
        raise UsageError(f"--format {output_format}", "no such format", "Formats: text, json")
    if cores not in (None, "mirrored", "all", "auto"):
        raise UsageError(f"--cores {cores}", "no such choice", "Give mirrored, all or auto")
    overrides = pairs("--what-if", what_if)
    opened = open_capture(capture, chip=chip)
    name = chip or opened.manifest.get("chip")
    if name is None:
        raise UsageError(capture, "does not say which chip it was compiled for", "Give one: --chip tpu7x")
    machine = load_machine(str(name)).with_overrides(overrides)
    read = read_scenario(scenario) if scenario is not None else None
    wanted = combined(as_scenario(opened.manifest.get("scenario")), read)
    question = WhatIf(
        Simulator(opened.read_kernel()),
        machine,
        wanted.common,
        opened.manifest,
        cores=cores or ("all" if wanted.cores or wanted.delays_ps else "mirrored"),
        scenarios=wanted.cores,
        delays_ps=wanted.delays_ps,
        **({"without": without} if without else {}),
    )
    question.require_phases(without or ())
    base = question.base
    report: dict[str, Any] = {
        "capture": str(opened.path),
        "chip": machine.chip,
        "step_ps": base.step_time_ps,
        "provenance": "modelled",
        "scenario": base.scenario.name,
        "scenario_file": None if scenario is None else str(scenario),
        "assumed_values": len(base.scenario.assumed),
        "peers": base.scenario.peers,
        "notes": base.notes,
        "what_if": overrides,
        "without": without or [],
        "bounds": [
            {"name": b.name, "step_ps": b.step_ps, "saving_ps": b.saving_ps} for b in question.bounds()
        ],
        "sensitivities": [
            {"parameter": s.parameter, "value": s.value, "unit": s.unit, "elasticity": s.elasticity}
            for s in (question.sensitivities() if sensitivity else [])
        ],
    }
    if output_format == "json":
        print(json.dumps(report, indent=1))
        return
    for note in base.notes:
        print(f"note: {note}", file=sys.stderr)
    print(
        f"step {report['step_ps'] / 1e6:.1f} us (modelled, {machine.chip}; scenario {report['scenario']}, "
        f"{report['assumed_values']} assumed values; peers {report['peers']})"
    )
    print(f"{'if it cost nothing':36} {'step':>12} {'saved':>12}")
    for bound in report["bounds"]:
        print(
            f"{bound['name']:36} {bound['step_ps'] / 1e6:9.1f} us {bound['saving_ps'] / 1e6:9.1f} us "
            f"{bound['saving_ps'] / report['step_ps']:6.1%}"
        )
    strong = [s for s in report["sensitivities"] if abs(s["elasticity"]) >= 0.005]
    if strong:
        print("percent of the step per percent of the parameter")
        for one in strong:
            print(f"{one['parameter']:36} {one['elasticity']:+12.2f}   {one['value']:g} {one['unit']}")


def validate_verb(
    cases: Annotated[Path, typer.Argument(help="A case file (TOML); docs/model.md has the form.")],
    *,
    output_format: Annotated[str, typer.Option("--format", help="text or json.")] = "text",
    worst: Annotated[
        float | None, typer.Option(help="Exit with 1 where an error is larger, in percent.")
    ] = None,
    machine: Annotated[
        Path | None, typer.Option(help="A machine file, such as calibrate writes, instead of ours.")
    ] = None,
) -> None:
    """Compare modelled with measured times over many captures."""
    from analyzer.errors import GATE_FAILED, MegascopeError, UsageError
    from analyzer.machine import load_machine
    from analyzer.simulate.validate import PreparedCase, read_cases, statistics

    if output_format not in ("text", "json"):
        raise UsageError(f"--format {output_format}", "no such format", "Formats: text, json")
    outcomes, failures = [], []
    for case in read_cases(cases):
        print(case.name, file=sys.stderr)
        try:
            prepared = PreparedCase(case)
            chosen = None if machine is None else load_machine(prepared.chip, machine)
            outcomes.append(prepared.run(chosen))
        except MegascopeError as error:
            failures.append({"name": case.name, "fault": str(error)})
    groups = {
        "all": statistics(outcomes),
        "not fitted": statistics([o for o in outcomes if not o.case.fitted]),
    }
    if output_format == "json":
        print(
            json.dumps(
                {
                    "cases": [
                        {
                            "name": o.case.name,
                            "measured_us": o.case.measured_us,
                            "modelled_us": o.modelled_us,
                            "error": o.error,
                            "fitted": o.case.fitted,
                            "assumed_values": o.assumed,
                            "source": o.case.source,
                        }
                        for o in outcomes
                    ],
                    "failures": failures,
                    "statistics": {
                        name: None
                        if s is None
                        else {"cases": s.cases, "rms": s.rms, "mean": s.mean, "worst": s.worst}
                        for name, s in groups.items()
                    },
                },
                indent=1,
            )
        )
    else:
        for o in outcomes:
            print(
                f"{o.case.name:40} measured {o.case.measured_us:10.2f} us "
                f"modelled {o.modelled_us:10.2f} us "
                f"{o.error:+7.1%}{'  fitted' if o.case.fitted else ''}"
            )
        for failure in failures:
            print(f"{failure['name']:40} not simulated: {failure['fault']}")
        for name, s in groups.items():
            if s is not None:
                print(f"{name}: {s.cases} cases, rms {s.rms:.1%}, mean {s.mean:+.1%}, worst {s.worst:+.1%}")
    too_far = worst is not None and any(abs(o.error) * 100 > worst for o in outcomes)
    if failures or too_far:
        raise typer.Exit(GATE_FAILED)


def calibrate_verb(
    cases: Annotated[
        Path, typer.Argument(help="A case file with measured times; docs/model.md has the form.")
    ],
    *,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Write the fitted machine file here; folders are made."),
    ] = None,
    parameters: Annotated[
        list[str] | None,
        typer.Option("--fit", metavar="NAME", help="Parameter to fit; default: all that are not 0."),
    ] = None,
    leave_out: Annotated[
        bool, typer.Option("--leave-one-out", help="Also the error of each case when fitted to the others.")
    ] = False,
    self_test: Annotated[
        bool, typer.Option("--self-test", help="Instead: put parameters in and see that they come back.")
    ] = False,
) -> None:
    """Fit a machine file to measured times; with --self-test see what the cases can determine."""
    from analyzer.errors import GATE_FAILED, UsageError
    from analyzer.machine import load_machine
    from analyzer.simulate import calibrate
    from analyzer.simulate.validate import PreparedCase, read_cases

    prepared = []
    for case in read_cases(cases):
        print(case.name, file=sys.stderr)
        prepared.append(PreparedCase(case))
    chips = {one.chip for one in prepared}
    if len(chips) > 1:
        raise UsageError(cases, f"cases of several chips: {', '.join(sorted(chips))}", "One chip per file")
    machine = load_machine(chips.pop())
    names = parameters or [n for n, p in machine.parameters.items() if p.value and n != "issue.clock"]
    for name in names:
        if name not in machine.parameters:
            raise UsageError(
                f"--fit {name}", "no such parameter", f"Known: {', '.join(sorted(machine.parameters))}"
            )

    def predict(trial: Any) -> list[float]:
        return [one.run(trial).modelled_us for one in prepared]

    measured = [one.case.measured_us for one in prepared]
    if self_test:
        hidden = calibrate.perturbed(machine, names)
        found = calibrate.fit(machine, names, predict, predict(hidden))
        wrong = 0
        for name in names:
            put, got = hidden[name], found.machine[name]
            known = name in found.determined
            wrong += known and abs(got / put - 1) > calibrate.RECOVERED
            said = f"{got / put - 1:+.1%}" if known else "not determined by these cases"
            print(f"{name:28} put in {put:12.6g}  fitted {got:12.6g}  {said}")
        print(f"rms error {found.rms:.2%}; {len(found.determined)} of {len(names)} parameters determined")
        if wrong:
            raise typer.Exit(GATE_FAILED)
        return
    found = calibrate.fit(machine, names, predict, measured)
    times = predict(found.machine)
    for one, time in zip(prepared, times, strict=True):
        print(f"{one.case.name:40} measured {one.case.measured_us:10.2f} us  fitted {time:10.2f} us")
    for name in names:
        said = "" if name in found.determined else "  not determined, kept"
        print(f"{name:28} {machine[name]:12.6g} -> {found.machine[name]:12.6g}{said}")
    print(f"rms error {found.rms:.1%}")
    if leave_out:
        errors = calibrate.leave_one_out(machine, names, predict, measured)
        for one, error in zip(prepared, errors, strict=True):
            print(f"{one.case.name:40} left out: {error:+.1%}")
    if output is not None:
        source = f"megascope calibrate {cases.name}, {len(prepared)} cases"
        calibrate.write_machine(calibrate.as_measured(found.machine, found.determined, source), output)
        print(f"wrote {output}", file=sys.stderr)
