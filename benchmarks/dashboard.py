"""How fast the dashboard answers: `python benchmarks/dashboard.py [--spans N] [--capture PATH] [--browser]`.

Serves a made-up timeline (or a capture), then asks for windows as a person would: zooms, pans, jumps. Prints
time to load, time of an answer, size of an answer and memory of the server; with --browser also the time from
a zoom to the drawn figure in a headless Chromium, and which part of it the server had: on a machine that does
other things too, judge by the parts.
"""

import argparse
import json
import os
import resource
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[0] = str(ROOT)  # the folder of this file holds a module that shadows the package `dashboard`

import numpy as np  # noqa: E402

LIMITS = {
    "first content s": 2.0,
    "answer p95 ms": 300.0,
    "answer MB": 3.0,
    "memory MB": 1500.0,
    "browser first content s": 2.0,
    "browser zoom p95 ms": 300.0,
}


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


def browser_times(url: str, count: int, core: int) -> tuple[list[float], list[list[float]]]:
    """What a headless Chromium says of itself.

    Returns:
        (ms from navigation to the first figure, three times; of each zoom or pan [ms from it to the figure
        drawn anew, ms from request to answer, ms the server took for that, ms of processor time of the
        server's thread, ms of processor time of the page's thread]).
    """
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
            driver.get(url)
            driver.execute_async_script(READY)
            address = f"{driver.current_url}?core={core}"
            first = []
            for _ in range(3):
                driver.get("about:blank")
                driver.get(address)
                first.append(float(driver.execute_async_script(READY)))
            # In ticks of the thread: what the page's own thread worked, whatever else the machine did.
            driver.execute_cdp_cmd("Performance.setTimeDomain", {"timeDomain": "threadTicks"})
            driver.execute_cdp_cmd("Performance.enable", {})
            return first, [zoom(driver, i) for i in range(count)]
        finally:
            driver.quit()


def zoom(driver: Any, number: int) -> list[float]:
    """One zoom or pan: see `browser_times`."""

    def worked() -> float:
        metrics = driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
        return 1000 * float(next(m["value"] for m in metrics if m["name"] == "TaskDuration"))

    before = worked()
    found = driver.execute_async_script(ZOOM, number)
    return [*map(float, found), worked() - before]


READY = """const done = arguments[arguments.length - 1];
(function wait() {
  const gd = document.querySelector('#timeline .js-plotly-plot');
  if (gd && gd.lanes && gd.lanes.count()) requestAnimationFrame(() => done(performance.now()));
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
    const server = name => (asked.serverTiming.find(t => t.name === name) || {}).duration || 0;
    done([performance.now() - begun, asked.responseEnd - asked.startTime, server('answer'), server('cpu')]);
  });
  else setTimeout(wait, 2);
})();"""


def prepare(chosen: argparse.Namespace, path: Path) -> Any:
    """What is served: a capture, or a made-up one."""
    from benchmarks.synthetic_capture import loader as made_up
    from dashboard.loading import load, load_all_cores

    if chosen.capture:
        return (load_all_cores if chosen.all_cores else load)(path)
    path.mkdir()
    (path / "manifest.json").write_text("{}")
    cores = 8 if chosen.all_cores else 1
    return made_up(max(1, chosen.spans // 2700 // cores), cores)(path)


def ask_windows(url: str, index: Any, core: int, count: int) -> dict[str, float]:
    """Ask for windows over HTTP, one after the other; prints the median."""
    answers = [ask(url, w, core) for w in windows(index.start, index.end, count, np.random.default_rng(0))]
    times = [1000 * seconds for seconds, _ in answers]
    print(f"{'answer, median':34s} {statistics.median(times):8.1f} ms")
    megabytes = max(size for _, size in answers) / 1e6
    return {"answer p95 ms": float(np.percentile(times, 95)), "answer MB": megabytes}


def ask_browser(url: str, core: int, count: int) -> dict[str, float]:
    """The same in a browser; prints the parts of a zoom."""
    first_figure, zooms = browser_times(url, count, core)
    drawn, answered, worked, server, page = np.array(zooms).T
    parts = (
        ("zoom to drawn", drawn),
        ("  of it the server", worked),
        ("  of it on the way", answered - worked),
        ("  of it the browser", drawn - answered),
        ("processor time, server", server),
        ("processor time, page", page),
        ("processor time, both", server + page),
    )
    print(f"{'':34s} {'median':>8s} {'95 %':>8s}")
    for words, values in parts:
        print(f"{words:34s} {np.median(values):8.1f} {np.percentile(values, 95):8.1f} ms")
    return {
        "browser first content s": min(first_figure) / 1000,
        "browser zoom p95 ms": float(np.percentile(drawn, 95)),
    }


def main() -> int:
    """Run and print; exit code 1 where a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spans", type=int, default=1_000_000)
    parser.add_argument("--capture", type=Path)
    parser.add_argument("--all-cores", action="store_true", help="every core side by side")
    parser.add_argument("--browser", action="store_true")
    parser.add_argument("--count", type=int, default=120)
    chosen = parser.parse_args()

    from dashboard.app import create_app
    from dashboard.serve import make_server

    with tempfile.TemporaryDirectory() as folder:
        path = chosen.capture or Path(folder) / "synthetic"
        made = prepare(chosen, path)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        app = create_app([path], loader=lambda _: made)
        server = make_server(app, "127.0.0.1", 0)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        core = -1 if chosen.all_cores else made.index().core
        made._indexes.clear()
        first, size = ask(url, None, core)
        load = ", ".join(f"{x:.1f}" for x in os.getloadavg())
        print(f"{'load of the machine':34s} {load} on {os.cpu_count()} cores")
        print(f"{'spans':34s} {len(made.timeline):8,d}")
        print(f"{'memory with the table loaded':34s} {before:8.0f} MB")
        print(f"{'first answer (builds the index)':34s} {first:8.2f} s")
        index = made.slice() if chosen.all_cores else made.index(core)
        found = {"first content s": first} | ask_windows(url, index, core, chosen.count)
        found["answer MB"] = max(found["answer MB"], size / 1e6)
        if chosen.browser:
            found |= ask_browser(url, core, min(60, chosen.count))
        found["memory MB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        server.shutdown()
    limits = {name: limit for name, limit in LIMITS.items() if name in found}
    missed = [name for name, limit in limits.items() if found[name] > limit]
    for name, limit in limits.items():
        print(f"{name:34s} {found[name]:8.2f}   limit {limit:g}{'   MISSED' if name in missed else ''}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
