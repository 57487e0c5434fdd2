"""Checks the built site in headless Chromium: nothing scrolls sideways on a screen of 1,300 pixels.

    python docs/site_build/page_widths.py build/site

Prints every page that is wider than the window, and every table or block of code that is wider than
its column. Without the programs chromium and chromedriver, it prints a message and checks nothing.
"""

import contextlib
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

WIDTH = 1300
OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
# Returns the text of elements that scroll sideways, and of code in tables that has several lines.
SCRIPT = """
const wide = element => element.scrollWidth > element.clientWidth;
const start = element => element.textContent.trim().slice(0, 60);
const found = [];
const page = document.documentElement;
if (wide(page)) found.push(`page: ${page.scrollWidth} of ${page.clientWidth} pixels`);
for (const element of document.querySelectorAll("pre > code, .md-typeset__scrollwrap"))
  if (wide(element))
    found.push(`${element.scrollWidth} of ${element.clientWidth} pixels: ${start(element)}`);
for (const element of document.querySelectorAll("td code"))
  if (element.getClientRects().length > 1) found.push(`broken: ${start(element)}`);
return found;
"""


class Browser:
    """A session of chromedriver, with the protocol WebDriver."""

    def __init__(self, port: int, profile: str):
        self.address = f"http://127.0.0.1:{port}/session"
        arguments = [*OPTIONS, f"--window-size={WIDTH},900", f"--user-data-dir={profile}"]
        capabilities = {"goog:chromeOptions": {"args": arguments}}
        session = self.post("", {"capabilities": {"alwaysMatch": capabilities}})
        self.address += f"/{session['sessionId']}"
        self.post("/window/rect", {"width": WIDTH, "height": 900})

    def post(self, path: str, body: dict):
        """Returns the value of a command's response."""
        request = urllib.request.Request(self.address + path, json.dumps(body).encode())
        with urllib.request.urlopen(request) as response:
            return json.load(response)["value"]

    def problems(self, page: Path) -> list[str]:
        """Returns what is too wide on a page."""
        self.post("/url", {"url": page.as_uri()})
        return self.post("/execute/sync", {"script": SCRIPT, "args": []})


@contextlib.contextmanager
def browser(driver: str):
    """Starts chromedriver and Chromium, and ends both."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([driver, f"--port={port}"], stdout=subprocess.DEVNULL)
    try:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
            for _ in range(300):
                with contextlib.suppress(ConnectionError, urllib.error.URLError):
                    session = Browser(port, profile)
                    break
                time.sleep(0.1)
            yield session
            urllib.request.urlopen(urllib.request.Request(session.address, method="DELETE"))
    finally:
        process.terminate()
        process.wait()


def main(site: str):
    driver = shutil.which("chromedriver")
    if driver is None or not (shutil.which("chromium") or shutil.which("google-chrome")):
        print("The width of pages was not checked: chromium and chromedriver are not installed.")
        return
    pages = sorted(Path(site).resolve().rglob("*.html"))
    count = 0
    with browser(driver) as session:
        for page in pages:
            for problem in session.problems(page):
                count += 1
                print(f"{page.relative_to(Path(site).resolve())}: {problem}")
    if count:
        sys.exit(f"Expected pages that fit into {WIDTH} pixels. Received: {count} that do not.")
    print(f"{len(pages)} pages fit into {WIDTH} pixels.")


if __name__ == "__main__":
    main(sys.argv[1])
