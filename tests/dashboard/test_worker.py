"""Simulations in another process: the result comes from the cache, faults stay faults, killing is noticed."""

import threading

import pytest

from analyzer import cache
from analyzer.errors import InputError, MegascopeError
from dashboard import worker
from dashboard.loading import load_all_cores


def test_the_result_is_kept_by_the_other_process(sample):
    # The key of the cache holds the code as it was when this process first asked; the other one asks now.
    cache.code_version.cache_clear()
    loaded = load_all_cores(sample("v6e-matmul/dump"), "v6e")
    assert loaded.analysis.from_cache
    assert loaded.cores == [0]


def test_a_fault_is_met_by_whoever_asks(tmp_path):
    worker.work_out(tmp_path / "nothing")
    with pytest.raises(MegascopeError, match="does not exist"):
        load_all_cores(tmp_path / "nothing")


def test_a_killed_simulation_is_not_begun_again(tmp_path, monkeypatch, until):
    monkeypatch.setattr(worker, "COMMAND", ["-c", "import time; time.sleep(600)"])
    failures = []

    def run():
        try:
            worker.work_out(tmp_path)
        except InputError as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    until(lambda: worker._running)
    worker.stop()
    thread.join(20)
    assert "ended from outside" in str(failures[0])
    assert not worker._running
