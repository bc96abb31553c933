"""The captures a dashboard serves. A browser names them by id; ids map to paths here and nowhere else."""

import hashlib
import re
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from analyzer.errors import InputError
from dashboard.loading import Loaded, Loader

KEEP = 4  # captures held in memory
_MARKS = ("manifest.json", "dump", "xplane", "plugins/profile")
_PATTERNS = ("*final_bundles*.txt", "*.xplane.pb")


@dataclass(frozen=True, slots=True)
class Entry:
    """A capture that can be opened."""

    id: str
    path: Path
    modified: float


def is_capture(path: Path) -> bool:
    """Whether `path` looks like a capture, a dump folder, or a trace or bundles file."""
    if path.is_file():
        return any(path.match(p) for p in _PATTERNS)
    if any((path / mark).exists() for mark in _MARKS):
        return True
    return any(next(path.glob(p), None) is not None for p in _PATTERNS)


def identify(path: Path) -> str:
    """An id made of safe characters only, distinct for distinct paths."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", path.name).strip("-.")[:40] or "capture"
    digest = hashlib.sha256(str(path.resolve()).encode("utf-8", "surrogateescape")).hexdigest()[:6]
    return f"{name}-{digest}"


class Library:
    """Captures given by path, and those found in given folders; loaded ones are cached.

    Args:
        paths: captures, or folders that contain captures.
        loader: turns a path into a `Loaded`.

    Raises:
        InputError: a path does not exist.
    """

    def __init__(self, paths: list[Path], loader: Loader):
        for path in paths:
            if not path.exists():
                raise InputError(path, "no such file or folder", "Give a capture or a folder of captures.")
        self.paths = paths
        self._loader = loader
        self._cache: OrderedDict[str, tuple[tuple[int, ...], Loaded]] = OrderedDict()
        self._locks: dict[str, Lock] = {}
        self._lock = Lock()

    def entries(self) -> list[Entry]:
        """Every capture there is now, newest first within a folder."""
        found: dict[str, Entry] = {}
        for path in self.paths:
            if path.is_dir() and not is_capture(path):
                children = [c for c in _children(path) if is_capture(c)]
                candidates = sorted(children, key=_modified, reverse=True)
            else:
                # An explicit path stays listed even after it is deleted, so that the page can say so.
                candidates = [path]
            for candidate in candidates:
                identity = identify(candidate)
                found.setdefault(identity, Entry(identity, candidate, _modified(candidate)))
        return list(found.values())

    def path(self, identity: str) -> Path:
        """The path behind an id.

        Raises:
            InputError: no capture has this id.
        """
        for entry in self.entries():
            if entry.id == identity:
                return entry.path
        raise InputError(
            "this address", "no capture here has that name", "Pick one from the list of captures."
        )

    def get(self, identity: str) -> Loaded:
        """The capture, analyzed; cached until its files change.

        Raises:
            MegascopeError: it is gone, damaged or not supported.
        """
        path = self.path(identity)
        try:
            signature = _signature(path)
        except OSError:
            with self._lock:
                self._cache.pop(identity, None)
            raise InputError(path, "the capture is gone", "Capture again or pick another one.") from None
        with self._lock:
            lock = self._locks.setdefault(identity, Lock())
        with lock:
            with self._lock:
                cached = self._cache.get(identity)
                if cached and cached[0] == signature:
                    self._cache.move_to_end(identity)
                    return cached[1]
            loaded = self._loader(path)
            with self._lock:
                self._cache[identity] = (signature, loaded)
                while len(self._cache) > KEEP:
                    self._cache.popitem(last=False)
            return loaded


def _children(path: Path) -> list[Path]:
    try:
        return [c for c in path.iterdir() if not c.name.startswith(".")]
    except OSError:
        return []


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _signature(path: Path) -> tuple[int, ...]:
    """Changes when a capture is rewritten: captures are replaced by renaming, dumps gain or lose files.

    The folder's own modification time is left out for captures with a manifest, because the analyzer's
    cache appears inside them.
    """
    stat = path.stat()
    manifest = path / "manifest.json"
    if path.is_dir() and manifest.is_file():
        inner = manifest.stat()
        return (stat.st_ino, inner.st_ino, inner.st_mtime_ns, inner.st_size)
    return (stat.st_ino, stat.st_mtime_ns, stat.st_size)
