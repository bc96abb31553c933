"""An agent's loop through the tools, over real pipes, with no TPU: compile, read, pick, edit, diff, gate."""

import asyncio
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters

PROJECT = Path(__file__).parents[2]
COMMAND = [str(PROJECT / "megascope.py"), "mcp", "--root"]


def over_pipes(root, do, *, mode="auto"):
    """What `do(call)` returns; `call(tool, **arguments)` gives the answer or fails."""
    server = StdioServerParameters(command=sys.executable, args=[*COMMAND, str(root)])

    async def run():
        async with Client(server, mode=mode) as client:

            async def call(tool, **arguments):
                done = await client.call_tool(tool, arguments)
                assert not done.is_error, done.content[0].text
                assert len(done.content[0].text) <= 16_000
                assert json.loads(done.content[0].text) == done.structured_content
                return done.structured_content

            call.tools = {tool.name for tool in (await client.list_tools()).tools}
            return await do(call)

    return asyncio.run(run())


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_both_ages_of_the_protocol_over_pipes(root, mode):
    async def do(call):
        assert {"compile", "report", "findings", "show", "diff", "gate", "what_if"} <= call.tools
        return await call("report", capture="a", chip="v6e")

    assert over_pipes(root, do, mode=mode)["step"]["time_ps"] > 0


def test_stdout_carries_only_the_protocol_and_ends_with_stdin(root):
    say = [
        {"id": 1, "method": "initialize", "params": {
            "protocolVersion": "2025-06-18", "capabilities": {},
            "clientInfo": {"name": "t", "version": "0"}}},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": {
            "name": "report", "arguments": {"capture": "a", "chip": "v6e"}}},
        {"id": 3, "method": "tools/call", "params": {"name": "report", "arguments": {"capture": "/"}}},
    ]  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, *COMMAND, str(root)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    answers = {}
    try:
        for message in say:
            process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
            process.stdin.flush()
            if "id" in message:
                answer = json.loads(process.stdout.readline())
                answers[answer["id"]] = answer["result"]
        process.stdin.close()
        assert process.wait(20) == 0
        assert process.stdout.read() == ""
    finally:
        process.kill()
        process.stdout.close()
        process.stderr.close()
    assert answers[1]["serverInfo"]["name"] == "megascope"
    assert "compile" in answers[1]["instructions"]
    assert answers[2]["structuredContent"]["step"]["time_ps"] > 0
    assert answers[3]["isError"] is True


@pytest.mark.slow
def test_the_loop_with_no_tpu(tmp_path):
    pytest.importorskip("libtpu", reason="libtpu is not installed: nothing can be compiled for a TPU")
    kernel = tmp_path / "matvec.py"
    shutil.copyfile(PROJECT / "examples/matvec.py", kernel)
    kernel.write_text(
        kernel.read_text().replace("buffers: int = 3", "buffers: int = 1")
    )  # the planted bubble
    build = {"target": "matvec.py:build", "topology": "1x1x1"}

    async def do(call):
        first = await call("compile", **build, output="captures/first")
        assert first["capture"] == "captures/first"
        digest = (await call("report", capture="captures/first"))["digest"]
        assert any("MS102" in line for line in digest)

        found = (await call("findings", capture="captures/first", limit=1))["findings"][0]
        assert (found["id"], found["confidence"] != "low") == ("MS102", True)
        line = int(found["source"].rpartition(":")[2])
        assert ".start()" in kernel.read_text().splitlines()[line - 1]
        shown = await call("show", capture="captures/first", bundles=hex(found["bundles"][0]))
        assert any("dma" in text for text in shown["bundles"][0]["instructions"])
        bound = await call("what_if", capture="captures/first", changes={"hbm.latency": 0})
        assert bound["saving_ps"] > 0

        kernel.write_text(kernel.read_text().replace("buffers: int = 1", "buffers: int = 3"))  # the edit
        await call("compile", **build, output="captures/second")
        change = await call("diff", a="captures/first", b="captures/second")
        assert change["step"]["change"] < -bound["saving_ps"] / 2
        gone = [entry["finding"]["id"] for entry in change["findings"] if entry["change"] == "disappeared"]
        assert "MS102" in gone

        limits = {"max_regression": "0%", "forbid_new": ["MS102"]}
        there = await call("gate", a="captures/first", b="captures/second", **limits)
        back = await call("gate", a="captures/second", b="captures/first", **limits)
        # The same program again, by an option this time: nothing changed.
        await call("compile", **build, output="captures/again", options={"buffers": 3})
        same = await call("diff", a="captures/second", b="captures/again")
        return there, back, same

    there, back, same = over_pipes(tmp_path, do)
    assert there["passed"] is True, there["reasons"]
    assert back["passed"] is False
    assert len(back["reasons"]) >= 2
    assert same["equal"] is True


@pytest.mark.slow
def test_compile_errors_reach_the_caller(make_caller, tmp_path):
    pytest.importorskip("libtpu", reason="libtpu is not installed: nothing can be compiled for a TPU")
    call = make_caller(tmp_path)
    (tmp_path / "bad.py").write_text("def build():\n    raise ValueError('no such tile')\n")
    text, error = call.error("compile", target="bad.py:build", output="out/bad", topology="1x1x1")
    assert "no such tile" in text
    assert error["exit_code"] == 3
    assert not (tmp_path / "out/bad").exists()


@pytest.mark.slow
def test_a_stopped_server_leaves_no_compiler_and_no_unfinished_capture(tmp_path):
    pytest.importorskip("libtpu", reason="libtpu is not installed: nothing can be compiled for a TPU")
    (tmp_path / "k.py").write_text(
        "import os, pathlib, time\n"
        "def build():\n"
        "    pathlib.Path(__file__).with_name('pid').write_text(str(os.getpid()))\n"
        "    time.sleep(120)\n"
    )
    call = {"name": "compile", "arguments": {"target": "k.py:build", "output": "c", "topology": "1x1x1"}}
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "0"}}
    say = [
        {"id": 1, "method": "initialize", "params": hello},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": call},
    ]
    process = subprocess.Popen(
        [sys.executable, *COMMAND, str(tmp_path)],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        for message in say:
            process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
            process.stdin.flush()
        wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
        compiler = Path("/proc") / (tmp_path / "pid").read_text()
        assert compiler.exists()
        process.terminate()
        process.wait(20)
        wait_for(lambda: not compiler.exists())
    finally:
        process.kill()
        process.stdin.close()
        process.wait()
    # The folder goes right after the compiler that wrote into it.
    wait_for(lambda: {p.name for p in tmp_path.iterdir()} <= {"k.py", "pid", "__pycache__", "c.compile.log"})


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)
