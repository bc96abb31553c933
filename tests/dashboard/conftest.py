"""Shared by the dashboard's tests: made-up captures, a running server, a browser."""

import importlib.util
import shutil
import sys
import threading
import time
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
DATA = ROOT / "../shared/data"


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


def report_of(timeline, bubbles) -> dict:
    """The part of the JSON contract the dashboard reads."""
    return _load("synthetic_capture", ROOT / "benchmarks" / "synthetic_capture.py").report(timeline, bubbles)


@pytest.fixture(scope="session")
def loader(step):
    """Loads the made-up step whatever the path; a folder called `broken` fails as damaged captures do."""
    from analyzer.errors import InputError
    from dashboard.loading import from_parts

    def load(path: Path):
        if path.name == "broken":
            raise InputError(path, "the bundles are truncated", "Compile it again.")
        if path.name == "crash":
            raise RuntimeError("a fault of ours <b>here</b>")
        return from_parts(path.name, *step, report_of(*step))

    return load


FINDING = {
    "id": "MS101",
    "title": "Made <b>up</b> \u202e🔥",
    "time_ps": 5_000_000,
    "saving_ps": 2_000_000,
    "share": 0.01,
    "confidence": "medium",
    "provenance": "modelled",
    "source": "mlp.py:78",
    "bundles": [0x220, 0x220],
    "phase": "all-reduce",
    "layers": [0, 1],
    "count": 16,
    "evidence": ["evidence <script>alert(1)</script>"],
    "might_be_wrong_because": "it is made up",
    "try": "nothing",
    "verify_with": "nothing",
    "saving_basis": "none",
}


@pytest.fixture(scope="session")
def complete():
    """`complete(report, factor)`: the report with what the overview, the diff and the what-if read."""
    return _complete


def _complete(report, factor):
    """The report with what the overview, the diff and the what-if read."""
    step = report["step"] | {
        "time_ps": int(report["step"]["time_ps"] * factor),
        "verdict": "bound by HBM bandwidth",
        "critical_path": {"hbm_bytes_ps": 700_000_000, "collectives_ps": 200_000_000},
        "executed_bundles": 1000,
        "static_bundles": 100,
    }
    return report | {
        "step": step,
        "capture": report["capture"] | {"batch": 8, "model": "kimi-k3"},
        "ici": {"exposed_wait_ps": 5, "exposed_phases": 1, "messages": 2, "sent_bytes": 3},
        "vmem": {"used_bytes": 30 << 20, "capacity_bytes": 64 << 20},
        "phases": [],
        "findings": [FINDING],
        "scenario": {"name": "default", "assumed_values": []},
    }


@pytest.fixture(scope="session")
def rich(step, loader):
    """A loader of made-up captures that have findings, a critical path and a report to compare."""
    from dashboard.loading import from_parts

    def load(path: Path):
        made = loader(path)
        return from_parts(path.name, *step, _complete(made.report, 1.25 if path.name == "slow" else 1.0))

    return load


@pytest.fixture
def captures(tmp_path):
    """`captures(*names)` -> folders that look like captures, all in one folder."""

    def make(*names: str) -> list[Path]:
        out = []
        for name in names:
            capture = tmp_path / "captures" / name
            capture.mkdir(parents=True)
            (capture / "manifest.json").write_text("{}")
            out.append(capture)
        return out

    return make


@pytest.fixture
def sample(tmp_path):
    """`sample(part)` -> a writable copy of one of the public sample captures."""
    if not DATA.is_dir():
        pytest.skip("needs the public sample captures in ../shared/data")

    def copy(part: str) -> Path:
        source = DATA / part
        target = tmp_path / source.name
        if source.is_dir():
            shutil.copytree(source, target)
        else:
            shutil.copyfile(source, target)
        for path in [target, *target.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)
        return target

    return copy


class Served:
    """A dashboard in a thread, and what it logged."""

    def __init__(self, paths: list[Path], loader, **options):
        from dashboard.app import create_app
        from dashboard.serve import make_server

        self.app = create_app(paths, loader=loader, **options)
        self.server = make_server(self.app, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05})
        self.thread.start()

    def stop(self) -> None:
        self.server.shutdown()
        self.thread.join(10)
        self.server.server_close()
        assert not self.thread.is_alive()


@pytest.fixture
def serve(loader):
    """`serve(paths, **options)` -> Served; stopped at the end of the test."""
    running = []

    def start(paths, **options):
        served = Served(paths, options.pop("loader", loader), **options)
        running.append(served)
        return served

    yield start
    for served in running:
        served.stop()


CHROMIUM_FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip


@pytest.fixture(scope="session")
def drivers(tmp_path_factory):
    """`drivers(number)` -> a headless Chromium with a profile of its own, started when first asked for."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver_path = shutil.which("chromedriver")
    if not chromium or not driver_path:
        pytest.skip("needs chromium and chromedriver (Debian: apt-get install chromium chromium-driver)")
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium (pip install -e '.[dev]')")
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    running = []
    folder = tmp_path_factory.mktemp("browsers")

    def get(number):
        while len(running) <= number:
            options = Options()
            options.binary_location = chromium
            for flag in CHROMIUM_FLAGS:
                options.add_argument(flag)
            options.add_argument(f"--user-data-dir={folder / str(len(running))}")
            options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
            options.add_experimental_option("prefs", {"download.default_directory": str(folder)})
            running.append(webdriver.Chrome(options=options, service=Service(driver_path)))
        return running[number]

    yield get
    for driver in running:
        driver.quit()


@pytest.fixture
def browser(drivers):
    """`browser(width, height)` -> a headless Chromium on an empty page; another one with each call in a test.

    Starting one takes as long as a test, so tests share them. Every test has a server, hence an origin, of
    its own, so nothing is left over from the test before.
    """
    used = []

    def start(width=1280, height=800):
        driver = drivers(len(used))
        used.append(driver)
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        driver.get("about:blank")
        for log in ("browser", "performance"):
            driver.get_log(log)
        return driver

    yield start
    for driver in used:
        driver.get("about:blank")  # what still asks a server would find it gone


@pytest.fixture(scope="session")
def until():
    """`until(question)`: ask until the answer is true; browser and server share the machine with others."""

    def wait(question, seconds=30):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                answer = question()
            except Exception:
                answer = None
            if answer:
                return answer
            time.sleep(0.1)
        raise AssertionError(f"nothing after {seconds} s")

    return wait
