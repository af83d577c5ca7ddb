# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium, driven over a pipe by the DevTools protocol: no package is needed.

    with Browser(find_chromium()) as browser:
        page = browser.open("file:///tmp/page.html", 1200, 800)
        page.evaluate("document.title")
        page.move(100, 100)
        png = page.screenshot()
        assert not page.errors
"""
import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time


def find_chromium():
    """The program's path, or None."""
    for name in (os.environ.get("CHROMIUM", ""), "chromium", "chromium-browser", "google-chrome", "chrome",
                 "headless_shell"):
        path = shutil.which(name) if name else None
        if path:
            return path
    return None


class Browser:
    """The program; messages are JSON, each ended by a zero byte, on its descriptors 3 and 4."""

    def __init__(self, program):
        self.profile = tempfile.TemporaryDirectory(prefix="hbm-replay-page-")
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        # The child's descriptors 3 and 4; a shell puts them there whatever numbers they have here.
        command = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
        flags = ["--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                 "--no-first-run", "--disable-dev-shm-usage", f"--user-data-dir={self.profile.name}", "about:blank"]
        self.process = subprocess.Popen(["bash", "-c", command, "bash", program, *flags],
                                        pass_fds=(to_browser, from_browser), stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(from_browser)
        self._buffer = b""
        self._next = 0
        self.pages = {}  # session -> Page

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            self.call("Browser.close", timeout=10)
            self.process.wait(timeout=10)
        except (RuntimeError, OSError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        os.close(self._write)
        os.close(self._read)
        self.profile.cleanup()

    def _receive(self, until):
        """One message, or None once `until` is past."""
        while b"\0" not in self._buffer:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self._read], [], [], left)[0]:
                return None
            got = os.read(self._read, 1 << 20)
            if not got:
                raise RuntimeError("the browser ended")
            self._buffer += got
        text, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(text)

    def call(self, method, session=None, timeout=60, **parameters):
        self._next += 1
        number = self._next
        message = {"id": number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + timeout
        while True:
            got = self._receive(until)
            if got is None:
                raise RuntimeError(f"{method}: no answer within {timeout} s")
            if got.get("id") == number:
                if "error" in got:
                    raise RuntimeError(f"{method}: {got['error']}")
                return got["result"]
            self._note(got)

    def _note(self, event):
        page = self.pages.get(event.get("sessionId"))
        if page is not None:
            page.note(event["method"], event["params"])

    def open(self, url, width, height):
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self.pages[session] = Page(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        page.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        page.call("Page.navigate", url=url)
        return page


class Page:
    """One tab. `errors` holds what its console and its scripts complained of, `requests` what it fetched."""

    def __init__(self, browser, session):
        self.browser, self.session = browser, session
        self.errors, self.requests = [], []

    def call(self, method, **parameters):
        return self.browser.call(method, session=self.session, **parameters)

    def note(self, method, parameters):
        if method == "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.errors.append(str(parameters["args"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.errors.append(parameters["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])

    def evaluate(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait_for(self, expression, seconds=30):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            value = self.evaluate(expression)
            if value:
                return value
            time.sleep(0.02)
        raise RuntimeError(f"{expression}: not within {seconds} s; {self.errors}")

    def settle(self):
        """Waits until what was asked for has been drawn."""
        self.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))")

    def mouse(self, kind, x, y, **more):
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def move(self, x, y):
        self.mouse("mouseMoved", x, y)
        self.settle()

    def drag(self, x0, y0, x1, y1):
        self.mouse("mouseMoved", x0, y0)
        self.mouse("mousePressed", x0, y0, button="left", buttons=1, clickCount=1)
        self.mouse("mouseMoved", (x0 + x1) / 2, (y0 + y1) / 2, button="left", buttons=1)
        self.mouse("mouseMoved", x1, y1, button="left", buttons=1)
        self.mouse("mouseReleased", x1, y1, button="left", clickCount=1)
        self.settle()

    def wheel(self, x, y, turn, shift=False):
        self.mouse("mouseWheel", x, y, deltaX=0, deltaY=turn, modifiers=8 if shift else 0)
        self.settle()

    def screenshot(self):
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])
