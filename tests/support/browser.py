"""Debian's Chromium without a screen, driven by its own chromedriver; it may reach nothing but files."""

import base64
import shutil
from contextlib import contextmanager
from importlib import resources
from pathlib import Path

import pytest

OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--window-size=1280,900",
    "--host-resolver-rules=MAP * ~NOTFOUND",
)
SECONDS = 60
DESK, PHONE = (1280, 900), (390, 844)
"""Pixels of a window on a desk, and on a phone."""


class Browser:
    """A browser with one page."""

    def __init__(self, driver):
        self.driver = driver

    def open(self, path: Path, *, dark=False, paper=False, size=DESK):
        """Open a file in a window of this size, or as it is printed, and forget what the console said before."""
        media = {"features": [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media | {"media": "print" if paper else ""})
        width, height = size
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < DESK[0] // 2}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        self.driver.get_log("browser")
        self.driver.get(path.as_uri())
        return self

    def console(self):
        """Return what the console said since the page was opened."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def run(self, script, *arguments):
        """Run a script in the page and return its result."""
        return self.driver.execute_script(script, *arguments)

    def text(self, selector):
        """Return the text of the first element that a selector finds."""
        return self.run("return document.querySelector(arguments[0]).textContent", selector)

    def rows(self, selector):
        """Return the cells of each row of a table's body."""
        script = """return [...document.querySelectorAll(arguments[0] + " tbody tr")].map(
            (row) => [...row.cells].map((cell) => cell.textContent.trim()))"""
        return self.run(script, selector)

    def press(self, *keys):
        """Press keys on the element that has the focus."""
        self.driver.switch_to.active_element.send_keys(*keys)

    def details(self):
        """Return what the page says about the selected rank, by name."""
        script = """return [...document.querySelectorAll("#details dt")].map(
            (name) => [name.textContent, name.nextElementSibling.textContent])"""
        return dict(self.run(script))

    def fault_finds(self):
        """Return the serious findings of axe-core."""
        self.run(resources.files("axe_core_python").joinpath("axe.min.js").read_text("utf-8"))
        found = self.driver.execute_async_script("axe.run().then(arguments[0])")["violations"]
        return [(one["id"], one["nodes"][0]["html"][:200]) for one in found if one["impact"] in ("serious", "critical")]

    def picture(self, most=None):
        """Return the whole page as a PNG, or so many pixels of its height."""
        high = self.run("return document.documentElement.scrollHeight")
        width = self.run("return document.documentElement.clientWidth")
        clip = {"x": 0, "y": 0, "width": width, "height": min(high, most or high), "scale": 1}
        options = {"format": "png", "captureBeyondViewport": True, "clip": clip}
        return base64.b64decode(self.driver.execute_cdp_cmd("Page.captureScreenshot", options)["data"])

    def printed(self):
        """Return the page as a PDF."""
        return base64.b64decode(self.driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})["data"])


@contextmanager
def open_browser(folder: Path):
    """Start a browser and end it; skip the test where there is none."""
    for program, package in (("chromium", "chromium"), ("chromedriver", "chromium-driver")):
        if shutil.which(program) is None:
            pytest.skip(f"no {program} here: apt-get install {package}")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for argument in (*OPTIONS, f"--user-data-dir={folder / 'profile'}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(shutil.which("chromedriver"), log_output=str(folder / "chromedriver.log"))
    driver = webdriver.Chrome(options=options, service=service)
    try:
        driver.set_page_load_timeout(SECONDS)
        driver.set_script_timeout(SECONDS)
        yield Browser(driver)
    finally:
        driver.quit()
