"""The tool that makes captures: compile."""

import sys
from typing import Any

from agents.limits import Answer
from agents.progress import say
from agents.root import Root
from analyzer.errors import InputError, UsageError

Json = dict[str, Any]


def _tell(what: str) -> None:
    print(what, file=sys.stderr, flush=True)
    say(what)


def compile_(root: Root, arguments: Json) -> Answer:
    """Compile a kernel of the registry, or a Python file below the root, into a capture below the root."""
    from profiler.cli import check_level
    from profiler.compile import CompileRequest, compile_kernel
    from profiler.topology import parse_topology

    target, output = arguments["target"], root.inside(arguments["output"])
    if output == root.path:
        raise UsageError(arguments["output"], "is the root itself", "Name a new folder below it.")
    file, colon, function = target.rpartition(":")
    if colon:
        path = root.inside(file)
        if not path.is_file():
            raise InputError(file, f"is not a file in {root.path}", "Give path/to/file.py:build.")
        target = f"{path}:{function}"
    elif "/" in target or target.endswith(".py"):
        raise UsageError(target, "names no function", "Give path/to/file.py:build.")
    request = CompileRequest(
        target=target,
        topology=parse_topology(arguments.get("topology"), arguments.get("chip")),
        level=check_level(arguments.get("level", "regions")),
        options=dict(arguments.get("options", {})),
        timeout_seconds=float(arguments.get("timeout_seconds", 600)),
    )
    manifest = compile_kernel(
        request,
        output,
        force=arguments.get("force", False),
        progress=_tell,
    )
    return Answer(
        {
            "schema_version": 1,
            "capture": root.relative(output),
            "program": manifest.get("program"),
            "topology": request.topology.name,
            "level": request.level,
            "options": dict(request.options),
            "seconds": manifest.get("seconds"),
            "notes": manifest.get("notes", []),
        }
    )
