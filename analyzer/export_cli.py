"""The verb `export`: the timeline of a capture in the formats of other tools."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from analyzer.analysis import Analysis

SUFFIXES = {"xplane": "", "perfetto": ".pftrace", "chrome": ".json.gz", "csv": ".csv", "parquet": ".parquet"}


def register(app: typer.Typer) -> None:
    """Add `export` to the application."""
    app.command("export")(export_verb)


def export_verb(
    capture: Annotated[Path, typer.Argument(help="A capture, a dump folder, a bundles file or a trace.")],
    *,
    to: Annotated[str, typer.Option("--to", help=f"{', '.join(SUFFIXES)}.")],
    output: Annotated[
        Path,
        typer.Option("-o", "--output", help="File to write; for xplane a log folder. Folders are made."),
    ],
    chip: Annotated[str | None, typer.Option(help="tpu7x, v6e, v5p, v5e: where the dump is silent.")] = None,
    program: Annotated[str | None, typer.Option(help="Program of the dump to take as the kernel.")] = None,
    scenario: Annotated[
        Path | None, typer.Option("--scenario", metavar="FILE", help="Scenario file (TOML).")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace what is there.")] = False,
) -> None:
    """Write the timeline for xprof, Perfetto, chrome://tracing, a spreadsheet or a data frame."""
    from analyzer.analysis import analyze
    from analyzer.capture import open_capture
    from analyzer.errors import UsageError
    from analyzer.output import write_output

    if to not in SUFFIXES:
        raise UsageError(f"--to {to}", "no such format", f"Formats: {', '.join(SUFFIXES)}.")
    if to == "xplane":
        from analyzer import export_xplane

        if output.exists() and not output.is_dir():
            raise UsageError(output, "is a file", "Give a log folder: xprof looks for runs below it.")
        file = export_xplane.place(output)
    else:
        file = output / f"timeline{SUFFIXES[to]}" if output.is_dir() else output
    if file.exists() and not force:
        raise UsageError(file, "exists", "Give --force to replace it, or another name.")
    opened = open_capture(capture, chip=chip, program=program)
    analysis = analyze(opened, chip=chip, scenario_file=scenario)
    data = encode(analysis, to, packed=file.name.endswith(".gz"))
    write_output(file, data)
    print(f"wrote {len(analysis.timeline):,} spans ({len(data):,} bytes)", file=sys.stderr)
    print(file)


def encode(analysis: "Analysis", to: str, *, packed: bool = True) -> bytes:
    """The timeline of an analysis in one of the formats of SUFFIXES."""
    frame = analysis.timeline
    if to == "xplane":
        from analyzer.export_xplane import export_xplane

        return export_xplane(frame, analysis.report)
    if to == "csv":
        return frame.to_csv(index=False, lineterminator="\n").encode("utf-8", "surrogateescape")
    if to == "parquet":
        data = frame.to_parquet(index=False)
        assert isinstance(data, bytes)
        return data
    from analyzer.export_tracks import counters, tracks

    if to == "perfetto":
        from analyzer import export_perfetto

        return export_perfetto.render(tracks(frame), counters(frame))
    from analyzer import export_chrome

    return export_chrome.render(tracks(frame), counters(frame), packed=packed)
