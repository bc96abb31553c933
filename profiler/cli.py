"""The verbs of the profiler: `compile`, `record`, `doctor`."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer


def register(app: typer.Typer) -> None:
    """Add the profiler's verbs to the application."""
    app.command("compile")(compile_verb)
    app.command("record")(record_verb)
    app.command("doctor")(doctor_verb)


def compile_verb(
    target: Annotated[str, typer.Argument(help="A kernel (mlp) or path/to/file.py:build.")],
    *,
    out: Annotated[Path, typer.Option("-o", "--output", help="Folder for the capture.")],
    topology: Annotated[
        str | None,
        typer.Option(help="Slice in chips: 2x2x1, or with its chip, tpu7x:2x2x1. [default: 4 chips]"),
    ] = None,
    chip: Annotated[str | None, typer.Option(help="tpu7x (default), v6e, v5p or v5e.")] = None,
    level: Annotated[str, typer.Option(help="Instrumentation: off or regions.")] = "regions",
    option: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Option of the kernel; repeat as needed."),
    ] = None,
    flag: Annotated[
        list[str] | None, typer.Option(help="One more flag for libtpu; repeat as needed.")
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Sequences (kernels of models).")] = None,
    cores: Annotated[int | None, typer.Option(help="TensorCores to build for.")] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Speculative verify: 8 rows of a sequence.")
    ] = False,
    fp8: Annotated[bool, typer.Option("--fp8", help="Float8 weights.")] = False,
    keep_all_passes: Annotated[bool, typer.Option(help="Dump every compiler pass (slow, large).")] = False,
    probe_effect: Annotated[
        bool, typer.Option("--probe-effect", help="Compile at both levels and say what the markers cost.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the capture if it is there.")] = False,
    timeout: Annotated[float, typer.Option(help="Stop the compile after this many seconds.")] = 1800.0,
) -> None:
    """Compile a kernel for a TPU that need not be there, and write a capture."""
    from analyzer.probe_effect import table
    from profiler.compile import CompileRequest, compile_kernel
    from profiler.progress import Progress
    from profiler.topology import parse_topology

    named = {"batch": batch, "cores": cores, "verify": verify or None, "fp8": fp8 or None}
    given = {name: value for name, value in named.items() if value is not None}
    request = CompileRequest(
        target=target,
        topology=parse_topology(topology, chip),
        level=check_level(level),
        options=parse_options(option or []) | given,
        extra_flags=check_flags(flag or []),
        keep_all_passes=keep_all_passes,
        timeout_seconds=timeout,
    )
    _say(f"compiling {target} for {request.topology.name} ({request.topology.devices} cores), level {level}")
    with Progress() as progress:
        manifest = compile_kernel(
            request, out, force=force, progress=progress.show, probe_effect=probe_effect
        )
    for note in manifest["notes"]:
        _say(f"note: {note}")
    seconds = manifest["seconds"]
    _say(f"compiled {manifest['program']} in {seconds['total']:.1f} s")
    print(out)
    if probe_effect:
        print("\n".join(table(manifest["probe_effect"]["counts"])))


def record_verb(
    target: Annotated[str, typer.Argument(help="A kernel (mlp) or path/to/file.py:build.")],
    *,
    out: Annotated[Path, typer.Option("-o", "--output", help="Folder for the capture.")],
    level: Annotated[
        str, typer.Option(help="What the trace shows: regions, instructions, counters or none.")
    ] = "regions",
    steps: Annotated[int, typer.Option(min=1, help="Steps to record.")] = 5,
    warmup: Annotated[int, typer.Option(min=1, help="Steps before them.")] = 3,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Do all but run the kernel.")] = False,
    topology: Annotated[str | None, typer.Option(help="Slice in chips, for a dry run.")] = None,
    chip: Annotated[str | None, typer.Option(help="tpu7x (default), v6e, v5p or v5e.")] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Option of the kernel; repeat as needed."),
    ] = None,
    flag: Annotated[
        list[str] | None, typer.Option(help="One more flag for libtpu; repeat as needed.")
    ] = None,
    coordinator: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where several hosts record together.")
    ] = None,
    processes: Annotated[int, typer.Option(min=1, help="How many processes record.")] = 1,
    process: Annotated[int, typer.Option(min=0, help="Number of this one.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Replace the capture if it is there.")] = False,
    timeout: Annotated[float, typer.Option(help="Stop after this many seconds.")] = 1800.0,
) -> None:
    """Run a kernel on TPUs and record it: trace, bundles of what ran, and what recording cost."""
    from analyzer.errors import DataAbsentError, UsageError
    from profiler.progress import Progress
    from profiler.record import LEVELS, RecordRequest, plan, probe_lines, record_kernel
    from profiler.topology import parse_topology

    if level not in LEVELS:
        raise UsageError(f"--level {level}", "no such level", f"Levels: {', '.join(LEVELS)}.")
    if (processes > 1) != (coordinator is not None) or process >= processes:
        raise UsageError(
            "--coordinator, --processes, --process",
            "do not fit together",
            "Give all three, with process below processes.",
        )
    several = {"coordinator": coordinator, "processes": processes, "process": process}
    request = RecordRequest(
        target=target,
        topology=parse_topology(topology, chip),
        level=level,
        steps=steps,
        warmup=warmup,
        options=parse_options(option or []),
        extra_flags=check_flags(flag or []),
        timeout_seconds=timeout,
        dry_run=dry_run,
        distributed=several if processes > 1 else None,
    )
    if dry_run:
        _say("a recording would:")
        for number, line in enumerate(plan(request), 1):
            _say(f"  {number}. {line}")
    try:
        with Progress() as progress:
            manifest = record_kernel(request, out, force=force, progress=progress.show)
    except DataAbsentError:
        _say("on a TPU this would:")
        for number, line in enumerate(plan(request), 1):
            _say(f"  {number}. {line}")
        raise
    for note in manifest["notes"]:
        _say(f"note: {note}")
    effect = manifest["record"].get("probe_effect")
    for line in probe_lines(effect) if effect else []:
        _say(line)
    print(out)


def doctor_verb(
    capture: Annotated[
        Path | None, typer.Argument(help="Check this recording or trace instead of the machine.")
    ] = None,
    *,
    report_format: Annotated[str, typer.Option("--format", help="text or json.")] = "text",
) -> None:
    """Check that this machine can compile kernels and make captures; each finding with its cure."""
    import dataclasses
    import json

    from analyzer.errors import GATE_FAILED, UsageError
    from profiler.doctor import Check, Status, run_checks

    if report_format not in ("text", "json"):
        raise UsageError(f"--format {report_format}", "no such format", "Formats: text, json.")
    checks: list[Check] = []
    if capture is not None:
        from profiler.doctor_trace import check_trace
    for check in run_checks() if capture is None else check_trace(capture):
        checks.append(check)
        if report_format == "text":
            mark = {Status.OK: "ok", Status.NOTE: "note", Status.PROBLEM: "PROBLEM"}[check.status]
            print(
                f"{mark:8} {check.name}: {check.found}" + (f". {check.cure}" if check.cure else ""),
                flush=True,
            )
    problems = [c for c in checks if c.status is Status.PROBLEM]
    if report_format == "json":
        result = {"schema_version": 1, "ok": not problems, "checks": [dataclasses.asdict(c) for c in checks]}
        print(json.dumps(result, indent=1))
    elif problems:
        print(f"{len(problems)} problems")
    else:
        print("this machine can make captures" if capture is None else "this trace can be reported on")
    if problems:
        raise typer.Exit(GATE_FAILED)


def check_flags(flags: list[str]) -> tuple[str, ...]:
    """Flags for libtpu as it reads them: it splits at white space, and ignores what is no flag.

    Raises:
        UsageError: one that libtpu would ignore, or take for several.
    """
    from analyzer.errors import UsageError

    for flag in flags:
        if not flag.startswith("--") or len(flag.split()) != 1:
            raise UsageError(f"--flag {flag}", "not one flag of libtpu", "Give --flag=--xla_name=value.")
    return tuple(flags)


def check_level(level: str) -> str:
    """The level, if there is one of that name.

    Raises:
        UsageError: there is none.
    """
    from analyzer.errors import UsageError
    from profiler.flags import LEVELS

    if level not in LEVELS:
        raise UsageError(f"--level {level}", "no such level", f"Levels: {', '.join(LEVELS)}.")
    return level


def parse_options(pairs: list[str]) -> dict[str, Any]:
    """`NAME=VALUE` pairs as keyword options; values that read as JSON (`4`, `true`) are, others are text.

    Raises:
        UsageError: a pair without `=` or with a name that cannot be a keyword.
    """
    import json

    from analyzer.errors import UsageError

    options: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not name.isidentifier():
            raise UsageError(f"--set {pair}", "not of the form NAME=VALUE", "For example --set layers=4.")
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value
    return options


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
