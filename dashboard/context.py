"""What callbacks need: the captures and how an address names one."""

from dataclasses import dataclass
from urllib.parse import unquote

from dashboard.jobs import Jobs, State
from dashboard.library import Library
from dashboard.loading import Loaded, WhatIf

ALL_CORES = -1  # in place of a core's number


@dataclass(frozen=True, slots=True)
class Context:
    """Handed to every page; the only thing shared between users, and read-only but for its caches.

    what_if: the report of a capture on a machine with some parameters changed, without some phases.
    """

    library: Library
    what_if: WhatIf
    jobs: Jobs

    def loaded(self, pathname: str | None) -> Loaded:
        """The capture that an address names.

        Raises:
            MegascopeError: none does, or it cannot be read.
        """
        return self.library.get(self.identity(pathname))

    def other(self, loaded: Loaded, key: str) -> tuple[Loaded | None, State | None]:
        """Another view of a capture (`Loaded.others`), made in the background.

        Returns:
            (the view, None), or (None, how the job that makes it stands); (the capture itself, None) where it
            has no such view.

        Raises:
            MegascopeError: it cannot be made.
        """
        later = loaded.others.get(key)
        if later is None:
            return loaded, None
        if later.made is None:
            state = self.jobs.ask((key, loaded.serial), later.run)
            if not state.done:
                return None, state
            if state.error is not None:
                raise state.error
        return later.made, None

    def of_core(self, loaded: Loaded, core: int | None) -> tuple[Loaded | None, State | None]:
        """The view that has a core: the capture itself, or the one with every core (for `ALL_CORES` too)."""
        return (loaded, None) if core is None or core in loaded.cores else self.other(loaded, "all")

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
