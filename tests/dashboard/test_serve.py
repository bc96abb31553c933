"""The verb: serves until told to stop, says where, and fails in one line."""

import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def start(*arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "megascope", "dashboard", *map(str, arguments)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_serves_and_stops_cleanly(tmp_path, how):
    process = start(tmp_path, "--port", "0")
    line = process.stdout.readline()
    url = re.search(r"http://127\.0\.0\.1:\d+/", line).group()
    assert b"Megascope" in urllib.request.urlopen(url, timeout=20).read()
    process.send_signal(how)
    _, noise = process.communicate(timeout=20)
    assert process.returncode == 0
    assert noise == ""


def test_another_host_needs_the_printed_token(tmp_path):
    process = start(tmp_path, "--port", "0", "--host", "0.0.0.0")
    try:
        url = re.search(r"http://\S+", process.stdout.readline()).group()
        assert re.search(r"token=[\w-]{43}$", url)
        bare = url.split("?")[0].replace("0.0.0.0", "127.0.0.1")
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(bare, timeout=20)
        assert refused.value.code == 401
    finally:
        process.terminate()
        process.communicate(timeout=20)


def test_a_port_in_use_is_one_line_with_the_cure(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        process = start(tmp_path, "--port", taken.getsockname()[1])
        _, noise = process.communicate(timeout=30)
    assert process.returncode == 2
    assert noise.count("\n") == 1
    assert "in use" in noise
    assert "--port" in noise


def test_a_missing_capture_is_one_line(tmp_path):
    process = start(tmp_path / "nowhere", "--port", "0")
    _, noise = process.communicate(timeout=30)
    assert process.returncode == 3
    assert noise.count("\n") == 1
    assert "no such file" in noise
