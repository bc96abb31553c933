"""Which named scope each bundle stands in, read off the markers in printed order.

Scope markers are scheduling edges, so a scope is a run of bundles: what is printed between its start and
its end belongs to it, in loops and conditional code as well. The layer index and other trace values are
run-time data and not part of the name.
"""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from analyzer.llo.file_program import FileProgram

LAYER = "layer"


def static_phases(program: "FileProgram") -> tuple[list[str], np.ndarray]:
    """(distinct phase paths, int32[B] index into them); "" is outside any scope.

    Nested scopes are joined by "/". A scope without a name in the trace-markers file is `marker N`.
    """
    names = [""]
    known = {"": 0}
    out = np.zeros(program.bundle_count, np.int32)
    stack: list[str] = []
    current, since = 0, 0
    for marker in program.markers:
        if marker.kind not in ("scope_start", "scope_end"):
            continue
        name = marker.name or f"marker {marker.identifier}"
        if marker.kind == "scope_start":
            stack.append(name)
        elif name in stack:
            del stack[len(stack) - 1 - stack[::-1].index(name) :]
        path = "/".join(part for part in stack if part.rpartition("/")[2] != LAYER)
        # The bundle of an end marker still belongs to its scope, that of a start marker already does.
        edge = marker.bundle + (marker.kind == "scope_end")
        out[since:edge] = current
        since = edge
        if path not in known:
            known[path] = len(names)
            names.append(path)
        current = known[path]
    out[since:] = current
    return names, out
