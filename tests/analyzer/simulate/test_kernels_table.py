"""Every kernel of the repository and jax's own: traffic, trips and balance, and the table of docs/model.md.

Set MEGASCOPE_UPDATE_DOCS=1 to rewrite the table.
"""

import os
from pathlib import Path

import pytest

from analyzer.capture import open_capture
from analyzer.llo.reader import read_program
from analyzer.machine import load_machine
from analyzer.simulate import Scenario, Simulator

HERE = Path(__file__).parent
DOCS = HERE.parents[2] / "docs/model.md"
BEGIN, END = "<!-- kernels: begin -->", "<!-- kernels: end -->"
PAGED = Scenario(name="512 tokens each", scalars={3: 1}, smem={0: [512] * 8, 1: list(range(256))})


def block(*dimensions):
    size = 2
    for dimension in dimensions:
        size *= dimension
    return size


# name -> (target, scenario, bytes (read, written) per operand in HBM, iterations of the loops)
JAX = {
    "all_gather (ring)": ("jax_kernels.py:all_gather", None, {}, [32]),
    "matmul (grid)": (
        "jax_kernels.py:grid_matmul",
        None,
        {0: (128 * block(512, 512), 0), 1: (128 * block(512, 1024), 0), 2: (0, block(2048, 4096))},
        [4 * 4 * 8 + 2],
    ),
    "matmul (emit_pipeline)": (
        "jax_kernels.py:pipelined_matmul",
        None,
        {0: (64 * block(512, 512), 0), 1: (64 * block(512, 512), 0), 2: (0, block(1024, 2048))},
        [2 * 4 * 8],
    ),
    # 35 key blocks per head: a block that follows itself is not read again, and past the diagonal the
    # index map goes back to block 0, which is then prefetched for the next row of blocks
    "flash_attention": (
        "jax_kernels.py:flash_attention",
        None,
        {
            0: (8 * block(4096, 128), 0),
            1: (8 * 35 * block(512, 128), 0),
            2: (8 * 35 * block(512, 128), 0),
            3: (0, 8 * block(4096, 128)),
        },
        [8 * 8 * 8 + 2],
    ),
    # 8 sequences x 8 KV heads x 32 pages; the running maximum and sum are padded to 512 bytes per row
    "paged_attention": (
        "jax_kernels.py:paged_attention",
        PAGED,
        {
            5: (8 * 8 * 32 * block(16, 128), 0),
            6: (8 * 8 * 32 * block(16, 128), 0),
            8: (0, 8 * 32 * 512),
            9: (0, 8 * 32 * 512),
        },
        None,
    ),
}


def counted(result):
    return {index: pair for index, pair in result.operand_bytes.items() if any(pair)}


def row(name, result):
    read = sum(pair[0] for pair in result.operand_bytes.values())
    written = sum(pair[1] for pair in result.operand_bytes.values())
    trips = ", ".join(f"{loop.iterations}" for loop in result.loop_trips if loop.iterations) or "-"
    assumed = len(result.scenario.assumed)
    return (
        f"| {name} | {result.static_bundles:,} | {result.executed_bundles:,} | {trips} | {read:,} | "
        f"{written:,} | {result.messages} | all zero | {result.scenario.name}, {assumed} |"
    )


def simulated(compiled, target, scenario=None, options=(), topology="2x2x1"):
    capture = open_capture(compiled(*options, target=target, topology=topology))
    simulator = Simulator(read_program(capture.kernel_program().bundles))
    result = simulator.simulate(load_machine("tpu7x"), scenario, capture.manifest)
    assert not any(value for flags in result.semaphores.values() for value in flags.values())
    return capture, result


@pytest.fixture(scope="module")
def results(compiled):
    found = {}
    for name, (target, scenario, _, _) in JAX.items():
        found[name] = simulated(compiled, f"{HERE}/{target}", scenario)
    found["mlp"] = simulated(compiled, "mlp")
    found["qwen"] = simulated(compiled, "qwen")
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(JAX))
def test_jax_kernel(results, name):
    _, _, traffic, iterations = JAX[name]
    _, result = results[name]
    assert counted(result) == traffic
    if iterations is not None:
        assert [loop.iterations for loop in result.loop_trips if loop.iterations] == iterations


@pytest.mark.slow
def test_all_gather_sends_its_ring(results):
    """Each of the 8 blocks goes on in two halves, left and right, seven times; one signal to each side."""
    _, result = results["all_gather (ring)"]
    assert result.messages == 2 + 2 * 7
    assert result.sent_bytes == 7 * block(64, 1024)


@pytest.mark.slow
def test_qwen_reads_its_weights_once(results):
    capture, result = results["qwen"]
    sizes = {row["index"]: row for row in capture.manifest["operands"]}
    weights = [i for i, r in sizes.items() if str(r.get("name", "")).startswith(("w_", "lm_head"))]
    assert len(weights) >= 6
    for index in weights:
        assert result.operand_bytes[index] == (sizes[index]["bytes"], 0), sizes[index]["name"]
    assert capture.manifest["facts"]["layers"] in {loop.iterations for loop in result.loop_trips}


@pytest.mark.slow
def test_table_of_the_documentation(results):
    head = (
        "| kernel | bundles | executed | loop iterations | HBM bytes read | written | messages | semaphores "
        "| scenario, assumed values |\n|---|---|---|---|---|---|---|---|---|"
    )
    table = "\n".join([head, *(row(name, result) for name, (_, result) in results.items())])
    text = DOCS.read_text()
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    wanted = f"{before}{BEGIN}\n{table}\n{END}{after}"
    if os.environ.get("MEGASCOPE_UPDATE_DOCS"):
        DOCS.write_text(wanted)
    assert DOCS.read_text() == wanted, "run with MEGASCOPE_UPDATE_DOCS=1"
