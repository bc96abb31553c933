"""The static facts of a program as a listing, for `megascope show --facts`."""

from typing import TYPE_CHECKING, Any

from analyzer.errors import UsageError
from analyzer.facts import ProgramFacts

if TYPE_CHECKING:
    import numpy as np

    from analyzer.llo.file_program import FileProgram

GROUPS = ("program", "loop", "phase", "source")
SCHEMA_VERSION = 1
_ALIKE = ("direction", "bytes", "source_operand", "target_operand", "strided", "remote")


def facts_listing(
    program: "FileProgram", group: str, executed: "np.ndarray | None", limit: int = 100, offset: int = 0
) -> dict[str, Any]:
    """Facts of each loop, phase or source line, or of the whole program.

    Args:
        program: the program.
        group: one of GROUPS.
        executed: int64[B], how often each bundle ran; None where that is unknown.
        limit, offset: page of the groups, in order; limit 0 is all.

    Raises:
        UsageError: there is no such grouping.
    """
    if group not in GROUPS:
        raise UsageError(f"--facts {group}", "no such grouping", f"Groupings: {', '.join(GROUPS)}.")
    facts = ProgramFacts(program, executed)
    groups = {
        "program": lambda: [facts.whole()],
        "loop": lambda: list(facts.per_loop()),
        "phase": lambda: list(facts.per_phase()),
        "source": lambda: list(facts.per_source(offset + limit if limit else None)),
    }[group]()
    page = groups[offset : offset + limit if limit else None]
    return {
        "schema_version": SCHEMA_VERSION,
        "program": program.name,
        "path": program.path,
        "group": group,
        "total": len(groups) if group != "source" or not limit else len({str(s) for s in program.sources}),
        "returned": len(page),
        "offset": offset,
        "facts": [entry.to_json() for entry in page],
        "notes": list(program.notes),
    }


def render_facts(listing: dict[str, Any], colour: bool = False) -> str:
    """A block of lines per group."""
    bold, off = ("\x1b[1m", "\x1b[0m") if colour else ("", "")
    lines = [f"{bold}{listing['program']}{off}  facts per {listing['group']} (counted)"]
    for entry in listing["facts"]:
        least = "" if entry["exact"] else "at least "
        ran = entry["executed_bundles"]
        size = f"{entry['bundles']} bundles, {entry['empty_bundles']} empty, {entry['code_bytes']} code bytes"
        name = entry["key"] or "(outside any scope)"
        lines.append(f"{bold}{name}{off}  {size}, executed {'?' if ran is None else ran}")
        weighted = entry["executed_counts"] or {}
        counts = [
            f"{least}{count} {name.replace('_', ' ')}" + (f" (x{weighted[name]})" if name in weighted else "")
            for name, count in entry["counts"].items()
            if count
        ]
        lines.append("    " + (", ".join(counts) or "nothing counted"))
        if entry["spill_bytes"] or entry["fill_bytes"]:
            lines.append(f"    {entry['spill_bytes']} bytes spilled, {entry['fill_bytes']} filled")
        stretch = entry["longest_scalar_stretch"]
        if stretch["bundles"]:
            lines.append(
                f"    longest scalar stretch: {stretch['bundles']} bundles from {stretch['bundle']:#x}"
            )
        lines += [f"    {text}" for text in _dma_text(entry["dma_sites"])]
    lines.append(f"{listing['offset']}..{listing['offset'] + listing['returned']} of {listing['total']}")
    return "\n".join([*lines, *(f"note: {note}" for note in listing["notes"])]) + "\n"


def _dma_text(sites: list[dict[str, Any]]) -> list[str]:
    """Copies that are alike, in one line each."""
    alike: dict[tuple[Any, ...], int] = {}
    for site in sites:
        key = tuple(
            site[name]
            for name in ("direction", "bytes", "source_operand", "target_operand", "strided", "remote")
        )
        alike[key] = alike.get(key, 0) + 1
    words = []
    for (direction, size, source, target, strided, remote), count in alike.items():
        operand = (
            "" if source is None and target is None else f" operand {target if source is None else source}"
        )
        shape = {True: "strided", False: "contiguous", None: "shape unknown"}[strided]
        place = {True: "remote", False: "local", None: "local or remote"}[remote]
        words.append(
            f"{count} copies {direction}{operand} of {'?' if size is None else size} bytes, {shape}, {place}"
        )
    return words
