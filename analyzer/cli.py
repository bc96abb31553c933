"""The verbs of the analyzer: `report`, and those of analyzer/diff_cli.py."""

import importlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from analyzer.reports import OUTSIDE_FORMATS

if TYPE_CHECKING:
    from analyzer.fold import Cores

CORES = ("auto", "mirrored", "all")
FORMATS = ("text", "json", "md", "sarif")


def register(app: typer.Typer) -> None:
    """Add the analyzer's verbs to the application."""
    from analyzer import diff_cli

    app.command("report")(report_verb)
    diff_cli.register(app)


def report_verb(
    capture: Annotated[Path, typer.Argument(help="A capture, a dump folder or a bundles file.")],
    *,
    output_format: Annotated[str, typer.Option("--format", help="text, json, md, sarif or html.")] = "text",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write here instead; folders are made.")
    ] = None,
    chip: Annotated[str | None, typer.Option(help="tpu7x, v6e, v5p, v5e: where the dump is silent.")] = None,
    what_if: Annotated[
        list[str] | None,
        typer.Option("--what-if", metavar="NAME=VALUE", help="Machine parameter: hbm.bandwidth=x2."),
    ] = None,
    values: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Scenario value the program reads at run time."),
    ] = None,
    scenario_file: Annotated[
        Path | None,
        typer.Option("--scenario", metavar="FILE", help="Scenario file (TOML); --set goes over it."),
    ] = None,
    cores: Annotated[
        str, typer.Option(help="Cores to simulate and show: auto, mirrored (one) or all.")
    ] = "auto",
    program: Annotated[str | None, typer.Option(help="Program of the dump to take as the kernel.")] = None,
    rule: Annotated[
        list[str] | None, typer.Option(metavar="RULE", help="Only findings of these rules: MS1xx.")
    ] = None,
    phase: Annotated[list[str] | None, typer.Option(help="Only these phases.")] = None,
    layer: Annotated[list[int] | None, typer.Option(help="Only these layers.")] = None,
    limit: Annotated[int | None, typer.Option(min=0, help="At most so many entries of each list.")] = None,
    offset: Annotated[int, typer.Option(min=0, help="Leave out the first entries of each list.")] = 0,
    fresh: Annotated[bool, typer.Option("--fresh", help="Work everything out anew.")] = False,
) -> None:
    """Say what bounds the step, where the time goes, and which line to look at."""
    from analyzer.errors import UsageError

    formats = (*FORMATS, *OUTSIDE_FORMATS)
    if output_format not in formats:
        raise UsageError(f"--format {output_format}", "no such format", f"Formats: {', '.join(formats)}.")
    if cores not in CORES:
        raise UsageError(f"--cores {cores}", "no such choice", f"Choices: {', '.join(CORES)}.")
    overrides, scenario = pairs("--what-if", what_if), pairs("--set", values)

    from analyzer.analysis import analyze
    from analyzer.capture import open_capture
    from analyzer.diff import known_rules
    from analyzer.reports.select import Selection, refuse_unknown, select

    wanted = Selection(tuple(rule or ()), tuple(phase or ()), tuple(layer or ()), limit, offset)
    known_rules(wanted.rules, "--rule")
    if output_format in OUTSIDE_FORMATS and not wanted.is_everything:
        raise UsageError(
            f"--format {output_format}",
            "always shows the whole report",
            "Leave out --rule, --phase, --layer, --limit and --offset.",
        )

    opened = open_capture(capture, program=program, chip=chip)
    analysis = analyze(
        opened,
        chip=chip,
        overrides=overrides,
        scenario=scenario,
        scenario_file=scenario_file,
        cores=cast("Cores", cores),
        use_cache=not fresh,
    )
    if output_format in OUTSIDE_FORMATS:
        module, function = OUTSIDE_FORMATS[output_format].split(":")
        write(getattr(importlib.import_module(module), function)(capture, analysis), output)
        return
    refuse_unknown(analysis.report, wanted)
    report = select(analysis.report, wanted)
    write(render(report, output_format, colour=output is None and on_terminal()), output)


def render(report: dict[str, object], output_format: str, *, colour: bool = False) -> str:
    """A report in one of FORMATS."""
    if output_format == "json":
        from analyzer.reports import json

        return json.render(report)
    if output_format == "md":
        from analyzer.reports import markdown

        return markdown.render(report)
    if output_format == "sarif":
        from analyzer.reports import sarif

        return sarif.render(report)
    from analyzer.reports import text

    return text.render(report, colour=colour)


def on_terminal() -> bool:
    """Whether stdout shows colours: a terminal, and nobody set NO_COLOR."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def pairs(option: str, given: list[str] | None) -> dict[str, str]:
    """`NAME=VALUE` arguments as a dictionary.

    Raises:
        UsageError: an argument without `=` or without a name.
    """
    from analyzer.errors import UsageError

    result = {}
    for pair in given or []:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"{option} {pair}", "not of the form NAME=VALUE", "Give one such as a.b=x2.")
        result[name.strip()] = value.strip()
    return result


def write(text: str, output: Path | None) -> None:
    """Text to stdout, or to a file that appears complete or not at all.

    Raises:
        InputError: the file cannot be written.
    """
    if output is None:
        sys.stdout.write(text)
        return
    from analyzer.output import write_output

    write_output(output, text.encode("utf-8", "replace"))
    print(f"wrote {output}", file=sys.stderr)
