"""Damaged and hostile text ends in a typed error or in a counted loss: no crash, no hang, no blow-up."""

import random
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from llo_helpers import GOLDENS, listing

from analyzer.errors import InputError
from analyzer.llo.occupancy import occupancy
from analyzer.llo.phases import static_phases
from analyzer.llo.printer import print_bundle
from analyzer.llo.reader import parse_program
from analyzer.show import Query, render_text, show

HERE = Path("/nonexistent/1796000000000000000-k.1-04-final_bundles.txt")
SOUND = next((GOLDENS / "tpu7x").glob("*call.1-*-final_bundles.txt")).read_bytes()
FRAGMENTS = tuple(
    piece.encode()
    for piece in (
        *("/*", "*/", ";;", "{", "}", "\0", "\n", "[", "]", "%", "=", "0x", "target", "(%p1_p2)", 'loc("'),
        *("$region", "[smem:[", "[#allocation", "\u00ff\ufffe", "\U0001f600", "9" * 5000, " 0x5 LB: {"),
        *("/* Start region 3 */", "sbr.rel (%p1_p2) target = $region99", "may-alias: {"),
        "inlined_call_operand.hbm [shape: ",
    )
)
HURRY = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def use_everything(data: bytes) -> None:
    """Read and use every part of the model; only InputError may come out."""
    try:
        program = parse_program(data, HERE)
    except InputError:
        return
    kept = len(program.instruction_opcode)
    assert program.bundle_first[-1] == kept
    for bundle in range(program.bundle_count):
        print_bundle(program, bundle)
        program.scalar_instructions(bundle)
    assert occupancy(program).shape[0] == program.bundle_count
    static_phases(program)
    assert program.not_understood.count >= 0
    for _ in (program.markers, program.operands, program.spills, program.loops, program.blocks):
        pass
    render_text(show(program, Query(limit=0)))


@HURRY
@given(st.integers(0, len(SOUND)))
def test_cut_anywhere(position):
    use_everything(SOUND[:position])


@HURRY
@given(st.integers(0, len(SOUND)), st.integers(0, 4000))
def test_a_piece_missing_in_the_middle(position, length):
    use_everything(SOUND[:position] + SOUND[position + length :])


@HURRY
@given(st.randoms(use_true_random=False))
def test_lines_shuffled(rng):
    lines = SOUND.splitlines(keepends=True)
    rng.shuffle(lines)
    use_everything(b"".join(lines))


@HURRY
@given(st.lists(st.tuples(st.integers(0, len(SOUND)), st.sampled_from(FRAGMENTS)), min_size=1, max_size=12))
def test_fragments_strewn_in(places):
    data = SOUND
    for position, fragment in places:
        data = data[:position] + fragment + data[position:]
    use_everything(data)


@HURRY
@given(st.binary(max_size=400))
def test_random_bytes(noise):
    use_everything(noise)
    use_everything(listing("{ %1 = vtrace 1 }") + noise)


@HURRY
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=40))
def test_bundles_of_fragments(parts):
    use_everything(
        listing("{ %s1_s0 = smov 1 }").rstrip(b"\n") + b"\n   0x1   :  { " + b" ".join(parts) + b" }\n"
    )


def test_wrong_encodings():
    text = SOUND.decode()
    for encoding in ("utf-16", "utf-16-le", "utf-32", "cp037"):
        with pytest.raises(InputError):
            parse_program(text.encode(encoding), HERE)
    use_everything(text.replace("call", "caf\u00e9").encode("latin-1"))
    use_everything(bytes(b ^ 0x80 if i % 97 == 0 else b for i, b in enumerate(SOUND)))


MEGA = 1_000_000
LONG_LINES = {
    "name": b"{ %s1_s0 = " + b"x" * MEGA + b" 1 }",
    "digits": b"{ %s1_s0 = smov " + b"9" * MEGA + b" }",
    "register": b"{ %s" + b"1" * MEGA + b"_s0 = smov 1 }",
    "operands": b"{ %s1_s0 = smov " + b"%s1_s0, " * (MEGA // 8) + b"1 }",
    "blanks": b"{ %s1_s0 = smov " + b" " * MEGA + b"1 }",
    "blank head": b"{}\n" + b"0" + b" " * MEGA + b"\n  0x1   :  {}",
    "digit head": b"{}\n" + b"1" * MEGA + b"\n  0x1   :  {}",
    "brackets": b"{ %s1_s0 = smov " + b"[" * MEGA + b" }",
    "braces": b"{ %s1_s0 = smov " + b"{" * MEGA + b" }",
    "closed braces": b"{ %s1_s0 = smov " + b"{" * (MEGA // 2) + b"}" * (MEGA // 2) + b" }",
    "parentheses": b"{ %s1_s0 = smov " + b"(" * MEGA + b" }",
    "memory": b"{ %s1_s0 = sld " + b"[smem:[" * (MEGA // 7) + b" }",
    "separators": b"{ " + b";; " * (MEGA // 3) + b" }",
    "location": b'{ %s1_s0 = smov 1 /* loc("' + b"a" * MEGA + b'":1:2 */ }',
    "locations": b"{ %s1_s0 = smov 1 /* " + b'loc(" ' * (MEGA // 6) + b" */ }",
    "comment ends": b"{ %s1_s0 = smov 1 " + b"*/ " * (MEGA // 3) + b" }",
    "regions": b"{} /* " + b"Start region 1 :: " * (MEGA // 18) + b" */",
    "branches": b"{ " + b" ;; ".join([b"%1 = sbr.rel target = $region1"] * (MEGA // 35)) + b" }",
    "percent": b"{ " + b"%a, " * (MEGA // 4) + b"= smov 1 }",
    "open names": b"{ %s1_s0 = smov " + b"/*a=*/" * (MEGA // 6) + b" }",
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", LONG_LINES)
def test_a_line_of_a_megabyte_takes_seconds_at_most(name):
    body = LONG_LINES[name]
    data = b"     0   :  " + body + b"\n   0x1   :  { %2 = vtrace 1 }\n"
    started = time.process_time()
    use_everything(data)
    assert time.process_time() - started < 10


@pytest.mark.timeout(120)
@pytest.mark.parametrize("closed", [False, True])
def test_ten_million_nested_comments(closed):
    deep = 10_000_000
    comments = b"/* " * deep + (b" */" * deep if closed else b"")
    data = b"     0   :  { %s1_s0 = smov 1 " + comments + b" }\n   0x1   :  { %2 = vtrace 1 }\n"
    started = time.process_time()
    tracemalloc.start()
    program = parse_program(data, HERE)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert time.process_time() - started < 30
    assert program.bundle_count == 2
    assert [len(program.bundle(b)) for b in range(2)] == [1 if closed else 0, 1]
    assert program.not_understood.count == (0 if closed else 1)
    assert peak < 3 * len(data)


def test_many_odd_opcodes_stay_linear():
    rng = random.Random(1)
    lines = [f"{{ %v{i}_v1 = v{rng.randrange(10**12)}.f32 %v2_v0 }}" for i in range(20_000)]
    started = time.process_time()
    program = parse_program(listing(*lines), HERE)
    occupancy(program)
    assert program.not_understood.count == 20_000
    assert len(program.not_understood.samples) == 20
    assert time.process_time() - started < 5


def test_missing_bundles_are_said():
    lines = SOUND.splitlines(keepends=True)
    gone = [line for line in lines if not line.lstrip().startswith(b"0x10 ")]
    assert len(gone) == len(lines) - 1
    program = parse_program(b"".join(gone), HERE)
    assert any("addresses jump 1 times, first after 0xf" in note for note in program.notes)
