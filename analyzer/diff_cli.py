"""The verbs that compare two captures: `diff` and `gate`."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

FORMATS = ("text", "json")


def register(app: typer.Typer) -> None:
    """Add the verbs to the application."""
    app.command("diff")(diff_verb)
    app.command("gate")(gate_verb)


Before = Annotated[Path, typer.Argument(metavar="A", help="The capture before, or its report as JSON.")]
After = Annotated[Path, typer.Argument(metavar="B", help="The capture after, or its report as JSON.")]
Format = Annotated[str, typer.Option("--format", help=f"{', '.join(FORMATS)}.")]
Chip = Annotated[str | None, typer.Option(help="Chip, where the dumps are silent.")]
ScenarioFile = Annotated[
    Path | None, typer.Option("--scenario", metavar="FILE", help="Scenario file for both captures.")
]
Force = Annotated[bool, typer.Option("--force", help="Compare what is not comparable.")]


def diff_verb(
    a: Before,
    b: After,
    *,
    output_format: Format = "text",
    chip: Chip = None,
    scenario: ScenarioFile = None,
    force: Force = False,
) -> None:
    """Say what changed from one capture to another: time, phases, bytes, bundles, findings."""
    from analyzer import diff

    result, _ = _compare(a, b, chip, scenario, output_format, force=force)
    if output_format == "json":
        from analyzer.reports import json

        sys.stdout.write(json.render(result))
        return
    if diff.is_empty(result):
        print("no difference")
        return
    from analyzer.reports import diff_text

    sys.stdout.write(diff_text.render(result))


def gate_verb(
    a: Before,
    b: After,
    *,
    max_regression: Annotated[str, typer.Option(help="Allowed growth of the step time.")] = "2%",
    max_phase_regression: Annotated[
        str | None, typer.Option(help="Allowed growth of any phase, as a share of the step.")
    ] = None,
    forbid: Annotated[
        list[str] | None, typer.Option(metavar="RULE", help="Fail if B has such a finding: MS1xx.")
    ] = None,
    forbid_new: Annotated[
        list[str] | None, typer.Option(metavar="RULE", help="Fail if B has one that A has not.")
    ] = None,
    output_format: Format = "text",
    chip: Chip = None,
    scenario: ScenarioFile = None,
) -> None:
    """Fail (exit code 1) where a change makes the step slower or brings findings that are not wanted."""
    from analyzer import diff
    from analyzer.errors import GATE_FAILED

    phase = (
        None if max_phase_regression is None else diff.share(max_phase_regression, "--max-phase-regression")
    )
    limits = diff.Limits(
        regression=diff.share(max_regression, "--max-regression"),
        phase_regression=phase,
        forbid=tuple(forbid or ()),
        forbid_new=tuple(forbid_new or ()),
    )
    diff.known_rules(limits.forbid, "--forbid")
    diff.known_rules(limits.forbid_new, "--forbid-new")
    result, after = _compare(a, b, chip, scenario, output_format, force=False)
    reasons = diff.breaches(result, after, limits)
    if output_format == "json":
        from analyzer.reports import json

        sys.stdout.write(json.render({"passed": not reasons, "reasons": reasons, "diff": result}))
    else:
        step = result["figures"][0]
        change = "unknown" if step["relative"] is None else f"{step['relative']:+.2%}"
        print(f"gate {'failed' if reasons else 'passed'}: step time {change}")
        for reason in reasons:
            print(f"  {reason}")
    if reasons:
        raise typer.Exit(GATE_FAILED)


def _compare(
    a: Path, b: Path, chip: str | None, scenario: Path | None, output_format: str, *, force: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    from analyzer import diff
    from analyzer.errors import UsageError

    if output_format not in FORMATS:
        raise UsageError(f"--format {output_format}", "no such format", f"Formats: {', '.join(FORMATS)}.")
    before, after = load(a, chip, scenario), load(b, chip, scenario)
    return diff.compare(before, after, force=force), after


def load(path: Path, chip: str | None, scenario: Path | None = None) -> dict[str, Any]:
    """The report of a capture, or one kept as JSON (which a scenario does not change any more).

    Raises:
        InputError: neither.
    """
    from analyzer.errors import InputError

    if path.suffix == ".json" and path.name != "manifest.json" and path.is_file():
        import json

        try:
            report = json.loads(path.read_bytes())
            if str(report["schema_version"]).split(".")[0] != "1" or "critical_path" not in report["step"]:
                raise KeyError("schema_version")
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                path, "is not a report of this megascope", "Make one: megascope report CAPTURE --format json."
            ) from error
        return dict(report)
    from analyzer.analysis import analyze

    return analyze(path, chip=chip, scenario_file=scenario).report
