"""Every kernel of the repository and jax's own: traffic, trips and balance, and the table of docs/model.md.

Set MEGASCOPE_UPDATE_DOCS=1 to rewrite the table. A kernel of the repository is one entry of OURS.
"""

import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path

import k3_kernels
import pytest

from analyzer.capture import open_capture
from analyzer.llo.reader import read_program
from analyzer.machine import load_machine
from analyzer.simulate import Scenario, Simulator
from analyzer.simulate.scenario_file import ScenarioFile, read_scenario
from analyzer.simulate.simulator import as_scenario
from megakernels.k3.config import KIMI_K3
from megakernels.k3.experts import ExpertPlan
from megakernels.k3.routing import uniform
from megakernels.k3.scenario import experts_pops

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


POSITION, WINDOW, CACHE_TILE, CACHE_ROW_BYTES = 700, 32, 256, 2 * 384


@dataclass(frozen=True, slots=True)
class Ours:
    """A kernel of the repository.

    target: as `megascope compile` takes it; scenario: None is the kernel's own. read_once: prefixes of the
    operands that every core reads exactly once; those in its facts (`weight_bytes`) are looked at anyway.
    """

    target: str
    read_once: tuple[str, ...]
    scenario: Scenario | None = None
    topology: str = "2x2x1"


OURS = {
    "mlp": Ours("mlp", ("w_",)),
    "qwen": Ours("qwen", ("w_", "lm_head")),
    "k3_kda, 3 small layers": Ours(
        f"{HERE}/k3_kernels.py:kda", ("constants", "decay_out", "kda_in", "mixer_out", "recurrent", "conv")
    ),
    "k3_mla, 3 small layers": Ours(
        f"{HERE}/k3_kernels.py:mla",
        ("constants", "to_", "mla_", "mixer_out"),
        Scenario(name=f"position {POSITION}", scalars={0: POSITION}),
    ),
    "k3_experts, 3 small layers": Ours(f"{HERE}/k3_kernels.py:experts", ("routing", "rows")),
    "k3": Ours("k3", (), topology="2x2x4"),
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


class Run:
    """A kernel compiled, and simulated on all its cores."""

    def __init__(self, capture, scenario):
        self.manifest = open_capture(capture).manifest
        self.simulator = Simulator(read_program(open_capture(capture).kernel_program().bundles))
        self.scenario = scenario
        self.result = self.on()
        flags = [value for of_core in self.result.semaphores.values() for value in of_core.values()]
        assert flags == [0] * len(flags)

    def on(self, rank=None):
        """Rank None: all cores; else that core alone, its peers doing the same."""
        given = self.scenario
        one = given if isinstance(given, ScenarioFile) else ScenarioFile(given)
        how = {} if rank is None else {"cores": "mirrored", "rank": rank}
        machine = load_machine("tpu7x")
        return self.simulator.simulate(machine, one.common, self.manifest, scenarios=one.cores, **how)

    def operands(self):
        """Name -> row of the manifest."""
        return {str(r["name"]): r for r in self.manifest["operands"] if r.get("name")}


@pytest.fixture(scope="module")
def routed(tmp_path_factory):
    file = tmp_path_factory.mktemp("scenario") / "routing.toml"
    file.write_text(k3_kernels.scenario())
    return read_scenario(file)


@pytest.fixture(scope="module")
def results(compiled, routed):
    found = {}
    for name, (target, scenario, _, _) in JAX.items():
        found[name] = Run(compiled(target=f"{HERE}/{target}"), scenario)
    for name, one in OURS.items():
        scenario = routed if "experts" in name else one.scenario
        found[name] = Run(compiled(target=one.target, topology=one.topology), scenario)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(JAX))
def test_jax_kernel(results, name):
    _, _, traffic, iterations = JAX[name]
    result = results[name].result
    assert counted(result) == traffic
    if iterations is not None:
        assert [loop.iterations for loop in result.loop_trips if loop.iterations] == iterations


@pytest.mark.slow
def test_all_gather_sends_its_ring(results):
    """Each of the 8 blocks goes on in two halves, left and right, seven times; one signal to each side."""
    result = results["all_gather (ring)"].result
    assert result.messages == 2 + 2 * 7
    assert result.sent_bytes == 7 * block(64, 1024)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(OURS))
def test_every_core_reads_its_operands_once(results, name):
    run = results[name]
    prefixes, sizes = OURS[name].read_once, run.manifest["facts"].get("weight_bytes", {})
    once = [n for n in run.operands() if prefixes and n.startswith(prefixes)]
    assert len(once) + len(sizes) >= 2
    for operand, size in sizes.items():
        assert (size, 0) in run.result.operand_bytes.values(), operand
    for operand in once:
        read, _ = run.result.operand_bytes[run.operands()[operand]["index"]]
        assert read == run.operands()[operand]["bytes"], operand
    assert run.manifest["facts"]["layers"] in {loop.iterations for loop in run.result.loop_trips}
    for operand, size in run.manifest["facts"].get("bytes_per_rank", {}).items():
        assert run.result.operand_bytes[run.operands()[operand]["index"]][0] == size, operand


@pytest.mark.slow
def test_k3_reads_the_experts_its_routing_visits(results):
    """The kernel's own scenario has two places per layer: how many (expert, row) pairs, and which."""
    run = results["k3"]
    facts, pops = run.manifest["facts"], run.manifest["scenario"]["pops"]
    counts = next(values for values in pops.values() if len(values) == facts["expert_layers"])
    reads = run.result.timeline.query("track == 'hbm_read'")
    experts = reads[reads["name"].str.startswith("expert")]
    assert run.manifest["batch"] == 1, "then every pair is an expert of its own"
    assert experts["bytes"].sum() == sum(counts) * facts["expert_bytes"]


@pytest.mark.slow
def test_uneven_experts_show_at_the_ranks_that_wait(results):
    """32 ranks of K3, each with the experts of its group: who has few waits for who has many."""
    run = results["k3"]
    plan = ExpertPlan(KIMI_K3, layers=KIMI_K3.moe_layers, groups=8, width_ranks=4)
    routing = uniform(KIMI_K3, 1, seed=0)
    own = as_scenario(run.manifest["scenario"])
    cores = {
        rank: dataclasses.replace(own, pops=dict(own.pops) | pops)
        for rank, pops in enumerate(experts_pops(plan, routing))
    }
    result = run.simulator.simulate(load_machine("tpu7x"), own, run.manifest, scenarios=cores)
    assert not result.notes, "the scenario is of this build"
    assert len(result.core_end_ps) == plan.cores
    waited = dict.fromkeys(((c, n) for c in range(plan.cores) for n in range(KIMI_K3.layers)), 0)
    for story in result.stories:
        if story.phase.endswith("experts_sum"):
            waited[story.core, story.layer] += story.duration_ps
    uneven = 0
    for layer, visited in enumerate(routing.by_group(plan.groups), KIMI_K3.dense_layers):
        sizes = [len(group) for group in visited]
        if sizes.count(max(sizes)) == 1 and max(sizes) - min(sizes) >= 3:
            uneven += 1
            few, many = (
                sum(waited[g * plan.width_ranks + m, layer] for m in range(plan.width_ranks))
                for g in (sizes.index(min(sizes)), sizes.index(max(sizes)))
            )
            assert few > many, (layer, sizes)
    assert uneven > 40


@pytest.mark.slow
def test_mla_reads_its_cache_up_to_the_position(results):
    """Whole tiles up to the window that the new row falls into, then that window, which is written back."""
    run = results["k3_mla, 3 small layers"]
    tiles = -(-(POSITION // WINDOW * WINDOW) // CACHE_TILE)
    row = k3_kernels.LAYERS * CACHE_ROW_BYTES
    pair = run.result.operand_bytes[run.operands()["cache"]["index"]]
    assert pair == ((tiles * CACHE_TILE + WINDOW) * row, WINDOW * row)


@pytest.mark.slow
def test_each_core_reads_the_experts_of_its_group(results):
    plan, run = k3_kernels.EXPERTS, results["k3_experts, 3 small layers"]
    groups = k3_kernels.routing().by_group(plan.groups)[: plan.layers]
    read = []
    for core in range(plan.cores):
        traffic = run.on(core).operand_bytes
        weights = sum(traffic[run.operands()[name]["index"]][0] for name in plan.shapes)
        visited = sum(len(layer[core // plan.width_ranks]) for layer in groups)
        assert weights == visited * run.manifest["facts"]["expert_bytes_per_rank"]
        read.append(weights)
    assert len(set(read)) > 1, "the groups have the same to do: the routing proves nothing"
    ends = run.result.core_end_ps
    assert len(ends) == plan.cores
    assert (
        max(ends, key=lambda core: ends[core]) // plan.width_ranks
        == read.index(max(read)) // plan.width_ranks
    )


@pytest.mark.slow
def test_table_of_the_documentation(results):
    head = (
        "| kernel | bundles | executed | loop iterations | HBM bytes read | written | messages | semaphores "
        "| scenario, assumed values |\n|---|---|---|---|---|---|---|---|---|"
    )
    table = "\n".join([head, *(row(name, run.result) for name, run in results.items())])
    text = DOCS.read_text()
    before, rest = text.split(BEGIN)
    old, after = rest.split(END)
    if os.environ.get("MEGASCOPE_UPDATE_DOCS"):
        DOCS.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}")
        old = table
    written, wanted = ([line.split(" | ") for line in t.strip().splitlines()[2:]] for t in (old, table))
    for found, line in zip(written, wanted, strict=True):
        # Bundles, trips and messages move with every change of a kernel; what it is meant to read does not.
        assert [found[n] for n in (0, 4, 5)] == [line[n] for n in (0, 4, 5)], (
            "run with MEGASCOPE_UPDATE_DOCS=1"
        )
        bundles, wrote = (int(row[1].replace(",", "")) for row in (line, found))
        assert wrote == pytest.approx(bundles, rel=0.25), "run with MEGASCOPE_UPDATE_DOCS=1"
