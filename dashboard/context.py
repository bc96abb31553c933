"""What callbacks need: the captures and how an address names one."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from dashboard.jobs import Jobs
from dashboard.library import Library
from dashboard.loading import Loaded


@dataclass(frozen=True, slots=True)
class Context:
    """Handed to every page; the only thing shared between users, and read-only but for its caches.

    what_if: the report of a capture on a machine with some parameters changed.
    """

    library: Library
    what_if: Callable[[Path, dict[str, str]], dict[str, Any]]
    jobs: Jobs

    def loaded(self, pathname: str | None) -> Loaded:
        """The capture that an address names.

        Raises:
            MegascopeError: none does, or it cannot be read.
        """
        return self.library.get(self.identity(pathname))

    def identity(self, pathname: str | None) -> str:
        """The capture id of an address; the only capture's where the address names none."""
        identity = split(pathname)[0]
        if not identity:
            entries = self.library.entries()
            identity = entries[0].id if len(entries) == 1 else ""
        return identity


def split(pathname: str | None) -> tuple[str, str]:
    """(capture id, page key) of an address; empty where absent. Nothing here touches the file system."""
    parts = [unquote(p) for p in (pathname or "").split("/") if p]
    return (parts[0] if parts else "", parts[1] if len(parts) > 1 else "")
