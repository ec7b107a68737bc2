"""A headless Chromium driven over WebDriver (w3.org/TR/webdriver2), with real key presses."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.request import Request, urlopen

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))),
    None,
)
DRIVER = shutil.which("chromedriver")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
LEFT, RIGHT, HOME, END, TAB, SPACE = "\ue012", "\ue014", "\ue011", "\ue010", "\ue004", "\ue00d"
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"


class Browser:
    """One page of one browser."""

    def __init__(self, port: int, profile: str, size: tuple[int, int]) -> None:
        self.root = f"http://127.0.0.1:{port}/session"
        options = {
            "binary": CHROMIUM,
            "args": [*FLAGS, f"--user-data-dir={profile}", f"--window-size={size[0]},{size[1]}"],
        }
        wanted = {
            "alwaysMatch": {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        }
        self.root += "/" + self._post("", capabilities=wanted)["sessionId"]

    def _post(self, path: str, **body: object) -> Any:  # noqa: ANN401  (any JSON)
        data = json.dumps(body).encode()
        request = Request(self.root + path, data, {"Content-Type": "application/json"})
        with urlopen(request, timeout=30) as reply:
            return json.load(reply)["value"]

    def open(self, url: str) -> None:
        self._post("/url", url="about:blank")
        self._post("/url", url=url)

    def run(self, script: str) -> Any:  # noqa: ANN401  (any JSON)
        """What a script returns."""
        return self._post("/execute/sync", script=script, args=[])

    def press(self, css: str, keys: str) -> None:
        """Types keys into the element."""
        element = self._post("/element", using="css selector", value=css)[ELEMENT]
        self._post(f"/element/{element}/value", text=keys)

    def click(self, css: str) -> None:
        element = self._post("/element", using="css selector", value=css)[ELEMENT]
        self._post(f"/element/{element}/click")

    def dark(self) -> None:
        """Prefers dark from here on."""
        scheme = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
        self._post("/goog/cdp/execute", cmd="Emulation.setEmulatedMedia", params=scheme)

    def resize(self, width: int, height: int) -> None:
        """The size of the page as a phone or a screen shows it."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self._post("/goog/cdp/execute", cmd="Emulation.setDeviceMetricsOverride", params=size)

    def errors(self) -> list[str]:
        """What the console holds of severe messages: script errors, blocked requests."""
        entries = self._post("/se/log", type="browser")
        return [entry["message"] for entry in entries if entry["level"] == "SEVERE"]

    def close(self) -> None:
        urlopen(Request(self.root, method="DELETE"), timeout=30).close()


@contextmanager
def browser(size: tuple[int, int] = (1280, 900)) -> Iterator[Browser]:
    """A browser with a new, empty profile, ended with the context."""
    assert DRIVER is not None
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,
        subprocess.Popen([DRIVER, "--port=0"], stdout=subprocess.PIPE, text=True) as driver,
    ):
        try:
            assert driver.stdout is not None
            ports = (re.search(r"on port (\d+)\.", line) for line in driver.stdout)
            port = next(int(match[1]) for match in ports if match)
            page = Browser(port, profile, size)
            try:
                yield page
            finally:
                page.close()
        finally:
            driver.terminate()


def rendered(url: str) -> str:
    """The markup of a page once its script has run, by Chromium alone."""
    assert CHROMIUM is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}"]
        more = ["--virtual-time-budget=5000", "--dump-dom", url]
        shown = subprocess.run([*command, *more], capture_output=True, text=True, timeout=60)
    return shown.stdout
