"""Simulations in a process of their own: `python -m dashboard.worker`, told what to do on standard input.

A simulation holds Python's lock for as long as it takes, and of 32 cores it needs a gigabyte that stays with
the process. So the server lets another process do it, and reads the result from the analyzer's cache.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from analyzer.errors import InputError

_running: set[subprocess.Popen[str]] = set()
COMMAND = ["-m", "dashboard.worker"]
ROOT = Path(__file__).parents[1]


def work_out(path: Path, **options: Any) -> None:
    """Have `analyze(path, **options)` worked out and kept in the cache; silent where that fails.

    Whoever asks for the result then gets it from the cache, or meets the fault itself.

    Raises:
        InputError: the process was killed, by the end of the server or for want of memory.
    """
    task = json.dumps({"path": str(path), "options": options})
    child = subprocess.Popen(
        [sys.executable, *COMMAND],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
    )
    with child:
        _running.add(child)
        try:
            child.communicate(task)
        finally:
            _running.discard(child)
    if child.returncode < 0:
        raise InputError(path, "its simulation was ended from outside", "Free some memory and try again.")


def stop() -> None:
    """End what is still being worked out: the server stops."""
    for child in list(_running):
        child.kill()


def main() -> int:
    """Do what standard input says; exit code 1 where it fails."""
    from analyzer.analysis import analyze
    from analyzer.errors import MegascopeError

    task = json.load(sys.stdin)
    try:
        analyze(Path(task["path"]), **task["options"])
    except MegascopeError:
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
