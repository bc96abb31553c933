"""Joins a trace with compiled bundles, if and only if they are of the same program.

Two compiles of one kernel differ (instrumentation alone changes the schedule), and addresses of one program
mean nothing in another. So identity is checked first, on numbers that both sides have; a mismatch is refused.
"""

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from analyzer.measured.load import MARKERS, Device
from analyzer.measured.proto import TracedProgram

if TYPE_CHECKING:
    from analyzer.llo.file_program import FileProgram

_ADDRESS = re.compile(r"\]\s+(0x[0-9a-fA-F]+):")


@dataclass(frozen=True, slots=True)
class TracedCode:
    """What a trace shows of the code that ran.

    Attributes:
        bundles: number of bundles of the traced program; None where the trace does not carry it.
        markers: addresses of the markers that were hit, ascending; their origin is not known.
        regions: whether the program was compiled with scope markers (the trace has scopes).
    """

    bundles: int | None
    markers: tuple[int, ...]
    regions: bool


@dataclass(frozen=True, slots=True)
class Identity:
    """Whether bundles are of the traced program.

    Attributes:
        same: True if every check that could be made holds, and at least one that can fail.
        checks: name, value in the trace, value in the bundles, whether they agree (None: not comparable).
        base: what is added to a bundle's index to give its address in the trace; None if unknown.
        reason: why not, or what it rests on.
    """

    same: bool
    reason: str
    base: int | None = None
    checks: list[dict[str, object]] = field(default_factory=list)


def traced_code(devices: list[Device], program: TracedProgram | None, scopes: bool) -> TracedCode:
    """What the trace shows of its program. The texts of the markers hold their addresses."""
    found: set[int] = set()
    for device in devices:
        line = device.lines[MARKERS]
        for text in (*line.labels, *(kind.name for kind in line.kinds)):
            address = _ADDRESS.search(text)
            if address:
                found.add(int(address[1], 16))
    return TracedCode(program.bundles if program else None, tuple(sorted(found)), scopes)


def identify(code: TracedCode, bundles: "FileProgram") -> Identity:
    """Hold the traced code against bundles."""
    checks: list[dict[str, object]] = []
    static = sorted({m.bundle for m in bundles.markers if m.kind != "value"})
    scoped = sum(m.kind in ("scope_start", "scope_end") for m in bundles.markers)

    def check(name: str, traced: object, dumped: object, agree: bool | None) -> None:
        checks.append({"check": name, "trace": traced, "bundles": dumped, "agree": agree})

    if code.bundles is not None:
        check("bundles", code.bundles, bundles.bundle_count, code.bundles == bundles.bundle_count)
    else:
        check("bundles", None, bundles.bundle_count, None)
    base = None
    if code.markers:
        fits = len(code.markers) <= len(static)
        check("vtrace markers", len(code.markers), len(static), fits)
        bases = bases_of(code.markers, static) if fits else []
        base = bases[0] if len(bases) == 1 else None
        if fits:
            told = f"base {base}" if base is not None else f"{len(bases)} bases fit"
            check("addresses of the markers", told, f"{len(static)} addresses", bool(bases))
        highest, last = code.markers[-1] - code.markers[0], bundles.bundle_count - 1
        check("span of marker addresses", highest, last, highest <= last)
    elif code.regions:
        check("scope markers", "present", scoped, scoped > 0)
    failed = [c for c in checks if c["agree"] is False]
    if failed:
        told = "; ".join(
            f"{c['check']}: {c['trace']} in the trace, {c['bundles']} in the dump" for c in failed
        )
        return Identity(False, f"another compile: {told}", None, checks)
    held = [c for c in checks if c["agree"]]
    if not any(c["check"] in ("bundles", "addresses of the markers") for c in held):
        return Identity(
            False, "the trace shows nothing that would tell one compile from another", None, checks
        )
    return Identity(True, "agree in " + ", ".join(str(c["check"]) for c in held), base, checks)


def bases_of(traced: tuple[int, ...], static: list[int]) -> list[int]:
    """Every offset that maps all traced addresses onto markers of the bundles."""
    known = np.array(static, dtype=np.int64)
    addresses = np.array(traced, dtype=np.int64)
    return [int(b) for b in np.unique(addresses[0] - known) if np.isin(addresses - b, known).all()]
