"""Which bundles take results that a unit may not have ready yet.

A matrix or cross-lane unit, and the way from vector to scalar registers, give results back through a queue:
an instruction asks, a `vpop` or `spop` takes. A compiler fills the time between as well as it can; where it
has nothing left, at the end of a loop's body for instance, it prints the two next to one another, and the
core waits (newer compilers; older ones print empty bundles).
"""

import itertools
import re
from collections import defaultdict, deque
from collections.abc import Iterable

import numpy as np

from analyzer.llo.program import Program

DELAYS = ("mxu.result", "xlu.result", "vpush.result")
_MXU, _XLU, _VPUSH = range(3)
_PRODUCT = re.compile(r"vmatmul.*\.mrb\[(\d+)\]\.(mxu\d+)")
_TAKE_PRODUCT = re.compile(r"vpop\..*\.mrb\[(\d+)\]\.(mxu\d+)")
_ACROSS = re.compile(r"v\w+\.(?:xlane|lane)\b.*\.(xlu\d+)")
_TAKE_ACROSS = re.compile(r"vpop\.(?:xlane|permute)\.(xlu\d+)")


def waits(program: Program) -> dict[int, list[tuple[int, int]]]:
    """For each bundle that takes results: (bundle that asked for one, which of DELAYS), in the same block.

    Results of older matrix units (`mrf`) and of transposes are not followed.
    """
    found: dict[int, list[tuple[int, int]]] = {}
    relevant = np.array([_is_relevant(mnemonic) for mnemonic in program.opcodes], dtype=bool)
    where = np.flatnonzero(relevant[program.instruction_opcode])
    bundles = np.searchsorted(program.bundle_first, where, side="right") - 1
    starts = np.array([block.start for block in program.blocks])
    blocks = np.searchsorted(starts, bundles, side="right") - 1
    mnemonics = [program.opcodes[code] for code in program.instruction_opcode[where].tolist()]
    edges = [0, *(np.flatnonzero(np.diff(blocks)) + 1).tolist(), len(where)] if len(where) else [0]
    for first, last in itertools.pairwise(edges):
        for bundle, asked, delay in _of_block(
            zip(bundles[first:last].tolist(), mnemonics[first:last], strict=True)
        ):
            found.setdefault(bundle, []).append((asked, delay))
    return found


def _is_relevant(mnemonic: str) -> bool:
    return mnemonic in ("vpush", "spop") or any(
        form.match(mnemonic) for form in (_PRODUCT, _TAKE_PRODUCT, _ACROSS, _TAKE_ACROSS)
    )


def _of_block(instructions: Iterable[tuple[int, str]]) -> Iterable[tuple[int, int, int]]:
    """(bundle that takes, bundle that asked, delay) of the instructions of a block, in order."""
    products: dict[str, list[tuple[int, int]]] = defaultdict(list)  # unit: (first result, bundle)
    queues: dict[str, deque[int]] = defaultdict(deque)
    for bundle, mnemonic in instructions:
        if take := _TAKE_PRODUCT.match(mnemonic):
            number = int(take[1])
            before = [(result, asked) for result, asked in products[take[2]] if result <= number]
            if before:
                yield bundle, max(before)[1], _MXU
        elif product := _PRODUCT.match(mnemonic):
            products[product[2]].append((int(product[1]), bundle))
        elif take := _TAKE_ACROSS.match(mnemonic):
            if queues[take[1]]:
                yield bundle, queues[take[1]].popleft(), _XLU
        elif ask := _ACROSS.match(mnemonic):
            queues[ask[1]].append(bundle)
        elif mnemonic == "spop":
            if queues["spop"]:
                yield bundle, queues["spop"].popleft(), _VPUSH
        else:
            queues["spop"].append(bundle)
