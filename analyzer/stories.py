"""Why a core stood still: a row per exposed wait with its cause chain, and the same folded by place."""

from typing import Any

import pandas as pd

from analyzer.units import duration, size
from analyzer.view import optional_int

# column -> pandas dtype. Unknown is NA, or "" for text.
COLUMNS: dict[str, str] = {
    "core": "int32",
    "span": "Int64",  # the wait, in the timeline
    "start_ps": "int64",
    "duration_ps": "int64",  # also: how much earlier the transfer would have had to be complete
    "phase": "object",
    "layer": "Int32",
    "kind": "object",  # copy, message or barrier
    "source": "object",  # of the wait
    "name": "object",  # what was waited for
    "cause": "Int64",  # the transfer that ended the wait, in the timeline
    "sender": "Int32",  # messages: rank of the core that sent it
    "issue_source": "object",
    "issued_ps": "Int64",
    "bytes": "Int64",
    "flow_ps": "Int64",  # its bytes moving
    "behind": "object",  # sources of the transfers it stood behind in its queue, with commas
    "behind_ps": "int64",  # and how long
    "buffer": "object",  # its destination
    "buffer_free_ps": "Int64",
    "freed_by": "object",  # who used the buffer last
    "could_be_earlier_ps": "Int64",  # issue after the buffer was free
    "explanation": "object",
}
LISTED = 100


def table(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """A table of stories with the right columns, the longest wait first."""
    frame = pd.DataFrame(rows, columns=list(COLUMNS)).astype(COLUMNS)
    return frame.sort_values(["duration_ps", "start_ps"], ascending=[False, True], ignore_index=True)


def folded(stories: pd.DataFrame, core: int) -> list[dict[str, Any]]:
    """Waits of one core at the same line for transfers of the same line as one entry, the costliest first.

    Queue, buffer and words are those of the longest one.
    """
    own = stories[stories["core"] == core]
    entries = []
    for _, rows in own.groupby(["kind", "source", "issue_source"], sort=False):
        longest = rows.iloc[0].to_dict()  # the table is in order of duration
        earlier = rows["could_be_earlier_ps"].dropna()
        entries.append(
            {
                "kind": longest["kind"],
                "source": longest["source"] or None,
                "name": longest["name"] or None,
                "phase": longest["phase"],
                "layers": sorted({optional_int(n) for n in rows["layer"]}, key=_first),
                "count": len(rows),
                "total_ps": int(rows["duration_ps"].sum()),
                "longest_ps": int(longest["duration_ps"]),
                "longest_start_ps": int(longest["start_ps"]),
                "span": optional_int(longest["span"]),
                "transfer": None
                if longest["kind"] == "barrier"
                else {
                    "source": longest["issue_source"] or None,
                    "span": optional_int(longest["cause"]),
                    "sender": optional_int(longest["sender"]),
                    "bytes": optional_int(longest["bytes"]),
                    "issued_ps": optional_int(longest["issued_ps"]),
                    "flow_ps": optional_int(longest["flow_ps"]),
                },
                "behind": longest["behind"].split(", ") if longest["behind"] else [],
                "behind_ps": int(longest["behind_ps"]),
                "buffer": longest["buffer"] or None,
                "freed_by": longest["freed_by"] or None,
                "could_be_earlier_ps": None if earlier.empty else int(earlier.median()),
                "explanation": longest["explanation"],
                "core": core,
                "provenance": "modelled",
            }
        )
    return sorted(entries, key=lambda e: -e["total_ps"])


def _first(layer: int | None) -> int:
    return -1 if layer is None else layer


def explanation(row: dict[str, Any]) -> str:
    """The chain of one wait in one sentence, for readers of tables and reports."""
    if row["kind"] == "barrier":
        return "for the barrier of all cores"
    what = f"a {row['kind']} of {size(row['bytes'])}" if row.get("bytes") else "a signal"
    sender = f" from core {row['sender']}" if row.get("sender") is not None else ""
    before = row["start_ps"] - row["issued_ps"]
    when = f"{duration(abs(before))} {'before' if before >= 0 else 'after'} the wait began"
    parts = [f"for {what}{sender}, issued at {row['issue_source']} {when}"]
    if row.get("behind"):
        parts.append(f"it stood {duration(row['behind_ps'])} behind {row['behind']}")
    if row.get("could_be_earlier_ps") is not None:
        by = f" (last used by {row['freed_by']})" if row.get("freed_by") else ""
        parts.append(
            f"its buffer {row['buffer']}{by} was free {duration(row['could_be_earlier_ps'])} earlier"
        )
    return "; ".join(parts)
