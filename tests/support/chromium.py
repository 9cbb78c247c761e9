"""A headless Chromium, where the machine has one with its driver."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["Browser", "chromium_missing", "open_browser"]

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)
SECONDS = 30.0  # to wait for what must come

Box = dict[str, float]


def chromium_missing() -> str | None:
    """Return why there is no browser to test with, or None if there is one."""
    for program in ("chromium", "chromedriver"):
        if shutil.which(program) is None:
            return (
                f"{program} is not on the PATH (on Debian: apt-get install chromium "
                "chromium-driver)"
            )
    return None


class Browser:
    """A page of Chromium, and what the tests do with it."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, url: str) -> None:
        self.driver.get(url)

    def script(self, code: str, *arguments: Any) -> Any:
        """Return what a function body in JavaScript returns."""
        return self.driver.execute_script(code, *arguments)

    def wait(self, code: str, what: str, seconds: float = SECONDS) -> Any:
        """Return the value of an expression in JavaScript as soon as it is true."""
        from selenium.common.exceptions import TimeoutException
        from selenium.webdriver.support.ui import WebDriverWait

        try:
            return WebDriverWait(self.driver, seconds, 0.1).until(
                lambda _: self.script(f"return {code}")
            )
        except TimeoutException:
            status, notice = self.text("status-text"), self.text("notice-text")
            raise AssertionError(
                f"waited for {what} in vain; status {status!r}, notice {notice!r}"
            ) from None

    def text(self, identity: str) -> str:
        return str(
            self.script("return document.getElementById(arguments[0]).textContent", identity)
        )

    def click(self, identity: str) -> None:
        self.driver.find_element("id", identity).click()

    def keys(self, identity: str, *keys: str) -> None:
        self.driver.find_element("id", identity).send_keys(*keys)

    def choose(self, identity: str, value: str) -> None:
        """Choose an option of a select."""
        from selenium.webdriver.support.ui import Select

        Select(self.driver.find_element("id", identity)).select_by_value(value)

    def draw(self, identity: str, stroke: list[tuple[float, float]]) -> None:
        """Draw a line with the mouse, through places from 0 to 1 of an element."""
        from selenium.webdriver.common.action_chains import ActionChains

        element = self.driver.find_element("id", identity)
        width, height = element.size["width"], element.size["height"]
        places = [
            (math.floor((x - 0.5) * width), math.floor((y - 0.5) * height)) for x, y in stroke
        ]
        actions = ActionChains(self.driver, duration=10)
        actions.move_to_element_with_offset(element, *places[0]).click_and_hold()
        for place in places[1:]:
            actions.move_to_element_with_offset(element, *place)
        actions.release().perform()

    def resize(self, width: int, height: int) -> None:
        """Let the page have a viewport of this size, in CSS pixels."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        self.frames()

    def colours(self, scheme: str) -> None:
        """Prefer 'light' or 'dark'."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        self.frames()

    def frames(self) -> None:
        """Wait until the page has been drawn as it is now."""
        self.driver.execute_async_script(
            "requestAnimationFrame(() => requestAnimationFrame(() => arguments[0]()))"
        )

    def screenshot(self, path: Path) -> None:
        self.frames()
        path.parent.mkdir(parents=True, exist_ok=True)
        self.driver.save_screenshot(str(path))

    def console(self) -> list[str]:
        """Return the errors and warnings that the console has got since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser")]


@contextmanager
def open_browser(folder: Path) -> Iterator[Browser]:
    """Start Chromium with a new, empty profile in `folder`; nothing is downloaded."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in (*FLAGS, f"--user-data-dir={folder}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, Service(shutil.which("chromedriver")))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
