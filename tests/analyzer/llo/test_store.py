"""What the reader keeps beside a capture: equal to a fresh read, and never trusted when damaged."""

import os
from pathlib import Path

import numpy as np
import pytest
from llo_helpers import GOLDENS, listing

from analyzer.llo import store
from analyzer.llo.printer import print_bundle
from analyzer.llo.reader import read_program

ARRAYS = ("bundle_first", "instruction_span", "instruction_opcode", "instruction_source", "bundle_address")


@pytest.fixture
def golden():
    return next((GOLDENS / "tpu7x").glob("*call.1-*-final_bundles.txt"))


def same(a, b):
    for name in ARRAYS:
        assert np.array_equal(getattr(a, name), getattr(b, name))
    assert (a.opcodes, a.sources, a.labels, a.regions) == (b.opcodes, b.sources, b.labels, b.regions)
    assert (a.branches, a.loops, a.blocks) == (b.branches, b.loops, b.blocks)
    assert (a.markers, a.operands, a.not_understood) == (b.markers, b.operands, b.not_understood)
    for bundle in range(a.bundle_count):
        assert print_bundle(a, bundle) == print_bundle(b, bundle)


def test_second_read_comes_from_the_cache_and_is_the_same(golden, tmp_path, monkeypatch):
    first = read_program(golden, cache_dir=tmp_path)
    assert len(list(tmp_path.glob("llo-*.bin"))) == 1
    monkeypatch.setattr("analyzer.llo.scan.scan", lambda data: pytest.fail("scanned again"))
    same(first, read_program(golden, cache_dir=tmp_path))


def test_changed_text_is_read_anew(tmp_path):
    file = tmp_path / "1796000000000000000-k.1-04-final_bundles.txt"
    file.write_bytes(listing("{ %s1_s0 = smov 1 }"))
    assert read_program(file, cache_dir=tmp_path / "c").bundle_count == 1
    stamp = file.stat()
    file.write_bytes(listing("{ %s1_s0 = smov 2 }"))
    os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert read_program(file, cache_dir=tmp_path / "c").bundle(0)[0].operands == (2,)


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "junk", "header"])
def test_damaged_cache_is_ignored_and_replaced(golden, tmp_path, damage):
    first = read_program(golden, cache_dir=tmp_path)
    (kept,) = tmp_path.glob("llo-*.bin")
    sound = kept.read_bytes()
    damaged = {
        "cut": sound[: len(sound) // 2],
        "flip": sound[:-100] + bytes([sound[-100] ^ 1]) + sound[-99:],
        "empty": b"",
        "junk": os.urandom(5000),
        "header": sound.replace(b'"opcodes"', b'"0pcodes"'),
    }[damage]
    kept.write_bytes(damaged)
    same(first, read_program(golden, cache_dir=tmp_path))
    assert kept.read_bytes() == sound


def test_another_chip_resolves_the_branches_again(golden, tmp_path):
    read_program(golden, chip="tpu7x", cache_dir=tmp_path)
    other = read_program(golden, chip="v6e", cache_dir=tmp_path)
    same(other, read_program(golden, chip="v6e"))
    assert other.delay_slots == 4


def test_a_folder_that_cannot_be_written_costs_only_a_note(golden, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    program = read_program(golden, cache_dir=blocked)
    assert program.bundle_count > 0
    assert any("could not be written" in note for note in program.notes)
    assert list(tmp_path.iterdir()) == [blocked]


def test_refused_text_keeps_nothing(tmp_path):
    file = tmp_path / "1796000000000000000-k.1-04-final_bundles.txt"
    file.write_bytes(listing("{ %s1_s0 = smov 1 }")[:-5])
    with pytest.raises(Exception, match="truncated"):
        read_program(file, cache_dir=tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_key_depends_on_text_and_reader(monkeypatch):
    key = store.key_of(b"text")
    assert key != store.key_of(b"texu")
    monkeypatch.setattr(store, "_code_version", lambda: b"other")
    assert key != store.key_of(b"text")


def test_names():
    from analyzer.llo.file_program import program_name

    for name, expected in {
        "1796057792323055796-mlp.1-04-final_bundles.txt": "mlp.1",
        "1796057792323055796-<late-initialization>-04-final_bundles.txt": "<late-initialization>",
        "1796057792323055796-copy.65-clone-104-final_bundles.txt": "copy.65-clone",
        "mine.txt": "mine",
    }.items():
        assert program_name(Path(name)) == expected
