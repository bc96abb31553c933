"""The simulator's DMA operations against interpret mode: same order, operands, offsets, bytes, peers.

Nothing is shared: one executes compiled bundles with addresses, the other the kernel's source with arrays.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from analyzer.simulate.execute import Core
from analyzer.simulate.sites import Op

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
SMALL = {"hidden": 1024, "ffn": 4096, "layers": 2, "block": 128, "ring_depth": 4}


def interpreted(function, module, options):
    """Core -> DMA starts of interpret mode."""
    done = subprocess.run(
        [sys.executable, HERE / "interpret_log.py", function, module, json.dumps(options)],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))


def tiled_offset(shape, start, item):
    """Bytes from the start of an array, in tiles of (8, 128), or (1, 128) where there is one row."""
    *outer, rows, columns = shape
    *at, row, column = start
    plane = 0
    for size, index in zip(outer, at, strict=True):
        plane = plane * size + index
    high = 8 if rows >= 8 else 1
    tiles_per_row = -(-columns // 128)
    tile = row // high * tiles_per_row + column // 128
    return (plane * -(-rows // high) * tiles_per_row + tile) * high * 128 * item + row % high * 128 * item


def expected_events(log, operand_of, item_of):
    """[(source, destination, bytes, peer)], an end being (operand, byte offset) or "vmem"."""
    events = []
    for source, target, peer in log:
        ends, size = [], 0
        for space, buffer, shape, start, extent in (source, target):
            if space != "hbm":
                ends.append("vmem")
                continue
            operand = operand_of[buffer]
            ends.append((operand, tiled_offset(shape, start, item_of[operand])))
            size = item_of[operand]
            for dimension in extent:
                size *= dimension
        if not size:
            size = 4
            for dimension in source[4]:
                size *= dimension
        events.append((*ends, size, peer))
    return events


def simulated_events(one, rank):
    """The same of the simulator."""
    compiled = one.simulator.compiled
    layout = compiled.layout
    trace = Core(compiled, one.scenario, one.simulator.words, rank, 2).run().trace
    events = []
    for entry in trace:
        if isinstance(entry, int) or compiled.sites[entry[0]].op not in (Op.DMA, Op.DMA_GENERAL):
            continue
        source, destination, granules = entry[1:4]
        ends = []
        for address in (source, destination):
            placed = layout.find("hbm", address) if layout.space_of(address) == "hbm" else None
            ends.append("vmem" if placed is None else (placed.operand, (address - placed.start) * 32))
        peer = None
        if compiled.sites[entry[0]].op is Op.DMA_GENERAL and entry[7] & 0x4000:
            peer = (entry[7] & 0x3FFF) * 2 + (entry[7] >> 26 & 1)
        events.append((*ends, granules * 32, peer))
    return events


@pytest.mark.parametrize("name", ["nested_loops", "ring", "windows", "all_to_all", "mlp"])
def test_copies_in_order(kernel, name):
    if name == "mlp":
        one = kernel("mlp", *(f"{k}={v}" for k, v in SMALL.items()))
        logs = interpreted("build", ROOT / "megakernels/mlp/build.py", SMALL)
    else:
        one = kernel(name)
        logs = interpreted(name, HERE / "kernels.py", {})
    in_hbm = [o for o in one.program.operands if o.space == "hbm"]
    item_of = {o.index: {"f32": 4, "bf16": 2}[o.dtype] for o in in_hbm}
    assert set(logs) == set(range(one.manifest["cores"]))
    for rank, log in logs.items():
        # Interpret mode numbers a core's HBM buffers in the order of the operands.
        buffers = sorted({end[1] for start in log for end in start[:2] if end[0] == "hbm"})
        operand_of = dict(zip(buffers, (o.index for o in in_hbm), strict=True))
        expected = expected_events(log, operand_of, item_of)
        assert len(expected) > 5
        assert simulated_events(one, rank) == expected, f"core {rank}"
