"""The verbs for coding agents: `agent install` and `mcp`."""

import sys
from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the verbs to the application."""
    agent = typer.Typer(
        help="Teach a coding agent to use Megascope.", no_args_is_help=True, rich_markup_mode=None
    )

    @agent.callback()
    def group() -> None:
        """Teach a coding agent to use Megascope."""

    agent.command("install")(install_verb)
    app.add_typer(agent, name="agent")
    app.command("mcp")(mcp_verb)


def install_verb(
    *,
    to: Annotated[
        Path, typer.Option(help="Folder of the project; your home folder, for every project.")
    ] = Path("."),
    layout: Annotated[
        list[str] | None,
        typer.Option(
            help="agents, claude, cursor, gemini, github, agents-md (lines in AGENTS.md) or all; repeat as"
            " needed. [default: agents and claude]"
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that were edited.")] = False,
    output_format: Annotated[str, typer.Option("--format", help="text or json.")] = "text",
) -> None:
    """Write a skill (SKILL.md and references) where coding agents look for it."""
    from agents.install import DEFAULT_LAYOUTS, install
    from analyzer.errors import UsageError

    if output_format not in ("text", "json"):
        raise UsageError(f"--format {output_format}", "no such format", "Formats: text, json.")
    written = install(to.expanduser(), tuple(layout or DEFAULT_LAYOUTS), force=force)
    if output_format == "json":
        import json

        files = [{"path": str(one.path), "state": one.state} for one in written]
        print(json.dumps({"schema_version": 1, "files": files}, indent=1))
        return
    for one in written:
        print(f"{one.state:9} {one.path}")


def mcp_verb(
    *,
    root: Annotated[
        Path, typer.Option(help="Folder with kernels and captures; nothing outside it is touched.")
    ] = Path("."),
    read_only: Annotated[
        bool,
        typer.Option("--read-only", help="Leave out compile, which writes captures and runs kernel files."),
    ] = False,
    max_bytes: Annotated[
        int, typer.Option(min=4000, max=1_000_000, help="Most bytes of JSON in one answer.")
    ] = 16_000,
) -> None:
    """Serve compile, report, findings, show, diff, gate and what_if as MCP tools over stdin and stdout."""
    from agents.root import Root
    from analyzer.errors import UsageError

    folder = Root.at(root)
    if sys.stdin.isatty():
        print(
            "megascope mcp waits for an MCP client on stdin; docs/agents.md says how to add it to one",
            file=sys.stderr,
        )
    try:
        from agents.server import serve
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in ("agents", "analyzer"):
            raise
        raise UsageError(
            "megascope mcp",
            f"needs the package {error.name or 'mcp'}",
            "Install it: pip install 'mcp>=2.3,<3'.",
        ) from error
    except ImportError as error:
        raise UsageError(
            "megascope mcp",
            f"finds an mcp package of another version ({error})",
            "pip install 'mcp>=2.3,<3'.",
        ) from error
    from megascope import __version__

    serve(folder, __version__, read_only=read_only, most_bytes=max_bytes)
