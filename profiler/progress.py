"""Progress on stderr: one line that changes on a terminal, a few plain lines elsewhere."""

import sys
import time
from types import TracebackType

# Stages that take time, and so are worth a line where lines stay.
_WORDS = {
    "start": "starting JAX",
    "topology": "starting libtpu",
    "load": "loading the kernel",
    "build": "building it",
    "check": "checking what it returned",
    "trace": "tracing",
    "compile": "compiling",
    "write": "writing HLO",
    "comparing": "simulating both levels",
}
_KEPT = ("trace", "compile", "comparing")


class Progress:
    """Shows what is being done; `with` ends its line."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._started = time.monotonic()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            print("\r\033[K", end="", file=sys.stderr, flush=True)

    def show(self, text: str) -> None:
        """Show one step: a stage of the compile, or plain words."""
        words = _WORDS.get(text, text)
        seconds = time.monotonic() - self._started
        if self._live:
            print(f"\r\033[K  {seconds:4.0f} s  {words}", end="", file=sys.stderr, flush=True)
        elif text in _KEPT or text not in _WORDS:
            print(f"  {seconds:4.0f} s  {words}", file=sys.stderr, flush=True)
