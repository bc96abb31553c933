"""The one folder that the tools see: paths are taken below it, and refused elsewhere."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from analyzer.errors import InputError, UsageError

if TYPE_CHECKING:
    from analyzer.capture import Capture


@dataclass(frozen=True, slots=True)
class Root:
    """A folder, resolved. Make one with `Root.at`."""

    path: Path

    @classmethod
    def at(cls, path: Path) -> "Root":
        """The root at a folder.

        Raises:
            UsageError: it is not a folder.
        """
        resolved = path.expanduser().resolve()
        if not resolved.is_dir():
            raise UsageError(f"--root {path}", "is not a folder", "Give the folder that holds the captures.")
        return cls(resolved)

    def inside(self, given: str) -> Path:
        """A path that a caller gave, relative to the root or absolute, with links followed.

        Raises:
            UsageError: it leads out of the root, or cannot be a path.
        """
        try:
            found = (self.path / given).resolve()
        except (OSError, ValueError, RuntimeError) as error:
            raise UsageError(repr(given), f"is no path ({error})", "Give a path below the root.") from error
        if not found.is_relative_to(self.path):
            raise UsageError(
                given,
                f"is outside {self.path}, the root of this server",
                "Give a path below it, or start the server with another --root.",
            )
        return found

    def relative(self, path: Path) -> str:
        """A path as callers are told it: relative to the root."""
        return str(path.relative_to(self.path)) if path.is_relative_to(self.path) else str(path)

    def open(self, given: str, *, program: str | None = None, chip: str | None = None) -> "Capture":
        """A capture below the root, whose files are below it too.

        Raises:
            UsageError: it or its files are elsewhere.
            InputError: nothing to analyze there.
        """
        from analyzer.capture import open_capture

        path = self.inside(given)
        if not path.exists():
            raise InputError(
                given, f"does not exist in {self.path}", "Check the path, or make it with the tool compile."
            )
        opened = open_capture(path, program=program, chip=chip)
        for file in (opened.dump_dir, *(one.bundles for one in opened.programs()), opened.trace):
            if file is not None:
                self.inside(str(file))
        return opened
