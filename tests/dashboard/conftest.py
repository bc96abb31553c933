"""Shared by the dashboard's tests: made-up captures, a running server, a browser."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


def _load(name: str, path: Path) -> ModuleType:
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


@pytest.fixture(scope="session")
def synthetic() -> ModuleType:
    """`benchmarks/synthetic_timeline.py`."""
    return _load("synthetic_timeline", ROOT / "benchmarks" / "synthetic_timeline.py")


@pytest.fixture(scope="session")
def step(synthetic):
    """(timeline, bubbles) of a made-up step of 16 layers."""
    timeline = synthetic.make()
    return timeline, synthetic.bubbles(timeline)
