"""Interprets kernels in a child process: a deadlock hangs the interpreter for good, so a parent outlives it.

A case is a function of a `cases.py` beside the tests that runs a kernel and returns values. The child runs
one case after the other, for start-up costs seconds, and is replaced when a case does not answer in time.
"""

import contextlib
import importlib.util
import io
import logging
import os
import pickle
import subprocess
import sys
import threading
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Outcome:
    """What a case returned, and what the interpreter said meanwhile.

    Attributes:
        value: What the case returned; None if it raised.
        error: The traceback if it raised, else None.
        said: Everything printed or logged while it ran.
        deadlock: It did not answer in time.
    """

    value: Any
    error: str | None
    said: str
    deadlock: bool = False

    @property
    def raced(self) -> bool:
        """The race detector complained."""
        return "RACE DETECTED" in self.said or "RACE DETECTED" in (self.error or "")

    @property
    def semaphores_left(self) -> bool:
        """A semaphore was not zero when a kernel ended."""
        return "non-zero count" in self.said

    def clean(self) -> Any:
        """The value, if the run was flawless."""
        assert not self.deadlock, "the kernel did not come to its end"
        assert self.error is None, self.error
        assert not self.raced, self.said
        assert not self.semaphores_left, self.said
        return self.value


class Simulator:
    """Runs cases in one child after the other."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None

    def __call__(self, case: str, *, timeout: float = 120.0, **options: Any) -> Outcome:
        """Run `case`, "folder:function" for one of folder/cases.py, for at most `timeout` seconds."""
        child = self._child = self._child or self._start()
        assert child.stdin is not None
        assert child.stdout is not None
        pickle.dump((case, options), child.stdin)
        child.stdin.flush()
        late = threading.Timer(timeout, child.kill)
        late.start()
        try:
            outcome: Outcome = Outcome(**pickle.load(child.stdout))
        except EOFError:
            child.wait()
            self._child = None
            return Outcome(None, None, "", deadlock=True)
        finally:
            late.cancel()
        if outcome.error is not None:  # the interpreter's shared state may be left behind
            self.close()
        return outcome

    def close(self) -> None:
        """End the child."""
        if self._child is not None:
            self._child.kill()
            self._child.communicate()
            self._child = None

    @staticmethod
    def _start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, __file__], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )


def plain_callbacks() -> None:
    """Hand NumPy arrays to the interpreter's callbacks instead of putting each operand on a device first.

    An interpreted load has ten operands; placing them took three quarters of a run. Values are the same. A
    JAX that keeps its callbacks elsewhere is left as it is.
    """
    import jax._src.callback as module
    import numpy as np
    from jax import tree

    def call(*args: Any, callback: Any, **_: Any) -> Any:
        return tree.map(np.asarray, callback(*(np.asarray(arg) for arg in args)))

    if hasattr(module, "io_callback_impl"):
        module.io_callback_impl = call


def serve() -> None:
    """The child: cases in on stdin, outcomes out on what was stdout; the interpreter prints to stdout too."""
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    sys.path.insert(0, str(ROOT))
    plain_callbacks()
    while True:
        try:
            case, options = pickle.load(requests)
        except EOFError:
            return
        said = io.StringIO()
        handler = logging.StreamHandler(said)
        logging.getLogger().addHandler(handler)
        value, error = None, None
        with contextlib.redirect_stdout(said):
            try:
                value = _find(case)(**options)
            except Exception:
                error = traceback.format_exc()
        logging.getLogger().removeHandler(handler)
        pickle.dump({"value": value, "error": error, "said": said.getvalue()}, answers)
        answers.flush()


def _find(case: str) -> Any:
    folder, _, function = case.partition(":")
    name = f"cases_{folder.replace('/', '_')}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, HERE / folder / "cases.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return getattr(sys.modules[name], function)


if __name__ == "__main__":
    serve()
