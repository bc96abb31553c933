"""`static_gap_analysis_final_bundles`: how far loads stand from the matrix operations they feed."""

import re
from dataclasses import dataclass
from pathlib import Path

from analyzer.llo.textfile import read_text, wrong_form

_HEAD = "Static Gap Analysis"
_ENTRY = re.compile(r"^MXU instruction at PC (\d+): (.*)$", re.MULTILINE)
_FEED = re.compile(r"^\s*- VLOAD at PC (\d+): (.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class StaticGap:
    """A matrix instruction (bundle and text) and the loads that feed it: (bundle, text) each."""

    bundle: int
    instruction: str
    loads: tuple[tuple[int, str], ...]

    @property
    def largest(self) -> int:
        """Bundles from its earliest load to the instruction; 0 without loads."""
        return max((self.bundle - load for load, _ in self.loads), default=0)


def read_static_gaps(path: Path) -> list[StaticGap]:
    """Read one static-gap file (`--xla_jf_dump_llo_static_gaps=true`); the compiler lists ten of each kind.

    Raises:
        InputError: it is missing, unreadable, or of another form.
    """
    text = read_text(path)
    if not text.startswith(_HEAD):
        raise wrong_form(path, "static gap analysis", "final_bundles and --xla_jf_dump_llo_static_gaps=true")
    heads = list(_ENTRY.finditer(text))
    if not heads:
        return []
    ends = [head.start() for head in heads[1:]] + [len(text)]
    found = [
        StaticGap(
            int(head[1]),
            head[2].strip(),
            tuple((int(bundle), load.strip()) for bundle, load in _FEED.findall(text[head.end() : end])),
        )
        for head, end in zip(heads, ends, strict=True)
    ]
    return list(dict.fromkeys(found))
