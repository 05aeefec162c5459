"""A headless Chromium for tests of pages: what a reader does, and what the browser says of it.

By itself it takes a picture: browser.py PAGE PICTURE. The browser is spoken to through a pipe, in
the DevTools protocol, with the standard library alone.
"""

import base64
import json
import os
import pathlib
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome-stable",
         "google-chrome")
FLAGS = ("--headless", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu",
         "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars",
         "--disable-background-networking", "--disable-component-update", "--disable-sync")
PATIENCE = 60  # seconds that an answer may take, on a busy machine


def find():
    """The path of a browser, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One page. `problems` is what its console complained of, `requests` every address it asked
    for, `blocked` why some of them were not even sent.
    """

    def __init__(self, path, profile):
        to_it, out = os.pipe()
        back, from_it = os.pipe()
        # It reads from descriptor 3 and writes to 4.
        self.process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{to_it} 4>&{from_it}', "browser", path, *FLAGS,
             f"--user-data-dir={profile}", "about:blank"], pass_fds=(to_it, from_it),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True)
        os.close(to_it)
        os.close(from_it)
        self.out, self.back, self.read, self.number = out, back, b"", 0
        self.session, self.problems, self.requests = None, [], []
        self.blocked, self.events = [], []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def close(self):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.out)
        os.close(self.back)

    def receive(self, until):
        while b"\0" not in self.read:
            if not select.select([self.back], [], [], max(0, until - time.monotonic()))[0]:
                raise TimeoutError("the browser does not answer")
            piece = os.read(self.back, 1 << 20)
            if not piece:
                raise ConnectionError(f"the browser ended, {self.process.wait()}")
            self.read += piece
        message, _, self.read = self.read.partition(b"\0")
        return json.loads(message)

    def note(self, event):
        method, what = event["method"], event.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(what["request"]["url"])
        elif method == "Network.loadingFailed":
            self.blocked.append(what.get("blockedReason"))
        elif method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(what["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled":
            self.problems.append(json.dumps(what["args"]))
        elif method == "Log.entryAdded":
            self.problems.append(what["entry"]["text"])
        elif method == "Page.javascriptDialogOpening":
            self.problems.append(f"dialog: {what['message']}")
        self.events.append(method)

    def send(self, method, **params):
        """Its answer; what else it says by then is noted."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.out, data):]
        until = time.monotonic() + PATIENCE
        while True:
            answer = self.receive(until)
            if answer.get("id") == self.number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            if "method" in answer:
                self.note(answer)

    def js(self, expression):
        """The value of an expression in the page, awaited where it is a promise."""
        answer = self.send("Runtime.evaluate", expression=expression, awaitPromise=True,
                           returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def until(self, condition):
        """Waits, frame by frame, for an expression to hold."""
        self.js("new Promise((done) => { const look = () => (" + condition +
                ") ? done() : requestAnimationFrame(look); look(); })")

    def spent(self):
        """Seconds of processor time that the page has taken so far: scripts, layout and paint.
        Other work of the machine does not count."""
        self.send("Performance.enable", timeDomain="threadTicks")
        metrics = self.send("Performance.getMetrics")["metrics"]
        return next(one["value"] for one in metrics if one["name"] == "TaskDuration")

    def drawn(self):
        """Returns when what has changed is on the screen."""
        self.js("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def open(self, path, width=1280, height=900, dark=False, phone=False):
        self.problems, self.requests, self.blocked, self.events = [], [], [], []
        self.send("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=phone)
        self.send("Page.navigate", url=path.as_uri())
        until = time.monotonic() + PATIENCE
        while "Page.loadEventFired" not in self.events:
            self.note(self.receive(until))

    def click(self, selector):
        """With the mouse, in the middle of the first element that fits."""
        box = self.js(f"""(() => {{
            const element = document.querySelector({json.dumps(selector)});
            element.scrollIntoView({{block: "center"}});
            const {{x, y, width, height}} = element.getBoundingClientRect();
            return [x + width / 2, y + height / 2];
        }})()""")
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left",
                      clickCount=1)

    def press(self, key, code=None):
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=code or key,
                      windowsVirtualKeyCode={"Enter": 13, "Escape": 27, "Tab": 9}.get(key, 0))

    def choose(self, selector, value):
        """Of a list, or in a field, as a reader who is done with it."""
        self.js(f"""(() => {{
            const element = document.querySelector({json.dumps(selector)});
            element.value = {json.dumps(value)};
            element.dispatchEvent(new Event("input", {{bubbles: true}}));
            element.dispatchEvent(new Event("change", {{bubbles: true}}));
        }})()""")

    def screenshot(self, path, whole=True, height=None):
        """Of the whole page, or of its first `height` pixels."""
        clip = {}
        if whole or height:
            size = self.send("Page.getLayoutMetrics")["cssContentSize"]
            clip = {"clip": {"x": 0, "y": 0, "width": size["width"],
                             "height": min(height or 12000, size["height"]), "scale": 1}}
        answer = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=True,
                           **clip)
        path.write_bytes(base64.b64decode(answer["data"]))


def main(page, picture):
    path = find()
    if path is None:
        sys.exit("browser.py: no Chromium, so no picture; scripts/deps.sh brings one to Debian")
    with tempfile.TemporaryDirectory() as profile:
        browser = Browser(path, profile)
        try:
            browser.open(pathlib.Path(page).resolve(), width=1100)
            browser.screenshot(pathlib.Path(picture))
        finally:
            browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
