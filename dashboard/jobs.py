"""Work that takes seconds, done beside the server's answers; asked for again, it is not done again."""

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock
from typing import Any

KEEP = 64


@dataclass(frozen=True, slots=True)
class State:
    """How a job stands. seconds: since it was asked for. waiting: jobs before it in the queue."""

    done: bool
    seconds: float
    waiting: int
    result: Any = None
    error: BaseException | None = None


class Jobs:
    """One job at a time, in order; results of the last `KEEP` are kept."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="megascope-job")
        self._known: OrderedDict[Hashable, tuple[float, Future[Any]]] = OrderedDict()
        self._lock = Lock()

    def ask(self, key: Hashable, work: Callable[[], Any]) -> State:
        """Start `work` unless a job of this key is known; say how it stands."""
        with self._lock:
            entry = self._known.get(key)
            if entry is None or (entry[1].done() and entry[1].exception() is not None):
                entry = (time.monotonic(), self._pool.submit(work))
                self._known[key] = entry
            self._known.move_to_end(key)
            while len(self._known) > KEEP:
                self._known.popitem(last=False)[1][1].cancel()
            before = sum(not f.done() for _, f in self._known.values()) - (not entry[1].done())
        return self._state(entry, before)

    def look(self, key: Hashable) -> State | None:
        """How a job stands, or None if it is not known."""
        with self._lock:
            entry = self._known.get(key)
            before = sum(not f.done() for _, f in self._known.values()) - 1
        return None if entry is None else self._state(entry, before)

    @staticmethod
    def _state(entry: tuple[float, "Future[Any]"], waiting: int) -> State:
        begun, future = entry
        seconds = time.monotonic() - begun
        if not future.done():
            return State(False, seconds, max(0, waiting))
        error = future.exception()
        return State(True, seconds, 0, None if error else future.result(), error)
