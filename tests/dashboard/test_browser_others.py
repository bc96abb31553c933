"""Captures made by others, in a browser: a bare dump, traces, damaged files; no page logs an error."""

import pytest

from dashboard.app import PAGES
from dashboard.library import identify
from dashboard.loading import load

By = pytest.importorskip("selenium.webdriver.common.by", reason="needs selenium").By

PLOT = "document.querySelector('#timeline .js-plotly-plot')"
pytestmark = pytest.mark.slow


@pytest.fixture
def opened(sample, serve, browser):
    """`opened(part)` -> (driver, address of the capture) of a copy of some sample data."""

    def start(part):
        target = sample(part)
        served = serve([target], loader=load)
        return browser(), f"{served.url}/{identify(target)}"

    return start


def silent(driver):
    assert [e for e in driver.get_log("browser") if e["level"] in ("SEVERE", "WARNING")] == []


@pytest.mark.parametrize("part", ["v6e-matmul/dump", "v6e-matmul", "v6e-hostoffload"])
def test_every_page_of_a_dump_and_of_traces(opened, until, part):
    driver, address = opened(part)
    driver.get(f"{address}/overview")
    assert "takes" in until(lambda: driver.find_element(By.ID, "verdict").text)
    for module in PAGES:
        driver.get(f"{address}/{module.KEY}")
        until(lambda: driver.find_elements(By.CSS_SELECTOR, "main, #page"))
        assert "Something went wrong" not in driver.find_element(By.TAG_NAME, "body").text
    driver.get(f"{address}/timeline")
    assert until(lambda: driver.execute_script(f"return {PLOT}.lanes.count()")) > 0
    silent(driver)


@pytest.mark.parametrize("name", ["empty", "lfs_pointer", "truncated", "utf8_mangled"])
def test_damaged_traces_say_what_to_do(opened, until, name):
    driver, address = opened(f"bad-inputs/{name}.xplane.pb")
    driver.get(f"{address}/overview")
    panel = until(lambda: driver.find_element(By.CSS_SELECTOR, ".panel-error"))
    assert name in panel.text
    assert "Something went wrong" not in panel.text
    silent(driver)
