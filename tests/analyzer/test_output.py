"""Files users ask for, and files kept for next time: folders made, one mode, errors that name the file."""

import errno
import os
import stat
from pathlib import Path

import numpy as np
import pytest

from analyzer import cache, executed, output
from analyzer.capture import open_capture
from analyzer.errors import InputError
from analyzer.llo import store
from analyzer.llo.reader import parse_program

BUNDLES = next((Path(__file__).parents[1] / "goldens/llo/tpu7x").glob("*call.1-*-final_bundles.txt"))


def full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def umask():
    """Set the umask of the test."""
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_every_file_has_the_mode_that_the_umask_leaves(tmp_path, umask, mask, mode):
    umask(mask)
    output.write_output(tmp_path / "new" / "report.txt", b"x")
    executed._save(tmp_path / "executed.npz", np.zeros(3, dtype=np.int64), "a note")
    assert store.save(tmp_path, "key", parse_program(BUNDLES.read_bytes(), BUNDLES).columns) is None
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert sorted(path.suffix for path in files) == [".bin", ".npz", ".txt"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {mode}
    assert executed._load(tmp_path / "executed.npz", 3)[1] == "a note"


def test_a_full_disk_is_said_with_the_file_and_the_cure_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(cache.os, "replace", full)
    with pytest.raises(InputError) as error:
        output.write_output(tmp_path / "r.txt", b"x")
    assert str(error.value) == (
        f"{tmp_path}/r.txt: cannot be written: no space left on device."
        " Make room on that disk, or write to another one."
    )
    assert error.value.exit_code == 3
    assert list(tmp_path.iterdir()) == []


def test_a_file_where_a_folder_is_wanted(tmp_path):
    (tmp_path / "f").write_text("")
    with pytest.raises(InputError, match=r"cannot be written: (not a directory|file exists)"):
        output.write_output(tmp_path / "f" / "r.txt", b"")


def test_the_bundles_of_a_capture_are_read_once(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    opened = open_capture(BUNDLES)
    first = opened.read_kernel()
    assert len(list(tmp_path.rglob("llo-*.bin"))) == 1
    monkeypatch.setattr("analyzer.llo.reader.parse_program", full)
    again = opened.read_kernel()
    assert again.bundle_count == first.bundle_count
    assert again.generation == first.generation is not None
