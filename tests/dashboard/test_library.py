"""Captures are found, named by id, cached until they change, and addresses cannot leave them."""

import os
import shutil

import pytest

from analyzer.errors import InputError
from dashboard.app import page
from dashboard.context import Context, split
from dashboard.jobs import Jobs
from dashboard.library import Library, identify, is_capture


class Counting:
    def __init__(self, loader):
        self.loader, self.calls = loader, 0

    def __call__(self, path):
        self.calls += 1
        return self.loader(path)


def test_a_folder_lists_its_captures_newest_first(captures, loader):
    paths = captures("old", "new")
    (paths[0].parent / "notes").mkdir()
    os.utime(paths[0], (1, 1))
    library = Library([paths[0].parent], loader)
    assert [e.path.name for e in library.entries()] == ["new", "old"]


def test_what_counts_as_a_capture(tmp_path):
    assert not is_capture(tmp_path)
    (tmp_path / "1-mlp-42-final_bundles.txt").touch()
    assert is_capture(tmp_path)
    assert is_capture(tmp_path / "1-mlp-42-final_bundles.txt")
    trace = tmp_path / "host.xplane.pb"
    trace.touch()
    assert is_capture(trace)


@pytest.mark.parametrize("name", ["<script>", "a b", "ü", "...", "x" * 200, "🔥"])
def test_ids_are_safe_and_distinct(tmp_path, name):
    one, two = identify(tmp_path / "a" / name), identify(tmp_path / "b" / name)
    assert one != two
    assert set(one) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
    assert not one.startswith(".")
    assert len(one) < 60


@pytest.mark.parametrize(
    "address", ["/../secret/timeline", "/..%2fsecret", "/%2e%2e", "/secret", "//", "/a\0b"]
)
def test_addresses_cannot_leave_the_captures(captures, loader, tmp_path, address):
    paths = captures("one", "two")
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "manifest.json").write_text("{}")
    counting = Counting(loader)
    context = Context(Library([paths[0].parent], counting), lambda path, overrides: {}, Jobs())
    if split(address)[0]:
        with pytest.raises(InputError):
            context.loaded(address)
    body, _, _ = page(context, address)
    assert "secret" not in str(body).replace(address, "")
    assert counting.calls == 0


def test_loaded_once_until_it_changes(captures, loader):
    path = captures("one")[0]
    counting = Counting(loader)
    library = Library([path], counting)
    identity = library.entries()[0].id
    first = library.get(identity)
    assert library.get(identity) is first
    (path / ".cache").mkdir()
    assert library.get(identity) is first, "the analyzer's cache is not a change"
    replacement = path.parent / "tmp"
    shutil.copytree(path, replacement)
    shutil.rmtree(path)
    replacement.rename(path)
    assert library.get(identity) is not first
    assert counting.calls == 2


def test_a_deleted_capture_says_so(captures, loader):
    path = captures("one")[0]
    library = Library([path], loader)
    identity = library.entries()[0].id
    library.get(identity)
    shutil.rmtree(path)
    with pytest.raises(InputError, match="is gone"):
        library.get(identity)


def test_only_a_few_stay_in_memory(captures, loader):
    paths = captures(*(f"c{i}" for i in range(7)))
    counting = Counting(loader)
    library = Library(paths, counting)
    for entry in library.entries():
        library.get(entry.id)
    assert len(library._cache) == 4
    library.get(library.entries()[0].id)
    assert counting.calls == 8


def test_a_missing_path_is_refused(tmp_path, loader):
    with pytest.raises(InputError, match="no such file"):
        Library([tmp_path / "nowhere"], loader)
