"""The verb `megascope show`."""

import sys
from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add `show` to the application."""
    app.command("show")(show_verb)


def show_verb(
    capture: Annotated[Path, typer.Argument(help="A capture, a dump folder or a bundles file.")],
    *,
    bundles: Annotated[str | None, typer.Option(metavar="A:B", help="Addresses, half open.")] = None,
    source: Annotated[str | None, typer.Option(metavar="FILE[:LINE]", help="From this source line.")] = None,
    grep: Annotated[str | None, typer.Option(metavar="REGEX", help="Instruction text matches.")] = None,
    loop: Annotated[str | None, typer.Option(metavar="N|0xADDR", help="Inside this loop.")] = None,
    opcode: Annotated[str | None, typer.Option(metavar="NAME", help="vmatmul, sbr.rel, vpop.*.")] = None,
    limit: Annotated[int, typer.Option(help="At most so many bundles; 0 for all.")] = 100,
    offset: Annotated[int, typer.Option(help="Skip so many of the matching ones.")] = 0,
    output_format: Annotated[str, typer.Option("--format", help="text or json.")] = "text",
    program: Annotated[str | None, typer.Option(help="Program of the dump to list.")] = None,
    chip: Annotated[str | None, typer.Option(help="tpu7x, v6e, v5p, v5e: where the dump is silent.")] = None,
    facts: Annotated[
        str | None, typer.Option(metavar="program|loop|phase|source", help="Static facts instead.")
    ] = None,
    counts: Annotated[bool, typer.Option(help="Execute the program to say how often bundles run.")] = True,
) -> None:
    """List compiled bundles with unit occupancy, source lines, phases and executed counts."""
    from analyzer.errors import UsageError

    if output_format not in ("text", "json"):
        raise UsageError(f"--format {output_format}", "no such format", "Formats: text, json.")
    from analyzer.capture import open_capture
    from analyzer.show import Query, render_text, show

    opened = open_capture(capture, program=program, chip=chip)
    code = opened.read_kernel()
    query = Query(bundles, source, grep, opcode, loop, limit, offset)
    executed, why = None, None
    if counts:
        from analyzer.executed import executed_counts

        executed, why = executed_counts(opened, code)
    if facts is not None:
        from analyzer.show_facts import facts_listing, render_facts

        listing, render = facts_listing(code, facts, executed, limit, offset), render_facts
    else:
        listing, render = show(code, query, executed), render_text
    listing["capture"] = str(capture)
    listing["notes"] = [*opened.notes, *([why] if why else []), *listing["notes"]]
    if output_format == "json":
        import json

        typer.echo(json.dumps(listing, indent=1))
    else:
        typer.echo(render(listing, colour=sys.stdout.isatty()), nl=False)
