"""Every page in a real browser: it draws, links land where they should, and the console stays silent."""

import base64
import time
import xml.etree.ElementTree as ElementTree
from itertools import pairwise
from pathlib import Path

import pytest

By = pytest.importorskip("selenium.webdriver.common.by", reason="needs selenium").By
Keys = pytest.importorskip("selenium.webdriver.common.keys", reason="needs selenium").Keys

pytestmark = pytest.mark.slow

PAGES = ("overview", "timeline", "findings", "vmem", "whatif", "diff", "post")
PLOT = "document.querySelector('#timeline .js-plotly-plot')"


@pytest.fixture
def open_page(serve, captures, browser, rich, complete, until):
    """`open_page(page, size, names)` -> (driver, address of the first capture)."""

    def what_if(path, overrides, without):
        return complete(rich(path).report, 0.5)

    def start(page, size=(1280, 800), names=("mlp", "slow")):
        served = serve(captures(*names), loader=rich, what_if=what_if)
        driver = browser(*size)
        driver.get(served.url)
        links = until(lambda: driver.find_elements(By.CSS_SELECTOR, "#captures a"))
        address = next(a for a in links if a.text == names[0]).get_attribute("href").rsplit("/", 1)[0]
        driver.get(f"{address}/{page}")
        until(lambda: driver.find_elements(By.CSS_SELECTOR, ".page"))
        return driver, address

    return start


def silent(driver):
    assert [e for e in driver.get_log("browser") if e["level"] in ("SEVERE", "WARNING")] == []


@pytest.mark.parametrize("size", [(1280, 800), (1920, 1080)])
def test_every_page_fits_its_width_in_both_themes(open_page, until, size):
    driver, address = open_page("overview", size)
    for page in PAGES:
        driver.get(f"{address}/{page}")
        until(lambda: driver.find_elements(By.CSS_SELECTOR, ".page"))
        driver.find_element(By.ID, "theme-toggle").click()
        wide = driver.execute_script("return document.documentElement.scrollWidth")
        assert wide <= size[0], f"{page} is wider than the screen"
        tabs = [e.rect for e in driver.find_elements(By.CSS_SELECTOR, ".top > *") if e.is_displayed()]
        for left, right in pairwise(sorted(tabs, key=lambda r: r["x"])):
            assert left["x"] + left["width"] <= right["x"] + 1, f"{page}: the header overlaps"
    silent(driver)


def test_overview_shows_the_verdict_and_leads_to_the_place(open_page, until):
    driver, _ = open_page("overview")
    assert "bound by HBM bandwidth" in driver.find_element(By.ID, "verdict").text
    for name in ("gauge", "parts", "tokens", "heat"):
        plot = f"document.querySelector('#{name} .js-plotly-plot')"
        script = f"return {plot}.data.length"
        until(lambda script=script: driver.execute_script(script))
    bars = "return document.querySelector('#tokens .js-plotly-plot').data[0].x.length"
    assert until(lambda: driver.execute_script(bars)) == 3, "this capture, and two published systems"
    link = driver.find_element(By.CSS_SELECTOR, ".finding-link")
    assert link.text.startswith("Made <b>up</b>")
    link.click()
    low, high = until(lambda: driver.execute_script(f"return {PLOT}.layout.xaxis.range"))
    assert high - low < 100, "a finding lands on its interval"
    assert "/timeline?from=" in driver.current_url
    silent(driver)


def test_hostile_findings_stay_text(open_page):
    driver, _ = open_page("findings")
    assert "evidence <script>alert(1)</script>" in driver.find_element(By.CSS_SELECTOR, ".card").text
    assert not driver.find_elements(By.CSS_SELECTOR, ".card script, .card b")
    silent(driver)


def test_whatif_changes_the_step_time(open_page, until):
    driver, _ = open_page("whatif")
    slider = until(lambda: driver.find_elements(By.CSS_SELECTOR, ".knob [role=slider]"))[0]
    slider.send_keys(Keys.ARROW_RIGHT)
    verdict = until(lambda: driver.find_element(By.ID, "whatif-verdict").text)
    assert "HBM bandwidth" in verdict
    assert "shorter" in verdict
    driver.find_element(By.ID, "whatif-reset").click()
    until(lambda: "Move a slider" in driver.find_element(By.ID, "whatif-body").text)
    silent(driver)


def test_diff_of_two_captures(open_page, until):
    driver, _ = open_page("diff")
    driver.find_element(By.ID, "diff-other").click()
    until(lambda: driver.find_elements(By.CSS_SELECTOR, "[role=option]"))[0].click()
    body = until(lambda: driver.find_element(By.CSS_SELECTOR, "#diff-body .verdict").text)
    assert "longer" in body
    assert "worse" in driver.find_element(By.ID, "diff-body").text
    silent(driver)


def test_post_view_exports_a_sound_picture(open_page, until):
    driver, _ = open_page("post")
    for kind in ("bubbles", "prefetch"):
        address = until(lambda kind=kind: driver.find_element(By.ID, f"{kind}-svg").get_attribute("href"))
        head, data = address.split(",", 1)
        assert head == "data:image/svg+xml;base64"
        ElementTree.fromstring(base64.b64decode(data))
        width = f"return document.getElementById('{kind}-diagram').naturalWidth"
        assert until(lambda width=width: driver.execute_script(width)) == 1200
    driver.execute_script(
        "window.saved = []; HTMLAnchorElement.prototype.click = function () {"
        " window.saved.push([this.download, this.href.slice(0, 22)]); };"
    )
    driver.find_element(By.ID, "prefetch-png").click()
    until(lambda: driver.execute_script("return window.saved.length"))
    assert driver.execute_script("return window.saved[0]") == ["prefetch.png", "data:image/png;base64,"]
    silent(driver)


def test_click_ties_a_wait_to_its_copy_and_search_jumps(open_page, until):
    driver, _ = open_page("timeline")
    box = until(lambda: driver.find_element(By.ID, "search"))
    until(lambda: driver.execute_script(f"return {PLOT}.data.length"))
    box.send_keys("wait w_down", Keys.ENTER)
    detail = until(lambda: driver.find_element(By.ID, "timeline-detail").text)
    assert detail.startswith("Match 1 of")
    assert "ended by w_down[" in detail
    until(
        lambda: (
            driver.execute_script(f"return {PLOT}.layout.annotations.filter(a => a.showarrow).length") == 1
        )
    )
    driver.find_element(By.ID, "search-next").click()
    until(lambda: driver.find_element(By.ID, "timeline-detail").text.startswith("Match 2 of"))
    box.send_keys(" no such thing", Keys.ENTER)
    until(lambda: "Nothing in this core" in driver.find_element(By.ID, "timeline-detail").text)
    silent(driver)


def test_a_click_ties_a_span_and_dragging_measures(open_page, until):
    from selenium.webdriver.common.action_chains import ActionChains

    driver, _ = open_page("timeline?from=100000000&to=110000000")

    def click_a_wait():
        x, y, _ = driver.execute_script(f"return {PLOT}.lanes.find('wait')[0]")
        action = ActionChains(driver)
        action.w3c_actions.pointer_action.move_to_location(round(x), round(y))
        action.click().perform()
        time.sleep(1)
        return driver.find_element(By.ID, "timeline-detail").text

    assert "ended by" in until(click_a_wait)  # again if the page moved meanwhile
    arrows = f"return {PLOT}.layout.annotations.filter(a => a.showarrow).length"
    until(lambda: driver.execute_script(arrows) == 1)

    driver.execute_script("window.dash_clientside.set_props('measure', {value: ['measure']})")
    until(lambda: driver.execute_script(f"return {PLOT}.layout.dragmode") == "select")
    plot = driver.find_element(By.CSS_SELECTOR, "#timeline .nsewdrag")
    action = ActionChains(driver).move_to_element_with_offset(plot, -200, 0).click_and_hold()
    action.move_by_offset(150, 0).pause(0.1).move_by_offset(150, 0).release().perform()
    found = until(
        lambda: (t := driver.find_element(By.ID, "timeline-detail").text).startswith("Measured") and t
    )
    assert "GB/s" in found
    assert driver.execute_script(f"return {PLOT}.layout.xaxis.range") == [100, 110], "measuring does not zoom"
    silent(driver)


def test_two_users_do_not_disturb_each_other(open_page, browser, until):
    driver, address = open_page("timeline?from=100000000&to=110000000")
    other = browser(1920, 1080)
    other.get(f"{address}/timeline")
    until(lambda: other.execute_script(f"return {PLOT}.layout.xaxis.range[1]") > 900)
    assert until(lambda: driver.execute_script(f"return {PLOT}.layout.xaxis.range")) == [100, 110]
    other.find_element(By.ID, "theme-toggle").click()
    driver.find_element(By.ID, "zoom-in").click()
    until(lambda: driver.execute_script(f"return {PLOT}.layout.xaxis.range")[0] > 101)
    assert other.execute_script(f"return {PLOT}.layout.xaxis.range[1]") > 900
    silent(driver)
    silent(other)


def test_the_exported_file_works_from_disk(loader, browser, tmp_path, until):
    from dashboard.export import render_html

    target = tmp_path / "mlp.html"
    target.write_text(render_html(loader(Path("mlp"))))
    driver = browser()
    driver.get(target.as_uri())
    count = "return document.querySelectorAll('#plot .barlayer .point path').length"
    assert until(lambda: driver.execute_script(count)) > 500
    driver.find_elements(By.CSS_SELECTOR, "tr.bubble-row")[1].click()
    spread = "const r = document.getElementById('plot').layout.xaxis.range; return r[1] - r[0]"
    until(lambda: driver.execute_script(spread) < 20)
    driver.find_element(By.ID, "theme-toggle").click()
    until(
        lambda: (
            driver.execute_script("return document.getElementById('plot').layout.paper_bgcolor") == "#14181d"
        )
    )
    driver.find_element(By.ID, "whole-step").click()
    until(lambda: driver.execute_script(spread) > 900)
    silent(driver)
