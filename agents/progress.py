"""What a tool says while it works, for whoever asked to hear it."""

from collections.abc import Callable
from contextvars import ContextVar


def _nobody(_: str) -> None:
    """Nobody listens: tools called outside a server."""


# Set by the server around each call; threads that it starts for the call inherit it.
listener: ContextVar[Callable[[str], None]] = ContextVar("listener", default=_nobody)


def say(what: str) -> None:
    """Tell what is being done now, a few words."""
    listener.get()(what)
