"""The one data model of the analyzer: a table of spans, in picoseconds, one row per span.

A simulator or a trace reader fills it; metrics, bubbles, findings, reports and figures read it.
"""

from collections.abc import Mapping
from enum import StrEnum

import pandas as pd


class Track(StrEnum):
    """What a span occupies.

    Spans on one (core, track, queue) never overlap, except on REGION, which nests.
    """

    HBM_READ = "hbm_read"
    HBM_WRITE = "hbm_write"
    VMEM_COPY = "vmem_copy"
    ICI_SEND = "ici_send"
    ICI_RECV = "ici_recv"
    MXU = "mxu"
    VECTOR = "vector"
    SCALAR = "scalar"
    WAIT = "wait"
    REGION = "region"


class Kind(StrEnum):
    """The colour of a span."""

    TRANSFER = "transfer"
    MATRIX = "matrix"
    VECTOR = "vector"
    COLLECTIVE = "collective"
    WAIT = "wait"
    IDLE = "idle"


class Provenance(StrEnum):
    """Where a number comes from. A report never mixes two in one figure without saying so."""

    MEASURED = "measured"
    MODELLED = "modelled"
    COUNTED = "counted"
    ASSUMED = "assumed"


# column -> pandas dtype. Nullable where a fact can be unknown (pd.NA, never 0).
COLUMNS: dict[str, str] = {
    "span": "int64",  # identity of the row within the timeline
    "core": "int32",
    "track": "category",
    "kind": "category",
    "name": "object",  # weight tag, collective, phase, opcode family ...
    "step": "int32",
    "layer": "Int32",  # <NA> outside any layer
    "phase": "object",  # "" outside any phase; nested scopes joined by "/"
    "start_ps": "int64",
    "duration_ps": "int64",
    "bytes": "Int64",
    "queue": "object",  # DMA queue / ring slot / peer, e.g. "hbm", "ici:3"
    "bundle_first": "Int32",
    "bundle_last": "Int32",
    "source": "object",  # "file:line" or ""
    "issued_ps": "Int64",  # transfers: when the copy was issued (start_ps is when bytes begin to flow)
    "free_ps": "Int64",  # transfers: earliest time the destination was free, where known
    "cause": "Int64",  # waits: span of the transfer or signal that ended the wait
    "operand": "Int32",  # transfers: HBM operand index read or written
    "provenance": "category",
}


def empty() -> pd.DataFrame:
    """A timeline with no spans and the right columns."""
    return from_rows([])


def from_rows(rows: list[dict[str, object]]) -> pd.DataFrame:
    """Build a timeline from dictionaries; absent keys become unknown (or "" for text).

    Raises:
        KeyError: a row has a key that is not a column.
    """
    known = set(COLUMNS)
    for row in rows:
        if not known.issuperset(row):
            raise KeyError(f"not a timeline column: {sorted(set(row) - known)}")
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    return conform(frame)


def conform(frame: pd.DataFrame, columns: Mapping[str, str] = COLUMNS) -> pd.DataFrame:
    """Give every column its dtype; text columns lose their NaNs. columns: those of a timeline by default."""
    out = frame.copy()
    for column, dtype in columns.items():
        if dtype == "object":
            out[column] = out[column].astype("object").where(out[column].notna(), "")
        else:
            out[column] = out[column].astype(dtype)  # type: ignore[call-overload]
    return out


def from_columns(columns: dict[str, object]) -> pd.DataFrame:
    """Build a timeline from whole columns (fast for a simulator); absent columns become unknown.

    Raises:
        KeyError: a key is not a column of the timeline.
    """
    if not set(columns) <= set(COLUMNS):
        raise KeyError(f"not a timeline column: {sorted(set(columns) - set(COLUMNS))}")
    return conform(pd.DataFrame(columns).reindex(columns=list(COLUMNS)))


def missing_columns(frame: pd.DataFrame) -> list[str]:
    """The columns a table lacks to be a timeline."""
    return [column for column in COLUMNS if column not in frame.columns]
