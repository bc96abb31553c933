"""VMEM of a program, from the compiler's report (`vmem_report.html`, JSON inside a page)."""

import json
import re
from pathlib import Path

_DATA = re.compile(r"const DATA\s*=\s*")


def used_bytes(report: Path | None, program: str) -> int | None:
    """Bytes of VMEM that a program holds at its fullest, as the compiler reports it.

    Args:
        report: the page; None where the dump has none.
        program: name of the program (`mlp.1`).

    Returns:
        None where there is no report, it cannot be read, or it does not name the program.
    """
    if report is None:
        return None
    try:
        text = report.read_text(errors="replace")
        found = _DATA.search(text)
        if found is None:
            return None
        data, _ = json.JSONDecoder().raw_decode(text, found.end())
        size = data["hlo_breakdowns"][program]["total_size"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return size if isinstance(size, int) else None
