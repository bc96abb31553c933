"""Real captures in a real browser, of 8 and of 32 cores: from the verdict down to single bundles."""

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

By = pytest.importorskip("selenium.webdriver.common.by", reason="needs selenium").By

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("libtpu") is None, reason="compiling needs libtpu"),
]

ROOT = Path(__file__).parents[2]
PLOT = "document.querySelector('#timeline .js-plotly-plot')"
# name -> what to compile, and the cores its slice has
KERNELS = {
    "mlp": (["mlp"], 8),
    "qwen": (["qwen"], 8),
    "k3": (["k3", "--topology", "tpu7x:2x2x4"], 32),
}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """`compiled(name)` -> the folder of a capture, compiled when first asked for."""
    folder = tmp_path_factory.mktemp("compiled")

    def make(name):
        target = folder / name
        if not target.exists():
            environment = {**os.environ, "ALLOW_MULTIPLE_LIBTPU_LOAD": "1", "PYTHONPATH": str(ROOT)}
            command = [sys.executable, "-m", "megascope", "compile", *KERNELS[name][0], "-o", str(target)]
            subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, timeout=600)
        return target

    return make


@pytest.fixture
def opened(compiled, serve, browser):
    """`opened(name)` -> (driver, address of the capture); the dashboard serves that capture alone."""

    def start(name):
        from dashboard.library import identify
        from dashboard.loading import load

        served = serve([compiled(name)], loader=load)
        return browser(), f"{served.url}/{identify(compiled(name))}"

    return start


@pytest.fixture(scope="module")
def recorded(compiled):
    """The capture of the MLP as `record` leaves it: with a trace, here of a machine with slower memory."""
    from analyzer.analysis import analyze
    from analyzer.export_xplane import export_xplane

    slow = analyze(compiled("mlp"), overrides={"hbm.bandwidth": "/1.2"})
    target = compiled("mlp").parent / "recorded"
    shutil.copytree(compiled("mlp"), target, ignore=shutil.ignore_patterns(".cache"))
    run = target / "xplane/plugins/profile/2026_01_01_00_00_00"
    run.mkdir(parents=True)
    (run / "vm.xplane.pb").write_bytes(export_xplane(slow.timeline, slow.report))
    manifest = json.loads((target / "manifest.json").read_text())
    (target / "manifest.json").write_text(json.dumps(manifest | {"kind": "record"}))
    return target


def silent(driver):
    assert [e for e in driver.get_log("browser") if e["level"] in ("SEVERE", "WARNING")] == []


@pytest.mark.parametrize("name", list(KERNELS))
def test_from_the_verdict_to_single_bundles_and_to_all_cores(opened, until, name):
    cores = KERNELS[name][1]
    driver, address = opened(name)

    def ask(script):
        return driver.execute_script(f"return {script}")

    driver.get(f"{address}/overview")
    assert "a step takes" in until(lambda: driver.find_element(By.ID, "verdict").text)

    driver.get(f"{address}/timeline")
    assert 300 < until(lambda: ask(f"{PLOT}.lanes.count()")) <= 5000
    assert "VMEM (MiB)" in ask(f"[...{PLOT}.querySelectorAll('.y3title')].map(e => e.textContent)")
    low, high = ask(f"{PLOT}.layout.xaxis.range")
    middle = (low + high) / 2

    def zoom(times):
        end = middle + (high - low) / times
        driver.execute_script(f"Plotly.relayout({PLOT}, {{'xaxis.range': [{middle}, {end}]}})")
        until(lambda: ask(f"{PLOT}.layout.xaxis.range.map(Number)") == pytest.approx([middle, end], abs=1e-3))

    # Waits that take no time may lie a few bundles apart, less than a pixel: they still share one mark.
    zoom(400)
    real = "h.includes(' spans<') && !h.includes('busy 0 ps')"
    merged = f"{PLOT}.lanes.hovers().filter(h => {real}).length"
    until(lambda: ask(merged) == 0)
    single = f"{PLOT}.lanes.hovers().filter(h => !h.includes(' spans<'))"
    hovers = until(lambda: [h for h in ask(single) if " GB/s" in h])
    assert any(".py:" in h and "bundles 0x" in h for h in hovers)

    # A pixel is now less than two bundles, and nothing shares one.
    zoom(4000)
    until(lambda: ask(f"{PLOT}.lanes.hovers().filter(h => h.includes(' spans<')).length") == 0)
    assert ask(f"{PLOT}.lanes.count()") > 0

    driver.get(f"{address}/collectives")
    until(lambda: f"All {cores} cores" in driver.find_element(By.ID, "exchange-note").text, 400)
    matrix = "document.querySelector('#exchange .js-plotly-plot').data[0]"
    assert ask(f"[{matrix}.z.length, {matrix}.z[0].length]") == [cores, cores]
    link = driver.find_element(By.CSS_SELECTOR, "#exchange-table a")
    link.click()

    # The link leads to the longest wait, shown on all cores.
    labels = f"[...{PLOT}.querySelectorAll('.ytick text')].map(e => e.textContent)"
    until(lambda: "core 2" in ask(labels))
    assert 0 < ask(f"{PLOT}.lanes.count()") <= 5000
    driver.find_element(By.ID, "whole-step").click()
    until(lambda: ask(f"{PLOT}.data.length && {PLOT}.layout.xaxis.range[1]") == pytest.approx(high, rel=0.1))
    assert ask(f"{PLOT}.lanes.count()") <= 5000
    assert "wait" in ask(f"{PLOT}.lanes.names()")

    driver.get(f"{address}/vmem")
    rectangles = "document.querySelectorAll('#vmem-time .barlayer .point').length"
    assert 20 < until(lambda: ask(rectangles)) <= 5000

    driver.get(f"{address}/bundles")
    ran = until(lambda: ask("document.querySelector('#bundle-map .js-plotly-plot').data.map(t => t.type)"))
    assert ran == ["bar", "heatmap"], "how often bundles ran, above what they use"
    assert "trips" in driver.find_element(By.CSS_SELECTOR, ".aside").text
    silent(driver)


def test_what_if_without_a_phase_and_the_page_as_a_file(opened, until):
    driver, address = opened("mlp")
    driver.get(f"{address}/whatif")
    until(lambda: driver.find_element(By.ID, "whatif-body").text)
    driver.execute_script("window.dash_clientside.set_props('whatif-without', {value: ['gather']})")
    verdict = until(lambda: driver.find_element(By.ID, "whatif-verdict").text, 60)
    assert verdict.startswith("Without gather: ")
    assert "shorter" in verdict
    driver.execute_script(
        "window.saved = []; HTMLAnchorElement.prototype.click = function () {"
        " window.saved.push(this.download); };"
        "URL.createObjectURL = blob => { blob.text().then(t => window.saved.push(t)); return '#'; };"
    )
    driver.find_element(By.ID, "save-page").click()
    until(lambda: driver.execute_script("return window.saved.length") == 2)
    name, text = sorted(driver.execute_script("return window.saved"), key=len)
    assert name.endswith("-whatif.html")
    assert "Without gather: " in text, "what was chosen is what is saved"
    assert "shorter" in text
    silent(driver)


def test_trace_and_model_of_a_recording_stand_above_each_other(recorded, serve, browser, until):
    from dashboard.library import identify
    from dashboard.loading import load

    served = serve([recorded], loader=load)
    driver = browser(1920, 1080)
    driver.get(f"{served.url}/{identify(recorded)}/timeline")
    labels = f"return [...{PLOT}.querySelectorAll('.ytick text')].map(e => e.textContent)"
    found = until(lambda: driver.execute_script(labels), 90)
    assert found.count("Matrix") == 2
    assert [x.split()[0] for x in found if "(" in x] == ["trace", "model"]
    note = "return document.getElementById('timeline-note').textContent"
    assert "so that both begin the step together" in until(lambda: driver.execute_script(note))

    options = "return window.dash_component_api.getLayout('align').props.options.length"
    until(lambda: driver.execute_script(options))

    # Aligned at a later phase, the faster model has to move by what it had gained until then.
    driver.execute_script("window.dash_clientside.set_props('align', {value: 'reduce'})")
    moved = until(lambda: (t := driver.execute_script(note)) and "both begin reduce" in t and t)
    assert "moved by 0 ps" not in moved
    driver.execute_script("window.dash_clientside.set_props('account', {value: 'model'})")
    until(lambda: driver.execute_script(labels).count("Matrix") == 1)
    silent(driver)
