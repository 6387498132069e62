"""The page as a browser shows it: sorted, switched, walked through by keyboard, on a phone, with hostile names."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from whole_page import HOSTILE, whole_page

from transferrisk.reports import Group, Heatmap, Page, Pictures, Table, render_page
from transferrisk.reports.elements import MINUS, NOTHING

webdriver = pytest.importorskip("selenium.webdriver", reason="pip install selenium")
By = pytest.importorskip("selenium.webdriver.common.by").By
WebDriverWait = pytest.importorskip("selenium.webdriver.support.wait").WebDriverWait
Keys = pytest.importorskip("selenium.webdriver.common.keys").Keys

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="no browser: apt-get install chromium chromium-driver"
)


@pytest.fixture(scope="module")
def browser():
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(render_page(whole_page()), encoding="utf-8")
    return path.as_uri()


@pytest.fixture
def page(browser, file):
    """The page, on a desk in daylight, with nothing remembered."""
    screen(browser, 1280)
    prefer(browser, "light")
    browser.get(file)
    browser.execute_script("localStorage.clear()")
    reload_until(browser, file, lambda: browser.execute_script("return !document.documentElement.dataset.theme"))
    return browser


def soon(page, condition):
    """A browser hears of another medium with its next frame."""
    WebDriverWait(page, 60).until(lambda _: condition())


def reload_until(page, file, condition):
    """What is stored reaches the next load of a file a moment later, now and then."""

    def loaded():
        page.get(file)
        return condition()

    soon(page, loaded)


def screen(browser, width):
    browser.execute_cdp_cmd("Emulation.setFocusEmulationEnabled", {"enabled": True})
    metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def prefer(browser, theme, media=""):
    features = [{"name": "prefers-color-scheme", "value": theme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})


def head(page, name):
    """The button in this column's heading."""
    return page.find_element(By.XPATH, f"//table[contains(@class, 'sortable')]//th[.='{name}']/button")


def column(page, index):
    """Texts of a column of the table named Numbers, from the top."""
    script = (
        "return [...document.querySelectorAll('[aria-label=Numbers] tbody tr')]"
        ".map(row => row.cells[arguments[0]].textContent.trim())"
    )
    return page.execute_script(script, index)


def background(page):
    return page.execute_script("return getComputedStyle(document.body).backgroundColor")


LIGHT, DARK = "rgb(255, 255, 255)", "rgb(20, 23, 27)"


def test_a_click_on_a_heading_sorts_numbers_as_numbers_and_puts_none_last(page):
    assert column(page, 0) == ["b", "a", "c", "B"]
    head(page, "Count").click()
    assert column(page, 1) == ["2", "9", "10", "100"]
    head(page, "Count").click()
    assert column(page, 1) == ["100", "10", "9", "2"]
    head(page, "Value").click()
    assert column(page, 2) == [f"{MINUS}2.25", "0.00", "0.50", NOTHING]
    head(page, "Value").click()
    assert column(page, 2) == ["0.50", "0.00", f"{MINUS}2.25", NOTHING]
    head(page, "Own words").click()
    assert column(page, 3) == ["10.0 ± 2.0", "25.0 ± 3.0", "90.0 ± 1.0", "none"]
    head(page, "Name").click()
    assert [name.lower() for name in column(page, 0)] == ["a", "b", "b", "c"]
    sorted_by = page.execute_script("return [...document.querySelectorAll('[aria-sort]')].map(th => th.textContent)")
    assert sorted_by == ["Name"]
    emphasised = page.find_element(By.CSS_SELECTOR, "[aria-label=Numbers] tr.ours")
    assert emphasised.text.startswith("a")  # moved with its row


def test_enter_and_space_sort(page):
    button = head(page, "Count")
    button.send_keys(Keys.ENTER)
    assert column(page, 1) == ["2", "9", "10", "100"]
    assert button.find_element(By.XPATH, "..").get_attribute("aria-sort") == "ascending"
    button.send_keys(Keys.SPACE)
    assert column(page, 1) == ["100", "10", "9", "2"]
    assert button.find_element(By.XPATH, "..").get_attribute("aria-sort") == "descending"


def test_button_switches_to_dark_and_is_remembered(page, file):
    soon(page, lambda: background(page) == LIGHT)
    page.find_element(By.ID, "theme").click()
    soon(page, lambda: background(page) == DARK)
    reload_until(page, file, lambda: background(page) == DARK)
    soon(page, lambda: page.find_element(By.ID, "theme").text == "Light page")
    page.find_element(By.ID, "theme").click()
    soon(page, lambda: background(page) == LIGHT)
    prefer(page, "dark")
    soon(page, lambda: page.execute_script("return matchMedia('(prefers-color-scheme: dark)').matches"))
    assert background(page) == LIGHT  # what was chosen goes before what the system prefers


def test_dark_where_the_system_prefers_it_and_light_on_paper(page):
    prefer(page, "dark")
    soon(page, lambda: background(page) == DARK)
    soon(page, lambda: page.find_element(By.ID, "theme").text == "Light page")
    prefer(page, "dark", media="print")
    soon(page, lambda: background(page) == LIGHT)
    assert not page.find_element(By.ID, "theme").is_displayed()


def test_on_paper_a_wide_map_fits_and_shows_its_intervals(page, file):
    screen(page, 718)  # A4 with usual margins
    page.get(file)
    prefer(page, "light", media="print")
    soon(page, lambda: page.execute_script("return matchMedia('print').matches"))
    table = page.find_element(By.CSS_SELECTOR, "[aria-label=Matrix] table")
    assert table.rect["x"] + table.rect["width"] <= 718
    assert table.find_element(By.TAG_NAME, "small").text == f"{MINUS}0.010 to 0.020"
    assert not any(line.is_displayed() for line in page.find_elements(By.CLASS_NAME, "swipe"))


def test_button_works_where_storage_is_refused(page, file):
    refuse = "Object.defineProperty(window, 'localStorage', { get() { throw new Error('refused'); } })"
    added = page.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": refuse})
    try:
        page.get(file)
        page.find_element(By.ID, "theme").click()
        assert background(page) == DARK
    finally:
        page.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_value_in_a_heat_map_can_be_read(page, theme):
    prefer(page, theme)
    soon(page, lambda: background(page) == (DARK if theme == "dark" else LIGHT))
    lowest = page.execute_script("""
        const light = (text) => text.match(/[0-9.]+/g).slice(0, 3).map(c => c / 255)
            .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
            .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
        const ratio = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        const cells = [...document.querySelectorAll('.heat td:not(.none)')].map(td => getComputedStyle(td));
        return Math.min(...cells.map(style => ratio(light(style.color), light(style.backgroundColor))));""")
    assert lowest >= 4.5


@pytest.mark.parametrize("width", [360, 480, 800, 1280])
def test_page_is_no_wider_than_the_screen(page, file, width):
    screen(page, width)
    page.get(file)
    assert page.execute_script("return innerWidth") == width
    assert page.execute_script("return document.documentElement.scrollWidth") <= width
    # Nothing but what scrolls by itself reaches past the edge.
    outside = page.execute_script("""
        return [...document.querySelectorAll('body *')].filter(e => !e.closest('.scroll') && !e.closest('svg')
            && e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 80));""")
    assert outside == []


def test_a_map_of_twelve_environments_needs_no_scrolling(page, tmp_path):
    values = np.random.default_rng(0).random((12, 12))
    names = [f"University hospital {i}" for i in range(12)]
    maps = [Heatmap(title, names, names, values, low=values / 2, high=2 * values) for title in ("Loss", "More")]
    (tmp_path / "twelve.html").write_text(
        render_page(Page("Twelve", (), [Group("Maps", maps)], {}, "")), encoding="utf-8"
    )
    page.get((tmp_path / "twelve.html").as_uri())
    for region in page.find_elements(By.CLASS_NAME, "scroll"):
        assert page.execute_script("return arguments[0].scrollWidth <= arguments[0].clientWidth", region)
        assert not region.find_element(By.XPATH, "following-sibling::p").is_displayed()
    cell = page.find_element(By.CSS_SELECTOR, ".heat td")
    page.execute_script("arguments[0].focus()", cell)
    interval = cell.find_element(By.TAG_NAME, "small").rect  # in the cell, and below the value
    value = page.execute_script(
        """
        const range = document.createRange(); range.selectNode(arguments[0].firstChild);
        return range.getBoundingClientRect().bottom + scrollY;""",
        cell,
    )
    assert value <= interval["y"] + 1
    assert interval["y"] + interval["height"] <= cell.rect["y"] + cell.rect["height"]


def test_what_is_wider_than_a_phone_can_be_scrolled_by_keyboard(page, file):
    screen(page, 360)
    page.get(file)
    region = page.find_element(By.CSS_SELECTOR, "[aria-label=Matrix]")
    assert page.execute_script("return arguments[0].scrollWidth > arguments[0].clientWidth", region)
    assert region.get_attribute("tabindex") == "0"
    assert region.find_element(By.XPATH, "following-sibling::p").is_displayed()


def test_everything_is_reached_by_the_tabulator_and_shows_it(page):
    reached = page.execute_script("return document.querySelectorAll('a, button').length")
    seen = []
    for _ in range(reached + 20):
        page.switch_to.active_element.send_keys(Keys.TAB)
        here = page.execute_script("""
            const e = document.activeElement, style = getComputedStyle(e);
            return e === document.body ? null : [e.tagName, e.textContent.trim(), style.outlineStyle];""")
        if here is None:
            break
        seen.append(here)
    assert [tag for tag, *_ in seen].count("BUTTON") == 1 + 4 + len(HOSTILE)  # the theme, two tables
    assert [tag for tag, *_ in seen].count("A") == 9
    assert [tag for tag, *_ in seen].count("TD") == 1  # one stop for the heat map with intervals
    assert {outline for *_, outline in seen} == {"solid"}


def test_arrows_walk_through_a_heat_map_and_show_intervals(page):
    first = page.find_element(By.CSS_SELECTOR, "[aria-label=Matrix] td[tabindex='0']")
    small = "return getComputedStyle(document.activeElement.querySelector('small')).opacity"
    assert page.execute_script("return getComputedStyle(arguments[0].querySelector('small')).opacity", first) == "0"
    page.execute_script("arguments[0].focus()", first)
    assert page.execute_script(small) == "1"
    first.send_keys(Keys.ARROW_RIGHT)  # over the cell that has no value
    here = page.switch_to.active_element
    assert (here.text.split("\n")[0], page.execute_script(small)) == ("0.031", "1")
    assert here.find_element(By.TAG_NAME, "small").text == "0.021 to 0.051"
    assert here.get_attribute("title").endswith(": 0.031 (0.021 to 0.051)")
    here.send_keys(Keys.ARROW_DOWN)
    assert page.switch_to.active_element.text.startswith("0.156")


def test_names_that_mean_harm_are_shown_and_do_nothing(page):
    assert page.execute_script("return document.querySelectorAll('script').length") == 1
    assert page.execute_script("return [...document.images].map(i => i.src.slice(0, 10))") == ["data:image"]
    assert page.execute_script("return document.querySelectorAll('[onerror], [onfocus]').length") == 0
    assert page.execute_script("return document.querySelectorAll('h1').length") == 1
    texts = page.execute_script("return document.body.textContent")
    assert all(texts.count(name) > 5 for name in HOSTILE)
    labels = page.execute_script("return [...document.querySelectorAll('svg')].map(s => s.getAttribute('aria-label'))")
    assert all(any(name in label for label in labels) for name in HOSTILE)
    heads = page.execute_script("return [...document.querySelectorAll('.heat thead th[title]')].map(th => th.title)")
    assert tuple(heads[: len(HOSTILE)]) == HOSTILE
    exceptions = pytest.importorskip("selenium.common.exceptions")
    with pytest.raises(exceptions.NoAlertPresentException):
        page.switch_to.alert.accept()


def test_nothing_is_requested_and_the_console_is_silent(page, file):
    page.get_log("browser"), page.get_log("performance")  # what came before
    page.get(file)
    for button in page.find_elements(By.CSS_SELECTOR, "button"):
        button.click()
    assert page.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]
    sent = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert file in sent
    assert [url for url in sent if url != file and not url.startswith("data:")] == []


def test_page_is_whole_without_script(page, file):
    page.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        page.get(file)
        assert not page.find_element(By.ID, "theme").is_displayed()
        assert page.find_elements(By.CSS_SELECTOR, "th button") == []
        table = page.find_element(By.CSS_SELECTOR, "[aria-label=Numbers] tbody").text
        assert table.split()[:5] == ["b", "10", "0.50", "90.0", "±"]
        assert page.find_element(By.CSS_SELECTOR, "svg.drawn").is_displayed()
        cell = page.find_element(By.CSS_SELECTOR, "td[tabindex='0']")
        cell.click()
        assert cell.find_element(By.TAG_NAME, "small").text == f"{MINUS}0.010 to 0.020"
    finally:
        page.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_on_a_phone_names_of_rows_stay_beside_the_numbers_and_strips_stand_in_a_grid(browser, tmp_path):
    names = ["beyond the mean of the first, delta 0.5, dimension 4", "TRM"]
    table = Table("T", ["Method", *"abcdefgh"], [[name, *[0.123] * 8] for name in names], digits=3)
    strip = np.zeros((10, 2, 8, 8, 3), np.uint8)
    pictures = Pictures("P", {"train 1": strip, "train 2": strip, "test": strip})
    path = tmp_path / "page.html"
    path.write_text(render_page(Page("p", (), (table, pictures), {}, "")), encoding="utf-8")
    across = "return [...document.querySelectorAll('figure')].map(f => Math.round(f.getBoundingClientRect().left))"
    screen(browser, 1280)
    browser.get(path.as_uri())
    assert len(set(browser.execute_script(across))) == 3
    screen(browser, 390)
    browser.get(path.as_uri())
    assert len(set(browser.execute_script(across))) == 1
    browser.execute_script("document.querySelector('.scroll').scrollLeft = 1000")
    name, first, seen = browser.execute_script(
        "const rows = document.querySelector('.numbers tbody').rows, box = c => c.getBoundingClientRect();"
        "return [box(rows[0].cells[0]), box(rows[0].cells[8]), rows[0].cells[0].querySelector('.clamp')]"
        ".map((b, i) => i < 2 ? [b.left, b.right] : b.scrollHeight <= b.clientHeight + 1)"
    )
    assert name[0] >= 0
    assert name[1] < 390 / 2
    assert name[1] <= first[0]
    assert first[1] <= 390
    assert seen  # the whole name
