"""`simulated`: runs a kernel in Pallas's TPU interpret mode, in a child process."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


simulator = _load(Path(__file__).parent / "simulator.py")


@pytest.fixture(scope="session")
def simulated() -> Iterator["simulator.Simulator"]:
    """`simulated(case, **options) -> Outcome`; see simulator.py."""
    runner = simulator.Simulator()
    yield runner
    runner.close()
