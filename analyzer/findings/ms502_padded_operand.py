"""MS502: an operand whose rows are padded in HBM, so that copies move more bytes than it has."""

from collections.abc import Iterator

from analyzer.findings.base import MEDIUM, Context, Finding, Rule
from analyzer.llo.program import HbmOperand
from analyzer.replay import Edit
from analyzer.timeline import Track
from analyzer.units import duration, size
from analyzer.view import bundle_range, on

LANES, SUBLANES = 128, 8


def padded_bytes(operand: HbmOperand) -> int | None:
    """Bytes of an operand with its last dimension in whole rows of 128 lanes; None if its size is unknown."""
    if operand.size_bytes is None or not operand.dimensions or not all(operand.dimensions):
        return None
    last = operand.dimensions[-1]
    return operand.size_bytes // last * (-(-last // LANES) * LANES)


def _look(context: Context, rule: Rule) -> Iterator[Finding]:
    if context.operand_bytes is None or context.program is None or not context.hbm_rate:
        return
    reads = on(context.core.hbm, (Track.HBM_READ,))
    for operand in context.program.operands:
        padded, read = padded_bytes(operand), context.operand_bytes.get(operand.index, (0, 0))[0]
        if padded is None or operand.size_bytes is None or padded == operand.size_bytes:
            continue
        excess = round(read * (1 - operand.size_bytes / padded))
        time = round(excess / context.hbm_rate * 1e12)
        mine = reads[(reads["operand"] == operand.index).fillna(False).to_numpy(dtype=bool)]
        share = operand.size_bytes / padded
        saving, basis = context.priced(Edit(shrink=dict.fromkeys(mine["span"].tolist(), share)))
        if not len(mine) or not context.significant(time if saving is None else saving):
            continue
        largest = str(mine.groupby("source")["bytes"].sum().idxmax())
        rows = mine[mine["source"] == largest]
        yield rule.finding(
            context,
            time_ps=time,
            saving_ps=saving,
            saving_basis="replayed without the bytes of the padding" if saving is not None else basis,
            confidence=MEDIUM,
            source=largest,
            bundles=bundle_range(rows["bundle_first"].iloc[0], rows["bundle_last"].iloc[-1]),
            count=len(mine),
            evidence=(
                f"operand {operand.index} ({mine['name'].iloc[0] or 'unnamed'}, {operand.shape}) has rows of"
                f" {operand.dimensions[-1]} elements, which lie in rows of {LANES}",
                f"{size(read)} are read per step, {size(excess)} of them padding: {duration(time)} of HBM",
            ),
        )


RULE = Rule(
    identifier="MS502",
    title="Padded operand",
    family="HBM traffic",
    sees="An operand in HBM has a last dimension that is no multiple of 128, and the step reads it.",
    costs="Rows lie in HBM in whole tiles of 128 lanes; copies move the padding with the data.",
    example="w: f32[48, 512, 64]  # every row takes the room of 128 elements",
    advice="Fold rows so that the last dimension is a multiple of 128: [48, 256, 128].",
    verify="megascope report CAPTURE --format json, field hbm.read_bytes, against the size of the weights",
    doubt="The layout in HBM is taken to be the compiler's default; XLA may have chosen another.",
    look=_look,
)
