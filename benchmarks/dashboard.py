"""How fast the dashboard answers: `python benchmarks/dashboard.py [--spans N] [--capture PATH] [--browser]`.

Serves a made-up timeline (or a capture), then asks for windows as a person would: zooms, pans, jumps. Prints
time to load, time of an answer, size of an answer and memory of the server; with --browser also the time from
a zoom to the drawn figure in a headless Chromium.
"""

import argparse
import json
import resource
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[0] = str(ROOT)  # the folder of this file holds a module that shadows the package `dashboard`

import numpy as np  # noqa: E402

LIMITS = {"first content s": 2.0, "answer p95 ms": 300.0, "answer MB": 3.0, "memory MB": 1500.0}


def windows(start: int, end: int, count: int, random: np.random.Generator) -> list[tuple[int, int]]:
    """Windows of every size from the whole step down to a few bundles."""
    out = []
    for _ in range(count):
        width = int((end - start) * 10 ** -random.uniform(0, 5)) + 1
        low = int(random.uniform(start, max(start + 1, end - width)))
        out.append((low, low + width))
    return out


def ask(url: str, window: tuple[int, int] | None, core: int) -> tuple[float, int]:
    """(seconds, bytes) of the answer to one zoom, over HTTP as the browser asks."""
    view = None if window is None else {"start": window[0], "end": window[1]}
    body = {"window": view, "core": core, "theme": "light", "more": [], "path": "/"}
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/_timeline", json.dumps(body).encode(), headers)
    begun = time.perf_counter()
    with urllib.request.urlopen(request, timeout=120) as answer:
        size = len(answer.read())
    return time.perf_counter() - begun, size


def browser_times(url: str, count: int) -> list[list[float]]:
    """[ms from a zoom to the figure drawn anew, ms from request to answer] each, in a headless Chromium."""
    import shutil

    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    options.binary_location = shutil.which("chromium") or ""
    flags = "headless=new no-sandbox disable-gpu disable-quic no-first-run disable-background-networking"
    for flag in f"{flags} disable-component-update disable-sync".split():
        options.add_argument(f"--{flag}")
    with tempfile.TemporaryDirectory() as profile:
        options.add_argument(f"--user-data-dir={profile}")
        driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
        try:
            driver.set_script_timeout(60)
            begun = time.perf_counter()
            driver.get(url)
            driver.execute_async_script(READY)
            first = time.perf_counter() - begun
            print(f"{'first figure in the browser':34s} {first:8.2f} s")
            return [driver.execute_async_script(ZOOM, i) for i in range(count)]
        finally:
            driver.quit()


READY = """const done = arguments[arguments.length - 1];
(function wait() {
  const gd = document.querySelector('#timeline .js-plotly-plot');
  if (gd && gd.data && gd.data.length) done(true);
  else {
    const link = [...document.querySelectorAll('.pages a')].find(a => a.textContent === 'Timeline');
    if (link && !location.pathname.endsWith('timeline')) link.click();
    setTimeout(wait, 20);
  }
})();"""
ZOOM = """const i = arguments[0], done = arguments[arguments.length - 1];
const gd = document.querySelector('#timeline .js-plotly-plot');
const low = gd.layout.xaxis.minallowed, high = gd.layout.xaxis.maxallowed;
const width = (high - low) / Math.pow(2, 1 + i % 12), at = low + (high - low - width) * ((i * 0.37) % 1);
const before = gd.data, begun = performance.now();
Plotly.relayout(gd, {'xaxis.range[0]': at, 'xaxis.range[1]': at + width});
(function wait() {
  if (gd.data !== before) requestAnimationFrame(() => {
    const asked = performance.getEntriesByType('resource').filter(e => e.name.includes('_timeline')).pop();
    done([performance.now() - begun, asked.responseEnd - asked.startTime]);
  });
  else setTimeout(wait, 2);
})();"""


def main() -> int:
    """Run and print; exit code 1 where a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spans", type=int, default=1_000_000)
    parser.add_argument("--capture", type=Path)
    parser.add_argument("--browser", action="store_true")
    parser.add_argument("--count", type=int, default=120)
    chosen = parser.parse_args()

    from benchmarks.synthetic_capture import loader as made_up
    from dashboard.app import create_app
    from dashboard.loading import load
    from dashboard.serve import make_server

    with tempfile.TemporaryDirectory() as folder:
        path = chosen.capture or Path(folder) / "synthetic"
        if chosen.capture is None:
            path.mkdir()
            (path / "manifest.json").write_text("{}")
        loader = load if chosen.capture else made_up(max(1, chosen.spans // 2700))
        made = loader(path)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        app = create_app([path], loader=lambda _: made)
        server = make_server(app, "127.0.0.1", 0)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        core = made.index().core if chosen.capture else 0
        made._indexes.clear()
        first, size = ask(url, None, core)
        index = made.index(core)
        print(f"{'spans':34s} {len(made.timeline):8,d}")
        print(f"{'memory with the table loaded':34s} {before:8.0f} MB")
        print(f"{'first answer (builds the index)':34s} {first:8.2f} s")
        times, sizes = [], [size]
        for window in windows(index.start, index.end, chosen.count, np.random.default_rng(0)):
            seconds, size = ask(url, window, core)
            times.append(1000 * seconds)
            sizes.append(size)
        found = {
            "first content s": first,
            "answer p95 ms": float(np.percentile(times, 95)),
            "answer MB": max(sizes) / 1e6,
        }
        print(f"{'answer, median':34s} {statistics.median(times):8.1f} ms")
        if chosen.browser:
            drawn, answered = np.array(browser_times(url, min(60, chosen.count))).T
            for words, values in (("asked to answered, in the browser", answered), ("zoom to drawn", drawn)):
                print(f"{words + ', median':34s} {np.median(values):8.1f} ms")
                print(f"{words + ', 95th percentile':34s} {np.percentile(values, 95):8.1f} ms")
        found["memory MB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        server.shutdown()
    missed = [name for name, limit in LIMITS.items() if found[name] > limit]
    for name, limit in LIMITS.items():
        print(f"{name:34s} {found[name]:8.2f}   limit {limit:g}{'   MISSED' if name in missed else ''}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
