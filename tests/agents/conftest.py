"""A root folder with a small dump in it, and calls to the server's tools through the client of mcp."""

import asyncio
import shutil
from pathlib import Path

import pytest

pytest.importorskip("mcp", reason="the extra mcp is not installed")

from mcp import Client

from agents.limits import DEFAULT_BYTES
from agents.root import Root
from agents.server import build

PROJECT = Path(__file__).parents[2]


class Caller:
    """Calls tools of a server in this process, through a client of the mcp package."""

    def __init__(self, root, *, read_only=False, most_bytes=DEFAULT_BYTES, chip=None):
        self.root, self.chip = root, chip
        self.server = build(Root.at(root), "0", read_only=read_only, most_bytes=most_bytes)

    def _with_client(self, do):
        async def run():
            async with Client(self.server) as client:
                return await do(client)

        return asyncio.run(run())

    def tools(self):
        return {tool.name: tool for tool in self._with_client(lambda c: c.list_tools()).tools}

    def result(self, tool, **arguments):
        if self.chip and tool != "compile":
            arguments.setdefault("chip", self.chip)
        return self._with_client(lambda c: c.call_tool(tool, arguments))

    def told(self, tool, **arguments):
        """What a client that asks for progress is told during a call: (count, message)."""
        heard = []

        async def listen(count, total, message):
            heard.append((count, message))

        done = self._with_client(lambda c: c.call_tool(tool, arguments, progress_callback=listen))
        assert not done.is_error, done.content[0].text
        return heard

    def __call__(self, tool, **arguments):
        done = self.result(tool, **arguments)
        assert not done.is_error, done.content[0].text
        return done.structured_content

    def error(self, tool, **arguments):
        done = self.result(tool, **arguments)
        assert done.is_error
        return done.content[0].text, done.structured_content["error"]


@pytest.fixture(scope="session")
def root(tmp_path_factory):
    """A folder with two copies of a small dump for v6e, which does not say its chip."""
    folder = tmp_path_factory.mktemp("root")
    for name in ("a", "b"):
        shutil.copytree(PROJECT / "tests/goldens/llo/v6e", folder / name)
    return folder


@pytest.fixture(scope="session")
def caller(root):
    """The tools over `root`."""
    return Caller(root, chip="v6e")


@pytest.fixture(scope="session")
def make_caller():
    """Root folder, options -> the tools over it."""
    return Caller
