"""A page in a real browser: Debian's chromium without a window, spoken to through a pipe (the DevTools protocol).

Nothing but the browser is needed. Messages are JSON with a zero byte behind each; the browser reads them from
descriptor 3 and writes to 4.
"""

import base64
import fcntl
import json
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
QUIET = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-sync"
QUIET += " --disable-component-update --disable-dev-shm-usage --hide-scrollbars --remote-debugging-pipe"
LAUNCH = (
    "import os, sys; a, b = map(int, sys.argv[1:3]); os.dup2(a, 3); os.dup2(b, 4); os.execv(sys.argv[3], sys.argv[3:])"
)


class Page:
    """A tab that keeps what it hears: requests, messages of the console, errors."""

    def __init__(self, write, read):
        self.write, self.read, self.number, self.heard = write, read, 0, []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = None
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.ask(f"{domain}.enable")

    def ask(self, method, **params):
        """The answer to a command."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if getattr(self, "session", None):
            message["sessionId"] = self.session
        self.write.write(json.dumps(message).encode() + b"\0")
        self.write.flush()
        return self.until(lambda said: said.get("id") == self.number)["result"]

    def until(self, wanted):
        """The first message that is wanted; the others are kept."""
        while True:
            text = bytearray()
            while (byte := self.read.read(1)) != b"\0":
                if not byte:
                    raise EOFError("the browser has gone")
                text += byte
            said = json.loads(text)
            if "error" in said:
                raise RuntimeError(said["error"])
            if wanted(said):
                return said
            self.heard.append(said)

    def open(self, path: Path, width: int, height: int = 900, dark: bool = False):
        """Show a file at a width, and wait until all of it is there."""
        self.heard.clear()
        self.ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])
        self.ask("Page.navigate", url=path.absolute().as_uri())
        loaded = "Page.loadEventFired"
        if not any(said.get("method") == loaded for said in self.heard):
            self.until(lambda said: said.get("method") == loaded)

    def value(self, expression):
        """What an expression is on the page."""
        return self.ask("Runtime.evaluate", expression=expression, returnByValue=True)["result"]["value"]

    def asked_for(self):
        """The addresses that were requested, but those that are their own content."""
        urls = [s["params"]["request"]["url"] for s in self.heard if s.get("method") == "Network.requestWillBeSent"]
        return [url for url in urls if not url.startswith("data:")]

    def complaints(self):
        """What the browser or the page complained of."""
        kinds = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded", "Network.loadingFailed")
        return [said for said in self.heard if said.get("method") in kinds]

    def photograph(self, path: Path):
        """The whole page as a PNG."""
        data = self.ask("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(data))


@contextmanager
def browser(profile: Path):
    """A page of a browser with a profile of its own, which is gone afterwards."""
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    passed = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (to_read, from_write)]
    command = [sys.executable, "-c", LAUNCH, *map(str, passed), CHROMIUM, *QUIET.split(), f"--user-data-dir={profile}"]
    with subprocess.Popen(
        command, pass_fds=passed, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        for end in (to_read, from_write, *passed):
            os.close(end)
        with open(to_write, "wb") as write, open(from_read, "rb") as read:
            try:
                page = Page(write, read)
                yield page
                page.session = None
                page.ask("Browser.close")
            finally:
                process.terminate()
