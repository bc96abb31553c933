"""The verbs as tools of the Model Context Protocol, over stdin and stdout.

The mcp package diverts descriptor 1 to stderr while it serves, so nothing that a tool or its children print
reaches the protocol.
"""

import logging
import os
import signal
import sys
import threading
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import anyio.to_thread
import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

from agents import progress, tools
from agents.limits import dump
from agents.root import Root
from analyzer.errors import INTERNAL, MegascopeError

SECONDS_TO_CLEAN_UP = 5.0
SECONDS_BETWEEN_BEATS = 5.0
# Held while a tool works.
_working = threading.Lock()

INSTRUCTIONS = (
    "Megascope finds out where the time of a TPU megakernel goes, with no TPU. Loop: compile -> report (read"
    " the digest) -> findings (take the first whose confidence is not low) -> show its bundles or line ->"
    " edit the kernel -> compile to another folder -> diff -> gate. what_if says the most that a change can"
    " gain. Times are in ps; every number is measured, modelled, counted or assumed; null is unknown, not 0."
    " Lists are paged: go on at page.next_offset. Check results on CPU before you believe a faster step."
)


def build(root: Root, version: str, *, read_only: bool, most_bytes: int) -> "Server[Any]":
    """The server; `read_only` leaves out the tools that write or run code of the user's."""
    offered = {name: tool for name, tool in tools.by_name().items() if not (read_only and tool.writes)}
    one_at_a_time = anyio.CapacityLimiter(1)

    async def list_tools(_context: Any, _params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_described(tool) for tool in offered.values()])

    async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        tool = offered.get(params.name)
        if tool is None:
            return _failed(params.name[:60], "no such tool", f"Tools: {', '.join(offered)}.", 2)
        told = _Told(context.session, tool.name)
        progress.listener.set(told.say)
        async with anyio.create_task_group() as group:
            group.start_soon(told.beat)
            result = await anyio.to_thread.run_sync(
                _call, root, tool, dict(params.arguments or {}), most_bytes, limiter=one_at_a_time
            )
            group.cancel_scope.cancel()
        return result

    return Server(
        "megascope",
        version=version,
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


class _Told:
    """Progress of one call, sent when it says something new and every few seconds. Nothing is sent to a
    client that did not ask for it."""

    def __init__(self, session: Any, name: str) -> None:
        self.session, self.what = session, f"{name} begins"
        self.started, self.count = anyio.current_time(), 0

    async def send(self) -> None:
        self.count += 1
        seconds = anyio.current_time() - self.started
        await self.session.report_progress(float(self.count), message=f"{self.what} ({seconds:.0f} s)")

    def say(self, what: str) -> None:
        """From the thread that works. A client that went away is no reason to fail."""
        self.what = what
        with suppress(Exception):
            anyio.from_thread.run(self.send)

    async def beat(self) -> None:
        while True:
            await anyio.sleep(SECONDS_BETWEEN_BEATS)
            await self.send()


def _described(tool: tools.Tool) -> types.Tool:
    return types.Tool(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        input_schema=tool.input_schema,
        output_schema=tool.output_schema,
        annotations=types.ToolAnnotations(
            title=tool.title,
            read_only_hint=not tool.writes,
            destructive_hint=tool.writes,
            idempotent_hint=not tool.writes,
            open_world_hint=False,
        ),
    )


def _call(root: Root, tool: tools.Tool, arguments: dict[str, Any], most_bytes: int) -> types.CallToolResult:
    try:
        with _working:
            answer = tools.call(root, tool, arguments, most_bytes)
    except MegascopeError as error:
        return _failed(error.where, error.fault, error.cure, error.exit_code)
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        fault = f"internal error: {type(error).__name__}: {error}"
        return _failed(
            tool.name, fault, "Please report it with the call; stderr of the server has more.", INTERNAL
        )
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=dump(answer))], structured_content=answer
    )


def _failed(where: str, fault: str, cure: str, code: int) -> types.CallToolResult:
    """A tool error: one line with its cure, and the same as data. A compiler's message may be long: its end
    says most."""
    if len(fault) > 3000:
        fault = f"{fault[:1000]} [...] {fault[-2000:]}"
    error = {"where": where[:1000], "fault": fault, "cure": cure[:1000], "exit_code": code}
    text = f"{error['where']}: {fault}. {error['cure']}"
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=text)],
        structured_content={"error": error},
        is_error=True,
    )


def serve(root: Root, version: str, *, read_only: bool, most_bytes: int) -> None:
    """Serve until stdin closes."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    server = build(root, version, read_only=read_only, most_bytes=most_bytes)
    signal.signal(signal.SIGTERM, _stop)

    async def run() -> None:
        async with stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())

    anyio.run(run)


def _stop(number: int, _frame: object) -> None:
    """End what compiles, so that its thread removes the unfinished capture, and then this process."""
    for task in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError, ValueError):
            for child in map(int, task.read_text().split()):
                if os.getpgid(child) == child:  # a compiler leads a group of its own
                    os.killpg(child, signal.SIGTERM)
    _working.acquire(timeout=SECONDS_TO_CLEAN_UP)
    # Not sys.exit: it would wait for the thread that reads stdin, until the client closes it.
    os._exit(128 + number)
