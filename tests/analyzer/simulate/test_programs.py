"""Kernels whose traffic, trips and waits are known beforehand."""

import dataclasses
import re
from pathlib import Path

import pytest

from analyzer.errors import UnsupportedProgramError
from analyzer.llo.reader import read_program
from analyzer.machine import load_machine
from analyzer.simulate import Scenario, simulate

GOLDENS = Path(__file__).parents[2] / "goldens"
TPU7X = load_machine("tpu7x")


def trips(result):
    return [(loop.entries, loop.iterations) for loop in result.loop_trips]


def test_mlp_reads_every_weight_once_and_runs_its_loops(kernel):
    one = kernel("mlp")
    result = one.run(TPU7X)
    facts = one.manifest["facts"]
    for operand in one.program.operands:
        read, written = result.operand_bytes[operand.index]
        expected = (0, operand.size_bytes) if operand.kind == "output" else (operand.size_bytes, 0)
        assert (read, written) == expected, operand.shape
    assert facts["layers"] == 3
    assert (1, 3) in trips(result), "one loop over the layers"
    assert not any(value for flags in result.semaphores.values() for value in flags.values())
    assert result.scenario.assumed == ()
    assert result.executed.sum() == result.executed_bundles > result.static_bundles


def test_mlp_has_phases_and_layers(kernel):
    timeline = kernel("mlp").run(TPU7X).timeline
    regions = timeline[timeline["track"] == "region"]
    assert set(regions["layer"].dropna()) == {0, 1, 2}
    phases = set(timeline["phase"])
    assert len(phases) > 3
    assert "" in phases
    reads = timeline[timeline["track"] == "hbm_read"]
    assert reads["name"].nunique() > 2, "copies carry the names the kernel gives them"


def test_nested_loops_and_conditionals(kernel):
    result = kernel("nested_loops").run(TPU7X)
    pairs = [(i, j) for i in range(5) for j in range(i + 1)]
    even = [(i, j) for i, j in pairs if (i + j) % 2 == 0]
    first = len(even)
    second = sum(j > i // 2 for i, j in even) + sum((i + j) % 3 == 1 for i, j in pairs)
    tile = 8 * 512 * 4
    assert result.operand_bytes == {0: (first * tile, 0), 1: (second * tile, 0), 2: (0, tile)}
    assert trips(result) == [(1, 5), (5, 15)]


def test_ring_alternates_its_weights(kernel):
    result = kernel("ring").run(TPU7X)
    tile = 64 * 256 * 4
    assert result.operand_bytes == {0: (12 * tile, 0), 1: (11 * tile, 0), 2: (0, 5 * tile)}
    assert trips(result) == [(1, 23)]


def test_buffer_is_free_when_its_last_reader_is_done(kernel):
    """The copy of tile t + depth is issued right after tile t was used: neither late nor before."""
    timeline = kernel("ring").run(TPU7X).timeline
    reads = timeline[timeline["track"] == "hbm_read"].sort_values("issued_ps")
    later = reads.iloc[4:]
    assert len(later) == 19
    gap = later["issued_ps"] - later["free_ps"]
    assert (gap >= 0).all()
    assert (gap < 100_000).all()
    previous = reads["start_ps"] + reads["duration_ps"]
    assert (later["free_ps"].to_numpy() >= previous.to_numpy()[:-4]).all(), "it was read after it arrived"


def test_strided_windows_stay_inside_their_operand(kernel):
    result = kernel("windows").run(TPU7X)
    window = 32 * 256 * 4
    assert result.operand_bytes == {0: (9 * window, 0), 1: (0, 9 * window)}


def test_all_to_all_sends_and_receives(kernel):
    one = kernel("all_to_all")
    result = one.run(TPU7X, cores="mirrored")
    assert result.messages == 7 + 3 * 7  # barrier, three rounds
    assert result.sent_bytes == 3 * 7 * 8 * 256 * 4
    assert result.scenario.devices == 8
    sends = result.timeline[result.timeline["track"] == "ici_send"]
    assert set(sends["queue"]) == {f"ici:{peer}" for peer in range(1, 8)}


def test_values_the_bundles_do_not_hold_are_listed(kernel):
    one = kernel("data_dependent")
    result = one.run(TPU7X)
    row = 8 * 512 * 4
    assert result.operand_bytes[2] == (6 * row, 0)
    assumed = {a.what: a for a in result.scenario.assumed}
    assert assumed["operand 0 (s32[1]) passed by value"].values == [3]
    assert assumed["SMEM content copied from operand 1"].given
    pop = assumed["vector to scalar pop"]
    assert (pop.values, pop.count, pop.given) == ([5], 1, True)
    assert "kernels.py:" in pop.source
    loop = next(one for one in one.program.loops if one.depth == 1)
    assert result.scenario.dependent_branches
    assert any(loop.start <= b <= loop.end for b in result.scenario.dependent_branches), (
        "its bound is assumed"
    )
    assert kernel("nested_loops").run(TPU7X).scenario.dependent_branches == ()
    layers = result.timeline.loc[result.timeline["track"] == "hbm_read", "layer"]
    assert layers.dropna().tolist() == [0, 0, 1, 1, 2, 2]

    silent = one.simulator.simulate(TPU7X)
    assert silent.operand_bytes[2] == (0, 0), "the default bound is 0"
    assert not any(a.given for a in silent.scenario.assumed)


def test_a_row_outside_the_operand_is_refused(kernel):
    one = kernel("data_dependent")
    wild = dataclasses.replace(one.scenario, pops=dict.fromkeys(one.scenario.pops, 5000))
    with pytest.raises(UnsupportedProgramError, match=r"bundle 0x[0-9a-f]+ .*leaves its HBM operand"):
        one.simulator.simulate(TPU7X, wild)


def test_a_loop_that_never_ends_is_reported(kernel, monkeypatch):
    from analyzer.simulate import execute

    monkeypatch.setattr(execute, "_VISIT_LIMIT", 1000)
    one = kernel("data_dependent")
    with pytest.raises(UnsupportedProgramError, match=r"no end after 1,000 blocks.*operand 0"):
        one.simulator.simulate(TPU7X, Scenario(scalars={0: 0x7FFFFFFF}))


def test_an_endless_loop_in_the_bundles_blames_no_scenario(kernel, monkeypatch):
    from analyzer.simulate import execute

    monkeypatch.setattr(execute, "_VISIT_LIMIT", 10)
    with pytest.raises(UnsupportedProgramError, match=r"no end after 10 blocks.*bundles are damaged"):
        kernel("ring").simulator.simulate(TPU7X)


def test_an_endless_loop_with_copies_stops_before_memory_is_full(kernel, tmp_path, monkeypatch):
    from analyzer.llo.reader import read_program
    from analyzer.simulate import execute, simulate

    monkeypatch.setattr(execute, "_EVENT_LIMIT", 1000)
    data = kernel("ring").program.data.decode()
    (predicate,) = re.findall(r"sbr\.rel \(!?(%\w+)\)", data)
    data, changed = re.subn(rf"({predicate} = scmp\.ge\S+ %\w+, )\d+", r"\g<1>2147483647", data)
    assert changed == 1
    path = tmp_path / "1-ring.1-01-final_bundles.txt"
    path.write_text(data)
    with pytest.raises(UnsupportedProgramError, match=r"no end after [\d,]{5,9} blocks"):
        simulate(read_program(path), TPU7X)


def test_unsupported_instruction_names_its_bundle(kernel, tmp_path):
    from analyzer.llo.reader import read_program
    from analyzer.simulate import simulate

    source = kernel("ring").program
    text = source.data.replace(b"dma.done.wait", b"dma.some.wait", 1)
    path = tmp_path / "1-ring.1-01-final_bundles.txt"
    path.write_bytes(text)
    with pytest.raises(
        UnsupportedProgramError, match=r"bundle 0x[0-9a-f]+ \{ .*dma\.some\.wait.* not supported"
    ):
        simulate(read_program(path), TPU7X)


def test_addresses_in_rows_reach_hbm(compiled, kernel):
    """Programs for v5e hold HBM addresses in rows of 512 bytes and shift them for each copy."""
    from conftest import KERNELS, Kernel

    one = Kernel("ring", compiled(target=f"{KERNELS}:ring", topology="v5e:1x1"))
    assert b"int_to_ptr.hbm" in one.program.data
    assert one.run(load_machine("v5e")).operand_bytes == kernel("ring").run(TPU7X).operand_bytes


def test_a_copy_from_another_memory_than_it_says_is_refused(kernel, tmp_path):
    from analyzer.llo.reader import read_program
    from analyzer.simulate import simulate

    data, changed = re.subn(
        rb"/\*hbm=\*/%\w+(, /\*size_in_granules=\*/\d+, /\*vmem=\*/)(%\w+)",
        rb"/*hbm=*/\2\1\2",
        kernel("ring").program.data,
        count=1,
    )
    assert changed
    path = tmp_path / "1-ring.1-01-final_bundles.txt"
    path.write_bytes(data)
    with pytest.raises(UnsupportedProgramError, match=r"bundle 0x[0-9a-f]+ .*addresses are vmem to vmem"):
        simulate(read_program(path), TPU7X)


def test_an_operand_that_xla_moved_to_vmem_has_a_cure(tmp_path):
    (golden,) = (GOLDENS / "llo/tpu7x").glob("*-call.1-??-final_bundles.txt")
    moved = re.sub(
        r"inlined_call_operand\.hbm( \[shape: \S+, index: 1,)",
        r"inlined_call_operand.vmem\1",
        golden.read_text(),
    )
    dump = tmp_path / golden.name
    dump.write_text(moved)
    with pytest.raises(
        UnsupportedProgramError, match=r"bundle 0x.*operand .*1 in VMEM.*with_memory_space_constraint"
    ):
        simulate(read_program(dump), load_machine("tpu7x"))


def test_a_descriptor_of_one_level_assumes_nothing(compiled):
    """Rows of a wider buffer are sent with three words of a descriptor; the other six are never read."""
    from conftest import Kernel

    options = ("hidden=2048", "ffn=4096", "layers=1", "block=128", "ring_depth=4", "batch=32")
    result = Kernel("mlp", compiled(*options)).run(TPU7X)
    assert result.scenario.assumed == ()


def test_unbalanced_semaphore_names_its_last_use(kernel, tmp_path):
    """A wait that takes less than arrived leaves a rest: refused, with the bundle."""
    from analyzer.llo.reader import read_program
    from analyzer.simulate import simulate

    data = kernel("windows").program.data.decode()
    size = 32 * 256 * 4 // 32
    assert f", {2**32 - size} " in data or f", {2**32 - size}  " in data
    path = tmp_path / "1-windows.1-01-final_bundles.txt"
    path.write_text(data.replace(f", {2**32 - size}", f", {2**32 - size + 16}", 1))
    with pytest.raises(
        UnsupportedProgramError, match=r"semaphore \d+ of core 0 ends at \d+, not 0.*bundle 0x"
    ):
        simulate(read_program(path), TPU7X)


def test_regions_off_gives_the_same_traffic_without_phases(compiled, kernel):
    on = kernel("mlp").run(TPU7X)
    off = kernel("mlp", "hidden=1024", "ffn=4096", "layers=3", "block=128", "ring_depth=4", "level=off")
    result = off.run(TPU7X)
    assert result.operand_bytes == on.operand_bytes
    assert set(result.timeline["phase"]) == {""}
    assert result.timeline["layer"].isna().all()


def test_values_that_no_core_asks_for_are_named(kernel):
    """A recording of an older build, whose lines have moved, would otherwise do nothing, silently."""
    one = kernel("data_dependent")
    assert not [n for n in one.run(TPU7X).notes if "never asks for" in n]
    moved = dataclasses.replace(one.scenario, pops={"kernels.py:1": 5}, words={"#allocation99": 1})
    (note,) = [n for n in one.simulator.simulate(TPU7X, moved).notes if "never asks for" in n]
    assert note.endswith("pops.kernels.py:1, words.#allocation99")


def test_operands_in_a_table_are_known_from_the_hlo(kernel):
    """A call with over 29 operands and results names none in its bundles, but loads addresses from SMEM."""
    many = kernel("many_operands")
    inputs = 32
    assert {o.index for o in many.program.operands} == {-1, *range(1, inputs), inputs}  # 0 is never read
    shapes = {o.index: o.shape for o in many.program.operands}
    assert shapes[1] == "f32[8,256]"
    assert shapes[inputs] == "f32[8,384]"
    result = many.run(TPU7X)
    width = {i: 8 * 128 * (1 + i % 3) * 4 for i in range(inputs)}
    assert result.operand_bytes == {i: (i * width[i], 0) for i in range(1, inputs)} | {
        inputs: (0, 8 * 384 * 4)
    }
    assert [row["shape"] for row in many.manifest["operands"]][:2] == [[8, 128], [8, 256]]
