"""MS501: an operand from which more bytes are read in a step than it has."""

from collections.abc import Iterator

from analyzer.findings.base import MEDIUM, Context, Finding, Rule
from analyzer.findings.ms502_padded_operand import padded_bytes
from analyzer.replay import Edit
from analyzer.timeline import Track
from analyzer.units import duration, size
from analyzer.view import bundle_range, on


def _look(context: Context, rule: Rule) -> Iterator[Finding]:
    if context.operand_bytes is None or context.program is None or not context.hbm_rate:
        return
    reads = on(context.core.hbm, (Track.HBM_READ,))
    for operand in context.program.operands:
        read = context.operand_bytes.get(operand.index, (0, 0))[0]
        # More than its size but not more than its padded size is MS502's matter.
        if operand.size_bytes is None or read <= (padded_bytes(operand) or operand.size_bytes):
            continue
        excess = read - operand.size_bytes
        time = round(excess / context.hbm_rate * 1e12)
        mine = reads[(reads["operand"] == operand.index).fillna(False).to_numpy(dtype=bool)]
        once = operand.size_bytes / read
        saving, basis = context.priced(Edit(shrink=dict.fromkeys(mine["span"].tolist(), once)))
        if not context.significant(time if saving is None else saving):
            continue
        largest = mine.groupby("source")["bytes"].sum().idxmax() if len(mine) else ""
        rows = mine[mine["source"] == largest]
        name = str(mine["name"].iloc[0]) if len(mine) else ""
        yield rule.finding(
            context,
            time_ps=time,
            saving_ps=saving,
            saving_basis="replayed with as many bytes copied as the operand has"
            if saving is not None
            else basis,
            confidence=MEDIUM,
            provenance="modelled",
            source=str(largest),
            bundles=bundle_range(rows["bundle_first"].iloc[0], rows["bundle_last"].iloc[-1])
            if len(rows)
            else None,
            count=len(mine),
            evidence=(
                f"operand {operand.index} ({name or 'unnamed'}, {operand.shape}) has"
                f" {size(operand.size_bytes)}, {size(read)} are read per step",
                f"the excess {size(excess)} takes {duration(time)} of HBM",
            ),
        )


RULE = Rule(
    identifier="MS501",
    title="Operand read more than once per step",
    family="HBM traffic",
    sees="The copies of a step read more bytes of an HBM operand than it has.",
    costs="In a decode step each weight is needed once; every further read costs its bytes again.",
    example="for half in (0, 1): use(weights, x[half])  # streams all weights twice",
    advice=(
        "Use each tile for all rows while it is in VMEM; keep what is small and needed often in VMEM; in a"
        " blocked product, larger blocks read each operand less often."
    ),
    verify="megascope report CAPTURE --format json, field hbm.read_bytes, against the size of the weights",
    doubt=(
        "An activation that changes during the step, or an embedding table of which few rows are read"
        " often, is rightly read again. Padding of the array in HBM is not counted as its size."
    ),
    look=_look,
)
