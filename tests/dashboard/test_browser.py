"""The dashboard in a real browser: lanes are drawn, hover speaks, zoom asks again, nothing goes wrong."""

import json
from itertools import pairwise

import pytest

pytestmark = pytest.mark.slow

PLOT = "document.querySelector('#timeline .js-plotly-plot')"
RANGE = f"return {PLOT}.layout.xaxis.range.map(Number)"
RECTANGLES = f"return {PLOT}.lanes.count()"


def drawn(driver, url, until):
    """Open the timeline of the only capture there is."""
    driver.get(url)
    until(
        lambda: next(a for a in driver.find_elements("css selector", ".pages a") if a.text == "Timeline")
    ).click()
    return until(lambda: driver.execute_script(RECTANGLES))


def errors(driver):
    return [e for e in driver.get_log("browser") if e["level"] in ("SEVERE", "WARNING")]


def hover(driver, trace, until):
    """Move the mouse to the middle of the first mark of a trace that is wholly on screen; what appears."""
    from selenium.webdriver.common.action_chains import ActionChains

    x, y, _ = driver.execute_script(f"return {PLOT}.lanes.find(arguments[0])[0]", trace)
    action = ActionChains(driver)
    for offset in (4, 0):
        action.w3c_actions.pointer_action.move_to_location(round(x), round(y) - offset)
    action.perform()
    tip = driver.find_element("css selector", ".lane-tip")
    return until(lambda: tip.text)


def test_timeline_page(serve, captures, browser, until):
    served = serve(captures("mlp"))
    driver = browser()
    assert drawn(driver, served.url, until) > 500
    labels = driver.execute_script(
        f"return [...{PLOT}.querySelectorAll('.ytick text')].map(e => e.textContent)"
    )
    for lane in ("HBM → VMEM", "VMEM → HBM", "Matrix", "Vector", "Collective: send", "Waits"):
        assert lane in labels
    titles = driver.execute_script(
        f"return [...{PLOT}.querySelectorAll('.xtitle, .y2title')].map(e => e.textContent)"
    )
    assert titles == ["time in the step (µs)", "HBM (GB/s)"]
    assert driver.find_element("id", "provenance-badge").text == "modelled"

    # A click on a row of the bubble table zooms to the bubble, and the server sends what fits there.
    merged = f"return {PLOT}.lanes.hovers().filter(h => h.includes(' spans<')).length"
    assert driver.execute_script(merged) > 100, "the whole step needs merged marks"
    driver.find_elements("css selector", "tr.bubble-row td.cell-cause")[1].click()
    until(lambda: driver.execute_script(RANGE)[1] - driver.execute_script(RANGE)[0] < 20)
    until(lambda: driver.execute_script(merged) == 0)
    low, high = driver.execute_script(RANGE)
    assert low < 587.5 < high

    text = hover(driver, "HBM → VMEM transfer", until)
    assert "2.00 MiB at 3,149 GB/s" in text
    assert "mlp.py:31" in text
    assert "HBM bubble" in hover(driver, "HBM bubble", until)

    # Zooming further re-queries: marks for a window of its own, and back to the whole step.
    driver.find_element("id", "zoom-in").click()
    until(lambda: driver.execute_script(RANGE)[1] - driver.execute_script(RANGE)[0] < (high - low) * 0.6)
    driver.find_element("id", "whole-step").click()
    until(lambda: driver.execute_script(RANGE)[1] > 900)

    # Dark mode recolours the figure.
    light = driver.execute_script(f"return {PLOT}.layout.font.color")
    driver.find_element("id", "theme-toggle").click()
    until(lambda: driver.execute_script(f"return {PLOT}.layout.font.color") != light)
    assert errors(driver) == []


def test_zooming_with_the_mouse_asks_the_server_for_finer_marks(serve, captures, browser, until):
    from selenium.webdriver.common.action_chains import ActionChains

    served = serve(captures("mlp"))
    driver = browser(1920, 1080)
    drawn(driver, served.url, until)
    before = driver.execute_script(RANGE)
    plot = driver.find_element("css selector", "#timeline .nsewdrag")
    ActionChains(driver).move_to_element_with_offset(plot, -100, 0).click_and_hold().move_by_offset(
        60, 0
    ).pause(0.1).move_by_offset(60, 0).release().perform()
    until(
        lambda: (
            driver.execute_script(RANGE)[1] - driver.execute_script(RANGE)[0] < (before[1] - before[0]) / 5
        )
    )
    merged = f"return {PLOT}.lanes.hovers().filter(h => h.includes(' spans<')).length"
    until(lambda: driver.execute_script(merged) < 200)
    assert errors(driver) == []


def test_nothing_is_fetched_from_elsewhere(serve, captures, browser, until):
    served = serve(captures("mlp"))
    driver = browser()
    drawn(driver, served.url, until)
    asked = set()
    for entry in driver.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            asked.add(message["params"]["request"]["url"])
    assert any("plotly" in url for url in asked)
    assert [u for u in asked if not u.startswith((served.url, "data:", "blob:", "chrome:"))] == []


@pytest.mark.parametrize("size", [(1280, 800), (1920, 1080)])
def test_nothing_overlaps_or_falls_off(serve, captures, browser, until, size):
    served = serve(captures("mlp"))
    driver = browser(*size)
    drawn(driver, served.url, until)
    boxes = driver.execute_script(
        """const ids = ['.top', '#facts', '.toolbar', '#timeline', '#timeline-note', '#bubbles'];
        return ids.map(i => {const b = document.querySelector(i).getBoundingClientRect();
        return [b.top, b.bottom, b.left, b.right]})"""
    )
    for above, below in pairwise(boxes):
        assert above[1] <= below[0] + 1
    assert boxes[-1][1] <= size[1] + 1
    assert all(box[2] >= 0 and box[3] <= size[0] for box in boxes)
    ticks = driver.execute_script(
        f"""return [...{PLOT}.querySelectorAll('.ytick text')].map(e => {{
        const b = e.getBoundingClientRect(); return [b.top, b.bottom, b.left]}})"""
    )
    for above, below in pairwise(ticks):
        assert above[1] <= below[0] + 2, "lane labels overlap"
    assert all(tick[2] >= 0 for tick in ticks)


def test_several_captures_errors_and_bad_addresses(serve, captures, browser, until):
    paths = captures("one", "two", "broken", "crash")
    served = serve([paths[0].parent])
    driver = browser()
    driver.get(served.url)
    links = until(lambda: driver.find_elements("css selector", "#captures a"))
    assert sorted(link.text for link in links) == ["broken", "crash", "one", "two"]
    next(link for link in links if link.text == "one").click()
    until(lambda: driver.find_element("id", "verdict").text)

    for name, words in (("broken", "Compile it again."), ("crash", "a fault of ours <b>here</b>")):
        driver.get(served.url)
        links = until(lambda: driver.find_elements("css selector", "#captures a"))
        next(link for link in links if link.text == name).click()
        panel = until(lambda: driver.find_element("css selector", ".panel-error"))
        assert words in panel.text
    for address in ("/nothing/timeline", "/..%2f..%2fetc/timeline", "/%3Cscript%3Ealert(1)%3C%2Fscript%3E"):
        driver.get(served.url + address)
        panel = until(lambda: driver.find_element("css selector", ".panel-error"))
        assert "no capture here has that name" in panel.text.lower()
    assert [e for e in errors(driver) if "favicon" not in e["message"]] == []


def test_a_new_capture_appears_and_a_deleted_one_says_so(serve, captures, browser, until):
    import shutil

    paths = captures("one", "two")
    served = serve([paths[0].parent])
    driver = browser()
    driver.get(served.url)
    until(lambda: len(driver.find_elements("css selector", "#captures a")) == 2)
    captures("three")
    until(lambda: len(driver.find_elements("css selector", "#captures a")) == 3)
    driver.find_elements("css selector", "#captures a")[0].click()
    until(
        lambda: next(a for a in driver.find_elements("css selector", ".pages a") if a.text == "Timeline")
    ).click()
    until(lambda: driver.execute_script(RECTANGLES))
    for path in paths[0].parent.iterdir():
        shutil.rmtree(path)
    driver.find_element("id", "zoom-in").click()
    until(
        lambda: (
            "no capture here has that name"
            in driver.execute_script(f"return ({PLOT}.layout.annotations || []).map(a => a.text).join()")
        )
    )
